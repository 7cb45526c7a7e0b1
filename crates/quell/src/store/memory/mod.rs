//! Memory store: states in this process, bounded in number, exact, and gone with the process.
//!
//! The table is cut into shards, each under a lock of its own; a set of charges locks its shards in
//! order. Keys are kept as fingerprints. A state at rest is dropped bit by bit: whoever adds a key
//! looks at a few others, and [`MemoryStore::sweep`] may be called from a timer.
//!
//! Past `max_keys` a new key shares one overflow state with the other new keys of its limit and
//! shard: it may be refused early, but nobody is let off. When there is room again, a new key starts
//! with what its overflow state holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use quell_core::charge::{Charge, Entry, LimitSet, Operation, ban, decide_one, lift};
use quell_core::decision::Decision;
use quell_core::hold::{Claim, Ending, HoldId, forgive};
use quell_core::key::{Key, KeyName};
use quell_core::limit::{Installed, LimitId};
use quell_core::rule::Changes;
use quell_core::state::State;
use quell_core::time::Now;

use super::{Action, Banned, Finished, LocalStore, Placed, Store, StoreError};

mod fingerprint;
mod hold;
mod holds;
mod registry;
mod set;
mod shard;
mod table;

pub use fingerprint::{Fingerprint, HashKey};
use holds::Holds;
pub use holds::{MAX_IDS, RETENTION};
use registry::Registry;
use shard::Shard;
pub(crate) use table::{Held, Keeper, LoadKey, Table};

/// Keys unless said: 45 bytes each for a bucket, so about half a gigabyte when full.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// Banned keys whose names are remembered, to be listed: the bans themselves are not bounded by it.
pub const MAX_NAMED_BANS: usize = 100_000;

/// States in this process.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
    registry: RwLock<Registry>,
    names: Mutex<HashMap<Fingerprint, Box<[u8]>>>,
    holds: Holds,
    next_shard: AtomicUsize,
}

/// A state as a snapshot holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Stands for the key, under the store's [`HashKey`].
    pub fingerprint: Fingerprint,
    /// Whether it is an overflow state, shared by several keys.
    pub overflow: bool,
    /// What was used.
    pub state: State,
    /// The key's bytes, where they are remembered because it is banned.
    pub name: Option<Box<[u8]>>,
}

impl MemoryStore {
    /// An empty store of at most [`DEFAULT_MAX_KEYS`] keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with(DEFAULT_MAX_KEYS, HashKey::random())
    }

    /// An empty store of at most `max_keys` keys (at least 1) that hashes under `key`.
    #[must_use]
    pub fn with(max_keys: usize, key: HashKey) -> Self {
        Self {
            table: Table::new(max_keys, key),
            registry: RwLock::default(),
            names: Mutex::default(),
            holds: Holds::new(),
            next_shard: AtomicUsize::new(0),
        }
    }

    /// Keys that have a state of their own, whether at rest or not.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.keys()
    }

    /// The most keys that may have a state of their own.
    #[must_use]
    pub const fn max_keys(&self) -> usize {
        self.table.max_keys()
    }

    /// Overflow states in use: above zero, the store is or was full.
    #[must_use]
    pub fn overflow_states(&self) -> usize {
        self.table.overflow_states()
    }

    /// The secret under which keys are hashed, for a snapshot.
    #[must_use]
    pub const fn hash_key(&self) -> HashKey {
        self.table.hash_key()
    }

    /// Looks at the next `shards` of [`MemoryStore::shard_count`] shards and drops what is at rest.
    /// A lock is held for a few microseconds at a time. Returns how many keys went.
    pub fn sweep(&self, shards: usize, now: Now) -> usize {
        let mut gone = 0;
        for _ in 0..shards.min(self.table.shard_count()) {
            let index = self.next_shard.fetch_add(1, Ordering::Relaxed);
            if index.is_multiple_of(self.table.shard_count()) {
                self.registry.write().forget_outlived(now);
            }
            gone += self.table.sweep(index, |state| self.may_drop(state, now));
        }
        gone
    }

    /// Number of shards, for [`MemoryStore::export`].
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.table.shard_count()
    }

    /// Copies of the states in one shard that are not at rest. Locks that shard only.
    #[must_use]
    pub fn export(&self, shard: usize, now: Now) -> Vec<Saved> {
        let states = self.table.export(shard, |state| !self.may_drop(state, now));
        let names = self.names.lock();
        states
            .into_iter()
            .map(|(fingerprint, state, overflow)| Saved {
                name: state
                    .ban
                    .as_ref()
                    .and_then(|_| names.get(&fingerprint).cloned()),
                fingerprint,
                overflow,
                state,
            })
            .collect()
    }

    /// The limits under which exported states can stand.
    #[must_use]
    pub fn limits(&self) -> Vec<Installed> {
        self.registry.read().all().cloned().collect()
    }

    /// Adds what a snapshot holds: its limits, under names that this store has not seen, and its
    /// states, charged under them. What is in force now takes over at `now`.
    pub fn import(&self, limits: Vec<Installed>, states: Vec<Saved>, now: Now) {
        self.registry.write().restore(limits, now);
        for saved in states {
            if let Some(name) = saved.name {
                self.remember(saved.fingerprint, &name);
            }
            self.table
                .import(saved.fingerprint, saved.state, saved.overflow);
        }
    }

    fn remember(&self, fingerprint: Fingerprint, name: &[u8]) {
        let mut names = self.names.lock();
        if names.len() < MAX_NAMED_BANS || names.contains_key(&fingerprint) {
            names.insert(fingerprint, name.into());
        }
    }

    /// Whether nothing would be lost with this state.
    ///
    /// Locks are taken in one order, shards before the registry and for one look only: a reload that
    /// waits for the registry holds up nobody who holds a shard.
    fn may_drop(&self, state: &State, now: Now) -> bool {
        self.registry.read().may_drop(state, now)
    }

    fn load_key<'k>(&self, key: Key<'k>) -> LoadKey<'k> {
        LoadKey {
            fingerprint: self.table.hash_key().of_bytes(key.as_bytes()),
            scope: key.scope(),
        }
    }

    /// Loads the state that `charge` is made on, under the charge's limit.
    fn load(
        &self,
        shard: &mut Shard,
        key: LoadKey<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: Now,
    ) -> Held {
        let rest = State::rest(charge.installed.id);
        let copy = operation == Operation::Peek;
        let keeper = Keeping {
            store: self,
            limit: charge.installed.id,
            now,
        };
        let mut held = self.table.load(shard, key, rest, copy, &keeper);
        if held.state.limit != charge.installed.id {
            self.registry.read().carry(&mut held.state, charge, now);
        }
        held
    }

    fn charge_one(
        &self,
        set: &LimitSet<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: Now,
    ) -> Decision {
        let key = set.key(charge);
        let load_key = self.load_key(key);
        let mut shard = self.table.lock(load_key.fingerprint);
        let mut held = self.load(&mut shard, load_key, charge, operation, now);
        let was_banned = held.state.banned_for(now.monotonic).is_some();
        let entry = &mut Entry {
            charge,
            state: &mut held.state,
        };
        let decision = decide_one(now, operation, entry);
        if operation == Operation::Acquire {
            if decision.banned && !was_banned {
                self.remember(held.fingerprint, key.as_bytes());
            }
            self.table.store(&mut shard, held);
        }
        decision
    }
}

/// What the table asks of the store while it loads a state.
struct Keeping<'a> {
    store: &'a MemoryStore,
    limit: LimitId,
    now: Now,
}

impl Keeper for Keeping<'_> {
    fn may_drop(&self, state: &State) -> bool {
        self.store.may_drop(state, self.now)
    }

    fn group(&self) -> u32 {
        self.store.registry.read().root(self.limit).0
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalStore for MemoryStore {
    fn charge_local(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Vec<Decision> {
        match set.charges() {
            [] => Vec::new(),
            [charge] => vec![self.charge_one(set, charge, operation, now)],
            _ => self.charge_many(set, operation, now),
        }
    }

    fn hold_local(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.hold_now(set, claim, now)
    }

    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.end_now(id, ending, now)
    }
}

impl Store for MemoryStore {
    fn adopt(&self, changes: &Changes) {
        self.registry.write().adopt(changes);
    }

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        Ok(self.charge_local(set, operation, now))
    }

    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.hold_now(set, claim, now)
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        Ok(self.end_now(id, ending, now))
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        Ok(self.advance_now(id, now))
    }

    fn abandon(&self, id: &HoldId, now: Now) -> Vec<HoldId> {
        let finished = self.end_now(id, Ending::Cancel, now);
        finished.map_or_else(Vec::new, |finished| finished.next)
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        let mut changed = 0;
        for charge in set.charges() {
            let key = set.key(charge);
            let load_key = self.load_key(key);
            let mut shard = self.table.lock(load_key.fingerprint);
            let mut held = self.load(&mut shard, load_key, charge, Operation::Acquire, now);
            changed += usize::from(match action {
                Action::Forgive => {
                    let used = !held
                        .state
                        .time_to_rest(&charge.installed.limit, now)
                        .is_zero();
                    forgive(&mut held.state, &charge.installed.limit);
                    used
                }
                Action::Lift => lift(&mut held.state, now),
                Action::Ban(length) => {
                    ban(&mut held.state, now, length);
                    self.remember(held.fingerprint, key.as_bytes());
                    true
                }
            });
            self.table.store(&mut shard, held);
        }
        Ok(changed)
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        let named: Vec<_> = {
            let names = self.names.lock();
            names.iter().map(|(at, name)| (*at, name.clone())).collect()
        };
        let mut bans = Vec::new();
        for (fingerprint, name) in named {
            // Held while a name goes, so that no ban begins in between.
            let shard = self.table.lock(fingerprint);
            let state = shard.find(fingerprint).map(|place| shard.read(place));
            // State under a limit that is gone is as good as gone.
            let state = state.filter(|state| self.registry.read().knows(state.limit));
            let left = state.and_then(|state| state.banned_for(now.monotonic));
            match (left, KeyName::parse(&name)) {
                (Some(left), Some(key)) => bans.push(Banned { key, left }),
                _ => {
                    self.names.lock().remove(&fingerprint);
                }
            }
        }
        bans.sort_by_key(|ban| std::cmp::Reverse(ban.left));
        bans.truncate(most);
        Ok(bans)
    }
}
