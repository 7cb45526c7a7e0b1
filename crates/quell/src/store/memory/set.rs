//! A whole set: the states of all its charges, under the locks of their shards.

use std::collections::BTreeMap;

use parking_lot::MutexGuard;
use quell_core::charge::{Charge, Entry, LimitSet, Operation, decide};
use quell_core::decision::Decision;
use quell_core::time::Now;

use super::shard::Shard;
use super::{Fingerprint, Held, LoadKey, MemoryStore};

impl MemoryStore {
    pub(super) fn charge_many(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Vec<Decision> {
        let writes = operation == Operation::Acquire;
        let decide = |entries: &mut [Entry<'_, '_>]| decide(now, operation, entries);
        let (decisions, touched) = self.with_states(set, now, writes, decide);
        let of_charge = touched.of_charge.iter();
        of_charge
            .filter_map(|index| decisions.get(*index).copied())
            .collect()
    }

    /// Works on the states of a whole set under their locks, and keeps what came of it if `writes`.
    pub(super) fn with_states<'r, R>(
        &self,
        set: &LimitSet<'r>,
        now: Now,
        writes: bool,
        work: impl FnOnce(&mut [Entry<'_, '_>]) -> R,
    ) -> (R, Touched<'r>) {
        let charges = set.charges().iter();
        let keys: Vec<_> = charges
            .map(|charge| self.load_key(set.key(charge)))
            .collect();
        let mut shards = self.lock_all(&keys);
        let mut shared: Vec<Shared<'_>> = Vec::with_capacity(keys.len());
        let mut of_charge = Vec::with_capacity(keys.len());
        let mut by_overflow = BTreeMap::new();
        for (charge, key) in set.charges().iter().zip(&keys) {
            let Some(shard) = locked(&mut shards, self.table.shard_of(key.fingerprint)) else {
                continue;
            };
            let mut held = self.load(shard, *key, charge, Operation::Peek, now);
            if held.is_overflow() {
                let first = *by_overflow.entry(held.fingerprint).or_insert(shared.len());
                if let Some(other) = shared.get_mut(first) {
                    // Two new keys on one overflow state: one key in all but name, charged the sum.
                    other.charge.cost = other.charge.cost.saturating_add(charge.cost);
                    of_charge.push(first);
                    continue;
                }
            }
            let was_banned = held.state.banned_for(now.monotonic).is_some();
            held.state.limit = charge.installed.id;
            of_charge.push(shared.len());
            shared.push(Shared {
                charge: charge.clone(),
                own: key.fingerprint,
                held,
                was_banned,
            });
        }
        let mut entries: Vec<_> = shared.iter_mut().map(Shared::entry).collect();
        let result = work(&mut entries);
        let mut states = Vec::with_capacity(shared.len());
        for shared in shared {
            let charged = shared.held.fingerprint;
            states.push(TouchedState {
                own: shared.own,
                charged,
                charge: shared.charge,
            });
            if !writes {
                continue;
            }
            let is_banned = shared.held.state.banned_for(now.monotonic).is_some();
            if is_banned
                && !shared.was_banned
                && let Some(state) = states.last()
            {
                self.remember(charged, set.key(&state.charge).as_bytes());
            }
            if let Some(shard) = locked(&mut shards, self.table.shard_of(charged)) {
                self.table.store(shard, shared.held);
            }
        }
        (result, Touched { states, of_charge })
    }

    /// Locks the shards of a set in ascending order, so that two sets cannot wait for each other.
    pub(super) fn lock_all(&self, keys: &[LoadKey<'_>]) -> Vec<(usize, MutexGuard<'_, Shard>)> {
        let of = |key: &LoadKey<'_>| self.table.shard_of(key.fingerprint);
        let mut indices: Vec<usize> = keys.iter().map(of).collect();
        indices.sort_unstable();
        indices.dedup();
        let lock = |index| self.table.lock_index(index).map(|shard| (index, shard));
        indices.into_iter().filter_map(lock).collect()
    }
}

/// A state with the charge, or the sum of charges, that is made on it.
struct Shared<'r> {
    charge: Charge<'r>,
    own: Fingerprint,
    held: Held,
    was_banned: bool,
}

impl<'r> Shared<'r> {
    fn entry(&mut self) -> Entry<'_, 'r> {
        Entry {
            charge: &self.charge,
            state: &mut self.held.state,
        }
    }
}

/// The states that a set was decided on.
pub(super) struct Touched<'r> {
    pub(super) states: Vec<TouchedState<'r>>,
    /// For each charge of the set, which of the states.
    pub(super) of_charge: Vec<usize>,
}

/// One state, and the charge, or sum of charges, that was made on it.
pub(super) struct TouchedState<'r> {
    pub(super) own: Fingerprint,
    pub(super) charged: Fingerprint,
    pub(super) charge: Charge<'r>,
}

pub(super) fn locked<'a>(
    shards: &'a mut [(usize, MutexGuard<'_, Shard>)],
    index: usize,
) -> Option<&'a mut Shard> {
    let place = shards
        .binary_search_by_key(&index, |(index, _)| *index)
        .ok()?;
    shards.get_mut(place).map(|(_, shard)| &mut **shard)
}
