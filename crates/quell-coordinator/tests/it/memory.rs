//! A store in the memory of a test, which can be restored from a backup while coordinators run, in no time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_coordinator::store::{
    Change, Committed, Condition, ConfigStore, Entry, Lease, Listing, StoreError, Transaction,
    Watch, Write,
};
use tokio::time::sleep;

/// How often a watch looks for what is new.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Clone, Debug, Default)]
struct Contents {
    revision: u64,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<i64, (Duration, Instant)>,
    last_lease: i64,
    log: Vec<(u64, Change)>,
    /// How often it was restored: that ends watches.
    restored: u64,
}

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Contents>>);

/// A backup.
pub(crate) struct Backup(Contents);

impl Memory {
    pub(crate) fn back_up(&self) -> Backup {
        Backup(self.0.lock().unwrap().clone())
    }

    /// As `etcdctl snapshot restore` does: leases begin anew, and connections break. With `bump` revisions go on.
    pub(crate) fn restore(&self, backup: &Backup, bump: bool) {
        let mut contents = self.0.lock().unwrap();
        let now = Instant::now();
        let mut next = backup.0.clone();
        next.restored = contents.restored + 1;
        next.last_lease = contents.last_lease;
        next.log.clear();
        if bump {
            next.revision += 1_000_000;
        }
        for (ttl, ends) in next.leases.values_mut() {
            *ends = now + *ttl;
        }
        *contents = next;
    }

    /// The contents, without what has ended.
    fn with<T>(&self, act: impl FnOnce(&mut Contents) -> T) -> T {
        let mut contents = self.0.lock().unwrap();
        let now = Instant::now();
        let leases = contents.leases.clone();
        for lease in leases.iter().filter(|(_, (_, ends))| *ends < now) {
            contents.end(*lease.0);
        }
        act(&mut contents)
    }
}

impl Contents {
    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let attached = |entry: &Entry| entry.lease == Some(Lease(lease));
        let entries = self.entries.iter().filter(|(_, entry)| attached(entry));
        let keys: Vec<String> = entries.map(|(key, _)| key.clone()).collect();
        self.write(keys.into_iter().map(Write::delete).collect());
    }

    fn write(&mut self, writes: Vec<Write>) {
        let revision = self.revision + 1;
        for write in writes {
            let (key, entry) = match write {
                Write::Put { key, value, lease } => {
                    let created = self.entries.get(&key).map_or(revision, |old| old.created);
                    let entry = Entry {
                        value,
                        created,
                        changed: revision,
                        lease,
                    };
                    self.entries.insert(key.clone(), entry.clone());
                    (key, Some(entry))
                }
                Write::Delete { key } if self.entries.remove(&key).is_none() => continue,
                Write::Delete { key } => (key, None),
            };
            self.revision = revision;
            self.log.push((revision, Change { key, entry }));
        }
    }

    fn holds(&self, condition: &Condition) -> bool {
        let of = |key: &str, number: fn(&Entry) -> u64| self.entries.get(key).map_or(0, number);
        match condition {
            Condition::Created { key, revision } => of(key, |entry| entry.created) == *revision,
            Condition::Changed { key, revision } => of(key, |entry| entry.changed) == *revision,
            Condition::LeasedBy { key, lease } => {
                let entry = self.entries.get(key);
                entry.is_some_and(|entry| entry.lease == Some(*lease))
            }
        }
    }
}

impl ConfigStore for Memory {
    type Watch = MemoryWatch;

    async fn read(&self, prefix: &str, _: Duration) -> Result<Listing, StoreError> {
        Ok(self.with(|contents| {
            let entries = contents.entries.iter();
            let below = entries.filter(|(key, _)| key.starts_with(prefix));
            Listing {
                revision: contents.revision,
                entries: below.map(|(k, v)| (k.clone(), v.clone())).collect(),
            }
        }))
    }

    async fn watch(&self, prefix: &str, from: u64, _: Duration) -> Result<MemoryWatch, StoreError> {
        Ok(MemoryWatch {
            restored: self.with(|contents| contents.restored),
            store: self.clone(),
            prefix: prefix.to_owned(),
            from,
            asked: false,
        })
    }

    async fn commit(&self, transaction: Transaction, _: Duration) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        Ok(self.with(|contents| {
            let conditions = &transaction.conditions;
            let succeeded = conditions.iter().all(|condition| contents.holds(condition));
            if succeeded {
                contents.write(transaction.writes);
            }
            Committed {
                succeeded,
                revision: contents.revision,
            }
        }))
    }

    async fn grant(&self, ttl: Duration, _: Duration) -> Result<Lease, StoreError> {
        Ok(self.with(|contents| {
            contents.last_lease += 1;
            let lease = contents.last_lease;
            contents.leases.insert(lease, (ttl, Instant::now() + ttl));
            Lease(lease)
        }))
    }

    async fn keep_alive(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        self.with(|contents| {
            let kept = contents.leases.get_mut(&lease.0);
            let (ttl, ends) = kept.ok_or(StoreError::LeaseEnded)?;
            *ends = Instant::now() + *ttl;
            Ok(())
        })
    }

    async fn revoke(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        self.with(|contents| contents.end(lease.0));
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct MemoryWatch {
    store: Memory,
    prefix: String,
    from: u64,
    restored: u64,
    asked: bool,
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let (restored, log) = self
                .store
                .with(|contents| (contents.restored, contents.log.clone()));
            if restored != self.restored {
                return Err(StoreError::WatchEnded("its server left".into()));
            }
            let new = log
                .into_iter()
                .filter(|(revision, _)| *revision >= self.from);
            let new: Vec<(u64, Change)> = new.collect();
            if let Some((last, _)) = new.last() {
                self.from = last + 1;
                let changes = new.into_iter().map(|(_, change)| change);
                return Ok(changes
                    .filter(|one| one.key.starts_with(&self.prefix))
                    .collect());
            }
            if std::mem::take(&mut self.asked) {
                return Ok(Vec::new());
            }
            sleep(LOOK).await;
        }
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        self.asked = true;
        Ok(())
    }
}
