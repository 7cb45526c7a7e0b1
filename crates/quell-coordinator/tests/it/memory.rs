//! A store in the memory of a test, which can be restored from a backup while coordinators run, in no time.
//! Leases end when the test says so, or by the runtime's clock, as in etcd: there a paused clock drives them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use quell_coordinator::store::{
    Change, Committed, Condition, ConfigStore, Lease, Listing, StoreError, StoredEntry,
    Transaction, Watch, Write,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::contents::Contents;

/// As the store in a file has it.
#[path = "../../src/store/contents.rs"]
mod contents;

#[derive(Clone, Debug, Default)]
struct State {
    contents: Contents,
    leases: BTreeMap<i64, Held>,
    last_lease: i64,
    /// True if leases end that nobody keeps.
    ends_leases: bool,
    /// Events before this revision are forgotten.
    compacted: u64,
    log: Vec<(u64, Change)>,
    /// Number of restores: each ends the watches.
    restored: u64,
}

/// A lease that has not ended.
#[derive(Clone, Debug)]
struct Held {
    ttl: Duration,
    kept: Instant,
}

/// Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<watch::Sender<State>>);

/// A backup.
pub(crate) struct Backup(State);

impl Memory {
    /// A store in which a lease ends that nobody keeps alive.
    pub(crate) fn with_ends() -> Self {
        let memory = Self::default();
        memory.0.send_modify(|state| state.ends_leases = true);
        memory
    }

    /// The leases that have not ended.
    pub(crate) fn leases(&self) -> BTreeSet<i64> {
        self.end_leases();
        self.0.borrow().leases.keys().copied().collect()
    }

    /// Forgets all changes up to now, and says at which revision.
    pub(crate) fn compact(&self) -> u64 {
        self.0.send_modify(|state| {
            state.compacted = state.contents.revision;
            state.log.clear();
        });
        self.0.borrow().compacted
    }

    /// Ends the leases whose time is over.
    fn end_leases(&self) {
        let now = Instant::now();
        self.0.send_if_modified(|state| {
            let is_over = |held: &Held| state.ends_leases && held.kept + held.ttl <= now;
            let over = state.leases.iter().filter(|(_, held)| is_over(held));
            let over: Vec<i64> = over.map(|(lease, _)| *lease).collect();
            over.iter().for_each(|lease| state.end(Lease(*lease)));
            !over.is_empty()
        });
    }

    pub(crate) fn back_up(&self) -> Backup {
        Backup(self.0.borrow().clone())
    }

    /// As `etcdctl snapshot restore` does: leases are as they were and begin anew, and connections break.
    /// With `bump` revisions go on.
    pub(crate) fn restore(&self, backup: &Backup, bump: bool) {
        self.0.send_modify(|state| {
            let mut next = backup.0.clone();
            next.restored = state.restored + 1;
            next.last_lease = state.last_lease;
            next.log.clear();
            let now = Instant::now();
            next.leases.values_mut().for_each(|held| held.kept = now);
            if bump {
                next.contents.revision += 1_000_000;
            }
            *state = next;
        });
    }

    /// Nobody has kept these leases alive: those of the leader's key of this coordinator.
    pub(crate) fn end_lease_of(&self, leader: &str) {
        let is_its_own = |entry: &&StoredEntry| entry.value == leader.as_bytes();
        let entries = self.0.borrow().contents.entries.clone();
        let leases = entries.values().filter(is_its_own);
        for lease in leases.filter_map(|entry| entry.lease) {
            self.0.send_modify(|state| state.end(lease));
        }
    }
}

impl State {
    /// When the next lease ends, unless it is kept alive.
    fn next_end(&self) -> Option<Instant> {
        let ends = self.leases.values().map(|held| held.kept + held.ttl);
        ends.min().filter(|_| self.ends_leases)
    }

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
        self.end_leases();
        Ok(self.0.borrow().contents.below(prefix))
    }

    async fn watch(&self, prefix: &str, from: u64, _: Duration) -> Result<MemoryWatch, StoreError> {
        let state = self.0.subscribe();
        let restored = state.borrow().restored;
        Ok(MemoryWatch {
            memory: self.clone(),
            state,
            prefix: prefix.to_owned(),
            from,
            restored,
            asked: false,
        })
    }

    async fn commit(&self, transaction: Transaction, _: Duration) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        self.end_leases();
        let (mut succeeded, mut has_ended) = (false, false);
        self.0.send_if_modified(|state| {
            let holds = |condition: &Condition| state.contents.holds(condition);
            succeeded = transaction.conditions.iter().all(holds);
            let is_of_none = |write: &Write| match write {
                Write::Put { lease, .. } => {
                    lease.is_some_and(|lease| !state.leases.contains_key(&lease.0))
                }
                Write::Delete { .. } => false,
            };
            has_ended = succeeded && transaction.writes.iter().any(is_of_none);
            let is_written = succeeded && !has_ended;
            if is_written {
                state.write(transaction.writes);
            }
            is_written
        });
        if has_ended {
            return Err(StoreError::LeaseEnded);
        }
        Ok(Committed {
            succeeded,
            revision: self.0.borrow().contents.revision,
        })
    }

    async fn grant(&self, ttl: Duration, _: Duration) -> Result<Lease, StoreError> {
        let kept = Instant::now();
        // Watches look for the next end.
        self.0.send_modify(|state| {
            state.last_lease += 1;
            state.leases.insert(state.last_lease, Held { ttl, kept });
        });
        Ok(Lease(self.0.borrow().last_lease))
    }

    async fn keep_alive(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        self.end_leases();
        let mut is_kept = false;
        self.0.send_if_modified(|state| {
            let held = state.leases.get_mut(&lease.0);
            is_kept = held.map(|held| held.kept = Instant::now()).is_some();
            false
        });
        match is_kept {
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
    memory: Memory,
    state: watch::Receiver<State>,
    prefix: String,
    from: u64,
    restored: u64,
    asked: bool,
}

impl MemoryWatch {
    /// The changes that it has not shown, or none if it was asked whether it lives.
    fn look(&mut self) -> Result<Option<Vec<Change>>, StoreError> {
        let state = self.state.borrow_and_update();
        if state.restored != self.restored {
            return Err(StoreError::WatchEnded("its server left".into()));
        }
        if self.from < state.compacted {
            let why = format!(
                "the changes before revision {} are compacted",
                state.compacted
            );
            return Err(StoreError::WatchEnded(why));
        }
        let is_new = |(revision, change): &&(u64, Change)| {
            *revision >= self.from && change.key.starts_with(&self.prefix)
        };
        let changes = state.log.iter().filter(is_new);
        let changes: Vec<Change> = changes.map(|(_, change)| change.clone()).collect();
        let asked = std::mem::take(&mut self.asked);
        if changes.is_empty() && !asked {
            return Ok(None);
        }
        self.from = state.contents.revision + 1;
        Ok(Some(changes))
    }
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            self.memory.end_leases();
            if let Some(changes) = self.look()? {
                return Ok(changes);
            }
            let end = self.state.borrow().next_end();
            let ended = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = self.state.changed() => {
                    changed.map_err(|error| StoreError::WatchEnded(error.to_string()))?;
                }
                () = ended => {}
            }
        }
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        self.asked = true;
        Ok(())
    }
}
