//! Claim: an acquire that leaves a hold on each key of its set, charged now or when its turn comes.

use alloc::vec::Vec;
use core::time::Duration;

use crate::charge::{Entry, Operation, decide};
use crate::decision::{Decision, Outcome, RetryAfter};
use crate::hold::{
    ARRIVAL, Hold, HoldId, MAX_HOLDS, MAX_RELEASED, MAX_WAIT_QUEUE, OnExpiry, Place,
};
use crate::state::{Forecast, Holds};
use crate::time::{Monotonic, Now};

/// The parameters of a claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The id under which the hold is ended or renewed.
    pub id: &'a HoldId,
    /// For how long the charge can still be settled, at most [`MAX_HOLD`](crate::hold::MAX_HOLD). `None`:
    /// rates are charged for good and only permits are held.
    pub hold: Option<Duration>,
    /// Longest wait that the caller accepts. `None`: it does not wait, and the answer only states the
    /// delay.
    pub wait: Option<WaitLimits>,
    /// True if the caller chose the id and may send it again after a timeout. If so, a claim whose outcome
    /// is unknown is not cancelled, since the retry must find it.
    pub is_named: bool,
    /// Time that others may take to decide on the rest of the set. Everything charged is held meanwhile,
    /// until [`Ending::Arrive`](crate::end_hold::Ending::Arrive) makes it final or it is cancelled.
    pub pending: Option<Duration>,
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
            pending: None,
        }
    }
}

/// Bounds on the wait of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// For its turn. With zero, a claim that would have to queue is refused.
    pub turn: Duration,
    /// In all, for its turn and then for the delay of a limit.
    pub in_all: Duration,
}

impl WaitLimits {
    /// At most `most` in all, for the turn, the delay or both.
    #[must_use]
    pub const fn new(most: Duration) -> Self {
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
    /// For each of them, whether there is a hold now.
    pub held: Vec<bool>,
    /// Time until the turn of the hold, if it queues.
    pub wait: Option<Duration>,
}

/// Decides a whole set as [`decide`] does for [`Operation::Acquire`], and holds what it charges.
///
/// If the claim does not fit now, or a key is banned, but it would within `claim.wait` behind all callers that wait on any of
/// its keys, it joins their queues. Nothing is charged before its turn, and shadow limits get no hold. A
/// refusal has the same effects as a refused acquire. Permits are held for their lease, whatever
/// `claim.hold` says.
///
/// Returns `None` if a key already has [`MAX_HOLDS`] holds, or [`MAX_RELEASED`] that are given back when
/// they expire.
///
/// Takes time linear in the number of holds on the keys.
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
    // A caller that sleeps for the delay may go away before it ends. So even rates get a hold, which a
    // cancel can give back.
    let delay = claim.wait.and(delay).unwrap_or_default();
    for (entry, decision) in entries.iter_mut().zip(&mut decisions) {
        let is_kept = keep(claim, entry).is_some() || !delay.is_zero() || claim.pending.is_some();
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

/// Returns true if the key has no room for another hold.
fn is_full(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> bool {
    let Some(holds) = &entry.state.holds else {
        return false;
    };
    let is_permit = entry.charge.active.limit.lease().is_some();
    let most = match on_expiry(claim, entry) {
        OnExpiry::Release if !is_permit => MAX_RELEASED,
        _ => MAX_HOLDS,
    };
    holds.all.len() >= most
}

/// Returns true if a limit that is not in shadow asks for a longer delay than `most`.
fn is_late(entry: &Entry<'_, '_>, decision: &Decision, most: Duration) -> bool {
    !entry.charge.shadow && decision.delay > most
}

/// The answer if the cost fits but a delay is longer than the caller waits: refused and not charged;
/// `retry_after` says when the delay will be short enough.
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

/// Time for which a charge is held; `None` if it is charged for good.
fn keep(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> Option<Duration> {
    entry.charge.active.limit.lease().or(claim.hold)
}

/// Treatment of a hold that expires. Permits come back; for a reservation the rule decides.
fn on_expiry(claim: &Claim<'_>, entry: &Entry<'_, '_>) -> OnExpiry {
    let limit = &entry.charge.active.limit;
    match (limit.lease(), claim.hold) {
        (Some(_), _) => OnExpiry::Release,
        (None, Some(_)) => limit.at_expiry(),
        // The caller waited for its turn or its delay, and did not continue within [`ARRIVAL`]: it stays
        // charged.
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
    let engine = &*limit.engine();
    let at = entry.charge.at(now);
    let mut new = new_hold(
        now,
        claim,
        delay,
        entry,
        Place::Waiting { go: now.monotonic },
    );
    let state = &mut *entry.state;
    new.take(engine.mark(&state.usage, &at), now.monotonic);
    if let Place::Taken { until, .. } = &mut new.place {
        // Its own time begins when the caller continues.
        let pending = claim.pending.unwrap_or_default();
        *until = until.saturating_add(pending);
    }
    let holds = Holds::add(&mut state.holds, new, now.monotonic);
    engine.reconcile(&mut state.usage, holds.taken_units());
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
        units: entry.charge.units(),
        on_expiry: on_expiry(claim, entry),
        passes: keep(claim, entry).is_none(),
        keep: keep(claim, entry).unwrap_or(in_passing),
        seen: now.monotonic,
        place,
    }
}

/// Updates the decision's numbers from the state.
fn restate(now: Now, entry: &Entry<'_, '_>, decision: &mut Decision) {
    let engine = &*entry.charge.active.limit.engine();
    let at = entry.charge.at(now);
    if let Some(holds) = &entry.state.holds {
        (decision.remaining, decision.reset_after) = holds.answer(&entry.state.usage, engine, &at);
    }
}

/// Joins the wait queues of all keys. Returns `None` if the turn would not come within `most`, or a
/// queue is full.
fn queue(
    now: Now,
    claim: &Claim<'_>,
    most: WaitLimits,
    entries: &mut [Entry<'_, '_>],
    first: &[Decision],
) -> Option<ClaimOutcome> {
    let hopeless = |decision: &Decision| decision.outcome == Outcome::Deny(RetryAfter::Never);
    let with_say = |entry: &Entry<'_, '_>| !entry.charge.shadow;
    let mut pairs = entries.iter().zip(first);
    if pairs.any(|(entry, first)| with_say(entry) && hopeless(first)) {
        return None;
    }
    let has_room = |entry: &Entry<'_, '_>| {
        let holds = entry.state.holds.as_deref();
        holds.is_none_or(|holds| holds.queue_len() < MAX_WAIT_QUEUE && !is_full(claim, entry))
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
            Holds::add(&mut entry.state.holds, new, now.monotonic);
            decision.outcome = Outcome::Allow;
            decision.banned = false;
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

/// The first instant at which all entries fit behind the waiting holds and after their bans, and the
/// longest delay that a limit then asks for. With `id`, only holds ahead of it count.
fn turn(now: Now, entries: &[Entry<'_, '_>], id: Option<&HoldId>) -> Option<(Monotonic, Duration)> {
    let mut set = Vec::with_capacity(entries.len());
    let mut from = now.monotonic;
    for entry in entries.iter().filter(|entry| !entry.charge.shadow) {
        from = from.max(entry.state.banned_until());
        let mut holds = entry.state.holds.as_deref().cloned().unwrap_or_default();
        if let Some(id) = id {
            let mut is_behind = false;
            holds.all.retain(|hold| {
                is_behind |= hold.id == *id;
                !(is_behind && hold.is_waiting())
            });
        }
        let limit = &entry.charge.active.limit;
        let at = entry.charge.at(now);
        let cost = entry.charge.units();
        let usage = entry.state.usage.clone();
        set.push(Forecast::new(limit.engine(), usage, holds, at, cost));
    }
    Forecast::first_fit(&mut set, from)
}

/// Recomputes the turn of `id`, which waits on all of `entries`: sooner if another caller left, later if
/// limits changed. Returns how long until its turn (zero if it was charged now) and the ids right behind
/// it on each key. Returns `None` if `id` does not wait.
pub fn advance(
    now: Now,
    id: &HoldId,
    entries: &mut [Entry<'_, '_>],
) -> Option<(Duration, Vec<HoldId>)> {
    decide(now, Operation::Peek, entries);
    if !entries.iter().any(|entry| waits(entry, id)) {
        return None;
    }
    // After a reload its cost can never pass: it keeps its turn.
    let turn = turn(now, entries, Some(id)).map(|(go, _)| go);
    let go = turn.or_else(|| entries.iter().find_map(|entry| place(entry, id)))?;
    let mut next = Vec::new();
    for entry in entries {
        let at = entry.charge.at(now);
        let limit = &entry.charge.active.limit;
        let engine = &*limit.engine();
        let mut charged = 0;
        if let Some(holds) = &mut entry.state.holds {
            let mut queue = holds.all.iter_mut().filter(|hold| hold.is_waiting());
            if let Some(hold) = queue.find(|hold| hold.id == *id) {
                hold.place = Place::Waiting { go };
                charged = if go <= now.monotonic { hold.units } else { 0 };
                next.extend(queue.next().map(|hold| hold.id.clone()));
            }
        }
        entry.state.settle_use(engine, &at);
        entry.state.count(limit, &at, charged);
    }
    next.sort_unstable();
    next.dedup();
    Some((go.since(now.monotonic), next))
}

fn waits(entry: &Entry<'_, '_>, id: &HoldId) -> bool {
    place(entry, id).is_some()
}

/// Instant at which the turn of `id` comes on one key.
fn place(entry: &Entry<'_, '_>, id: &HoldId) -> Option<Monotonic> {
    let holds = entry.state.holds.as_deref()?;
    let mut queue = holds.all.iter().filter(|hold| hold.is_waiting());
    queue.find(|hold| hold.id == *id).map(Hold::due)
}
