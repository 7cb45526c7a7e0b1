//! Permits: held as long as the call lives, to the end of its response's body.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::routing::any;
use futures_util::stream;
use http_body_util::BodyExt;
use quell::clock::ManualClock;
use quell::store::memory::MemoryStore;
use quell::tower::{CallLayer, CallOutcome, Entries, LimitLayer};
use quell::{Limit, Limiter};
use tower::{Layer, ServiceExt};

use super::support::{app, ask, get, limiter, rule, settle, status};

const LEASE: Duration = Duration::from_secs(10);

fn one_at_a_time() -> Limit {
    Limit::concurrency(1).lease(LEASE).build().unwrap()
}

/// A permit is held until the body has been sent, or is dropped because the client went away.
#[tokio::test]
async fn a_permit_comes_back_with_the_end_of_the_body() {
    let (limiter, _clock) = limiter(vec![rule("at-a-time", one_at_a_time(), &[])]);
    let held = || limiter.store().hold_totals(limiter.now()).permits;
    let app = app(LimitLayer::new(limiter.clone(), "shop", Entries::new()));
    let call = || app.clone().oneshot(get("/", &[]));
    let first = call().await.unwrap();
    assert_eq!((first.status().as_u16(), held()), (200, 1));
    assert_eq!(status(&app, get("/", &[])).await, 429);
    drop(first);
    assert_eq!(held(), 0, "the client went away");
    let second = call().await.unwrap();
    assert_eq!(held(), 1);
    let body = second.into_body().collect().await;
    assert_eq!(body.unwrap().to_bytes(), "hello");
    assert_eq!(held(), 0, "it has been sent");
}

/// A lease is for callers that die, not for calls that take long.
#[tokio::test]
async fn a_call_that_lives_keeps_its_permit_beyond_the_lease() {
    let (limiter, clock) = limiter(vec![rule("at-a-time", one_at_a_time(), &[])]);
    let totals = || limiter.store().hold_totals(limiter.now());
    let keeps_it = async |place: &str| {
        for _ in 0..7 {
            settle().await;
            clock.advance(LEASE / 2);
        }
        settle().await;
        assert_eq!((totals().permits, totals().expired), (1, 0), "{place}");
    };
    let (answer, answered) = tokio::sync::oneshot::channel::<()>();
    let answered = Arc::new(tokio::sync::Mutex::new(Some(answered)));
    let slow = any(move || async move {
        if let Some(answered) = answered.lock().await.take() {
            drop(answered.await);
        }
        // A body that never ends by itself.
        Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())
    });
    let layer = LimitLayer::new(limiter.clone(), "shop", Entries::new());
    let app = Router::new().route("/", slow).layer(layer);
    let call = tokio::spawn(app.clone().oneshot(get("/", &[])));
    keeps_it("in the service").await;
    answer.send(()).unwrap();
    let mut body = call.await.unwrap().unwrap().into_body();
    let sending = tokio::spawn(async move { body.frame().await.is_some() });
    keeps_it("and in the body").await;
    assert_eq!(status(&app, get("/", &[])).await, 429);
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    assert_eq!((totals().permits, totals().expired), (0, 0));
}

/// A response that is never read gives its permit up when the lease ends.
#[tokio::test]
async fn who_is_not_heard_of_for_a_lease_loses_it() {
    let (limiter, clock) = limiter(vec![rule("at-a-time", one_at_a_time(), &[])]);
    let app = app(LimitLayer::new(limiter, "shop", Entries::new()));
    let stuck = app.clone().oneshot(get("/", &[])).await.unwrap();
    clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(status(&app, get("/", &[])).await, 429);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(status(&app, get("/", &[])).await, 200);
    drop(stuck);
}

#[tokio::test]
async fn calls_of_any_service_hold_them_too() {
    let (limiter, _clock) = limiter(vec![rule("at-a-time", one_at_a_time(), &[])]);
    let held = || limiter.store().hold_totals(limiter.now()).permits;
    let layer = CallLayer::new(limiter.clone(), |_: &u8| quell::Query::new("shop"));
    let (inner, seen) = (limiter.clone(), Arc::new(std::sync::Mutex::new(0)));
    let during = Arc::clone(&seen);
    let service = layer.layer(tower::service_fn(move |_: u8| {
        *during.lock().unwrap() = inner.store().hold_totals(inner.now()).permits;
        std::future::ready(Ok::<_, Infallible>(7))
    }));
    assert_eq!(service.oneshot(1).await, Ok(CallOutcome::Passed(7)));
    assert_eq!((*seen.lock().unwrap(), held()), (1, 0));
}

/// A learned ceiling depends on how the service did: an error, a 503, a 504 and their gRPC
/// equivalents lower it, once for those that come together. Other answers do not, and the time
/// until a client went away before its response teaches nothing.
#[tokio::test]
async fn a_service_that_is_too_busy_lowers_a_learned_ceiling() {
    for (lowers, status, grpc) in [
        (true, 503, None),
        (true, 504, None),
        (true, 200, Some("8")),
        (true, 200, Some("14")),
        (false, 500, None),
        (false, 200, Some("5")),
        (false, 200, None),
    ] {
        let learned = Limit::concurrency(100).adaptive(10).build().unwrap();
        let (limiter, clock) = limiter(vec![rule("learned", learned, &[])]);
        let layer = LimitLayer::new(limiter.clone(), "shop", Entries::new());
        grow(&limiter, &clock).await;
        let answer = any(move || async move {
            let response = Response::builder().status(status);
            let response = match grpc {
                Some(code) => response.header("grpc-status", code),
                None => response,
            };
            response.body(Body::empty()).unwrap()
        });
        let app = Router::new().route("/", answer).layer(layer);
        ask(&app, get("/", &[])).await;
        let expected = if lowers { 90 } else { 100 };
        assert_eq!(ceiling(&limiter).await, expected, "{status} {grpc:?}");
    }
}

#[tokio::test]
async fn who_goes_away_teaches_nothing_and_an_error_does() {
    let learned = Limit::concurrency(100).adaptive(10).build().unwrap();
    let (limiter, clock) = limiter(vec![rule("learned", learned, &[])]);
    let layer = CallLayer::new(limiter.clone(), |_: &bool| quell::Query::new("shop"));
    let service = layer.layer(tower::service_fn(|fails: bool| async move {
        if fails {
            return Err("too busy");
        }
        std::future::pending::<()>().await;
        Ok(())
    }));
    grow(&limiter, &clock).await;
    let held = || limiter.store().hold_totals(limiter.now()).permits;
    for _ in 0..300 {
        let call = tokio::spawn(service.clone().oneshot(false));
        settle().await;
        assert_eq!(held(), 1);
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(held(), 0);
    }
    assert_eq!(ceiling(&limiter).await, 100, "300 calls of no time at all");
    assert!(service.oneshot(true).await.is_err());
    assert_eq!(ceiling(&limiter).await, 90);
}

async fn ceiling(limiter: &Limiter<MemoryStore>) -> u64 {
    let verdict = limiter.peek(&quell::Query::new("shop")).await.unwrap();
    verdict.decisions[0].decision.limit
}

/// Makes calls that find no queue, until the only key's ceiling has been 100 for a while.
async fn grow(limiter: &Limiter<MemoryStore>, clock: &ManualClock) {
    let query = quell::Query::new("shop");
    let mut turns_at_most = 0;
    while turns_at_most < 4 {
        turns_at_most += u8::from(ceiling(limiter).await == 100);
        let mut held = Vec::new();
        while let Some(id) = limiter.try_acquire(&query).await.unwrap().id {
            held.push(id);
        }
        clock.advance(Duration::from_millis(10));
        for id in held {
            limiter.release("shop", &id).await.unwrap();
        }
    }
}
