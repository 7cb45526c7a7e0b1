//! The whole limiter on leases, from a store that answers at once: what is left is the decision itself.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::store::{
    Answer as StoreAnswer, Charges, LeaseStore, Paid, Store, StoreError, StoreResult, Totals,
};
use quell::{Limiter, Query};
use quell_core::charge::{LimitSet, Operation};
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};
use quell_store::leased::LeasedStore;
use tokio::runtime::{Builder, Runtime};

use super::Answer;
use super::rivals::{Rival, is_allowed, numbers, rules};

/// States in this process as a store that is charged in advance. All returns are lost.
#[derive(Clone, Debug)]
pub(super) struct AtOnce(Arc<MemoryStore>);

impl Store for AtOnce {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        self.0.install(changes);
    }

    fn set_clock(&mut self, _: &Arc<dyn Clock>) {}

    fn most_holds(&self, rung: Rung) -> usize {
        self.0.most_holds(rung)
    }

    fn most_learned(&self, rung: Rung) -> usize {
        self.0.most_learned(rung)
    }

    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut (),
    ) -> Option<StoreAnswer> {
        self.0.decide_now(charges, operation, now, lookup)
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<StoreAnswer> {
        self.0.decide(charges, operation, now).await
    }
}

impl LeaseStore for AtOnce {
    async fn give_back(&self, _: &LimitSet<'_>, _: Wall, _: Wall, _: Now) -> StoreResult<()> {
        Err(StoreError::Unavailable("returns are lost".into()))
    }

    async fn sync(&self, _: &LimitSet<'_>, _: &Totals, _: Now) -> StoreResult<Paid> {
        Err(StoreError::Unavailable("nothing is synced".into()))
    }
}

/// One rule, decided from leases.
pub(super) struct LimiterLeased {
    limiter: Limiter<LeasedStore<AtOnce>>,
    runtime: Runtime,
}

impl Rival for LimiterLeased {
    fn new(answer: Answer, _: usize) -> Result<Self> {
        let (burst, period) = numbers(answer);
        let rate = format!("1/{}s", period.as_secs());
        let clock = Arc::new(SystemClock::new());
        let store = AtOnce(Arc::new(MemoryStore::new()));
        let store = LeasedStore::new(store, Arc::clone(&clock) as _);
        let limiter = Limiter::builder(store).clock(clock).build();
        let rung = "leased, max_over_admission: 20%, nodes: 1, on_failure: deny";
        limiter.set_rules(rules(&rate, burst, rung)?)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()?;
        // For the rest of this thread, so that no call pays for it: a server's threads are in one anyway.
        mem::forget(runtime.enter());
        Ok(Self { limiter, runtime })
    }

    fn ask(&self, _: &String) -> bool {
        let query = Query::new("bench");
        let asked = pin!(self.limiter.try_acquire(&query));
        match &asked.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(verdict) => is_allowed(verdict),
            Poll::Pending => is_allowed(&self.runtime.block_on(self.limiter.try_acquire(&query))),
        }
    }
}
