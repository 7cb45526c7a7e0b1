//! Known: what the store last said of a key. Refusals are answered from it, and nodes that have to
//! go on by themselves begin with it.
//!
//! A refusal is believed for [`BELIEVED`] at most, so what another node does to the key (a ban
//! lifted, use given back) shows here that late. A little before, one call at a time goes to ask, so
//! that a key that is hammered costs about a round trip a second. Once it is over, those who come are
//! a [`Crowd`], of which a few ask for all.
//!
//! A table of fixed size, eight places to a hash: past that, what matters least is forgotten, and
//! costs a round trip.
//!
//! Beside that it counts the units of calls that are in flight to the store: it may admit them at any
//! moment, so a share of the same key has no room for them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use quell::store::memory::{Fingerprint, HashKey};
use quell_core::charge::Charge;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::key::Key;
use quell_core::limit::{Installed, LimitId};
use quell_core::time::Monotonic;

use super::crowd::Crowd;
use super::refusal::Refusal;
use crate::store::needs_holds;

/// How long a refusal is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// From this age on one call goes and asks, while others still believe: two timeouts earlier.
const OLD: Duration = Duration::from_millis(900);

/// After this long whoever went to ask is not waited for.
const ASKING: Duration = Duration::from_millis(100);

/// For so long after a refusal those who ask about a key are a crowd: it has room, and not for all.
const HOT: Duration = Duration::from_secs(10);

/// Keys, in sets of [`WAYS`]: at most 65 MB, and 155 MB if each is refused for [`COSTS`] costs.
const SETS: usize = 32 * 1_024;
const WAYS: usize = 8;

/// Costs of one key whose refusals are remembered each by itself.
const COSTS: usize = 4;

/// What the store last said of keys.
pub(super) struct Known {
    secret: HashKey,
    sets: Box<[Mutex<Set>]>,
}

/// Keys of one hash.
#[derive(Debug, Default)]
struct Set {
    slots: Vec<Slot>,
    /// Empty while no call is in flight, and then without memory.
    in_flight: Vec<InFlight>,
}

/// Calls about one key without an answer.
#[derive(Debug)]
struct InFlight {
    key: Fingerprint,
    calls: u32,
    units: u64,
}

impl Set {
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
        let Some(at) = self.in_flight.iter().position(|calls| calls.key == key) else {
            return;
        };
        if let Some(calls) = self.in_flight.get_mut(at) {
            calls.calls -= 1;
            calls.units = calls.units.saturating_sub(units);
            if calls.calls == 0 {
                self.in_flight.swap_remove(at);
            }
        }
        if self.in_flight.is_empty() {
            self.in_flight = Vec::new();
        }
    }
}

/// A call to the store without an answer, and how many units it would charge to one key.
#[derive(Debug)]
pub(super) struct Flight {
    key: Fingerprint,
    units: u64,
}

#[derive(Debug)]
struct Slot {
    key: Fingerprint,
    limit: LimitId,
    noted: Noted,
    /// From then on nothing is used.
    rest: Monotonic,
    /// When somebody went to ask again.
    asking: Option<Monotonic>,
    banned_until: Option<Monotonic>,
    refusals: Vec<Refusal>,
    /// When a refusal was heard last, or the first call after it passed.
    refused: Option<Monotonic>,
    /// Those who ask since the refusals are over, while there are any.
    crowd: Weak<Crowd>,
}

/// When the store answered a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerTime {
    /// Before it was asked, and after its answer was heard.
    pub(super) asked: Monotonic,
    pub(super) heard: Monotonic,
    /// When it decided, by its own clock, in microseconds.
    pub(super) decided: u64,
}

impl AnswerTime {
    /// Whether the store decided this before `other`. Its clock is believed of calls that were on their
    /// way at the same time: nothing else tells their order. `None`: both at one instant, as in a batch.
    fn is_before(&self, other: &Self) -> Option<bool> {
        let is_together = self.asked < other.heard && other.asked < self.heard;
        match is_together {
            true if self.decided == other.decided => None,
            true => Some(self.decided < other.decided),
            false => Some(self.heard < other.asked),
        }
    }
}

/// What the store said of a key, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    used: u64,
    answered: AnswerTime,
}

impl Noted {
    pub(super) fn new(decision: &Decision, answered: AnswerTime) -> Self {
        Self {
            used: decision.limit.saturating_sub(decision.remaining),
            answered,
        }
    }

    /// Whether the store decided this before `other`.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        let is_before = self.answered.is_before(&other.answered);
        // Nothing drains within an instant: whoever finds more used comes later.
        is_before.unwrap_or(self.used < other.used)
    }
}

/// Where a node that goes on by itself finds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    /// What was left of the whole limit.
    pub(super) left: u64,
    /// How much longer it is banned.
    pub(super) ban: Option<Duration>,
    /// From then on nothing is used.
    pub(super) rest: Monotonic,
    pub(super) noted: Noted,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl Known {
    pub(super) fn new() -> Self {
        Self {
            secret: HashKey::random(),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Runs `act` on the set that may hold `key`.
    fn with<R>(
        &self,
        key: Key<'_>,
        act: impl FnOnce(Fingerprint, &mut Vec<Slot>) -> R,
    ) -> Option<R> {
        let print = self.secret.of_bytes(key.as_bytes());
        self.with_set(print, |set| act(print, &mut set.slots))
    }

    /// Runs `act` on the set that may hold the key with this fingerprint.
    fn with_set<R>(&self, print: Fingerprint, act: impl FnOnce(&mut Set) -> R) -> Option<R> {
        let set = usize::try_from(print.high % SETS as u64).ok()?;
        Some(act(&mut self.sets.get(set)?.lock()))
    }

    /// A call is about to be sent that may charge so many units to `key`. It counts until [`Known::land`]
    /// or [`Known::give_up`].
    pub(super) fn fly(&self, key: Key<'_>, units: u64) -> Flight {
        let key = self.secret.of_bytes(key.as_bytes());
        self.with_set(key, |set| set.add_in_flight(key, units));
        Flight { key, units }
    }

    /// The call is not sent, or was not answered.
    pub(super) fn give_up(&self, flight: &Flight) {
        self.with_set(flight.key, |set| {
            set.remove_in_flight(flight.key, flight.units);
        });
    }

    /// The call was answered: at one instant it is in flight no more, and its answer noted. Changes
    /// nothing unless `may_land`; says whether that was so.
    pub(super) fn land(
        &self,
        flight: &Flight,
        charge: &Charge<'_>,
        decision: &Decision,
        answered: AnswerTime,
        may_land: impl FnOnce() -> bool,
    ) -> bool {
        let landed = self.with_set(flight.key, |set| {
            if !may_land() {
                return false;
            }
            set.remove_in_flight(flight.key, flight.units);
            note_in(&mut set.slots, flight.key, charge, decision, answered);
            true
        });
        landed.unwrap_or(true)
    }

    /// Units of calls about `key` that are in flight.
    pub(super) fn in_flight(&self, key: Key<'_>) -> u64 {
        let key = self.secret.of_bytes(key.as_bytes());
        let units = self.with_set(key, |set| {
            let calls = set.in_flight.iter().find(|calls| calls.key == key);
            calls.map_or(0, |calls| calls.units)
        });
        units.unwrap_or(0)
    }

    /// Notes what the store said to a charge.
    pub(super) fn note(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        decision: &Decision,
        answered: AnswerTime,
    ) {
        self.with(key, |print, slots| {
            note_in(slots, print, charge, decision, answered);
        });
    }

    /// The refusal that the store would give to `charge` now; `None`: ask it.
    pub(super) fn refusal(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        now: Monotonic,
    ) -> Option<Decision> {
        let answer = self.with(key, |print, set| {
            let slot = set.iter_mut().find(|slot| slot.key == print)?;
            if slot.limit != charge.installed.id {
                return None;
            }
            let (answer, heard) = slot.answer(charge, now)?;
            let is_asked = slot.asking.is_some_and(|since| now.since(since) < ASKING);
            if now.since(heard) >= OLD && !is_asked {
                slot.asking = Some(now);
                return None;
            }
            Some(answer)
        });
        answer.flatten()
    }

    /// Those who ask about a key since its refusal is over. `None`: there was none lately, or it is not
    /// over.
    pub(super) fn crowd(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        now: Monotonic,
    ) -> Option<Arc<Crowd>> {
        let crowd = self.with(key, |print, set| {
            let slot = set.iter_mut().find(|slot| slot.key == print)?;
            if slot.limit != charge.installed.id {
                return None;
            }
            if let Some(crowd) = slot.crowd.upgrade() {
                return Some(crowd);
            }
            let is_hot = slot.refused.is_some_and(|heard| now.since(heard) < HOT);
            let was_refused = is_hot || !slot.refusals.is_empty();
            if !was_refused || slot.answer(charge, now).is_some() {
                return None;
            }
            let crowd = Arc::new(Crowd::default());
            slot.crowd = Arc::downgrade(&crowd);
            Some(crowd)
        });
        crowd.flatten()
    }

    /// What was left of `installed`, as far as is known.
    pub(super) fn last(&self, key: Key<'_>, installed: &Installed, now: Monotonic) -> Option<Last> {
        let last = self.with(key, |print, set| {
            let slot = set.iter().find(|slot| slot.key == print)?;
            let ban = slot.banned_until.map(|until| until.since(now));
            let used = if now < slot.rest { slot.noted.used } else { 0 };
            Some(Last {
                left: installed.limit.max().saturating_sub(used),
                ban: ban.filter(|left| !left.is_zero()),
                rest: slot.rest,
                noted: slot.noted,
            })
        });
        last.flatten()
    }

    /// Forgets a key that something was done to by hand.
    pub(super) fn forget(&self, key: Key<'_>) {
        self.with(key, |print, set| set.retain(|slot| slot.key != print));
    }
}

impl Slot {
    /// The refusal that the store would give to `charge` now, with when it was heard.
    fn answer(&self, charge: &Charge<'_>, now: Monotonic) -> Option<(Decision, Monotonic)> {
        self.refusals.iter().rev().find_map(|refusal| {
            let is_believed = now.since(refusal.heard()) < BELIEVED;
            let answer = is_believed.then(|| refusal.answer(charge.installed, charge.cost, now));
            Some((answer.flatten()?, refusal.heard()))
        })
    }
}

/// Notes what the store said to a charge of the key with this fingerprint.
fn note_in(
    set: &mut Vec<Slot>,
    print: Fingerprint,
    charge: &Charge<'_>,
    decision: &Decision,
    answered: AnswerTime,
) {
    let AnswerTime { asked, heard, .. } = answered;
    let noted = Noted::new(decision, answered);
    let refusal = Refusal::new(charge.cost, asked, heard, decision);
    // Refusals that count towards a ban have to reach the store.
    let counts = charge.installed.limit.ban().is_some() && !decision.banned;
    // Of a cost on credit nothing is told from what is used.
    let is_told = !needs_holds(charge);
    let refusal = refusal.filter(|_| !charge.shadow && !counts && is_told);
    let ban = decision.banned.then(|| match decision.retry_after() {
        Some(RetryAfter::After(left)) => heard.saturating_add(left),
        _ => heard.saturating_add(decision.reset_after),
    });
    let index = set.iter().position(|slot| slot.key == print);
    let mut refused = refusal.is_some().then_some(heard);
    let (mut refusals, mut crowd) = (Vec::new(), Weak::new());
    if let Some(index) = index {
        let mut before = set.swap_remove(index);
        if noted.is_before(&before.noted) {
            // A later answer was heard before this one.
            set.push(before);
            return;
        }
        if before.limit == charge.installed.id {
            crowd = std::mem::take(&mut before.crowd);
            let was_refused = !before.refusals.is_empty();
            refused = refused.or(if was_refused {
                Some(heard)
            } else {
                before.refused
            });
        }
        if refusal.is_some() && before.limit == charge.installed.id {
            refusals = before.refusals;
            let cost = charge.cost.get();
            refusals.retain(|refusal| {
                refusal.cost() != cost && heard.since(refusal.heard()) < BELIEVED
            });
        }
    } else if refusal.is_none() && charge.on_failure.is_none() {
        return;
    }
    make_room(set, heard);
    refusals.truncate(COSTS - 1);
    // Most keys are refused for one cost.
    refusals.reserve_exact(usize::from(refusal.is_some()));
    refusals.extend(refusal);
    set.push(Slot {
        key: print,
        limit: charge.installed.id,
        noted,
        rest: heard.saturating_add(decision.reset_after),
        asking: None,
        banned_until: ban,
        refusals,
        refused,
        crowd,
    });
}

/// Drops the key that is at rest first, if there is no room.
fn make_room(set: &mut Vec<Slot>, now: Monotonic) {
    if set.len() < WAYS {
        return;
    }
    set.retain(|slot| slot.rest > now);
    if set.len() < WAYS {
        return;
    }
    let first = (0..set.len()).min_by_key(|index| set.get(*index).map(|slot| slot.rest));
    if let Some(first) = first {
        set.swap_remove(first);
    }
}

#[cfg(test)]
mod tests {
    use quell_core::cost::Cost;
    use quell_core::decision::Outcome;
    use quell_core::limit::Limit;
    use quell_core::rule::OnFailure;

    use super::*;

    /// Callers who read their clocks, ask and hear in any order: the store's clock tells the last one.
    #[test]
    fn what_the_store_decided_last_counts_in_whatever_order_it_is_heard() {
        let limit = Limit::fixed_window(9, Duration::from_secs(60)).build();
        let installed = Installed {
            id: LimitId(1),
            limit: limit.expect("possible"),
            since: Monotonic::ORIGIN,
            place: Arc::default(),
        };
        let mut charge = Charge::alone(&installed, Cost::ONE);
        charge.on_failure = Some(OnFailure::Deny);
        let key = Key::of_parts(b"key", 3);
        let used_after = |answers: &[(u64, u64, u64, u64)]| {
            let known = Known::new();
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
                    decided: *decided,
                };
                known.note(key, &charge, &decision, answered);
            }
            let last = known.last(key, &installed, Monotonic::from_nanos(9));
            9 - last.expect("it was noted").left
        };
        // Who read the clock first is decided last, as a caller that waits for a payment.
        assert_eq!(used_after(&[(2, 3, 50, 1), (1, 5, 60, 2)]), 2);
        // Who is decided last is noted first.
        assert_eq!(used_after(&[(1, 5, 60, 2), (2, 6, 50, 1)]), 2);
        // A batch has one instant.
        assert_eq!(used_after(&[(1, 5, 60, 2), (2, 5, 60, 1)]), 2);
        // One after the other, though the store's clock was set back, or nobody's goes on.
        assert_eq!(used_after(&[(1, 2, 60, 2), (3, 4, 50, 1)]), 1);
        assert_eq!(used_after(&[(1, 1, 60, 2), (1, 1, 60, 1)]), 1);
    }

    #[test]
    fn a_key_takes_as_much_as_is_said() {
        let (key, refusal) = (size_of::<Slot>(), size_of::<Refusal>());
        assert!(SETS * (WAYS * (key + refusal) + size_of::<Mutex<Set>>()) < 65_000_000);
        assert!(SETS * (WAYS * (key + COSTS * refusal)) < 155_000_000);
    }
}
