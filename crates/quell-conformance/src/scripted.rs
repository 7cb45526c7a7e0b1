//! A scripted store: the model, which fails, hangs and forgets when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use delegate::delegate;
use parking_lot::Mutex;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LeaseStore, Paid, Placed, Store, StoreError, StoreResult, Totals,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};

use crate::ModelStore;

/// The model as a store that processes share: it answers late, with its time, and as a test says. Clones are the
/// same store.
#[derive(Clone, Debug, Default)]
pub struct ScriptedStore(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    model: ModelStore,
    script: Mutex<Script>,
    calls: AtomicUsize,
}

#[derive(Debug, Default)]
struct Script {
    failure: Option<StoreError>,
    is_stuck: bool,
    is_degraded: bool,
    forgets: bool,
    exists_until: Option<Wall>,
}

impl ScriptedStore {
    /// From now on all calls fail with this error, or none does.
    pub fn set_failure(&self, failure: Option<StoreError>) {
        self.0.script.lock().failure = failure;
    }

    /// From now on the store cannot be reached, or it can.
    pub fn set_gone(&self, is_gone: bool) {
        let failure = || StoreError::Unavailable("it is gone".to_owned());
        self.set_failure(is_gone.then(failure));
    }

    /// From now on no call returns, or each does.
    pub fn set_stuck(&self, is_stuck: bool) {
        self.0.script.lock().is_stuck = is_stuck;
    }

    /// From now on answers count as declared ones, or do not.
    pub fn set_degraded(&self, is_degraded: bool) {
        self.0.script.lock().is_degraded = is_degraded;
    }

    /// Before the next charge it forgets what was charged on its keys.
    pub fn forget_once(&self) {
        self.0.script.lock().forgets = true;
    }

    /// The error of all calls now.
    #[must_use]
    pub fn failure(&self) -> Option<StoreError> {
        self.0.script.lock().failure.clone()
    }

    /// Number of calls so far, of failed ones too.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Until when the last caller knew that the state of its first key exists.
    #[must_use]
    pub fn exists_until(&self) -> Option<Wall> {
        self.0.script.lock().exists_until
    }

    /// Takes note of a call, and lets it wait and fail.
    async fn hear(&self) -> StoreResult<()> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.0.script.lock().is_stuck {
            std::future::pending::<()>().await;
        }
        self.failure().map_or(Ok(()), Err)
    }

    fn note_existence(&self, set: &LimitSet<'_>) {
        let first = set.charges().first().and_then(|charge| charge.exists_until);
        self.0.script.lock().exists_until = first;
    }

    async fn forget_if_told(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<()> {
        if std::mem::take(&mut self.0.script.lock().forgets) {
            self.0.model.administer(set, Action::Forgive, now).await?;
        }
        Ok(())
    }
}

impl Store for ScriptedStore {
    type Lookup = ();

    delegate! {
        to self.0.model {
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
        }
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        self.note_existence(&charges.set());
        self.hear().await?;
        self.forget_if_told(&charges.set(), now).await?;
        let answer = self.0.model.decide(charges, operation, now).await?;
        Ok(Answer {
            store_time: Some(now.wall),
            degraded: self.0.script.lock().is_degraded,
            ..answer
        })
    }
}

impl HoldStore for ScriptedStore {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.note_existence(set);
        self.hear().await?;
        self.0.model.hold(set, claim, now).await
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        self.hear().await?;
        self.0.model.end(id, ending, now).await
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        self.hear().await?;
        self.0.model.advance(id, now).await
    }

    delegate! {
        to self.0.model {
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
        }
    }
}

impl LeaseStore for ScriptedStore {
    async fn give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> StoreResult<()> {
        self.hear().await?;
        self.0.model.give_back(set, charged, until, now).await
    }

    async fn sync(&self, set: &LimitSet<'_>, totals: &Totals, now: Now) -> StoreResult<Paid> {
        self.hear().await?;
        self.forget_if_told(set, now).await?;
        self.0.model.sync(set, totals, now).await
    }
}

impl AdminStore for ScriptedStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        self.hear().await?;
        self.0.model.administer(set, action, now).await
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        self.hear().await?;
        self.0.model.view(set, now).await
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        self.hear().await?;
        self.0.model.ban_page(page, now).await
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        self.hear().await?;
        self.0.model.ban_count(now).await
    }
}
