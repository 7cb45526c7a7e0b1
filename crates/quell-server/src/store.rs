//! Store: where this server keeps its states, in memory or in Redis.

use std::sync::Arc;
use std::time::Duration;

use delegate::delegate;
use quell::clock::Clock;
use quell::store::memory::{HashKey, MemoryStore, StateTable};
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, HoldTotals,
    KeyView, Placed, Store, StoreError,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;
use quell_redis::{FallbackStore, RedisStore};
use quell_store::leased::LeasedStore;
use quell_store::rungs::RungStore;
use quell_store::shares::{Shares, SharesStore};

use crate::config::Config;
use crate::outage::OutageEffects;

/// One of the stores that a server can have.
#[derive(Debug)]
pub(crate) enum ServerStore {
    /// In this process.
    Memory(MemoryStore),
    /// In this process, that of a node of a fleet.
    Node(SharesStore),
    /// Shared with all servers that name it; limits of rung `local` in this process, and
    /// those of rung `leased` where a lease lasts.
    Redis {
        /// The stores.
        rungs: RungStore<LeasedStore<FallbackStore<RedisStore>>, SharesStore>,
        /// True if this process is a node of a fleet; else it has no shares.
        is_node: bool,
    },
}

impl ServerStore {
    /// The store that `config` asks for; `secret` is for keys in memory, `clock` the limiter's. A node of a
    /// fleet has `shares`.
    pub(crate) fn new(
        config: &Config,
        secret: HashKey,
        clock: &Arc<dyn Clock>,
        shares: Option<Shares>,
    ) -> Self {
        let memory = MemoryStore::with(config.max_keys, secret);
        let leased = config.store.as_ref().map(|url| {
            let store = RedisStore::builder(url.clone()).timeout(config.store_timeout);
            let shared = FallbackStore::new(store.build(), Arc::clone(clock));
            LeasedStore::new(shared, Arc::clone(clock))
        });
        let is_node = shares.is_some();
        if leased.is_none() && !is_node {
            return Self::Memory(memory);
        }
        let local = SharesStore::new(memory, shares.unwrap_or_default());
        match leased {
            None => Self::Node(local),
            Some(leased) => Self::Redis {
                rungs: RungStore::new(leased, local),
                is_node,
            },
        }
    }

    /// The store in this process: to be swept, and saved on disk. Beside a shared store it has the
    /// limits of rung `local`.
    pub(crate) const fn memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(memory) => memory,
            Self::Node(shares) => shares.local(),
            Self::Redis { rungs, .. } => rungs.local().local(),
        }
    }

    /// The store that servers share, if there is one.
    pub(crate) const fn shared(&self) -> Option<&FallbackStore<RedisStore>> {
        match self {
            Self::Memory(_) | Self::Node(_) => None,
            Self::Redis { rungs, .. } => Some(rungs.strict().store()),
        }
    }

    /// The leases of this process, if servers share a store.
    pub(crate) const fn leases(&self) -> Option<&LeasedStore<FallbackStore<RedisStore>>> {
        match self {
            Self::Memory(_) | Self::Node(_) => None,
            Self::Redis { rungs, .. } => Some(rungs.strict()),
        }
    }

    /// Number of keys that have a state in this process.
    pub(crate) fn keys(&self) -> usize {
        self.memory().keys()
    }

    /// Number of holds: in memory all, on a shared store those that this process made.
    pub(crate) async fn hold_totals(&self, now: Now) -> HoldTotals {
        let local = self.memory().hold_totals(now);
        match self.shared() {
            None => local,
            Some(shared) => local.and(shared.store().hold_totals(now).await),
        }
    }

    /// Logs where states are kept, and whether that store answers; if not, what callers get.
    pub(crate) async fn announce(&self, effects: &OutageEffects) {
        let Some(shared) = self.shared() else { return };
        let url = shared.store().to_string();
        match shared.trouble().await {
            None => tracing::info!(url, "store"),
            Some(trouble) => tracing::error!(
                url,
                failure = trouble.reason,
                callers = %effects,
                "the store does not answer: on_failure decides until it does"
            ),
        }
    }
}

/// Lookup of a shared store for a call that has to wait for it.
pub(crate) type StoreLookup = <LeasedStore<FallbackStore<RedisStore>> as Store>::Lookup;

impl Store for ServerStore {
    type Lookup = StoreLookup;

    fn state_table(&self) -> Option<&StateTable> {
        match self {
            Self::Memory(store) => store.state_table(),
            // Not all of their states are there.
            Self::Node(_) | Self::Redis { .. } => None,
        }
    }

    delegate! {
        to match self {
            Self::Memory(store) => store,
            Self::Node(store) => store,
            Self::Redis { rungs, .. } => rungs,
        } {
            fn set_clock(&mut self, clock: &Arc<dyn Clock>);
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn has_leases(&self) -> bool;
            fn most_learned(&self, rung: Rung) -> usize;
            fn most_units(&self, rung: Rung) -> u64;
        }
    }

    fn has_shares(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Node(_) => true,
            Self::Redis { is_node, .. } => *is_node,
        }
    }

    // These are written out, so that backtraces have their lines.

    #[inline(always)]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut StoreLookup,
    ) -> Option<Answer> {
        match self {
            Self::Memory(store) => store.decide_now(charges, operation, now, &mut ()),
            Self::Node(store) => store.decide_now(charges, operation, now, &mut ()),
            Self::Redis { rungs, .. } => rungs.decide_now(charges, operation, now, lookup),
        }
    }

    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        self.decide_after(charges, operation, now, StoreLookup::default())
    }

    async fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
        lookup: StoreLookup,
    ) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => store.decide(charges, operation, now).await,
            Self::Node(store) => store.decide(charges, operation, now).await,
            Self::Redis { rungs, .. } => {
                let answer = rungs.decide_after(charges, operation, now, lookup);
                answer.await
            }
        }
    }
}

impl HoldStore for ServerStore {
    delegate! {
        to match self {
            Self::Memory(store) => store,
            Self::Node(store) => store,
            Self::Redis { rungs, .. } => rungs,
        } {
            async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now)
                -> Result<Placed, StoreError>;
            async fn end(&self, id: &HoldId, ending: Ending, now: Now)
                -> Result<Option<Finished>, StoreError>;
            async fn advance(&self, id: &HoldId, now: Now)
                -> Result<Option<(Duration, Vec<HoldId>)>, StoreError>;
            fn fall_back(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now, error: StoreError)
                -> Result<Placed, StoreError>;
            async fn wait_promoted(&self, id: &HoldId);
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
        }
    }
}

impl AdminStore for ServerStore {
    delegate! {
        to match self {
            Self::Memory(store) => store,
            Self::Node(store) => store,
            Self::Redis { rungs, .. } => rungs,
        } {
            async fn administer(&self, set: &LimitSet<'_>, action: Action<'_>, now: Now)
                -> Result<usize, StoreError>;
            async fn view(&self, set: &LimitSet<'_>, now: Now)
                -> Result<Vec<KeyView>, StoreError>;
            async fn ban_page(&self, page: &BanPage<'_>, now: Now)
                -> Result<BanList, StoreError>;
            async fn ban_count(&self, now: Now) -> Result<usize, StoreError>;
        }
    }
}
