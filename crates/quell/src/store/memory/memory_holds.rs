//! Making and ending holds in memory.
//!
//! Locks are taken in one order: the part of the ids, then chains in ascending order, then the
//! registry for reading.

use std::time::Duration;

use quell_core::actual::CostOrigin;
use quell_core::algorithm::At;
use quell_core::charge::{Charge, Entry, LimitSet, Operation};
use quell_core::claim::{self, Claim};
use quell_core::end_hold::{self, Ending};
use quell_core::hold::{ARRIVAL, HoldId};
use quell_core::limit::ActiveLimit;
use quell_core::ticket::Earlier;
use quell_core::time::Now;

use super::hold_index::{HoldPlace, Record};
use super::table::Chains;
use super::{Keeping, LoadedState, MemoryStore};
use crate::store::{Finished, HoldStatus, HoldTotals, Placed, StoreError};

impl MemoryStore {
    /// The current number of holds.
    #[must_use]
    pub fn hold_totals(&self, now: Now) -> HoldTotals {
        self.holds.totals(now.monotonic)
    }

    pub(super) fn hold_now(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        let mut part = self.holds.lock(claim.id, now.monotonic);
        let origins = set.cost_origins();
        let digests = self.digests(set, &origins);
        if let Some(record) = part.get(claim.id) {
            return again(record, set, &digests, claim);
        }
        part.make_room(claim.id, set.account())?;
        let work = |now, entries: &mut [Entry<'_, '_>]| match claim.pending {
            Some(_) => Earlier::note(entries, |entries| claim::claim(now, claim, entries)),
            None => (claim::claim(now, claim, entries), Vec::new()),
        };
        let touched = self.with_states(set, Operation::Acquire, now, work, |_, _| {});
        let (claimed, earlier) = touched.result;
        let claimed = claimed.ok_or(StoreError::TooManyHolds)?;
        let decisions: Vec<_> = touched
            .of_charge
            .iter()
            .filter_map(|index| claimed.decisions.get(*index).copied())
            .collect();
        let mut of_states = vec![CostOrigin::default(); touched.states.len()];
        for (state, origin) in touched.of_charge.iter().zip(origins) {
            if let Some(sum) = of_states.get_mut(*state) {
                *sum = sum.and(origin);
            }
        }
        let places = touched.states.iter().zip(of_states).zip(&claimed.held);
        let places = places.filter(|(_, held)| **held);
        let places = places.map(|((state, origin), _)| HoldPlace::new(state, origin));
        let places: Vec<_> = places.collect();
        let held = !places.is_empty();
        if held {
            let limits = places.iter().map(|place| place.limit);
            self.registry.limits().note_holds(limits);
            let leases = touched.states.iter();
            let leases = leases.filter_map(|state| state.charge.active.limit.lease());
            let delays = decisions.iter().map(|decision| decision.delay).max();
            let wait = claimed.wait.unwrap_or_default();
            let keep = leases.chain(claim.hold).max().unwrap_or(ARRIVAL);
            let record = Record {
                status: HoldStatus::Stands,
                places,
                digests: held_of(&digests, &touched.of_charge, &claimed.held),
                account: set.account(),
                descriptors: set.descriptors(),
                decisions: decisions.clone(),
                waits: claimed.wait.is_some(),
                pending: claim.pending.map(|_| earlier_of(earlier, &claimed.held)),
                delay: delays.unwrap_or_default().saturating_sub(wait),
                keep,
                due: now.monotonic,
            };
            let wait = wait.saturating_add(claim.pending.unwrap_or_default());
            part.insert(claim.id.clone(), record, now.monotonic, wait);
        }
        Ok(Placed {
            decisions,
            held,
            wait: claimed.wait,
            ..Placed::default()
        })
    }

    /// A hash of each charge: of its key, its cost, and where that came from.
    fn digests(&self, set: &LimitSet<'_>, origins: &[CostOrigin]) -> Vec<u64> {
        let charges = set.charges().iter().zip(origins);
        let digests = charges.map(|(charge, origin)| {
            let key = self.load_key(set.key(charge), charge);
            self.holds.digest(key.fingerprint, charge.cost, *origin)
        });
        digests.collect()
    }

    pub(super) fn end_now(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        let mut part = self.holds.lock(id, now.monotonic);
        let record = part.get(id)?;
        let mut finished = Finished {
            status: record.status,
            repeated: true,
            wait: None,
            next: Vec::new(),
            unsettled: None,
        };
        if record.status != HoldStatus::Stands {
            return Some(finished);
        }
        if ending.has_wrong_count(record.descriptors) {
            finished.repeated = false;
            finished.unsettled = Some(record.descriptors);
            return Some(finished);
        }
        let (places, is_pending) = (record.places.clone(), record.pending.is_some());
        let earlier = record.pending.take_if(|_| ending == Ending::Cancel);
        let mut earlier = earlier.into_iter().flatten();
        let (mut found, mut stands) = (false, false);
        let keeper = Keeping { store: self, now };
        let (mut chains, now, loaded) = self.load_places(&places, now, &keeper);
        for (place, held) in places.iter().zip(loaded) {
            let earlier = earlier.next().flatten();
            let Some((mut held, active, at)) = held else {
                continue;
            };
            let limit = &active.limit;
            if earlier.is_some_and(|earlier| earlier.restore(&mut held.state)) {
                self.table.store(&mut chains, held, now, &keeper);
                found = true;
                continue;
            }
            let ended = end_hold::end(&mut held.state, limit, &at, id, &ending, place.origin);
            self.table.store(&mut chains, held, now, &keeper);
            found |= ended.found;
            stands |= ended.stands;
            finished.wait = finished.wait.max(ended.wait);
            finished.next.extend(ended.next);
        }
        drop(chains);
        finished.next.sort_unstable();
        finished.next.dedup();
        finished.repeated = !found;
        if let Some(wait) = finished.wait {
            if ending == Ending::Arrive {
                part.postpone(id, now.monotonic, wait);
            }
            return Some(finished);
        }
        if stands {
            if matches!(ending, Ending::Renew | Ending::Arrive) {
                part.renew(id, now.monotonic);
            }
        } else if is_pending && ending == Ending::Cancel {
            // No caller was told of it, and its caller may try again under the same id.
            finished.status = HoldStatus::Cancelled;
            part.take(id);
        } else {
            finished.status = if found {
                HoldStatus::new(&ending)
            } else {
                HoldStatus::Expired
            };
            part.finish(id, finished.status, now.monotonic);
        }
        Some(finished)
    }

    pub(super) fn advance_now(&self, id: &HoldId, now: Now) -> Option<(Duration, Vec<HoldId>)> {
        let mut part = self.holds.lock(id, now.monotonic);
        let record = part.get(id).filter(|record| record.waits)?;
        let places = record.places.clone();
        let keeper = Keeping { store: self, now };
        let (mut chains, now, loaded) = self.load_places(&places, now, &keeper);
        let loaded = loaded.into_iter().zip(&places);
        let loaded =
            loaded.filter_map(|(known, place)| known.map(|(held, of, at)| (held, (of, at, place))));
        let (mut held, limits): (Vec<_>, Vec<_>) = loaded.unzip();
        let charges = limits.iter().map(|(active, at, place)| {
            let mut charge = Charge::alone(active, place.cost);
            charge.edges = at.edges;
            charge
        });
        let charges: Vec<_> = charges.collect();
        let states = held.iter_mut().map(|held| &mut held.state);
        let entries = charges.iter().zip(states);
        let entries = entries.map(|(charge, state)| Entry { charge, state });
        let advanced = claim::advance(now, id, &mut entries.collect::<Vec<_>>());
        for held in held {
            self.table.store(&mut chains, held, now, &keeper);
        }
        if let Some((wait, _)) = &advanced {
            part.postpone(id, now.monotonic, *wait);
        }
        advanced
    }

    /// Takes out the states of a hold's places, each under the limit that is in force on it now, and
    /// reads the clock again. A key that left an overflow state has taken the hold along.
    pub(super) fn load_places<'t>(
        &'t self,
        places: &[HoldPlace],
        now: Now,
        keeper: &Keeping<'_>,
    ) -> (Chains<'t>, Now, Vec<Option<LoadedPlace<'t>>>) {
        let both = places.iter().map(|place| [place.own, place.charged]);
        let both: Vec<_> = both.collect();
        let (chains, loaded) = self.table.load_known(&both, now, keeper);
        let now = self.read_again(now);
        let registry = self.registry.limits();
        let known = loaded.into_iter().map(|held| {
            let mut held = held?;
            let (active, at) = registry.bring(&mut held.state, now)?;
            Some((held, active, at))
        });
        let known = known.collect();
        (chains, now, known)
    }
}

/// The state of a hold's place, the limit that is in force on it, and the instant under that.
type LoadedPlace<'t> = (LoadedState<'t>, ActiveLimit, At);

/// Earlier values from which the states with a hold are restored.
fn earlier_of(earlier: Vec<Option<Earlier>>, held: &[bool]) -> Vec<Option<Earlier>> {
    let earlier = earlier.into_iter().zip(held);
    let earlier = earlier.filter(|(_, held)| **held);
    earlier.map(|(earlier, _)| earlier).collect()
}

/// The hashes of those charges whose states hold them, in order.
fn held_of(digests: &[u64], of_charge: &[usize], held: &[bool]) -> Box<[u64]> {
    let each = digests.iter().zip(of_charge);
    let held = each.filter(|(_, state)| held.get(**state).copied().unwrap_or_default());
    let mut held: Box<[u64]> = held.map(|(digest, _)| *digest).collect();
    held.sort_unstable();
    held
}

/// Repeats the answer to a claim, if it is the same claim: all that it holds is held already. It holds neither
/// charges in shadow nor those that are final.
fn again(
    record: &Record,
    set: &LimitSet<'_>,
    digests: &[u64],
    claim: &Claim<'_>,
) -> Result<Placed, StoreError> {
    let mut asked = set.charges().iter().zip(digests);
    let is_held = |(charge, digest): (&Charge<'_>, &u64)| {
        let is_final = claim.hold.is_none() && charge.active.limit.lease().is_none();
        charge.shadow || is_final || record.digests.binary_search(digest).is_ok()
    };
    let is_same = record.decisions.len() == set.charges().len()
        && record.descriptors == set.descriptors()
        && asked.all(is_held);
    if record.status != HoldStatus::Stands || !is_same {
        return Err(StoreError::HoldTaken);
    }
    Ok(Placed {
        decisions: record.decisions.clone(),
        held: true,
        repeated: true,
        ..Placed::default()
    })
}
