//! The fallback over the model: it forwards the store's decisions, remembers refusals correctly, and
//! answers as declared while the store fails.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell::clock::{Clock, ManualClock, SystemClock};
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LeaseStore, Paid, Placed, Store, StoreError, Totals,
};
use quell::{Cost, Ending, Limit, Limiter, Query, RetryAfter};
use quell_conformance::{
    ModelStore, exact_in_parallel, holds_and_remembers_as_model, remembers_as_model,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::hold::HoldId;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};
use quell_store::fallback::FallbackStore;
use quell_store::remote::{
    FailureKind, HoldFailure, RemoteFailure, RemoteStore, ServerStatus, SetFailure,
};
use quell_testkit::wait::until_some;

use crate::rules::{rule, shop};

/// The model as a store with one server, which fails on demand.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteModel {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    model: ModelStore,
    is_gone: AtomicBool,
}

impl RemoteModel {
    pub(crate) fn set_gone(&self, is_gone: bool) {
        self.inner.is_gone.store(is_gone, Ordering::SeqCst);
    }

    fn answers(&self) -> Result<(), RemoteFailure> {
        match self.inner.is_gone.load(Ordering::SeqCst) {
            true => Err(RemoteFailure {
                kind: FailureKind::NotRun,
                reason: "it is gone".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

/// The failure of a store that cannot fail.
fn refused(error: &StoreError) -> RemoteFailure {
    RemoteFailure {
        kind: FailureKind::NotRun,
        reason: error.to_string(),
    }
}

impl fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("model")
    }
}

impl Store for RemoteModel {
    fn install(&self, changes: &Changes) {
        self.inner.model.install(changes);
    }

    fn most_holds(&self, rung: Rung) -> usize {
        self.inner.model.most_holds(rung)
    }

    fn most_learned(&self, rung: Rung) -> usize {
        self.inner.model.most_learned(rung)
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        self.inner.model.decide(charges, operation, now).await
    }
}

impl HoldStore for RemoteModel {
    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.inner.model.hold(set, claim, now).await
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        self.inner.model.end(id, ending, now).await
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        self.inner.model.advance(id, now).await
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.inner.model.abandon(id, ending, now)
    }
}

impl AdminStore for RemoteModel {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, StoreError> {
        self.inner.model.administer(set, action, now).await
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> Result<Vec<KeyView>, StoreError> {
        self.inner.model.view(set, now).await
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> Result<BanList, StoreError> {
        self.inner.model.ban_page(page, now).await
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        self.inner.model.ban_count(now).await
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
        self.inner.is_gone.load(Ordering::SeqCst)
    }

    fn gone_reason(
        &self,
        _set: &LimitSet<'_>,
        _claim: Option<&Claim<'_>>,
        _now: Instant,
    ) -> Option<String> {
        self.answers().err().map(|failure| failure.reason)
    }

    fn longest_call(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn probe(&self, _server: &()) -> Result<(), RemoteFailure> {
        self.answers()
    }

    async fn check(&self) -> Result<(), RemoteFailure> {
        self.answers()
    }

    async fn try_decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, SetFailure> {
        self.answers()?;
        let answer = self.decide(Charges::Set(set), operation, now).await;
        let mut answer = answer.map_err(|error| refused(&error))?;
        answer.store_time = Some(now.wall);
        Ok(answer)
    }

    async fn try_give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> Result<(), RemoteFailure> {
        self.answers()?;
        let returned = self.inner.model.give_back(set, charged, until, now).await;
        returned.map_err(|error| refused(&error))
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
        self.answers()?;
        let placed = self.hold(set, claim, now).await;
        let placed = placed.map_err(HoldFailure::Refused)?;
        Ok((placed, now.wall))
    }

    async fn try_administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, RemoteFailure> {
        self.answers()?;
        let changed = self.administer(set, action, now).await;
        changed.map_err(|error| refused(&error))
    }

    async fn try_sync(
        &self,
        set: &LimitSet<'_>,
        totals: &Totals,
        now: Now,
    ) -> Result<Paid, RemoteFailure> {
        self.answers()?;
        let paid = self.inner.model.sync(set, totals, now).await;
        paid.map_err(|error| refused(&error))
    }

    async fn others_owe(&self, _node: u64, _owes: bool) -> Result<bool, RemoteFailure> {
        self.answers().map(|()| false)
    }
}

#[tokio::test]
async fn random_traces_have_the_answers_of_the_model_or_remembered_ones() {
    let mut remembered = 0;
    for seed in 1..=200 {
        let mut counts = None;
        let build = |clock: Arc<dyn Clock>| {
            let store = FallbackStore::new(RemoteModel::default(), clock);
            counts = Some(store.clone());
            store
        };
        remembers_as_model(build, seed, 400).await;
        let numbers = counts.unwrap().fallback_numbers();
        remembered += numbers.remembered;
    }
    assert!(remembered > 1_000, "{remembered} of 80,000 were remembered");
}

#[tokio::test]
async fn random_holds_have_the_answers_of_the_model() {
    for seed in 1..=100 {
        let build = |clock: Arc<dyn Clock>| FallbackStore::new(RemoteModel::default(), clock);
        holds_and_remembers_as_model(build, seed, 300).await;
    }
}

/// The final cost of a reservation shows in refusals at once: more of it lengthens their wait, less ends
/// them.
#[tokio::test]
async fn a_refusal_knows_what_a_reservation_cost_in_the_end() {
    for (actual, wait_ms) in [(9, Some(500)), (5, Some(100)), (4, None)] {
        let (limiter, _) = limiter(None);
        let ask = async |cost| {
            let cost = Cost::new(cost).unwrap();
            let query = Query::new("shop").cost(cost);
            limiter.try_acquire(&query).await.unwrap()
        };
        let estimate = Query::new("shop").cost(Cost::new(5).unwrap());
        let reserved = limiter.reserve(&estimate, Duration::from_secs(60), Some("job"));
        assert!(reserved.await.unwrap().is_allow());
        assert!(ask(5).await.is_allow());
        let wait = |millis| RetryAfter::After(Duration::from_millis(millis));
        assert_eq!(ask(1).await.retry_after, Some(wait(100)));
        limiter.settle("shop", "job", actual).await.unwrap();
        assert_eq!(ask(1).await.retry_after, wait_ms.map(wait), "{actual}");
    }
}

#[test]
fn many_callers_at_once_get_exactly_the_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let remote = RemoteModel::default();
    let store = FallbackStore::new(remote.clone(), Arc::new(SystemClock::new()));
    let counts = store.clone();
    exact_in_parallel(store, 16, 200, |future| runtime.block_on(future));
    let remembered = counts.fallback_numbers().remembered;
    assert!(remembered > 0, "some refusals were remembered");
}

/// Ten a second over the model, and its clock.
fn limiter(
    on_failure: Option<OnFailure>,
) -> (Limiter<FallbackStore<RemoteModel>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
    let store = FallbackStore::new(RemoteModel::default(), Arc::clone(&clock) as _);
    let limiter = Limiter::builder(store)
        .clock(Arc::clone(&clock) as _)
        .build();
    let mut all = rule("all", Limit::per_second(10).build().unwrap(), &[]);
    all.policy.on_failure = on_failure;
    limiter.set_rules(vec![shop(vec![all])]).unwrap();
    (limiter, clock)
}

/// With any store: a node's share is admitted during an outage, owed, and paid when the store is
/// back.
#[tokio::test(start_paused = true)]
async fn what_a_share_admits_is_owed_to_any_store_and_paid() {
    let remote = RemoteModel::default();
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
    let store = FallbackStore::new(remote.clone(), Arc::clone(&clock) as _);
    let limiter = Limiter::builder(store).clock(clock as _).build();
    let nodes = NonZeroU32::new(2).unwrap();
    let limit = Limit::per_hour(100).build().unwrap();
    let mut shared = rule("all", limit, &[]);
    shared.policy.on_failure = Some(OnFailure::Share { nodes });
    limiter.set_rules(vec![shop(vec![shared])]).unwrap();
    let ask = async || limiter.try_acquire(&Query::new("shop")).await.unwrap();
    assert!(!ask().await.degraded);
    remote.set_gone(true);
    let mut admitted = 0;
    for _ in 0..200 {
        let verdict = ask().await;
        assert!(verdict.degraded);
        admitted += u64::from(verdict.is_allow());
    }
    assert!((48..=50).contains(&admitted), "{admitted}");
    assert_eq!(limiter.store().fallback_numbers().owed, 1);
    remote.set_gone(false);
    // Shares continue for two seconds.
    let peeked = until_some("the store decides again", async || {
        let peeked = limiter.peek(&Query::new("shop")).await.unwrap();
        (!peeked.degraded).then_some(peeked)
    });
    let peeked = peeked.await;
    assert_eq!(limiter.store().fallback_numbers().owed, 0);
    assert_eq!(peeked.remaining, Some(100 - 1 - admitted));
}
