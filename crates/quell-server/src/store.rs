//! Store: where this server keeps its states, in memory or in Redis.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::Clock;
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, HoldTotals, Placed, Store,
    StoreError,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::rule::Changes;
use quell_core::time::Now;
use quell_redis::{FallbackNumbers, FallbackStore, RedisStore, StoreNumbers};

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
    Redis(FallbackStore<RedisStore>),
}

/// How many keys have a state in this process: none if states are elsewhere.
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
        match &config.store {
            None => Self::Memory(MemoryStore::with(config.max_keys, secret)),
            Some(url) => {
                let store = RedisStore::builder(url.clone()).timeout(config.store_timeout);
                Self::Redis(FallbackStore::new(store.build(), Arc::clone(clock)))
            }
        }
    }

    /// The store in this process, if states are kept there: to be swept, and saved on disk.
    pub(crate) const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }

    /// What is counted of a store beside this process.
    pub(crate) fn numbers(&self) -> Option<(StoreNumbers, FallbackNumbers)> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some((store.store().numbers(), store.fallback_numbers())),
        }
    }

    /// How many holds there are: in memory all, beside this process those that it made.
    pub(crate) async fn hold_totals(&self, now: Now) -> HoldTotals {
        match self {
            Self::Memory(store) => store.hold_totals(now),
            Self::Redis(store) => store.store().hold_totals(now).await,
        }
    }

    /// How many keys have a state in this process.
    pub(crate) fn key_counts(&self) -> KeyCounts {
        match self {
            Self::Memory(store) => KeyCounts {
                keys: store.keys(),
                max_keys: store.max_keys(),
                overflow_states: store.overflow_states(),
            },
            Self::Redis(_) => KeyCounts::default(),
        }
    }

    /// Where a store beside this process is, and why callers are not answered by it if they are not.
    pub(crate) async fn look(&self) -> Option<(String, Option<String>)> {
        let Self::Redis(store) = self else {
            return None;
        };
        Some((store.store().to_string(), store.failure().await))
    }

    /// What somebody should change about a store beside this process; `None` if that does not answer.
    pub(crate) async fn warnings(&self) -> Option<Vec<String>> {
        match self {
            Self::Memory(_) => Some(Vec::new()),
            Self::Redis(store) => store.store().warnings().await.ok(),
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
        if let Self::Memory(store) = self {
            store.keep_time(clock);
        }
    }

    fn install(&self, changes: &Changes) {
        on_store!(self, store => store.install(changes));
    }

    fn most_holds(&self) -> usize {
        on_store!(self, store => store.most_holds())
    }

    fn most_learned(&self) -> usize {
        on_store!(self, store => store.most_learned())
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

    fn has_remote_wakeups(&self) -> bool {
        on_store!(self, store => store.has_remote_wakeups())
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
