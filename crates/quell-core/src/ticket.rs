//! Ticket: a charge that can be given back for a moment, without a hold.
//!
//! A hold is kept in the state of its key: every call on the key visits it, and their number is bounded.
//! A set that is partly decided elsewhere needs less: its charge counts at once, and only its caller can
//! give it back. So the caller keeps the mark of the charge, and nothing is added to the state.
//!
//! A refund gives back what still counts of the charge (see `algorithm/refund.rs`). A mark says nothing
//! of a bucket's warm-up and of counts under other versions of the limit. Those are restored if nobody
//! else charged the key in between.
//!
//! Known fault: refunds on one bucket that overlap. A hold moves when an earlier one is given back, a
//! ticket does not. If the bucket was at rest in between, at most what it refills between a charge and
//! its refund is given back a second time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::algorithm::{At, Engine, Mechanics};
use crate::charge::{Entry, Operation, decide};
use crate::decision::Decision;
use crate::hold::Mark;
use crate::limit::{Limit, LimitId};
use crate::state::State;
use crate::time::Now;

/// The largest state that is remembered as it was before, in bytes on the heap.
const MAX_REMEMBERED: usize = 4_096;

/// A charge on one key, so that it can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    limit: LimitId,
    mark: Mark,
    units: u64,
    /// The state before the charge and after it.
    states: Option<Box<(State, State)>>,
}

/// Decides a whole set as [`decide`] does for [`Operation::Acquire`]; with a ticket for each charge that
/// was made.
pub fn charge(now: Now, entries: &mut [Entry<'_, '_>]) -> (Vec<Decision>, Vec<Option<Ticket>>) {
    let before: Vec<_> = entries.iter().map(remembered).collect();
    let decisions = decide(now, Operation::Acquire, entries);
    let mut each = entries.iter().zip(&decisions);
    let passes = each.all(|(entry, one)| one.outcome.is_allow() || entry.charge.shadow);
    let each = entries.iter().zip(&decisions).zip(before);
    let tickets = each.map(|((entry, decision), before)| {
        (passes && decision.outcome.is_allow()).then(|| Ticket {
            limit: entry.charge.active.id,
            mark: mark(entry, now),
            units: entry.charge.cost.get(),
            states: before.map(|before| Box::new((before, entry.state.clone()))),
        })
    });
    let tickets = tickets.collect();
    (decisions, tickets)
}

/// The state as it is, where a mark would not bring it back.
fn remembered(entry: &Entry<'_, '_>) -> Option<State> {
    let engine = entry.charge.active.limit.engine();
    let warms_up = matches!(engine, Engine::Token(engine) if engine.warm_up().is_some());
    let is_small = entry.state.holds.is_none() && entry.state.heap_bytes() <= MAX_REMEMBERED;
    ((warms_up || entry.state.versions.is_some()) && is_small).then(|| entry.state.clone())
}

fn mark(entry: &Entry<'_, '_>, now: Now) -> Mark {
    let engine = entry.charge.active.limit.engine();
    engine.mark(&entry.state.usage, &entry.charge.at(now))
}

impl Ticket {
    /// Gives back what still counts of the charge. Nothing if `state` is charged under another limit than
    /// it was then.
    pub fn refund(&self, state: &mut State, limit: &Limit, at: &At) {
        if state.limit != self.limit {
            return;
        }
        if let Some(states) = &self.states
            && states.1 == *state
        {
            *state = states.0.clone();
            return;
        }
        let engine = limit.engine();
        state.settle(limit, at);
        match &mut state.holds {
            Some(holds) => holds.give_back(&mut state.usage, engine, &self.mark, self.units, at),
            None => {
                engine.give_back(&mut state.usage, &self.mark, self.units, at);
            }
        }
        engine.settle(&mut state.usage, at);
    }
}
