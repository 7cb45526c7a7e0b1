//! End: settles, cancels, releases or renews a hold at its holder's request.

use core::mem;
use core::time::Duration;

use crate::actual::{Actual, CostOrigin};
use crate::algorithm::{At, Mechanics};
use crate::hold::{Hold, HoldId, Place};
use crate::limit::Limit;
use crate::state::{Holds, State};
use crate::usage::Usage;

/// A holder's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The real cost of each descriptor: less than charged is given back, more is owed. Permits come back.
    Settle(Actual),
    /// The call did not happen: everything is given back, including a place in the queue.
    Cancel,
    /// The call is over: permits come back, and the charge stays.
    Release,
    /// As [`Ending::Release`], but the call failed for lack of room or time: a learned ceiling
    /// falls.
    Fail,
    /// The call continues: lease and hold begin anew.
    Renew,
    /// A caller that waited continues: the charge stays, and permits are held from now on.
    Arrive,
}

impl Ending {
    /// Returns true if the ending settles a reservation of `descriptors` descriptors with another number of
    /// costs.
    #[must_use]
    pub fn has_wrong_count(&self, descriptors: usize) -> bool {
        matches!(self, Self::Settle(actual) if actual.units().len() != descriptors)
    }
}

/// Effect of an ending on one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndOutcome {
    /// True if a hold with that id was found.
    pub found: bool,
    /// True if the hold still exists.
    pub stands: bool,
    /// Time until the turn of the hold, if it still waits.
    pub wait: Option<Duration>,
    /// The first hold of the wait queue, if anything was given back.
    pub next: Option<HoldId>,
    /// Units of the real cost above the charge, as far as they count.
    pub more: u64,
}

/// Ends, or renews, the hold `id` on one key. `origin` says where the cost of the charge came from, of
/// which [`Ending::Settle`] corrects what the descriptors cost.
///
/// Without such a hold the state is only brought up to date, so an ending may be repeated. A hold
/// that still waits cannot be settled, released or renewed.
pub fn end(
    state: &mut State,
    limit: &Limit,
    at: &At,
    id: &HoldId,
    ending: &Ending,
    origin: CostOrigin,
) -> EndOutcome {
    let engine = &*limit.engine();
    state.settle(limit, at);
    let Some(holds) = &mut state.holds else {
        return EndOutcome::default();
    };
    let Some(index) = holds.all.iter().position(|hold| hold.id == *id) else {
        return EndOutcome::default();
    };
    let ended = one(&mut state.usage, holds, index, limit, at, ending, origin);
    engine.settle(&mut state.usage, at);
    engine.reconcile(&mut state.usage, holds.taken_units());
    if holds.all.is_empty() {
        state.holds = None;
    }
    state.count(limit, at, ended.more);
    ended
}

fn one(
    usage: &mut Usage,
    holds: &mut Holds,
    index: usize,
    limit: &Limit,
    at: &At,
    ending: &Ending,
    origin: CostOrigin,
) -> EndOutcome {
    let now = at.now.monotonic;
    let mut ended = EndOutcome {
        found: true,
        stands: true,
        ..EndOutcome::default()
    };
    let Some(hold) = holds.all.get_mut(index) else {
        return EndOutcome::default();
    };
    match (&mut hold.place, ending) {
        (Place::Waiting { go }, _) if *ending != Ending::Cancel => ended.wait = Some(go.since(now)),
        (Place::Taken { until, .. }, Ending::Renew) => *until = now.saturating_add(hold.keep),
        (Place::Taken { taken, until, .. }, Ending::Arrive) if !hold.passes => {
            (*taken, *until) = (now, now.saturating_add(hold.keep));
        }
        _ => {
            ended.stands = false;
            let hold = holds.all.remove(index);
            let truth = truth(&hold, ending, origin);
            let finished = finish(usage, holds, &hold, limit, at, ending, truth);
            ended.more = finished.more;
            if finished.gives_back {
                ended.next = holds.first_waiting();
            }
        }
    }
    ended
}

/// The final cost.
fn truth(hold: &Hold, ending: &Ending, origin: CostOrigin) -> u64 {
    match ending {
        Ending::Cancel => 0,
        Ending::Settle(actual) => origin.total(actual),
        _ => hold.units,
    }
}

/// Effect of the end of a hold on the usage.
struct FinishedHold {
    /// True if another caller may pass because of it.
    gives_back: bool,
    /// Units that count above those of the hold.
    more: u64,
}

/// Applies the end of a hold to the usage.
fn finish(
    usage: &mut Usage,
    holds: &mut Holds,
    hold: &Hold,
    limit: &Limit,
    at: &At,
    ending: &Ending,
    truth: u64,
) -> FinishedHold {
    let engine = &*limit.engine();
    let given_back = FinishedHold {
        gives_back: true,
        more: 0,
    };
    let Place::Taken { taken, mark, .. } = &hold.place else {
        return given_back;
    };
    if limit.lease().is_some() {
        let lasted = match ending {
            Ending::Cancel => return given_back,
            Ending::Fail => None,
            _ => Some(at.now.monotonic.since(*taken)),
        };
        engine.learn(usage, hold.units, lasted, at);
        return given_back;
    }
    let less = hold.units.saturating_sub(truth);
    holds.give_back(usage, engine, mark, less, at);
    let more = truth.saturating_sub(hold.units);
    FinishedHold {
        gives_back: less > 0,
        more: engine.owe_at(usage, mark, more, at),
    }
}

/// Forgets the use of one key, including that of its holds. Permits are held, not used: they stay,
/// and so does the wait queue.
pub fn forgive(state: &mut State, limit: &Limit, at: &At) {
    let mut kept = State::rest(state.limit);
    if state.holds.is_some() {
        // A hold whose turn has come does not wait any more.
        state.settle_use(&limit.engine(), at);
    }
    if let Some(mut holds) = state.holds.take() {
        let is_permits = limit.lease().is_some();
        holds.all.retain(|hold| is_permits || hold.is_waiting());
        if !holds.all.is_empty() {
            kept.holds = Some(holds);
        }
        if is_permits {
            kept.usage = mem::take(&mut state.usage);
        }
    }
    *state = kept;
}
