//! Makes a shared store behave like one process, for scenarios.
//!
//! In production a changed limit reaches a key when it is next charged, since no process knows all keys. A
//! scenario describes one process, where a change reaches all keys at once. So here every charged key is
//! remembered, changes are applied to all of them, and all can be deleted afterwards.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::rule::Changes;
use quell_core::time::Now;

/// Keys by name, and changes that are still to be applied to them.
#[derive(Debug, Default)]
pub(crate) struct TestIsolation {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The limit under which each key was last charged.
    keys: BTreeMap<Vec<u8>, LimitId>,
    /// Names of other keys than states.
    others: BTreeSet<Vec<u8>>,
    limits: HashMap<LimitId, ActiveLimit>,
    changes: Vec<ForcedChange>,
}

/// A change to the states with these names, made before the next call.
#[derive(Debug)]
pub(crate) enum ForcedChange {
    Delete(Vec<Vec<u8>>),
    /// Carry the states over to this limit at this instant.
    Carry(Vec<Vec<u8>>, Box<ActiveLimit>, Now),
}

impl TestIsolation {
    pub(crate) fn adopt(&self, changes: &Changes) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        for active in &changes.added {
            inner.limits.insert(active.id, active.clone());
        }
        for replaced in &changes.replaced {
            let (Some(to), Some(at)) = (inner.limits.get(&replaced.to), replaced.at) else {
                continue;
            };
            let mut carried = Vec::new();
            for (name, limit) in &mut inner.keys {
                if *limit == replaced.from {
                    *limit = replaced.to;
                    carried.push(name.clone());
                }
            }
            inner
                .changes
                .push(ForcedChange::Carry(carried, Box::new(to.clone()), at));
        }
        for removed in &changes.removed {
            let mut forgotten = Vec::new();
            inner.keys.retain(|name, limit| {
                if limit == removed {
                    forgotten.push(name.clone());
                }
                limit != removed
            });
            inner.changes.push(ForcedChange::Delete(forgotten));
        }
    }

    pub(crate) fn note_states(&self, keys: impl Iterator<Item = (Vec<u8>, LimitId)>) {
        self.inner.lock().keys.extend(keys);
    }

    /// Remembers names that no change of limits reaches.
    pub(crate) fn note_names(&self, names: impl IntoIterator<Item = Vec<u8>>) {
        self.inner.lock().others.extend(names);
    }

    pub(crate) fn take_changes(&self) -> Vec<ForcedChange> {
        std::mem::take(&mut self.inner.lock().changes)
    }

    /// Every key that the store may have.
    pub(crate) fn take_all(&self) -> Vec<Vec<u8>> {
        let mut inner = self.inner.lock();
        let changes = std::mem::take(&mut inner.changes).into_iter();
        let deleted = changes.filter_map(|change| match change {
            ForcedChange::Delete(names) => Some(names),
            ForcedChange::Carry(..) => None,
        });
        let mut names: Vec<_> = deleted.flatten().collect();
        names.extend(std::mem::take(&mut inner.keys).into_keys());
        names.extend(std::mem::take(&mut inner.others));
        names
    }
}
