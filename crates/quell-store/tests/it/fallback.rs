//! The fallback over the model: it forwards the store's decisions, remembers refusals correctly, and
//! answers as declared while the store fails.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock, ManualClock, SystemClock};
use quell::store::{Action, AdminStore, HoldStore};
use quell::{AdHocMemo, Cost, Limit, Limiter, Operation, Query, Rate, RetryAfter, Verdict};
use quell_conformance::{exact_in_parallel, holds_and_remembers_as_model, remembers_as_model};
use quell_core::hold::OnExpiry;
use quell_core::on_failure::OnFailure;
use quell_core::time::Now;
use quell_store::fallback::FallbackStore;
use quell_testkit::wait::until_some;

use crate::remote_model::RemoteModel;
use crate::rules::{rule, shop};

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
    // Those after the first hundred have bans, debts and renewals on one key.
    let others = [241, 1723, 1773, 2924, 3074, 3896, 4224];
    for seed in (1..=100).chain(others) {
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

/// Way to ask about a call.
#[derive(Clone, Copy, Debug)]
enum Way {
    WithAWait,
    AtOnceFirst,
    WithItsOwnLimit,
}

/// Asks for one of one unit an hour. Returns whether it is allowed.
async fn ask(limiter: &Limiter<FallbackStore<RemoteModel>>, way: Way) -> bool {
    let (query, acquire, mut now) = (Query::new("shop"), Operation::Acquire, limiter.now());
    match way {
        Way::WithAWait => limiter.try_acquire(&query).await.unwrap().is_allow(),
        Way::AtOnceFirst => {
            let rules = limiter.rules();
            let asked = limiter.ask_or_plan(&rules, acquire, &query, now).unwrap();
            let verdict = match asked {
                Ok(verdict) => verdict,
                Err(plan) => limiter.ask_planned(&query, plan).await.unwrap(),
            };
            verdict.is_allow()
        }
        Way::WithItsOwnLimit => {
            let rate = Rate::new(1, Duration::from_secs(3_600)).unwrap();
            let (bucket, memo) = (Limit::token_bucket(rate), &mut AdHocMemo::default());
            let asked =
                limiter.ask_ad_hoc_or_plan(acquire, b"key", &bucket, Cost::ONE, &mut now, memo);
            let decision = match asked.unwrap() {
                Ok(decision) => decision,
                Err(plan) => limiter.ask_ad_hoc_planned(b"key", plan).await.unwrap(),
            };
            decision.outcome.is_allow()
        }
    }
}

/// A denial is renewed shortly before it is too old, by one call, whose look into the cache counts: another look would
/// find it to be under way already, and nobody would ask.
#[tokio::test]
async fn a_call_that_renews_a_denial_asks_the_store_however_it_is_asked() {
    for way in [Way::WithAWait, Way::AtOnceFirst, Way::WithItsOwnLimit] {
        let (limiter, clock) = limiter(None);
        let hourly = Limit::fixed_window(1, Duration::from_secs(3_600));
        let hourly = rule("all", hourly.build().unwrap(), &[]);
        limiter.set_rules(vec![shop(vec![hourly])]).unwrap();
        let remembered = || limiter.store().fallback_numbers().remembered;
        assert!(ask(&limiter, way).await, "{way:?}");
        assert!(!ask(&limiter, way).await, "{way:?}");
        for renewed in 0..5 {
            clock.advance(Duration::from_millis(950));
            assert!(!ask(&limiter, way).await, "{way:?}");
            assert_eq!(remembered(), renewed, "this call asked the store: {way:?}");
            assert!(!ask(&limiter, way).await, "{way:?}");
            assert_eq!(remembered(), renewed + 1, "and this one did not: {way:?}");
        }
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
    remote.0.set_gone(true);
    let mut admitted = 0;
    for _ in 0..200 {
        let verdict = ask().await;
        assert!(verdict.degraded);
        admitted += u64::from(verdict.is_allow());
    }
    assert!((48..=50).contains(&admitted), "{admitted}");
    assert_eq!(limiter.store().fallback_numbers().owed, 1);
    remote.0.set_gone(false);
    // Shares continue for two seconds.
    let peeked = until_some("the store decides again", async || {
        let peeked = limiter.peek(&Query::new("shop")).await.unwrap();
        (!peeked.degraded).then_some(peeked)
    });
    let peeked = peeked.await;
    assert_eq!(limiter.store().fallback_numbers().owed, 0);
    assert_eq!(peeked.remaining, Some(100 - 1 - admitted));
}

/// A limit on a store, with five units reserved for half a minute.
async fn reserved<S: HoldStore + AdminStore>(
    store: S,
    limit: Limit,
) -> (Limiter<S>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_774_742_400_000_000_000)));
    let limiter = Limiter::builder(store)
        .clock(Arc::clone(&clock) as _)
        .build();
    limiter
        .set_rules(vec![shop(vec![rule("all", limit, &[])])])
        .unwrap();
    let estimate = Query::new("shop").cost(Cost::new(5).unwrap());
    let reserved = limiter.reserve(&estimate, Duration::from_secs(30), Some("job"));
    assert!(reserved.await.unwrap().is_allow());
    (limiter, clock)
}

async fn try_acquire<S: HoldStore + AdminStore>(limiter: &Limiter<S>, cost: u64) -> Verdict {
    let query = Query::new("shop").cost(Cost::new(cost).unwrap());
    limiter.try_acquire(&query).await.unwrap()
}

/// A model, and the fallback over another.
fn stores() -> (RemoteModel, FallbackStore<RemoteModel>) {
    let clock = Arc::new(SystemClock::new());
    let remembers = FallbackStore::new(RemoteModel::default(), clock);
    (RemoteModel::default(), remembers)
}

/// What is reserved comes back later then, and until then the key is not at rest.
#[tokio::test]
async fn a_refusal_knows_that_a_reservation_was_renewed() {
    async fn answers<S: HoldStore + AdminStore>(store: S) -> [Verdict; 2] {
        let limit = Limit::per_second(10)
            .build()
            .unwrap()
            .on_expiry(OnExpiry::Release);
        let (limiter, clock) = reserved(store, limit).await;
        clock.advance(Duration::from_millis(100));
        let before = try_acquire(&limiter, 8).await;
        assert!(!before.is_allow());
        limiter.renew("shop", "job").await.unwrap();
        [before, try_acquire(&limiter, 8).await]
    }
    let (model, remembers) = stores();
    let [before, after] = answers(model).await;
    assert_ne!(before.reset_after, after.reset_after);
    assert_eq!(answers(remembers).await, [before, after]);
}

/// A key that is banned and owes something: a small cost waits for the ban alone, or for less of what is owed.
#[tokio::test]
async fn a_refusal_of_a_banned_key_that_owes_is_not_one_for_every_cost() {
    async fn answers<S: HoldStore + AdminStore>(store: S, settled: u64) -> Vec<Verdict> {
        let limit = Limit::per_second(10).build().unwrap();
        let (limiter, _) = reserved(store, limit).await;
        limiter.settle("shop", "job", settled).await.unwrap();
        let ban = Action::Ban(Duration::from_secs(2), None);
        limiter.administer(&Query::new("shop"), ban).await.unwrap();
        let mut verdicts = Vec::new();
        for cost in [10, 5, 1, 9, 10] {
            verdicts.push(try_acquire(&limiter, cost).await);
        }
        verdicts
    }
    for settled in [5, 12, 25, 40] {
        let (model, remembers) = stores();
        let known = answers(model, settled).await;
        assert_eq!(answers(remembers, settled).await, known, "{settled}");
    }
}
