//! A store in the memory of a test, which can be restored from a backup while coordinators run, in no time.
//! Leases end when the test says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quell_coordinator::store::{
    Change, Committed, Condition, ConfigStore, Entry, Lease, Listing, StoreError, Transaction,
    Watch, Write,
};
use tokio::sync::watch;

use self::contents::Contents;

/// As the store in a file has it.
#[path = "../../src/store/contents.rs"]
mod contents;

#[derive(Clone, Debug, Default)]
struct State {
    contents: Contents,
    leases: BTreeSet<i64>,
    last_lease: i64,
    log: Vec<(u64, Change)>,
    /// How often it was restored: that ends watches.
    restored: u64,
}

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<watch::Sender<State>>);

/// A backup.
pub(crate) struct Backup(State);

impl Memory {
    pub(crate) fn back_up(&self) -> Backup {
        Backup(self.0.borrow().clone())
    }

    /// As `etcdctl snapshot restore` does: leases are as they were, and connections break. With `bump`
    /// revisions go on.
    pub(crate) fn restore(&self, backup: &Backup, bump: bool) {
        self.0.send_modify(|state| {
            let mut next = backup.0.clone();
            next.restored = state.restored + 1;
            next.last_lease = state.last_lease;
            next.log.clear();
            if bump {
                next.contents.revision += 1_000_000;
            }
            *state = next;
        });
    }

    /// Nobody has kept these leases alive: those of the leader's key of this coordinator.
    pub(crate) fn end_lease_of(&self, leader: &str) {
        let is_its_own = |entry: &&Entry| entry.value == leader.as_bytes();
        let entries = self.0.borrow().contents.entries.clone();
        let leases = entries.values().filter(is_its_own);
        for lease in leases.filter_map(|entry| entry.lease) {
            self.0.send_modify(|state| state.end(lease));
        }
    }
}

impl State {
    fn end(&mut self, lease: Lease) {
        self.leases.remove(&lease.0);
        self.write(self.contents.detached(lease));
    }

    fn write(&mut self, writes: Vec<Write>) {
        let (next, changes) = self.contents.after(writes);
        let revision = next.revision;
        self.contents = next;
        let changes = changes.into_iter().map(|change| (revision, change));
        self.log.extend(changes);
    }
}

impl ConfigStore for Memory {
    type Watch = MemoryWatch;

    async fn read(&self, prefix: &str, _: Duration) -> Result<Listing, StoreError> {
        Ok(self.0.borrow().contents.below(prefix))
    }

    async fn watch(&self, prefix: &str, from: u64, _: Duration) -> Result<MemoryWatch, StoreError> {
        let state = self.0.subscribe();
        let restored = state.borrow().restored;
        Ok(MemoryWatch {
            state,
            prefix: prefix.to_owned(),
            from,
            restored,
            asked: false,
        })
    }

    async fn commit(&self, transaction: Transaction, _: Duration) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        let mut succeeded = false;
        self.0.send_if_modified(|state| {
            let holds = |condition: &Condition| state.contents.holds(condition);
            succeeded = transaction.conditions.iter().all(holds);
            if succeeded {
                state.write(transaction.writes);
            }
            succeeded
        });
        Ok(Committed {
            succeeded,
            revision: self.0.borrow().contents.revision,
        })
    }

    async fn grant(&self, _: Duration, _: Duration) -> Result<Lease, StoreError> {
        let mut lease = 0;
        self.0.send_if_modified(|state| {
            state.last_lease += 1;
            lease = state.last_lease;
            state.leases.insert(lease);
            false
        });
        Ok(Lease(lease))
    }

    async fn keep_alive(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        match self.0.borrow().leases.contains(&lease.0) {
            true => Ok(()),
            false => Err(StoreError::LeaseEnded),
        }
    }

    async fn revoke(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        self.0.send_modify(|state| state.end(lease));
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct MemoryWatch {
    state: watch::Receiver<State>,
    prefix: String,
    from: u64,
    restored: u64,
    asked: bool,
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        let (restored, from, prefix) = (self.restored, self.from, &self.prefix);
        let is_new = |(revision, change): &&(u64, Change)| {
            *revision >= from && change.key.starts_with(prefix)
        };
        let asked = std::mem::take(&mut self.asked);
        let is_due = |state: &State| {
            asked || state.restored != restored || state.log.iter().any(|one| is_new(&one))
        };
        let state = self.state.wait_for(is_due).await;
        let state = state.map_err(|error| StoreError::WatchEnded(error.to_string()))?;
        if state.restored != restored {
            return Err(StoreError::WatchEnded("its server left".into()));
        }
        let changes = state.log.iter().filter(is_new);
        let changes = changes.map(|(_, change)| change.clone()).collect();
        self.from = state.contents.revision + 1;
        Ok(changes)
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        self.asked = true;
        Ok(())
    }
}
