//! Decide: all limits of a set are charged, or none is.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Charge, Operation};
use crate::algorithm::{Engine, Mechanics, each};
use crate::ban::Ban;
use crate::cost::Cost;
use crate::decision::{Decision, Outcome, RetryAfter};
use crate::state::State;
use crate::time::Now;
use crate::usage::Usage;

/// A charge with the state of its key.
#[derive(Debug)]
pub struct Entry<'a, 'r> {
    /// Charge that the entry is for.
    pub charge: &'a Charge<'r>,
    /// The key's state, charged under the same limit.
    pub state: &'a mut State,
}

/// Decides a whole set: all limits are charged or none is.
///
/// The set is denied if any limit that is not in shadow denies. A shadow limit is charged if the set
/// passes and the cost fits. A refusal charges nothing. It only settles the states (brings them to
/// `now`), and counts as a refusal under limits with a ban. [`Operation::Peek`] settles the states and
/// does nothing else, so pass copies.
pub fn decide(now: Now, operation: Operation, entries: &mut [Entry<'_, '_>]) -> Vec<Decision> {
    let judged = entries
        .iter_mut()
        .map(|entry| judge(&*entry.charge.active.limit.engine(), now, entry));
    let judged: Vec<Judgement> = judged.collect();
    let mut each = entries.iter().zip(&judged);
    let set = SetOutcome {
        passes: each
            .clone()
            .all(|(entry, judged)| judged.outcome.is_allow() || entry.charge.shadow),
        is_within: each.all(|(entry, judged)| judged.is_within() || entry.charge.shadow),
    };
    entries
        .iter_mut()
        .zip(judged)
        .map(|(entry, judged)| {
            let engine = &*entry.charge.active.limit.engine();
            conclude(engine, now, operation, set, entry, judged)
        })
        .collect()
}

/// Decides a set of one charge as [`decide`] does, without allocating.
pub fn decide_one(now: Now, operation: Operation, entry: &mut Entry<'_, '_>) -> Decision {
    let engine = entry.charge.active.limit.engine();
    // This branches on the algorithm once; the code behind it is compiled for each algorithm.
    each!(&*engine, engine => decide_with(engine, now, operation, entry))
}

#[inline]
fn decide_with<M: Mechanics>(
    engine: &M,
    now: Now,
    operation: Operation,
    entry: &mut Entry<'_, '_>,
) -> Decision {
    let judged = judge(engine, now, entry);
    let set = SetOutcome {
        passes: judged.outcome.is_allow() || entry.charge.shadow,
        is_within: judged.is_within() || entry.charge.shadow,
    };
    conclude(engine, now, operation, set, entry, judged)
}

/// Takes back the cost of a charge: units that were charged at `charged` under the same limit, and are not
/// needed.
///
/// A bucket gets back at most what makes it full; a window only what is charged in the same window, segment
/// or entry. On a state with another limit, or with holds, nothing is taken back.
pub fn take_back(now: Now, charged: Now, entry: &mut Entry<'_, '_>) {
    let active = entry.charge.active;
    let state = &mut *entry.state;
    if state.limit != active.id || state.holds.is_some() {
        return;
    }
    let at = entry.charge.at(now);
    state.settle(&active.limit, &at);
    let units = entry.charge.units();
    active
        .limit
        .engine()
        .take_back(&mut state.usage, units, charged, &at);
}

/// Gives the cost of a charge back under a limit with an overdraft: first the units of calls that were refused in this
/// window, then those that were used. Limits without one ignore it, since they do not remember refusals: a refund of
/// a refused call would let others in. Returns whether anything was used or refused.
pub fn refund(now: Now, entry: &mut Entry<'_, '_>) -> bool {
    let limit = &entry.charge.active.limit;
    if !limit.has_overdraft() {
        return false;
    }
    entry.state.settle(limit, &entry.charge.at(now));
    let is_used = entry.state.usage != Usage::Rest;
    if is_used {
        take_back(now, now, entry);
    }
    is_used
}

/// Charges as many of `units` as fit, and none while a ban is in force; a refusal is not counted. Returns how
/// many were charged, and the decision on one unit more.
pub fn pay(now: Now, units: u64, entry: &mut Entry<'_, '_>) -> (u64, Decision) {
    let mut decide = |operation, cost| {
        let mut charge = entry.charge.clone();
        (charge.cost, charge.shadow) = (cost, false);
        let mut entry = Entry {
            charge: &charge,
            state: entry.state,
        };
        decide_one(now, operation, &mut entry)
    };
    let next = decide(Operation::Peek, Cost::ONE);
    let room = if next.outcome.is_allow() {
        next.remaining
    } else {
        0
    };
    let Some(cost) = Cost::new(units.min(room)) else {
        return (0, next);
    };
    decide(Operation::Acquire, cost);
    (cost.get(), decide(Operation::Peek, Cost::ONE))
}

/// The answers of a limit and its ban before anything is charged.
#[derive(Clone, Copy)]
struct Judgement {
    outcome: Outcome,
    banned: bool,
    /// Whether the call begins within the limit, if that has an overdraft.
    begins_within: Option<bool>,
}

impl Judgement {
    /// Returns true if the limit would have the call charged whole.
    fn is_within(self) -> bool {
        match self.begins_within {
            Some(begins_within) => begins_within && !self.banned,
            None => self.outcome.is_allow(),
        }
    }
}

/// The answer of a whole set.
#[derive(Clone, Copy)]
struct SetOutcome {
    passes: bool,
    /// True if every limit that is not in shadow would have the call charged whole.
    is_within: bool,
}

#[inline]
fn judge<M: Mechanics>(engine: &M, now: Now, entry: &mut Entry<'_, '_>) -> Judgement {
    let limit = &entry.charge.active.limit;
    let at = entry.charge.at(now);
    let state = &mut *entry.state;
    if state.versions.is_some() || state.holds.is_some() {
        state.settle(limit, &at);
    } else {
        engine.settle(&mut state.usage, &at);
    }
    let cost = entry.charge.units();
    let begins_within = engine.begins_within(&state.usage);
    let by_limit = match &state.holds {
        None => engine.check(&state.usage, &at, cost),
        Some(holds) => holds.check(&state.usage, &limit.engine(), &at, cost),
    };
    let Some(record) = state.ban.as_deref_mut() else {
        return Judgement {
            outcome: by_limit,
            banned: false,
            begins_within,
        };
    };
    Ban::clamp(record, now.monotonic);
    if let Some(ban) = limit.ban() {
        ban.settle(record, now.monotonic);
    }
    match Ban::remaining(record, now.monotonic) {
        None => Judgement {
            outcome: by_limit,
            banned: false,
            begins_within,
        },
        Some(left) => Judgement {
            outcome: Outcome::Deny(later(by_limit, left)),
            banned: true,
            begins_within,
        },
    }
}

/// The longer of the ban's remaining time and the limit's own wait.
fn later(by_limit: Outcome, left: Duration) -> RetryAfter {
    let ban = RetryAfter::After(left);
    match by_limit {
        Outcome::Allow => ban,
        Outcome::Deny(wait) => wait.max(ban),
    }
}

#[inline]
fn conclude<M: Mechanics>(
    engine: &M,
    now: Now,
    operation: Operation,
    set: SetOutcome,
    entry: &mut Entry<'_, '_>,
    judged: Judgement,
) -> Decision {
    let limit = &entry.charge.active.limit;
    let at = entry.charge.at(now);
    let state = &mut *entry.state;
    let Judgement {
        mut outcome,
        mut banned,
        begins_within,
    } = judged;
    let mut delay = Duration::ZERO;
    let units = entry.charge.units();
    let answer = |state: &State| match &state.holds {
        None => (
            engine.remaining(&state.usage, &at),
            engine.reset_after(&state.usage, &at),
        ),
        Some(holds) => holds.answer(&state.usage, &limit.engine(), &at),
    };
    // A refusal tells what was left for it.
    let mut left_before = None;
    match outcome {
        Outcome::Allow if set.passes => {
            delay = engine.delay(&state.usage, &at);
            if operation == Operation::Acquire {
                engine.take(&mut state.usage, &at, units);
                state.count(limit, &at, units);
            }
        }
        _ if operation == Operation::Acquire && begins_within.is_some() => {
            left_before = (!outcome.is_allow()).then(|| answer(state).0);
            if set.is_within && judged.is_within() {
                engine.take(&mut state.usage, &at, units);
                state.count(limit, &at, units);
            } else {
                engine.remember_refused(&mut state.usage, &at, units);
            }
        }
        Outcome::Deny(_) if operation == Operation::Acquire && !banned => {
            if let Some(ban) = limit.ban() {
                let record = state.ban.get_or_insert_default();
                if let Some(length) = ban.refuse(record, now.monotonic) {
                    outcome = Outcome::Deny(later(outcome, length));
                    banned = true;
                    state.postpone_turns(&limit.engine(), &at);
                }
            }
        }
        _ => {}
    }
    let left = if banned {
        state.banned_for(now.monotonic).unwrap_or_default()
    } else {
        Duration::ZERO
    };
    let (remaining, rest) = answer(state);
    let remaining = left_before.unwrap_or(remaining);
    Decision {
        outcome,
        limit: engine.limit_now(&state.usage),
        remaining: if banned { 0 } else { remaining },
        reset_after: rest.max(left),
        delay,
        banned,
    }
}
