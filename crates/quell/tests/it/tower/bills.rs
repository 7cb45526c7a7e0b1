//! Bills: a cost that is known only when the response is.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::any;
use axum::{Extension, Router};
use futures_util::stream;
use http_body_util::BodyExt;
use quell::conformance::InMicros;
use quell::store::memory::MemoryStore;
use quell::tower::{Bill, Entries, LimitLayer, OnFailure};
use quell::{Cost, Limit, Limiter, Query};
use quell_core::rule::Rule;
use tower::ServiceExt;

use super::support::{ask, get, limiter, rule, shop, status};

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

async fn left<S: quell::store::Store>(limiter: &Limiter<S>) -> Vec<u64> {
    let verdict = limiter.peek(&Query::new("shop")).await.unwrap();
    let decisions = verdict.decisions.iter();
    decisions
        .map(|decided| decided.decision.remaining)
        .collect()
}

/// Says what it cost in a field, through the bill, while it sends, or not at all.
fn model<S: quell::store::Store>(limiter: &Arc<Limiter<S>>) -> Router {
    let layer =
        LimitLayer::with_on_failure(Arc::clone(limiter), "shop", entries(), OnFailure::Allow);
    let layer = layer.cost_after(|head| {
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

/// A store that cannot keep an estimate is no store that failed: nothing goes on uncounted.
#[tokio::test]
async fn without_holds_nobody_is_let_through_uncounted() {
    let limiter = Arc::new(Limiter::new(InMicros(MemoryStore::new())));
    limiter.set_rules(vec![shop(models())]).unwrap();
    assert_eq!(status(&model(&limiter), asking("/field")).await, 500);
    assert_eq!(left(&limiter).await, [1_000, 10]);
}
