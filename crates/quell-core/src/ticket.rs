//! Ticket: a charge that can be given back for a moment, without a hold.
//!
//! A hold is kept in the state of its key: every call on the key visits it, and the number of holds is
//! bounded. A set that is partly decided elsewhere needs less: its charge counts at once, and only its
//! caller can give it back. So the caller keeps the mark of the charge, and nothing is added to the
//! state.
//!
//! A refund gives back what still counts of the charge (see `algorithm/refund.rs`). A mark does not
//! contain a bucket's warm-up or the counts under other versions of the limit. Those are restored if no
//! other call charged the key in between: see [`Earlier`], which pending holds have as well.
//!
//! A part of a charge that is given back moves the marks of all charges behind it, as with holds. So the tickets
//! of a key are kept together, beside its state, for as long as their callers have them:
//!
//! ```text
//! refund of a ticket        moves the later tickets and holds
//! refund of a hold          is added up with the holds, and moves a later ticket when that is refunded
//! use that was forgiven     voids all tickets of the key
//! ```
//!
//! After each refund the bucket is as if the charge had been smaller from the start, and every mark lies
//! where it would lie then: so refunds that overlap give nothing back twice.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::algorithm::{At, Engine, Mechanics};
use crate::charge::{Entry, Operation, decide};
use crate::decision::Decision;
use crate::hold::{Hold, Mark};
use crate::limit::{Limit, LimitId};
use crate::state::State;
use crate::time::{Monotonic, Now};

/// The largest earlier state that is kept, in bytes on the heap.
const MAX_REMEMBERED: usize = 4_096;

/// A charge on one key that can be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    limit: LimitId,
    mark: Mark,
    units: u64,
    made: Monotonic,
    /// Amount that the earlier holds could give back; `None` if there were none.
    held: Option<Held>,
    /// None once an earlier charge was given back.
    earlier: Option<Earlier>,
}

/// The state of a key before a charge and after it, where a mark is not enough to restore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier(Box<(State, State)>);

impl Earlier {
    /// Charges by `work`; with what it takes to restore each state.
    pub fn note<'r, R>(
        entries: &mut [Entry<'_, 'r>],
        work: impl FnOnce(&mut [Entry<'_, 'r>]) -> R,
    ) -> (R, Vec<Option<Self>>) {
        let before: Vec<_> = entries.iter().map(remembered).collect();
        let result = work(entries);
        let each = entries.iter().zip(before);
        let each = each.map(|(entry, before)| Some(Box::new((before?, entry.state.clone()))));
        (result, each.map(|states| states.map(Self)).collect())
    }

    /// Restores the state, if nothing changed it since the charge.
    pub fn restore(self, state: &mut State) -> bool {
        let (before, after) = *self.0;
        let is_same = after == *state;
        if is_same {
            *state = before;
        }
        is_same
    }
}

/// Amount that holds give back on one key, as marks move by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    so_far: u128,
    at_most: u128,
}

/// The tickets of one key that callers have, in the order of their charges.
#[derive(Debug, Default)]
pub struct Tickets {
    /// By ascending numbers.
    all: VecDeque<(u64, Ticket)>,
}

/// Decides a whole set as [`decide`] does for [`Operation::Acquire`]; with a ticket for each charge that
/// was made.
pub fn charge(now: Now, entries: &mut [Entry<'_, '_>]) -> (Vec<Decision>, Vec<Option<Ticket>>) {
    let work = |entries: &mut [Entry<'_, '_>]| decide(now, Operation::Acquire, entries);
    let (decisions, earlier) = Earlier::note(entries, work);
    let mut each = entries.iter().zip(&decisions);
    let passes = each.all(|(entry, one)| one.outcome.is_allow() || entry.charge.shadow);
    let each = entries.iter().zip(&decisions).zip(earlier);
    let tickets = each.map(|((entry, decision), earlier)| {
        (passes && decision.outcome.is_allow()).then(|| Ticket {
            limit: entry.charge.active.id,
            mark: mark(entry, now),
            units: entry.charge.units(),
            made: now.monotonic,
            held: entry.state.holds.as_deref().map(|holds| Held {
                so_far: holds.given_back(),
                at_most: entry
                    .charge
                    .active
                    .limit
                    .engine()
                    .most_back(holds.taken_units()),
            }),
            earlier,
        })
    });
    let tickets = tickets.collect();
    (decisions, tickets)
}

/// A copy of the state, if a mark is not enough to restore it.
fn remembered(entry: &Entry<'_, '_>) -> Option<State> {
    let engine = entry.charge.active.limit.engine();
    let warms_up = matches!(&*engine, Engine::Token(engine) if engine.warm_up().is_some());
    let holds = entry.state.holds.as_deref();
    let nobody_waits = holds.is_none_or(|holds| holds.queue_len() == 0);
    let of_holds = holds.map_or(0, |holds| size_of_val::<[Hold]>(&holds.all));
    let is_small = entry.state.heap_bytes() + of_holds <= MAX_REMEMBERED;
    let is_needed = warms_up || entry.state.versions.is_some();
    (is_needed && nobody_waits && is_small).then(|| entry.state.clone())
}

fn mark(entry: &Entry<'_, '_>, now: Now) -> Mark {
    let engine = entry.charge.active.limit.engine();
    engine.mark(&entry.state.usage, &entry.charge.at(now))
}

impl Tickets {
    /// Adds the ticket of the charge that was just made; `number` is higher than all before.
    pub fn add(&mut self, number: u64, ticket: Ticket) {
        self.all.push_back((number, ticket));
    }

    /// Removes a ticket whose charge is final.
    pub fn remove(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            self.all.remove(place);
        }
    }

    /// Returns true if callers hold none any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Gives back what still counts of a charge, and removes its ticket. Nothing without one, or if
    /// `state` is charged under another limit than it was then.
    ///
    /// Cost: linear in the number of later tickets.
    pub fn refund(&mut self, number: u64, state: &mut State, limit: &Limit, at: &At) {
        let Some(place) = self.place(number) else {
            return;
        };
        let Some((_, ticket)) = self.all.remove(place) else {
            return;
        };
        let back = ticket.give_back(state, limit, at);
        for (_, later) in self.all.range_mut(place..) {
            later.mark.move_back(back);
            later.earlier = None;
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.all
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()
    }
}

impl Ticket {
    /// Gives back what still counts of the charge. Returns by how much the marks behind it move.
    fn give_back(mut self, state: &mut State, limit: &Limit, at: &At) -> u128 {
        if state.limit != self.limit {
            return 0;
        }
        let earlier = self.earlier.take();
        if earlier.is_some_and(|earlier| earlier.restore(state)) {
            return 0;
        }
        let engine = limit.engine();
        state.settle(limit, at);
        self.mark.move_back(self.given_back_by_holds(state));
        let back = engine.give_back(&mut state.usage, &self.mark, self.units, at);
        if let Some(holds) = &mut state.holds {
            holds.move_back(&self.mark, back);
        }
        engine.settle(&mut state.usage, at);
        back
    }

    /// Amount that the holds from before the charge have given back since: at least as much as they have,
    /// and exactly that if nothing was given back of later holds.
    fn given_back_by_holds(&self, state: &State) -> u128 {
        let Some(Held { so_far, at_most }) = self.held else {
            return 0;
        };
        let holds = state.holds.as_deref();
        let now = holds.and_then(|holds| holds.given_back_since(self.made));
        now.map_or(at_most, |now| now.saturating_sub(so_far))
    }
}
