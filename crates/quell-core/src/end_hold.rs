//! End: settles, cancels, releases or renews a hold when its holder asks for it.

use core::mem;
use core::time::Duration;

use crate::algorithm::{At, Mechanics};
use crate::hold::{Hold, HoldId, Place};
use crate::limit::Limit;
use crate::state::{Holds, State};
use crate::usage::Usage;

/// What a holder asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It cost so many units in truth: less is given back, more is owed. Permits come back.
    Settle(u64),
    /// It did not happen: everything is given back, and the place in the queue too.
    Cancel,
    /// It is done: permits come back, and what was charged stays.
    Release,
    /// As [`Ending::Release`], and the work failed for want of room or time: a limit that learns its
    /// ceiling comes down.
    Fail,
    /// It goes on: lease and hold begin anew.
    Renew,
    /// Who waited goes on: what was charged stays, permits are held from now on.
    Arrive,
}

/// What an ending did to one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndOutcome {
    /// Whether there was a hold of that name.
    pub found: bool,
    /// Whether it stands on.
    pub stands: bool,
    /// How long until its turn, if that has not come.
    pub wait: Option<Duration>,
    /// The first hold of the wait queue, if anything was given back.
    pub next: Option<HoldId>,
    /// Units that it cost beyond what was charged.
    pub more: u64,
}

/// Ends, or renews, the hold `id` on one key. `scales` says whether the charge was the cost of the
/// descriptor, which [`Ending::Settle`] corrects, or the rule's own.
///
/// Without such a hold nothing changes but what time has done, so that it may be said twice. Nobody
/// settles, releases or renews what still waits.
pub fn end(
    state: &mut State,
    limit: &Limit,
    at: &At,
    id: &HoldId,
    ending: Ending,
    scales: bool,
) -> EndOutcome {
    let engine = limit.engine();
    state.settle(limit, at);
    let Some(holds) = &mut state.holds else {
        return EndOutcome::default();
    };
    let Some(index) = holds.all.iter().position(|hold| hold.id == *id) else {
        return EndOutcome::default();
    };
    let ended = one(&mut state.usage, holds, index, limit, at, ending, scales);
    engine.settle(&mut state.usage, at);
    engine.reconcile(&mut state.usage, holds.taken());
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
    ending: Ending,
    scales: bool,
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
        (Place::Waiting { go }, _) if ending != Ending::Cancel => ended.wait = Some(go.since(now)),
        (Place::Taken { until, .. }, Ending::Renew) => *until = now.saturating_add(hold.keep),
        (Place::Taken { taken, until, .. }, Ending::Arrive) if !hold.passes => {
            (*taken, *until) = (now, now.saturating_add(hold.keep));
        }
        _ => {
            ended.stands = false;
            let hold = holds.all.remove(index);
            let truth = truth(&hold, ending, scales);
            if !hold.is_waiting() && limit.lease().is_none() {
                ended.more = truth.saturating_sub(hold.units);
            }
            if finish(usage, holds, &hold, limit, at, ending, truth) {
                ended.next = holds.first_waiting();
            }
        }
    }
    ended
}

/// What it cost in the end.
const fn truth(hold: &Hold, ending: Ending, scales: bool) -> u64 {
    match ending {
        Ending::Cancel => 0,
        Ending::Settle(units) if scales => units,
        _ => hold.units,
    }
}

/// What the end of a hold does to the usage; says whether it may let somebody pass.
fn finish(
    usage: &mut Usage,
    holds: &mut Holds,
    hold: &Hold,
    limit: &Limit,
    at: &At,
    ending: Ending,
    truth: u64,
) -> bool {
    let engine = limit.engine();
    let Place::Taken { taken, mark, .. } = &hold.place else {
        return true;
    };
    if limit.lease().is_some() {
        let lasted = match ending {
            Ending::Cancel => return true,
            Ending::Fail => None,
            _ => Some(at.now.monotonic.since(*taken)),
        };
        engine.learn(usage, hold.units, lasted, at);
        return true;
    }
    let less = hold.units.saturating_sub(truth);
    holds.give_back(usage, engine, mark, less, at);
    engine.owe(usage, truth.saturating_sub(hold.units), at);
    less > 0
}

/// Forgets what one key used, for the holders too. Permits are not used but held: they stay, and so
/// does the wait queue.
pub fn forgive(state: &mut State, limit: &Limit, at: &At) {
    let mut kept = State::rest(state.limit);
    if state.holds.is_some() {
        // Whose turn has come does not wait any more.
        state.settle_use(limit.engine(), at);
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
