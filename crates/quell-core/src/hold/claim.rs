//! Claim: makes a hold on every key of a set, at once or when its turn comes.

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    ARRIVAL, Forecast, HeldUsage, Hold, HoldId, MAX_HOLDS, MAX_RELEASED, MAX_WAIT_QUEUE, OnExpiry,
    Place, taken,
};
use crate::algorithm::Mechanics;
use crate::charge::{Entry, Operation, decide};
use crate::decision::{Decision, Outcome, RetryAfter};
use crate::state::Usage;
use crate::time::{Monotonic, Now};

/// What a claim asks for beyond an acquire.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The name under which the charges can be ended.
    pub id: &'a HoldId,
    /// How long what is charged can still be settled, at most [`MAX_HOLD`](super::MAX_HOLD); `None`
    /// charges for good, so that only permits are held.
    pub hold: Option<Duration>,
    /// How long the caller would wait; `None` if it does not, and is told of a delay only.
    pub wait: Option<WaitLimits>,
    /// Whether the caller made the name up, and may say it again after a timeout: then nobody takes
    /// back what was perhaps made under it.
    pub is_named: bool,
}

impl<'a> Claim<'a> {
    /// An acquire that holds permits under `id`.
    #[must_use]
    pub const fn plain(id: &'a HoldId) -> Self {
        Self {
            id,
            hold: None,
            wait: None,
            is_named: false,
        }
    }
}

/// How long a caller would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// For its turn; zero refuses the claim where it would have to queue.
    pub turn: Duration,
    /// In all, for its turn and then for the delay of a limit.
    pub in_all: Duration,
}

impl WaitLimits {
    /// At most `most` in all, for the turn, the delay or both.
    #[must_use]
    pub const fn of(most: Duration) -> Self {
        Self {
            turn: most,
            in_all: most,
        }
    }
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOutcome {
    /// The limits' decisions, in the set's order.
    pub decisions: Vec<Decision>,
    /// For each, whether a hold stands on it now.
    pub held: Vec<bool>,
    /// How long until its turn, if it waits for it.
    pub wait: Option<Duration>,
}

/// Decides a whole set as [`decide`] does for [`Operation::Acquire`], and holds what it charges.
///
/// If it does not fit now but would within `claim.wait`, behind all who wait on any of its keys, it
/// takes that place: nothing is charged yet, and shadow limits are left out. A refusal changes no
/// more than that of an acquire. Permits are held for their lease whatever `claim.hold` says.
///
/// `None` if a key has [`MAX_HOLDS`] holds already, or [`MAX_RELEASED`] of a kind that is given back
/// when its time is over.
///
/// Cost: linear in the holds on the keys, where there are any.
pub fn claim(now: Now, claim: &Claim<'_>, entries: &mut [Entry<'_, '_>]) -> Option<ClaimOutcome> {
    let first = decide(now, Operation::Peek, entries);
    let mut passes = may_pass(entries, &first);
    if entries.iter().any(|entry| is_full(claim, entry)) && (passes || claim.hold.is_some()) {
        return None;
    }
    if let Some(wait) = claim.wait {
        let mut pairs = entries.iter().zip(&first);
        let is_too_long = pairs.any(|(entry, first)| is_late(entry, first, wait.in_all));
        if passes && is_too_long {
            return Some(too_long(wait.in_all, entries, first));
        }
        if !passes
            && !wait.turn.is_zero()
            && let Some(claimed) = queue(now, claim, wait, entries, &first)
        {
            return Some(claimed);
        }
    }
    let mut decisions = decide(now, Operation::Acquire, entries);
    passes &= may_pass(entries, &decisions);
    let mut held = Vec::with_capacity(entries.len());
    let with_say = entries.iter().zip(&decisions);
    let with_say = with_say.filter(|(entry, _)| !entry.charge.shadow);
    let delay = with_say.map(|(_, decision)| decision.delay).max();
    // Who waits for the delay may leave before it is over.
    let delay = claim.wait.and(delay).unwrap_or_default();
    for (entry, decision) in entries.iter_mut().zip(&mut decisions) {
        let is_kept = keep(claim, entry).is_some() || !delay.is_zero();
        let holds = passes && decision.outcome.is_allow() && is_kept;
        if holds {
            hold(now, claim, delay, entry, decision);
        }
        held.push(holds);
    }
    Some(ClaimOutcome {
        decisions,
        held,
        wait: None,
    })
}

/// Whether there is no room for another hold on a key.
fn is_full(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> bool {
    let Usage::Held(held) = &entry.state.usage else {
        return false;
    };
    let is_permit = entry.charge.active.limit.lease().is_some();
    let most = match on_expiry(claim, entry) {
        OnExpiry::Release if !is_permit => MAX_RELEASED,
        _ => MAX_HOLDS,
    };
    held.holds.len() >= most
}

/// Whether a limit that has a say asks for a longer delay than this.
fn is_late(entry: &Entry<'_, '_>, decision: &Decision, most: Duration) -> bool {
    !entry.charge.shadow && decision.delay > most
}

/// It fits, but the delay does not: refused until the delay is short enough, uncharged.
fn too_long(
    wait: Duration,
    entries: &[Entry<'_, '_>],
    mut decisions: Vec<Decision>,
) -> ClaimOutcome {
    for (entry, decision) in entries.iter().zip(&mut decisions) {
        if is_late(entry, decision, wait) {
            let excess = decision.delay.saturating_sub(wait);
            decision.outcome = Outcome::Deny(RetryAfter::After(excess));
        }
        decision.delay = Duration::ZERO;
    }
    ClaimOutcome {
        held: alloc::vec![false; decisions.len()],
        decisions,
        wait: None,
    }
}

fn may_pass(entries: &[Entry<'_, '_>], decisions: &[Decision]) -> bool {
    let mut pairs = entries.iter().zip(decisions);
    pairs.all(|(entry, decision)| decision.outcome.is_allow() || entry.charge.shadow)
}

/// How long a charge is held; `None` where it is charged for good.
fn keep(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> Option<Duration> {
    entry.charge.active.limit.lease().or(claim.hold)
}

/// What becomes of a hold whose time is over: permits come back, and so does what the rule says.
fn on_expiry(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> OnExpiry {
    let limit = &entry.charge.active.limit;
    match (limit.lease(), claim.hold) {
        (Some(_), _) => OnExpiry::Release,
        (None, Some(_)) => limit.at_expiry(),
        // A caller that waited and is gone before it could go on: as if it had.
        (None, None) => OnExpiry::Charge,
    }
}

/// Puts a hold on what was just charged.
fn hold(
    now: Now,
    claim: &Claim<'_>,
    delay: Duration,
    entry: &mut Entry<'_, '_>,
    decision: &mut Decision,
) {
    let limit = &entry.charge.active.limit;
    let engine = limit.engine();
    let at = entry.charge.at(now);
    let mut new = new_hold(
        now,
        claim,
        delay,
        entry,
        Place::Waiting { go: now.monotonic },
    );
    HeldUsage::with(&mut entry.state.usage, |held| {
        new.take(engine.mark(&held.usage, &at), now.monotonic);
        held.holds.push(new);
        engine.reconcile(&mut held.usage, taken(&held.holds));
    });
    restate(now, entry, decision);
}

fn new_hold(
    now: Now,
    claim: &Claim<'_>,
    delay: Duration,
    entry: &Entry<'_, '_>,
    place: Place,
) -> Hold {
    let in_passing = ARRIVAL.saturating_add(delay);
    Hold {
        id: claim.id.clone(),
        units: entry.charge.cost.get(),
        on_expiry: on_expiry(claim, entry),
        passes: keep(claim, entry).is_none(),
        keep: keep(claim, entry).unwrap_or(in_passing),
        seen: now.monotonic,
        place,
    }
}

/// Says what the state says now.
fn restate(now: Now, entry: &Entry<'_, '_>, decision: &mut Decision) {
    let engine = entry.charge.active.limit.engine();
    let at = entry.charge.at(now);
    decision.remaining = engine.remaining(&entry.state.usage, &at);
    decision.reset_after = engine.rest_told(&entry.state.usage, &at);
}

/// Joins the wait queues of all keys, if the turn comes within the wait.
fn queue(
    now: Now,
    claim: &Claim<'_>,
    most: WaitLimits,
    entries: &mut [Entry<'_, '_>],
    first: &[Decision],
) -> Option<ClaimOutcome> {
    let hopeless = |decision: &Decision| {
        decision.banned || decision.outcome == Outcome::Deny(RetryAfter::Never)
    };
    let with_say = |entry: &Entry<'_, '_>| !entry.charge.shadow;
    let mut pairs = entries.iter().zip(first);
    if pairs.any(|(entry, first)| with_say(entry) && hopeless(first)) {
        return None;
    }
    let has_room = |entry: &Entry<'_, '_>| match &entry.state.usage {
        Usage::Held(held) => held.queue_len() < MAX_WAIT_QUEUE && !is_full(claim, entry),
        _ => true,
    };
    if !entries
        .iter()
        .all(|entry| !with_say(entry) || has_room(entry))
    {
        return None;
    }
    let (go, delay) = turn(now, entries, None)?;
    let wait = go.since(now.monotonic);
    let in_all = wait.saturating_add(delay);
    if wait > most.turn || in_all > most.in_all {
        return None;
    }
    let mut decisions = first.to_vec();
    let mut held = Vec::with_capacity(entries.len());
    for (entry, decision) in entries.iter_mut().zip(&mut decisions) {
        held.push(with_say(entry));
        if with_say(entry) {
            let new = new_hold(now, claim, delay, entry, Place::Waiting { go });
            HeldUsage::with(&mut entry.state.usage, |held| held.holds.push(new));
            decision.outcome = Outcome::Allow;
            decision.delay = in_all;
            restate(now, entry, decision);
        }
    }
    Some(ClaimOutcome {
        decisions,
        held,
        wait: Some(wait),
    })
}

/// The first instant at which all entries fit, behind all who wait, or behind those only who stand
/// before `id`; and the longest delay that a limit then asks for.
fn turn(now: Now, entries: &[Entry<'_, '_>], id: Option<&HoldId>) -> Option<(Monotonic, Duration)> {
    let mut set = Vec::with_capacity(entries.len());
    for entry in entries.iter().filter(|entry| !entry.charge.shadow) {
        let mut held = HeldUsage::of(&entry.state.usage);
        if let Some(id) = id {
            let mut is_behind = false;
            held.holds.retain(|hold| {
                is_behind |= hold.id == *id;
                !(is_behind && hold.is_waiting())
            });
        }
        let limit = &entry.charge.active.limit;
        let at = entry.charge.at(now);
        let cost = entry.charge.cost.get();
        set.push(Forecast::new(limit.engine(), held, at, cost));
    }
    Forecast::first_fit(&mut set, now.monotonic)
}

/// Finds out whether the turn of `id`, which waits on all of `entries`, comes sooner (or later, if
/// the limits changed) than it stands there. Returns how long until then, zero if it is charged, and
/// who waits right behind it; `None` if it does not wait.
pub fn advance(
    now: Now,
    id: &HoldId,
    entries: &mut [Entry<'_, '_>],
) -> Option<(Duration, Vec<HoldId>)> {
    decide(now, Operation::Peek, entries);
    if !entries.iter().any(|entry| waits(entry, id)) {
        return None;
    }
    // A limit under which it can never pass came into force: it keeps the turn that it was given.
    let turn = turn(now, entries, Some(id)).map(|(go, _)| go);
    let go = turn.or_else(|| entries.iter().find_map(|entry| place(entry, id)))?;
    let mut next = Vec::new();
    for entry in entries {
        let at = entry.charge.at(now);
        let limit = &entry.charge.active.limit;
        let engine = limit.engine();
        let mut charged = 0;
        HeldUsage::with(&mut entry.state.usage, |held| {
            let mut queue = held.holds.iter_mut().filter(|hold| hold.is_waiting());
            if let Some(hold) = queue.find(|hold| hold.id == *id) {
                hold.place = Place::Waiting { go };
                charged = if go <= now.monotonic { hold.units } else { 0 };
                next.extend(queue.next().map(|hold| hold.id.clone()));
            }
            held.settle(engine, &at);
        });
        entry.state.count(limit, &at, charged);
    }
    next.sort_unstable();
    next.dedup();
    Some((go.since(now.monotonic), next))
}

fn waits(entry: &Entry<'_, '_>, id: &HoldId) -> bool {
    place(entry, id).is_some()
}

/// When its turn comes on one key.
fn place(entry: &Entry<'_, '_>, id: &HoldId) -> Option<Monotonic> {
    let Usage::Held(held) = &entry.state.usage else {
        return None;
    };
    let mut queue = held.holds.iter().filter(|hold| hold.is_waiting());
    queue.find(|hold| hold.id == *id).map(Hold::due)
}
