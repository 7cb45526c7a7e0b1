//! Bills: a cost that is known only from the response.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::any;
use axum::{Extension, Router};
use futures_util::stream;
use http_body_util::BodyExt;
use quell::tower::{Bill, CallLayer, CallOutcome, Entries, LimitLayer};
use quell::{Cost, Limit, Limiter, Query};
use quell_core::rule::Rule;
use tower::{Layer, ServiceExt};

use super::support::{ask, get, limiter, rule};

/// A thousand tokens and ten requests a minute.
fn models() -> Vec<Rule> {
    let per_minute = |count| Limit::per_minute(count).build().unwrap();
    let mut requests = rule("requests", per_minute(10), &[]);
    requests.cost = Some(Cost::ONE);
    vec![rule("tokens", per_minute(1_000), &[]), requests]
}

/// The estimate is 400.
fn entries() -> Entries {
    Entries::new().cost(|_| Cost::new(400).unwrap())
}

fn asking(path: &str) -> Request<Body> {
    get(path, &[])
}

async fn left<S: quell::store::HoldStore>(limiter: &Limiter<S>) -> Vec<u64> {
    let verdict = limiter.peek(&Query::new("shop")).await.unwrap();
    let decisions = verdict.decisions.iter();
    decisions
        .map(|decided| decided.decision.remaining)
        .collect()
}

/// A service that reports its cost in a field, through the bill, while it sends, or not at all.
fn model<S: quell::store::HoldStore>(limiter: &Limiter<S>) -> Router {
    let layer = LimitLayer::new(limiter.clone(), "shop", entries());
    let layer = layer.allow_on_failure().cost_after(|head| {
        let tokens = head.headers.get("x-tokens")?;
        tokens.to_str().ok()?.parse().ok()
    });
    let in_a_field = any(|| async { ([("x-tokens", "150")], "hello") });
    let by_the_bill = any(|Extension(bill): Extension<Bill>| async move {
        bill.set(700);
        "hello"
    });
    let while_it_sends = any(|Extension(bill): Extension<Bill>| async move {
        Body::from_stream(stream::repeat_with(move || {
            bill.add(1);
            Ok::<_, Infallible>(Bytes::from("token"))
        }))
    });
    Router::new()
        .route("/field", in_a_field)
        .route("/bill", by_the_bill)
        .route("/stream", while_it_sends)
        .route("/silent", any(|| async { "hello" }))
        .layer(layer)
}

#[tokio::test]
async fn the_true_cost_is_paid_when_the_response_has_been_sent() {
    let (limiter, _clock) = limiter(models());
    let app = model(&limiter);
    let response = app.clone().oneshot(asking("/field")).await.unwrap();
    assert_eq!(
        left(&limiter).await,
        [600, 9],
        "the estimate, while it is sent"
    );
    drop(response.into_body().collect().await.unwrap());
    assert_eq!(left(&limiter).await, [850, 9], "what it said");
    assert_eq!(ask(&app, asking("/silent")).await.body, "hello");
    assert_eq!(left(&limiter).await, [450, 8], "the estimate stays");
    assert_eq!(ask(&app, asking("/bill")).await.body, "hello");
    assert_eq!(left(&limiter).await, [0, 7], "more than was left is owed");
    let refused = ask(&app, asking("/field")).await;
    assert_eq!(refused.status, 429, "until it is repaid: {refused:?}");
    assert_eq!(left(&limiter).await, [0, 7]);
}

#[tokio::test]
async fn what_was_sent_before_the_client_went_away_is_paid() {
    let (limiter, _clock) = limiter(models());
    let app = model(&limiter);
    let response = app.clone().oneshot(asking("/stream")).await.unwrap();
    let mut body = response.into_body();
    for _ in 0..3 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), Bytes::from("token"));
    }
    assert_eq!(left(&limiter).await, [600, 9]);
    drop(body);
    assert_eq!(left(&limiter).await, [997, 9]);
}

/// The same with a response that is not HTTP: the cost is what a closure finds in it.
#[tokio::test]
async fn a_call_of_any_service_is_paid_when_its_response_is_there() {
    let (limiter, _clock) = limiter(models());
    let estimate = Cost::new(400).unwrap();
    let layer = CallLayer::new(limiter.clone(), move |_: &Option<u64>| {
        Query::new("shop").cost(estimate)
    });
    let layer = layer.cost_after(|(_, cost): &(u64, Option<u64>)| *cost);
    let inner = limiter.clone();
    let service = layer.layer(tower::service_fn(move |cost: Option<u64>| {
        let inner = inner.clone();
        async move { Ok::<_, Infallible>((left(&inner).await[0], cost)) }
    }));
    for (cost, during, tokens) in [
        // Less, nothing, more; and not found: then the estimate stays.
        (Some(150), 600, 850),
        (Some(0), 450, 850),
        (Some(450), 450, 400),
        (None, 0, 0),
    ] {
        let answer = service.clone().oneshot(cost).await;
        assert_eq!(answer, Ok(CallOutcome::Passed((during, cost))));
        assert_eq!(left(&limiter).await[0], tokens);
    }
    assert_eq!(left(&limiter).await, [0, 6], "four calls were counted");
}

#[tokio::test]
async fn a_call_that_costs_more_is_owed_and_one_that_fails_costs_its_estimate() {
    let (limiter, clock) = limiter(models());
    let estimate = Cost::new(400).unwrap();
    let layer = CallLayer::new(limiter.clone(), move |_: &bool| {
        Query::new("shop").cost(estimate)
    });
    let layer = layer.cost_after(|cost: &u64| Some(*cost));
    let service = layer.layer(tower::service_fn(
        async |works: bool| {
            if works { Ok(1_600) } else { Err("no") }
        },
    ));
    assert!(service.clone().oneshot(false).await.is_err());
    assert_eq!(left(&limiter).await, [600, 9]);
    assert_eq!(
        service.clone().oneshot(true).await,
        Ok(CallOutcome::Passed(1_600))
    );
    assert_eq!(left(&limiter).await, [0, 8], "1000 more than there was");
    let refused = service.clone().oneshot(true).await;
    assert!(matches!(refused, Ok(CallOutcome::Refused(_))));
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(left(&limiter).await[0], 0, "a minute repays it");
    clock.advance(std::time::Duration::from_secs(24));
    assert!(service.oneshot(true).await.is_ok());
}
