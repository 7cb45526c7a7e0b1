//! Contents: all keys of a store in one process, at a revision.

use std::collections::BTreeMap;

use super::{Change, Condition, Lease, Listing, StoredEntry, Write};

#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) revision: u64,
    pub(super) entries: BTreeMap<String, StoredEntry>,
}

impl Contents {
    pub(super) fn holds(&self, condition: &Condition) -> bool {
        let of =
            |key: &str, number: fn(&StoredEntry) -> u64| self.entries.get(key).map_or(0, number);
        match condition {
            Condition::Created { key, revision } => of(key, |entry| entry.created) == *revision,
            Condition::Changed { key, revision } => of(key, |entry| entry.changed) == *revision,
            Condition::LeasedBy { key, lease } => {
                let entry = self.entries.get(key);
                entry.is_some_and(|entry| entry.lease == Some(*lease))
            }
        }
    }

    /// The contents after these writes, and what they change. Without a change the revision stays.
    pub(super) fn after(&self, writes: Vec<Write>) -> (Self, Vec<Change>) {
        let revision = self.revision + 1;
        let (mut next, mut changes) = (self.clone(), Vec::new());
        for write in writes {
            let (key, entry) = match write {
                Write::Put { key, value, lease } => {
                    let created = next.entries.get(&key).map_or(revision, |old| old.created);
                    let entry = StoredEntry {
                        value,
                        created,
                        changed: revision,
                        lease,
                    };
                    next.entries.insert(key.clone(), entry.clone());
                    (key, Some(entry))
                }
                Write::Delete { key } if next.entries.remove(&key).is_none() => continue,
                Write::Delete { key } => (key, None),
            };
            next.revision = revision;
            changes.push(Change { key, entry });
        }
        (next, changes)
    }

    /// Writes at the end of a lease.
    pub(super) fn detached(&self, lease: Lease) -> Vec<Write> {
        let entries = self.entries.iter();
        let attached = entries.filter(|(_, entry)| entry.lease == Some(lease));
        attached.map(|(key, _)| Write::delete(key)).collect()
    }

    /// The keys with this prefix.
    pub(super) fn below(&self, prefix: &str) -> Listing {
        let below = self.entries.range(prefix.to_owned()..);
        let below = below.take_while(|(key, _)| key.starts_with(prefix));
        Listing {
            revision: self.revision,
            entries: below.map(|(k, v)| (k.clone(), v.clone())).collect(),
        }
    }
}
