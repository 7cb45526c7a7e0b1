//! Failures: a store that cannot answer, and missing rules.

use std::sync::{Arc, Mutex};

use axum::routing::get as route;
use axum::{Extension, Router};
use quell::store::StoreError;
use quell::store::memory::MemoryStore;
use quell::tower::{Entries, LimitLayer};
use quell::{Limit, Limiter, Verdict};
use quell_conformance::ScriptedStore;

use super::support::{app, ask, get, rule, shop};

/// A limiter on a store that is gone.
pub(crate) fn stranded() -> Limiter<ScriptedStore> {
    limiter_on(StoreError::Unavailable("it is gone".to_owned()))
}

fn limiter_on(failure: StoreError) -> Limiter<ScriptedStore> {
    let store = ScriptedStore::default();
    store.set_failure(Some(failure));
    let limiter = Limiter::new(store);
    let limit = Limit::per_second(1).build().unwrap();
    limiter
        .set_rules(vec![shop(vec![rule("one", limit, &[])])])
        .unwrap();
    limiter
}

#[tokio::test]
async fn what_was_declared_happens_and_is_visible() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let layer = || {
        let listener = Arc::clone(&heard);
        let layer = LimitLayer::new(stranded(), "shop", Entries::new());
        layer.on_each_failure(move |failure| listener.lock().unwrap().push(failure.to_string()))
    };
    let handler = |Extension(verdict): Extension<Arc<Verdict>>| async move {
        assert!(verdict.degraded && verdict.is_allow());
        "on your own"
    };
    let open = Router::new()
        .route("/", route(handler))
        .layer(layer().allow_on_failure());
    let yes = ask(&open, get("/", &[])).await;
    assert_eq!(
        (yes.status.as_u16(), yes.body.as_str()),
        (200, "on your own")
    );
    assert_eq!(yes.field("ratelimit"), None);

    let no = ask(&app(layer()), get("/", &[])).await;
    assert_eq!(no.status, 503);
    assert_eq!(no.field("retry-after"), Some("1"));
    let problem: serde_json::Value = serde_json::from_str(&no.body).unwrap();
    let kind = problem["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
    let words = "the store does not answer: it is gone";
    assert_eq!(*heard.lock().unwrap(), [words, words]);
}

#[tokio::test]
async fn a_store_with_more_to_do_than_it_can_has_not_failed() {
    let limiter = limiter_on(StoreError::Overloaded);
    let layer = LimitLayer::new(limiter, "shop", Entries::new()).allow_on_failure();
    let layer = layer.on_each_failure(|failure| panic!("{failure}"));
    let no = ask(&app(layer), get("/", &[])).await;
    assert_eq!(no.status, 503);
    let problem: serde_json::Value = serde_json::from_str(&no.body).unwrap();
    assert_eq!(problem["type"], "urn:quell:problem:overloaded");
}

#[tokio::test]
async fn a_domain_without_rules_is_never_taken_for_a_yes() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = LimitLayer::new(limiter.clone(), "shop", Entries::new());
    let open = LimitLayer::new(limiter, "shop", Entries::new()).allow_on_failure();
    for layer in [layer, open] {
        let answer = ask(&app(layer.clone()), get("/", &[])).await;
        assert_eq!(answer.status, 500, "{answer:?}");
        layer.limiter().set_rules(vec![shop(Vec::new())]).unwrap();
        assert_eq!(ask(&app(layer.clone()), get("/", &[])).await.status, 200);
        layer.limiter().set_rules(Vec::new()).unwrap();
    }
}

#[test]
fn impossible_numbers_are_refused_when_the_layer_is_made() {
    let error = LimitLayer::each("none", Limit::per_second(0), Entries::new()).unwrap_err();
    assert_eq!(error, quell::LimitError::ZeroRate);
}
