//! Store: where this server keeps its states, in memory or in Redis.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::{Action, Answer, Banned, Finished, HoldTotals, Placed, Store, StoreError};
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::hold::{Claim, Ending, HoldId};
use quell_core::key::Key;
use quell_core::rule::Changes;
use quell_core::time::Now;
use quell_redis::{GuardNumbers, GuardedStore, RedisStore, StoreNumbers};

use crate::config::Config;

/// One of the stores that a server can have.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, and a call on memory should not go through a pointer"
)]
pub(crate) enum ServerStore {
    /// In this process.
    Memory(MemoryStore),
    /// Shared with all servers that name it.
    Redis(GuardedStore),
}

impl ServerStore {
    /// The store that `config` asks for; `secret` is for keys in memory, `clock` the limiter's.
    pub(crate) fn new(config: &Config, secret: HashKey, clock: &Arc<dyn Clock>) -> Self {
        match &config.store {
            None => Self::Memory(MemoryStore::with(config.max_keys, secret)),
            Some(url) => {
                let store = RedisStore::builder(url.clone()).timeout(config.store_timeout);
                Self::Redis(GuardedStore::new(store.build(), Arc::clone(clock)))
            }
        }
    }

    /// The store in this process, if states are kept there.
    pub(crate) const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }

    /// What is counted of a store beside this process.
    pub(crate) fn numbers(&self) -> Option<(StoreNumbers, GuardNumbers)> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some((store.store_numbers(), store.guard_numbers())),
        }
    }

    /// How many holds there are: in memory all, beside this process those that it made.
    pub(crate) async fn hold_totals(&self, now: Now) -> HoldTotals {
        match self {
            Self::Memory(store) => store.hold_totals(now),
            Self::Redis(store) => store.hold_totals(now).await,
        }
    }

    /// Keys with a state of their own in this process.
    pub(crate) fn keys(&self) -> usize {
        self.memory().map_or(0, MemoryStore::keys)
    }

    /// Where a store beside this process is, and why callers are not answered by it if they are not.
    pub(crate) async fn look(&self) -> Option<(String, Option<String>)> {
        let Self::Redis(store) = self else {
            return None;
        };
        Some((store.url().to_string(), store.failure().await))
    }

    /// What somebody should change about a store beside this process; `None` if that does not answer.
    pub(crate) async fn warnings(&self) -> Option<Vec<String>> {
        match self {
            Self::Memory(_) => Some(Vec::new()),
            Self::Redis(store) => store.warnings().await.ok(),
        }
    }

    /// Says where states are kept, and whether that answers.
    pub(crate) async fn announce(&self) {
        match self.look().await {
            None => {}
            Some((url, None)) => tracing::info!(url, "store"),
            Some((url, Some(failure))) => tracing::error!(
                url,
                failure,
                "the store does not answer: what on_failure declares is answered until it does"
            ),
        }
    }
}

impl Store for ServerStore {
    fn keep_time(&mut self, clock: &Arc<dyn Clock>) {
        if let Self::Memory(store) = self {
            store.keep_time(clock);
        }
    }

    fn adopt(&self, changes: &Changes) {
        match self {
            Self::Memory(store) => store.adopt(changes),
            Self::Redis(store) => store.adopt(changes),
        }
    }

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        match self {
            Self::Memory(store) => store.charge(set, operation, now).await,
            Self::Redis(store) => store.charge(set, operation, now).await,
        }
    }

    async fn decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => store.decide(set, operation, now).await,
            Self::Redis(store) => store.decide(set, operation, now).await,
        }
    }

    fn decide_at_once(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Option<Answer> {
        match self {
            Self::Memory(store) => store.decide_at_once(set, operation, now),
            Self::Redis(store) => store.decide_at_once(set, operation, now),
        }
    }

    fn charge_one_at_once(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Decision> {
        match self {
            Self::Memory(store) => store.charge_one_at_once(key, charge, operation, now),
            Self::Redis(store) => store.charge_one_at_once(key, charge, operation, now),
        }
    }

    fn has_holds(&self) -> bool {
        match self {
            Self::Memory(store) => store.has_holds(),
            Self::Redis(store) => store.has_holds(),
        }
    }

    fn most_learned(&self) -> usize {
        match self {
            Self::Memory(store) => store.most_learned(),
            Self::Redis(store) => store.most_learned(),
        }
    }

    fn most_holds(&self) -> usize {
        match self {
            Self::Memory(store) => store.most_holds(),
            Self::Redis(store) => store.most_holds(),
        }
    }

    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        match self {
            Self::Memory(store) => store.hold(set, claim, now).await,
            Self::Redis(store) => store.hold(set, claim, now).await,
        }
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        match self {
            Self::Memory(store) => store.end(id, ending, now).await,
            Self::Redis(store) => store.end(id, ending, now).await,
        }
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        match self {
            Self::Memory(store) => store.advance(id, now).await,
            Self::Redis(store) => store.advance(id, now).await,
        }
    }

    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        match self {
            Self::Memory(store) => store.fall_back(set, claim, now, error),
            Self::Redis(store) => store.fall_back(set, claim, now, error),
        }
    }

    fn calls_across(&self) -> bool {
        match self {
            Self::Memory(store) => store.calls_across(),
            Self::Redis(store) => store.calls_across(),
        }
    }

    async fn moved_up(&self, id: &HoldId) {
        match self {
            Self::Memory(store) => store.moved_up(id).await,
            Self::Redis(store) => store.moved_up(id).await,
        }
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        match self {
            Self::Memory(store) => store.abandon(id, ending, now),
            Self::Redis(store) => store.abandon(id, ending, now),
        }
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => store.administer(set, action, now).await,
            Self::Redis(store) => store.administer(set, action, now).await,
        }
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        match self {
            Self::Memory(store) => store.bans(most, now).await,
            Self::Redis(store) => store.bans(most, now).await,
        }
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => store.ban_count(now).await,
            Self::Redis(store) => store.ban_count(now).await,
        }
    }
}
