//! Store: where this server keeps its states, in memory or in Redis.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::rungs::RungStore;
use quell::store::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, HoldTotals, Placed, Store,
    StoreError,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;
use quell_redis::{FallbackNumbers, FallbackStore, RedisStore, StoreNumbers};

use crate::config::Config;

/// One of the stores that a server can have.
#[derive(Debug)]
pub(crate) enum ServerStore {
    /// In this process.
    Memory(MemoryStore),
    /// Shared with all servers that name it; limits of rung `local` in this process.
    Redis(RungStore<FallbackStore<RedisStore>>),
}

/// How many keys have a state in this process: beside a shared store those of rung `local`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyCounts {
    /// Those with a state of their own.
    pub(crate) keys: usize,
    /// The most of them.
    pub(crate) max_keys: usize,
    /// States that keys beyond those share.
    pub(crate) overflow_states: usize,
}

impl ServerStore {
    /// The store that `config` asks for; `secret` is for keys in memory, `clock` the limiter's.
    pub(crate) fn new(config: &Config, secret: HashKey, clock: &Arc<dyn Clock>) -> Self {
        let memory = MemoryStore::with(config.max_keys, secret);
        match &config.store {
            None => Self::Memory(memory),
            Some(url) => {
                let store = RedisStore::builder(url.clone()).timeout(config.store_timeout);
                let shared = FallbackStore::new(store.build(), Arc::clone(clock));
                Self::Redis(RungStore::new(shared, memory))
            }
        }
    }

    /// The store in this process: to be swept, and saved on disk. Beside a shared store it has the
    /// limits of rung `local`.
    pub(crate) const fn memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(memory) => memory,
            Self::Redis(rungs) => rungs.local(),
        }
    }

    const fn shared(&self) -> Option<&FallbackStore<RedisStore>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(rungs) => Some(rungs.strict()),
        }
    }

    /// What is counted of a store beside this process.
    pub(crate) fn numbers(&self) -> Option<(StoreNumbers, FallbackNumbers)> {
        let shared = self.shared()?;
        Some((shared.store().numbers(), shared.fallback_numbers()))
    }

    /// How many holds there are: in memory all, beside this process those that it made.
    pub(crate) async fn hold_totals(&self, now: Now) -> HoldTotals {
        let here = self.memory().hold_totals(now);
        match self.shared() {
            None => here,
            Some(shared) => here.and(shared.store().hold_totals(now).await),
        }
    }

    /// How many keys have a state in this process.
    pub(crate) fn key_counts(&self) -> KeyCounts {
        let memory = self.memory();
        KeyCounts {
            keys: memory.keys(),
            max_keys: memory.max_keys(),
            overflow_states: memory.overflow_states(),
        }
    }

    /// Where a store beside this process is, and why callers are not answered by it if they are not.
    pub(crate) async fn look(&self) -> Option<(String, Option<String>)> {
        let shared = self.shared()?;
        Some((shared.store().to_string(), shared.failure().await))
    }

    /// What somebody should change about a store beside this process; `None` if that does not answer.
    pub(crate) async fn warnings(&self) -> Option<Vec<String>> {
        match self.shared() {
            None => Some(Vec::new()),
            Some(shared) => shared.store().warnings().await.ok(),
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
                "the store does not answer: on_failure decides until it does"
            ),
        }
    }
}

/// Asks whichever store it is.
macro_rules! on_store {
    ($server:ident, $store:ident => $call:expr) => {
        match $server {
            ServerStore::Memory($store) => $call,
            ServerStore::Redis($store) => $call,
        }
    };
}

impl Store for ServerStore {
    fn keep_time(&mut self, clock: &Arc<dyn Clock>) {
        on_store!(self, store => store.keep_time(clock));
    }

    fn install(&self, changes: &Changes) {
        on_store!(self, store => store.install(changes));
    }

    fn most_holds(&self, rung: Rung) -> usize {
        on_store!(self, store => store.most_holds(rung))
    }

    fn most_learned(&self, rung: Rung) -> usize {
        on_store!(self, store => store.most_learned(rung))
    }

    #[inline(always)]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Answer> {
        on_store!(self, store => store.decide_now(charges, operation, now))
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        on_store!(self, store => store.decide(charges, operation, now).await)
    }
}

impl HoldStore for ServerStore {
    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        on_store!(self, store => store.hold(set, claim, now).await)
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        on_store!(self, store => store.end(id, ending, now).await)
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        on_store!(self, store => store.advance(id, now).await)
    }

    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        on_store!(self, store => store.fall_back(set, claim, now, error))
    }

    async fn wait_promoted(&self, id: &HoldId) {
        on_store!(self, store => store.wait_promoted(id).await);
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        on_store!(self, store => store.abandon(id, ending, now))
    }
}

impl AdminStore for ServerStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        on_store!(self, store => store.administer(set, action, now).await)
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        on_store!(self, store => store.bans(most, now).await)
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        on_store!(self, store => store.ban_count(now).await)
    }
}
