//! The model as a remote store with one server.

use std::fmt;
use std::time::{Duration, Instant};

use delegate::delegate;
use quell::Ending;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LeaseStore, Paid, Placed, Store, StoreError, StoreResult, Totals,
};
use quell_conformance::ScriptedStore;
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};
use quell_store::remote::{
    FailureKind, HoldFailure, RemoteFailure, RemoteStore, ServerStatus, SetFailure,
};

/// A scripted store as a remote one, none of whose failed calls has run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteModel(pub(crate) ScriptedStore);

/// A failure of the store.
fn failed(error: StoreError) -> RemoteFailure {
    RemoteFailure {
        kind: FailureKind::NotRun,
        reason: match error {
            StoreError::Unavailable(reason) => reason,
            other => other.to_string(),
        },
    }
}

impl fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("model")
    }
}

impl Store for RemoteModel {
    type Lookup = ();

    delegate! {
        to self.0 {
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
            async fn decide(&self, charges: Charges<'_, '_>, operation: Operation, now: Now)
                -> StoreResult<Answer>;
        }
    }
}

impl HoldStore for RemoteModel {
    delegate! {
        to self.0 {
            async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now)
                -> StoreResult<Placed>;
            async fn end(&self, id: &HoldId, ending: Ending, now: Now)
                -> StoreResult<Option<Finished>>;
            async fn advance(&self, id: &HoldId, now: Now)
                -> StoreResult<Option<(Duration, Vec<HoldId>)>>;
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
        }
    }
}

impl AdminStore for RemoteModel {
    delegate! {
        to self.0 {
            async fn administer(&self, set: &LimitSet<'_>, action: Action<'_>, now: Now)
                -> StoreResult<usize>;
            async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>>;
            async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList>;
            async fn ban_count(&self, now: Now) -> StoreResult<usize>;
        }
    }
}

impl RemoteStore for RemoteModel {
    type Server = ();

    fn servers(&self) -> Vec<()> {
        vec![()]
    }

    fn server_of(&self, _key: &[u8], _scope: usize) {}

    fn is_spread(&self) -> bool {
        false
    }

    fn status(&self, _server: &(), _now: Instant) -> ServerStatus {
        match self.is_any_gone() {
            true => ServerStatus::Gone { is_probe_due: true },
            false => ServerStatus::Up,
        }
    }

    fn is_any_gone(&self) -> bool {
        self.0.failure().is_some()
    }

    fn gone_reason(
        &self,
        _set: &LimitSet<'_>,
        _claim: Option<&Claim<'_>>,
        _now: Instant,
    ) -> Option<String> {
        self.0.failure().map(|error| failed(error).reason)
    }

    fn longest_call(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn probe(&self, _server: &()) -> Result<(), RemoteFailure> {
        self.0.failure().map_or(Ok(()), |error| Err(failed(error)))
    }

    async fn check(&self) -> Result<(), RemoteFailure> {
        self.probe(&()).await
    }

    async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, SetFailure> {
        let answer = self.decide(Charges::Set(set), operation, now).await;
        answer.map_err(|error| failed(error).into())
    }

    async fn try_pay(&self, set: &LimitSet<'_>, now: Now) -> Result<Answer, SetFailure> {
        self.try_decide(set, Operation::Acquire, now).await
    }

    async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, Wall), HoldFailure> {
        match self.hold(set, claim, now).await {
            Ok(placed) => Ok((placed, now.wall)),
            Err(error @ StoreError::Unavailable(_)) => Err(failed(error).into()),
            Err(error) => Err(HoldFailure::Refused(error)),
        }
    }

    async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, RemoteFailure> {
        self.administer(set, action, now).await.map_err(failed)
    }

    async fn try_give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> Result<(), RemoteFailure> {
        let returned = self.0.give_back(set, charged, until, now).await;
        returned.map_err(failed)
    }

    async fn try_sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> Result<Paid, RemoteFailure> {
        self.0.sync(set, totals, now).await.map_err(failed)
    }

    async fn others_owe(&self, _node: u64, _owes: bool) -> Result<bool, RemoteFailure> {
        self.probe(&()).await.map(|()| false)
    }
}
