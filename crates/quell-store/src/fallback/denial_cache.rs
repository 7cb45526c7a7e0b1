//! Denial cache: the last answer of the store for each key. Repeated calls on a denied key are refused
//! from it, and a local share starts from it.
//!
//! A denial is used for at most [`MAX_AGE`], so a change by another node (a ban lifted, units refunded)
//! shows here that late. Shortly before that, one call at a time goes to the store, so a key under
//! constant load costs about one round trip a second. When the denial is over, callers go through a
//! [`StampedeGate`], which sends a few of them on behalf of all.
//!
//! The table has a fixed size and is eight-way associative: when a set is full, the key that is at rest
//! first is evicted, which costs a round trip.
//!
//! The table also counts the units of calls in flight to the store, under the same lock. The store may
//! admit them at any moment, so a local share of the same key leaves room for them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::charge::Charge;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::key::Key;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::time::{Monotonic, Wall};

use super::refusal::CachedRefusal;
use super::stampede::StampedeGate;
use quell::store::memory::{Fingerprint, HashKey};

/// For how long a cached denial is used.
const MAX_AGE: Duration = Duration::from_secs(1);

/// From this age on, one call is sent to the store while others still use the cached denial. It is two
/// timeouts below [`MAX_AGE`], so that its answer arrives in time.
const REFRESH_AGE: Duration = Duration::from_millis(900);

/// After this time another call is sent, even if the one before has no answer.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(100);

/// For this long after a denial, calls on the key go through its [`StampedeGate`]: there may be room
/// again, but not for all.
const STAMPEDE_WINDOW: Duration = Duration::from_secs(10);

/// Sets of [`WAYS`] keys each: 262,144 keys, at most 65 MB, or 155 MB if each key is denied for
/// [`COSTS`] costs.
const SETS: usize = 32 * 1_024;
const WAYS: usize = 8;

/// A denial is cached for this many different costs of one key.
const COSTS: usize = 4;

/// The store's last answer for each of many keys.
pub(super) struct DenialCache {
    secret: HashKey,
    sets: Box<[Mutex<CacheSet>]>,
}

/// A key, as this cache names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CachedKey(Fingerprint);

/// The keys whose hashes select this set.
#[derive(Debug, Default)]
struct CacheSet {
    entries: Vec<CacheEntry>,
    /// Keys with calls in flight. While there are none, the vector has no allocation.
    in_flight: Vec<InFlight>,
}

/// Calls on one key that the store has not answered.
#[derive(Debug)]
struct InFlight {
    key: Fingerprint,
    calls: u32,
    units: u64,
}

impl CacheSet {
    fn add_in_flight(&mut self, key: Fingerprint, units: u64) {
        match self.in_flight.iter_mut().find(|calls| calls.key == key) {
            Some(calls) => {
                calls.calls += 1;
                calls.units = calls.units.saturating_add(units);
            }
            None => self.in_flight.push(InFlight {
                key,
                calls: 1,
                units,
            }),
        }
    }

    fn remove_in_flight(&mut self, key: Fingerprint, units: u64) {
        self.in_flight.retain_mut(|calls| {
            if calls.key == key {
                calls.calls -= 1;
                calls.units = calls.units.saturating_sub(units);
            }
            calls.calls > 0
        });
        if self.in_flight.is_empty() {
            self.in_flight = Vec::new();
        }
    }
}

/// One call in flight, and the units that it may charge to one key.
#[derive(Debug)]
pub(super) struct InFlightCharge {
    key: Fingerprint,
    units: u64,
}

#[derive(Debug)]
struct CacheEntry {
    key: Fingerprint,
    limit: LimitId,
    noted: LastAnswer,
    /// Instant at which the key is at rest again.
    rest: Monotonic,
    /// Instant at which a call was sent to renew the denial.
    refreshing: Option<Monotonic>,
    banned_until: Option<Monotonic>,
    refusals: Vec<CachedRefusal>,
    /// Instant at which the last denial was received, or the first allowed answer after it.
    refused: Option<Monotonic>,
    /// The gate for calls since the denials ended, while there are such calls.
    stampede_gate: Weak<StampedeGate>,
}

/// Cached answer for a call on a key.
#[derive(Debug, Default)]
pub(super) enum CachedAnswer {
    /// The denial that the store would give.
    Denial(Decision),
    /// The gate for calls since the denial ended.
    Gate(Arc<StampedeGate>),
    #[default]
    Nothing,
}

/// Time of the store's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerTime {
    /// This process's clock before the call was sent (`asked`) and after its answer was received
    /// (`heard`).
    pub(super) asked: Monotonic,
    pub(super) heard: Monotonic,
    /// Time of the store's decision, by its own clock.
    pub(super) decided: Wall,
}

impl AnswerTime {
    /// Compares two answers: true if the store decided this one before `other`. If the calls overlapped,
    /// only the store's clock tells their order. `None` if both have the same store time, as in a batch.
    fn is_before(&self, other: &Self) -> Option<bool> {
        let is_together = self.asked < other.heard && other.asked < self.heard;
        match is_together {
            true if self.decided == other.decided => None,
            true => Some(self.decided < other.decided),
            false => Some(self.heard < other.asked),
        }
    }
}

/// The use of a key in the store's last answer, and when that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastAnswer {
    used: u64,
    answered: AnswerTime,
}

impl LastAnswer {
    pub(super) fn new(decision: &Decision, answered: AnswerTime) -> Self {
        Self {
            used: decision.limit.saturating_sub(decision.remaining),
            answered,
        }
    }

    /// Returns true if the store decided this before `other`.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        let is_before = self.answered.is_before(&other.answered);
        // Nothing drains within an instant, so the answer with more use is the later one.
        is_before.unwrap_or(self.used < other.used)
    }
}

/// Known state of a key when a local share of it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartingPoint {
    /// Units left of the whole limit.
    pub(super) left: u64,
    /// For how much longer the key is banned.
    pub(super) ban: Option<Duration>,
    /// Instant at which the key is at rest again.
    pub(super) rest: Monotonic,
    pub(super) noted: LastAnswer,
}

impl std::fmt::Debug for DenialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenialCache").finish_non_exhaustive()
    }
}

impl DenialCache {
    pub(super) fn new() -> Self {
        Self {
            secret: HashKey::random(),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Runs `act` on the set that may hold the key with this fingerprint.
    fn with_set<R>(&self, print: Fingerprint, act: impl FnOnce(&mut CacheSet) -> R) -> R {
        let set = usize::try_from(print.high % SETS as u64).unwrap_or(0);
        act(&mut self.sets[set % SETS].lock())
    }

    /// Runs `act` on the entry of `key`; `None` if there is none.
    fn with_entry<R>(
        &self,
        key: Key<'_>,
        act: impl FnOnce(&mut CacheEntry) -> Option<R>,
    ) -> Option<R> {
        let print = self.secret.of_bytes(key.as_bytes());
        self.with_set(print, |set| {
            let mut entries = set.entries.iter_mut();
            act(entries.find(|entry| entry.key == print)?)
        })
    }

    /// Counts a call that is about to be sent and may charge `units` to `key`. Ends with
    /// [`DenialCache::complete`] or [`DenialCache::remove_in_flight`].
    pub(super) fn add_in_flight(&self, key: Key<'_>, units: u64) -> InFlightCharge {
        let key = self.secret.of_bytes(key.as_bytes());
        self.with_set(key, |set| set.add_in_flight(key, units));
        InFlightCharge { key, units }
    }

    /// Stops counting a call that was not sent, or not answered.
    pub(super) fn remove_in_flight(&self, flight: &InFlightCharge) {
        self.with_set(flight.key, |set| {
            set.remove_in_flight(flight.key, flight.units);
        });
    }

    /// Stops counting a call and notes its answer, under one lock. Does nothing if `may_complete`
    /// returns false. Returns whether it did.
    pub(super) fn complete(
        &self,
        flight: &InFlightCharge,
        charge: &Charge<'_>,
        decision: &Decision,
        answered: AnswerTime,
        may_complete: impl FnOnce() -> bool,
    ) -> bool {
        self.with_set(flight.key, |set| {
            if !may_complete() {
                return false;
            }
            set.remove_in_flight(flight.key, flight.units);
            note_entry(&mut set.entries, flight.key, charge, decision, answered);
            true
        })
    }

    /// Units of calls on `key` that are in flight.
    pub(super) fn in_flight(&self, key: Key<'_>) -> u64 {
        let key = self.secret.of_bytes(key.as_bytes());
        self.with_set(key, |set| {
            let calls = set.in_flight.iter().find(|calls| calls.key == key);
            calls.map_or(0, |calls| calls.units)
        })
    }

    /// Notes the store's answer to a charge.
    pub(super) fn note(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        decision: &Decision,
        answered: AnswerTime,
    ) {
        let print = self.secret.of_bytes(key.as_bytes());
        self.with_set(print, |set| {
            note_entry(&mut set.entries, print, charge, decision, answered);
        });
    }

    /// The denial, or the gate for calls on a key whose denial has ended. Nothing if there was no denial lately,
    /// or this call is to renew it.
    pub(super) fn answer(&self, key: Key<'_>, charge: &Charge<'_>, now: Monotonic) -> CachedAnswer {
        let answer = self.with_entry(key, |entry| match entry.refusal(charge, now) {
            Ok(decision) => Some(CachedAnswer::Denial(decision)),
            Err(is_refused) => entry.gate(charge, is_refused, now).map(CachedAnswer::Gate),
        });
        answer.unwrap_or_default()
    }

    /// Known state of a key, as a start for a local share of `active`.
    pub(super) fn starting_point(
        &self,
        key: Key<'_>,
        active: &ActiveLimit,
        now: Monotonic,
    ) -> Option<StartingPoint> {
        self.with_entry(key, |entry| {
            let ban = entry.banned_until.map(|until| until.since(now));
            let is_at_rest = now >= entry.rest;
            let used = if is_at_rest { 0 } else { entry.noted.used };
            Some(StartingPoint {
                left: active.limit.max().saturating_sub(used),
                ban: ban.filter(|left| !left.is_zero()),
                rest: entry.rest,
                noted: entry.noted,
            })
        })
    }

    /// The name of a key, or an id, in this cache.
    pub(super) fn print(&self, bytes: &[u8]) -> CachedKey {
        CachedKey(self.secret.of_bytes(bytes))
    }

    /// Forgets the denials of a key, whose use has changed. What else is known of it stays.
    pub(super) fn forget_refusals(&self, key: CachedKey) {
        self.with_set(key.0, |set| {
            let mut entries = set.entries.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.key == key.0) {
                entry.refusals = Vec::new();
            }
        });
    }

    /// Forgets a key, after an operator changed it.
    pub(super) fn forget(&self, key: Key<'_>) {
        let print = self.secret.of_bytes(key.as_bytes());
        self.with_set(print, |set| set.entries.retain(|entry| entry.key != print));
    }
}

impl CacheEntry {
    /// The denial that the store would give to `charge` now; otherwise the store has to be asked, and whether there
    /// is one that the call renews.
    fn refusal(&mut self, charge: &Charge<'_>, now: Monotonic) -> Result<Decision, bool> {
        if self.limit != charge.active.id {
            return Err(false);
        }
        let (answer, heard) = self.answer(charge, now).ok_or(false)?;
        let is_recent = |since| now.since(since) < REFRESH_TIMEOUT;
        if now.since(heard) >= REFRESH_AGE && !self.refreshing.is_some_and(is_recent) {
            self.refreshing = Some(now);
            return Err(true);
        }
        Ok(answer)
    }

    fn gate(
        &mut self,
        charge: &Charge<'_>,
        is_refused: bool,
        now: Monotonic,
    ) -> Option<Arc<StampedeGate>> {
        if self.limit != charge.active.id {
            return None;
        }
        if let Some(stampede_gate) = self.stampede_gate.upgrade() {
            return Some(stampede_gate);
        }
        let is_late = |heard| now.since(heard) >= STAMPEDE_WINDOW;
        let is_hot = !self.refused.is_none_or(is_late);
        let was_refused = is_hot || !self.refusals.is_empty();
        if !was_refused || is_refused {
            return None;
        }
        let stampede_gate = Arc::new(StampedeGate::default());
        self.stampede_gate = Arc::downgrade(&stampede_gate);
        Some(stampede_gate)
    }

    /// The denial that the store would give to `charge` now, and when it was received.
    fn answer(&self, charge: &Charge<'_>, now: Monotonic) -> Option<(Decision, Monotonic)> {
        self.refusals.iter().rev().find_map(|refusal| {
            let is_believed = now.since(refusal.heard) < MAX_AGE;
            let answer = is_believed.then(|| refusal.answer(charge.active, charge.cost, now));
            Some((answer.flatten()?, refusal.heard))
        })
    }
}

/// Notes the store's answer to a charge on the key with this fingerprint.
fn note_entry(
    set: &mut Vec<CacheEntry>,
    print: Fingerprint,
    charge: &Charge<'_>,
    decision: &Decision,
    answered: AnswerTime,
) {
    let AnswerTime { asked, heard, .. } = answered;
    let noted = LastAnswer::new(decision, answered);
    let refusal = CachedRefusal::new(charge.cost, asked, heard, decision);
    // Denials that count towards a ban must reach the store, so they are not cached. Denials by a ban
    // are cached only if it lasts longer than all that keeps the key from rest. A shorter one does not
    // tell when the ban ends, and after that denials count again.
    let is_ban = decision.banned && outlasts(decision, charge);
    let counts = !is_ban && (decision.banned || charge.active.limit.ban().is_some());
    // For a limit with `debt` the use does not tell which cost is denied; with an overdraft each refusal counts.
    let limit = &charge.active.limit;
    let is_told = !limit.is_on_credit() && !limit.has_overdraft();
    let refusal = refusal.filter(|_| !charge.shadow && !counts && is_told);
    let ban = decision.banned.then(|| match decision.retry_after() {
        Some(RetryAfter::After(left)) => heard.saturating_add(left),
        _ => heard.saturating_add(decision.reset_after),
    });
    let index = set.iter().position(|entry| entry.key == print);
    let mut refused = refusal.is_some().then_some(heard);
    let (mut refusals, mut stampede_gate) = (Vec::new(), Weak::new());
    if let Some(index) = index {
        let mut before = set.swap_remove(index);
        if noted.is_before(&before.noted) {
            // A later answer was received before this one: keep that.
            set.push(before);
            return;
        }
        if before.limit == charge.active.id {
            stampede_gate = std::mem::take(&mut before.stampede_gate);
            let was_refused = !before.refusals.is_empty();
            let refused_before = if was_refused {
                Some(heard)
            } else {
                before.refused
            };
            refused = refused.or(refused_before);
        }
        if refusal.is_some() && before.limit == charge.active.id {
            refusals = before.refusals;
            let cost = charge.cost.get();
            refusals.retain(|refusal| refusal.cost != cost && heard.since(refusal.heard) < MAX_AGE);
        }
    } else if refusal.is_none() && charge.policy.on_failure.is_none() {
        return;
    }
    evict(set, heard);
    refusals.truncate(COSTS - 1);
    // Most keys are denied for one cost only, so no room is allocated for more.
    refusals.reserve_exact(usize::from(refusal.is_some()));
    refusals.extend(refusal);
    set.push(CacheEntry {
        key: print,
        limit: charge.active.id,
        noted,
        rest: heard.saturating_add(decision.reset_after),
        refreshing: None,
        banned_until: ban,
        refusals,
        refused,
        stampede_gate,
    });
}

/// Returns true if a wait is that of a ban, which is then the same for every cost: it is longer than one full refill, and
/// over when the key is at rest. A key that owes something may be at rest later than that, but a cost below the whole
/// limit does not wait until then. Where the limit is one unit, such a key has a wait that is taken for the ban's.
fn outlasts(decision: &Decision, charge: &Charge<'_>) -> bool {
    let (limit, wait) = (&charge.active.limit, decision.retry_after());
    let is_part = charge.cost.get() < limit.max() || limit.max() == 1;
    let is_longer = |wait| wait > limit.full_refill() && wait == decision.reset_after;
    is_part && matches!(wait, Some(RetryAfter::After(wait)) if is_longer(wait))
}

/// If the set is full, drops the keys that are at rest, or the one that will be at rest first.
fn evict(set: &mut Vec<CacheEntry>, now: Monotonic) {
    if set.len() < WAYS {
        return;
    }
    set.retain(|entry| entry.rest > now);
    if set.len() < WAYS {
        return;
    }
    let first = (0..set.len()).min_by_key(|index| set.get(*index).map(|entry| entry.rest));
    if let Some(first) = first {
        set.swap_remove(first);
    }
}

#[cfg(test)]
mod tests {
    use quell_core::cost::Cost;
    use quell_core::decision::Outcome;
    use quell_core::limit::Limit;
    use quell_core::on_failure::OnFailure;

    use super::*;

    /// Calls are sent and answered in any order: the store's clock tells which was decided last.
    #[test]
    fn what_the_store_decided_last_counts_in_whatever_order_it_is_heard() {
        let limit = Limit::fixed_window(9, Duration::from_secs(60)).build();
        let active = ActiveLimit {
            id: LimitId(1),
            limit: limit.expect("possible"),
            since: Monotonic::ORIGIN,
            place: quell_core::limit::LimitPlace::NONE,
        };
        let mut charge = Charge::alone(&active, Cost::ONE);
        charge.policy.on_failure = Some(OnFailure::Deny);
        let key = Key::from_parts(b"key", 3);
        let used_after = |answers: &[(u64, u64, u64, u64)]| {
            let cache = DenialCache::new();
            for (asked, heard, decided, used) in answers {
                let decision = Decision {
                    outcome: Outcome::Allow,
                    limit: 9,
                    remaining: 9 - used,
                    reset_after: Duration::from_secs(60),
                    delay: Duration::ZERO,
                    banned: false,
                };
                let answered = AnswerTime {
                    asked: Monotonic::from_nanos(*asked),
                    heard: Monotonic::from_nanos(*heard),
                    decided: Wall::from_nanos(*decided),
                };
                cache.note(key, &charge, &decision, answered);
            }
            let starting_point = cache.starting_point(key, &active, Monotonic::from_nanos(9));
            9 - starting_point.expect("it was noted").left
        };
        // The call that read the clock first is decided last, like one that waits for a repayment.
        assert_eq!(used_after(&[(2, 3, 50, 1), (1, 5, 60, 2)]), 2);
        // The call that is decided last is noted first.
        assert_eq!(used_after(&[(1, 5, 60, 2), (2, 6, 50, 1)]), 2);
        // Calls of a batch have one store time.
        assert_eq!(used_after(&[(1, 5, 60, 2), (2, 5, 60, 1)]), 2);
        // Calls one after the other, while the store's clock is set back, or both clocks stand still.
        assert_eq!(used_after(&[(1, 2, 60, 2), (3, 4, 50, 1)]), 1);
        assert_eq!(used_after(&[(1, 1, 60, 2), (1, 1, 60, 1)]), 1);
    }

    #[test]
    fn a_key_takes_as_much_as_is_said() {
        let (key, refusal) = (size_of::<CacheEntry>(), size_of::<CachedRefusal>());
        assert!(SETS * (WAYS * (key + refusal) + size_of::<Mutex<CacheSet>>()) < 65_000_000);
        assert!(SETS * (WAYS * (key + COSTS * refusal)) < 155_000_000);
    }
}
