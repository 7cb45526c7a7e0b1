//! A whole set: the states of all its charges, under the locks of their chains.

use std::collections::BTreeMap;

use quell_core::charge::{Charge, Entry, LimitSet, Operation, decide};
use quell_core::decision::Decisions;
use quell_core::time::Now;

use super::{Fingerprint, Keeping, LoadedState, MemoryStore, cause};

/// A state with the charge, or the sum of charges, that is made on it.
struct SharedState<'r, 't> {
    touched: ChargedState<'r>,
    held: LoadedState<'t>,
    was_banned: bool,
}

impl<'r> SharedState<'r, '_> {
    fn entry(&mut self) -> Entry<'_, 'r> {
        Entry {
            charge: &self.touched.charge,
            state: &mut self.held.state,
        }
    }
}

/// The states that a set was decided on.
pub(super) struct DecidedSet<'r, R> {
    /// The result.
    pub(super) result: R,
    pub(super) states: Vec<ChargedState<'r>>,
    /// For each charge of the set, the index of its state.
    pub(super) of_charge: Vec<usize>,
}

/// One state, and the charge, or sum of charges, that was made on it.
pub(super) struct ChargedState<'r> {
    /// The key's own.
    pub(super) own: Fingerprint,
    /// The fingerprint it was charged under: the key's own, or that of the overflow state that it
    /// shares.
    pub(super) charged: Fingerprint,
    pub(super) charge: Charge<'r>,
}

impl MemoryStore {
    pub(super) fn charge_many(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Decisions {
        let work = |now, entries: &mut [Entry<'_, '_>]| decide(now, operation, entries);
        let decided = self.with_states(set, operation, now, work, |_, _| {});
        let decisions = decided.result;
        let of_charge = decided.of_charge.iter();
        of_charge
            .filter_map(|index| decisions.get(*index).copied())
            .collect()
    }

    /// Works on the states of a whole set under their locks, and stores them unless the operation
    /// is a peek. `note` is also called under the locks, after everything is written.
    pub(super) fn with_states<'r, R>(
        &self,
        set: &LimitSet<'r>,
        operation: Operation,
        now: Now,
        work: impl FnOnce(Now, &mut [Entry<'_, 'r>]) -> R,
        note: impl FnOnce(&mut R, &[ChargedState<'r>]),
    ) -> DecidedSet<'r, R> {
        let charges = set.charges();
        let key_of = |charge| self.load_key(set.key(charge), charge);
        let keys: Vec<_> = charges.iter().map(key_of).collect();
        let keeper = Keeping { store: self, now };
        let (mut chains, loaded) = self.table.load_all(&keys, operation, now, &keeper);
        let (read, now) = (now, self.read_again(now));
        let keeper = Keeping { store: self, now };
        let mut shared: Vec<SharedState<'_, '_>> = Vec::with_capacity(keys.len());
        let (mut of_charge, mut by_overflow) = (Vec::with_capacity(keys.len()), BTreeMap::new());
        for ((charge, key), mut held) in charges.iter().zip(&keys).zip(loaded) {
            if held.is_overflow() {
                let first = *by_overflow.entry(held.fingerprint).or_insert(shared.len());
                if let Some(other) = shared.get_mut(first) {
                    // Two new keys on one overflow state count as one key, charged the sum.
                    other.touched.charge.add(charge);
                    of_charge.push(first);
                    continue;
                }
            }
            self.carry(&mut held.state, charge, now);
            let was_banned = held.state.banned_for(now.monotonic).is_some();
            of_charge.push(shared.len());
            let touched = ChargedState {
                own: key.fingerprint,
                charged: held.fingerprint,
                charge: charge.clone(),
            };
            shared.push(SharedState {
                touched,
                held,
                was_banned,
            });
        }
        let mut entries: Vec<_> = shared.iter_mut().map(SharedState::entry).collect();
        let mut result = work(now, &mut entries);
        let (mut states, mut added) = (Vec::with_capacity(shared.len()), 0);
        for mut shared in shared {
            if operation == Operation::Acquire {
                self.leave_replaced(&mut shared.entry(), read, now);
                let is_banned = shared.held.state.banned_for(now.monotonic).is_some();
                if is_banned && !shared.was_banned {
                    let (key, held) = (set.key(&shared.touched.charge), &shared.held);
                    let why = cause(&shared.touched.charge, &held.state);
                    let name = (key.as_bytes(), why.as_deref(), set.account());
                    self.remember(held.fingerprint, name, &held.state, now);
                }
                added += usize::from(self.table.store(&mut chains, shared.held, now, &keeper));
            }
            states.push(shared.touched);
        }
        note(&mut result, &states);
        drop(chains);
        for _ in 0..added {
            self.table.make_way(now, &keeper);
        }
        DecidedSet {
            result,
            states,
            of_charge,
        }
    }
}
