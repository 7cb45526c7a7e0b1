//! A strict store for tests: the model, which answers late or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quell::Ending;
use quell::store::{
    Action, AdminStore, Answer, Charges, Finished, HoldStore, LeaseStore, Paid, Placed, Store,
    StoreError, Totals,
};
use quell_conformance::ModelStore;
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};

/// A strict store that answers late or not at all, and counts its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlowModel(pub(crate) Arc<Inner>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    model: ModelStore,
    pub(crate) is_gone: AtomicBool,
    pub(crate) is_stuck: AtomicBool,
    pub(crate) asked: AtomicUsize,
    /// Until when the last call said that the state of its first key exists, in nanoseconds; 0 if it did not.
    pub(crate) exists_until: AtomicU64,
    /// Its answers count as declared ones.
    pub(crate) is_degraded: AtomicBool,
    /// Before the next call it forgets what was charged on the call's keys.
    pub(crate) forgets: AtomicBool,
}

impl SlowModel {
    async fn answers(&self) -> Result<(), StoreError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.0.is_stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        match self.0.is_gone.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("it is gone".to_owned())),
            false => Ok(()),
        }
    }

    async fn may_forget(&self, set: &LimitSet<'_>, now: Now) {
        if self.0.forgets.swap(false, Ordering::SeqCst) {
            let forgotten = self.0.model.administer(set, Action::Forgive, now).await;
            forgotten.unwrap();
        }
    }
}

impl SlowModel {
    /// Notes until when the first key of a set is known to exist.
    fn is_told(&self, set: &LimitSet<'_>) {
        let first = set.charges().first().and_then(|charge| charge.exists_until);
        let first = first.map_or(0, Wall::as_nanos);
        self.0.exists_until.store(first, Ordering::SeqCst);
    }
}

impl Store for SlowModel {
    fn install(&self, changes: &Changes) {
        self.0.model.install(changes);
    }

    fn most_holds(&self, rung: Rung) -> usize {
        self.0.model.most_holds(rung)
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        self.is_told(&charges.set());
        self.answers().await?;
        self.may_forget(&charges.set(), now).await;
        let mut answer = self.0.model.decide(charges, operation, now).await?;
        answer.store_time = Some(now.wall);
        answer.degraded = self.0.is_degraded.load(Ordering::SeqCst);
        Ok(answer)
    }
}

impl LeaseStore for SlowModel {
    async fn give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> Result<(), StoreError> {
        self.answers().await?;
        self.0.model.give_back(set, charged, until, now).await
    }

    async fn sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> Result<Paid, StoreError> {
        self.answers().await?;
        self.may_forget(set, now).await;
        self.0.model.sync(set, totals, now).await
    }
}

impl HoldStore for SlowModel {
    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.is_told(set);
        self.answers().await?;
        self.0.model.hold(set, claim, now).await
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        self.answers().await?;
        self.0.model.end(id, ending, now).await
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        self.0.model.advance(id, now).await
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.0.model.abandon(id, ending, now)
    }
}
