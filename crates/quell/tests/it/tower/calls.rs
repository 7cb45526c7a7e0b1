//! Call layer: services that do not speak HTTP.

use std::convert::Infallible;
use std::time::Duration;

use quell::store::memory::MemoryStore;
use quell::tower::{CallError, CallLayer, CallOutcome, Failure};
use quell::{AskError, Limit, Limiter, Query, Rate, RetryAfter};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::failures::stranded;
use super::support::{limiter, pass, rule};

struct Job(&'static str);

fn describe(job: &Job) -> Query<'static> {
    Query::new("shop").entry("user", job.0)
}

async fn work(job: Job) -> Result<usize, Infallible> {
    Ok(job.0.len())
}

#[tokio::test]
async fn any_service_can_be_limited() {
    let limit = Limit::per_minute(1).build().unwrap();
    let (limiter, clock) = limiter(vec![rule("jobs", limit, &["user"])]);
    let layer = CallLayer::new(limiter, describe);
    let mut service = layer.layer(service_fn(work));
    let mut call = async |user| {
        service
            .ready()
            .await
            .unwrap()
            .call(Job(user))
            .await
            .unwrap()
    };
    assert_eq!(call("ann").await, CallOutcome::Passed(3));
    let CallOutcome::Refused(verdict) = call("ann").await else {
        panic!("the second job of a minute is refused");
    };
    let wait = Duration::from_secs(60);
    assert_eq!(verdict.retry_after, Some(RetryAfter::After(wait)));
    assert_eq!(call("anna").await, CallOutcome::Passed(4));
    clock.advance(wait);
    assert_eq!(call("ann").await, CallOutcome::Passed(3));
}

#[tokio::test]
async fn delays_are_slept_and_turns_are_waited_for_here_too() {
    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let limit = Limit::leaky_bucket(rate).burst(5).build().unwrap();
    let once = Limit::per_second(1).burst(1).build().unwrap();
    let rules = vec![
        rule("jobs", limit, &["user"]),
        rule("turns", once, &["user"]),
    ];
    let (limiter, clock) = limiter(rules);
    let layer = CallLayer::new(limiter, describe).max_delay(Duration::from_secs(9));
    let layer = layer.max_wait(Duration::from_secs(5));
    let service = layer.layer(service_fn(work));
    let first = service.clone().oneshot(Job("ann")).await;
    assert_eq!(first, Ok(CallOutcome::Passed(3)));
    let second = tokio::spawn(service.oneshot(Job("ann")));
    pass(&clock, Duration::from_millis(990)).await;
    assert!(!second.is_finished());
    pass(&clock, Duration::from_millis(10)).await;
    assert_eq!(second.await.unwrap(), Ok(CallOutcome::Passed(3)));
    let busy = layer.max_waiting(0).layer(service_fn(work));
    let refused = busy.clone().oneshot(Job("ann")).await;
    assert!(
        matches!(refused, Ok(CallOutcome::Refused(_))),
        "nobody waits for a turn"
    );
    clock.advance(Duration::from_secs(1));
    assert_eq!(busy.oneshot(Job("ann")).await, Ok(CallOutcome::Passed(3)));
}

#[tokio::test]
async fn when_too_many_wait_calls_are_told() {
    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let limit = Limit::leaky_bucket(rate).burst(5).build().unwrap();
    let (limiter, _clock) = limiter(vec![rule("jobs", limit, &["user"])]);
    let layer = CallLayer::new(limiter, describe).max_waiting(0);
    let service = layer.layer(service_fn(work));
    let first = service.clone().oneshot(Job("ann")).await;
    assert_eq!(first, Ok(CallOutcome::Passed(3)));
    assert_eq!(
        service.oneshot(Job("ann")).await,
        Ok(CallOutcome::Overloaded)
    );
}

#[tokio::test]
async fn failures_are_declared_here_too() {
    let ask = async |passes| {
        let layer = CallLayer::new(stranded(), describe);
        let layer = if passes {
            layer.allow_on_failure()
        } else {
            layer
        };
        layer
            .layer(service_fn(work))
            .oneshot(Job("ann"))
            .await
            .unwrap()
    };
    assert_eq!(ask(true).await, CallOutcome::Passed(3));
    let CallOutcome::Refused(verdict) = ask(false).await else {
        panic!("nobody said that it passes");
    };
    assert!(verdict.degraded);
    let empty = Limiter::new(MemoryStore::new());
    let service = CallLayer::new(empty, describe).layer(service_fn(work));
    let error = service.oneshot(Job("ann")).await.unwrap_err();
    assert_eq!(
        error,
        CallError::Limits(Failure::Ask(AskError::UnknownDomain))
    );
    assert_eq!(error.to_string(), "no rules for this domain");
}
