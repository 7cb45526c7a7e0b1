//! Entries: what a request's head becomes.

use std::sync::Arc;

use axum::Router;
use axum::extract::MatchedPath;
use axum::http::HeaderName;
use axum::routing::get as route;
use quell::store::memory::MemoryStore;
use quell::tower::{Entries, LimitLayer, PathReading};
use quell::{Cost, Limit, Limiter};

use super::support::{Recorder, app, ask, connected, get, get_from, limiter, rule, shop, status};

/// A layer whose queries are recorded.
fn recorded(entries: Entries) -> (LimitLayer<MemoryStore>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let limiter = Limiter::builder(MemoryStore::new()).observer(Arc::clone(&recorder) as _);
    let limiter = limiter.build();
    limiter.set_rules(vec![shop(Vec::new())]).unwrap();
    (LimitLayer::new(limiter, "shop", entries), recorder)
}

#[tokio::test]
async fn every_source_finds_its_value() {
    let entries = Entries::new()
        .method()
        .path()
        .remote_address(connected())
        .header("api_key", HeaderName::from_static("x-api-key"))
        .cookie("session", "sid")
        .with("host", |request| {
            Some(request.headers.get("host")?.as_bytes().to_vec())
        })
        .cost(|request| {
            let length = request.headers.get("content-length");
            let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
            length.and_then(Cost::new).unwrap_or_default()
        });
    let (layer, recorder) = recorded(entries);
    let app = app(layer);
    let fields = [
        ("x-api-key", "first"),
        ("x-api-key", "second"),
        ("cookie", "a=b; sid2=no; sid=\"yes=1\"; sid=late"),
        ("cookie", "sid=later"),
        ("host", "shop.example"),
        ("content-length", "7"),
    ];
    ask(
        &app,
        get_from("[::ffff:10.0.0.1]:99", "/%6cogin?q=1", &fields),
    )
    .await;
    ask(
        &app,
        get_from("10.0.0.1:99", "/", &[("cookie", "sid2=x; xsid=1; sid")]),
    )
    .await;
    assert_eq!(
        recorder.take(),
        [
            "method=GET path=/login remote_address=10.0.0.1 api_key=first session=\"yes=1\" host=shop.example cost 7",
            "method=GET path=/ remote_address=10.0.0.1",
        ]
    );
}

/// Browsers and programs send an empty field where they have no value.
#[tokio::test]
async fn an_empty_value_is_none_and_the_next_source_counts() {
    let limit = Limit::per_hour(1).build().unwrap();
    let (limiter, _) = limiter(vec![rule("per-user", limit, &["user"])]);
    let entries = Entries::new()
        .header("user", HeaderName::from_static("x-user"))
        .cookie("user", "sid");
    let app = app(LimitLayer::new(limiter, "shop", entries));
    let cookie: &[(&str, &str)] = &[("x-user", ""), ("cookie", "sid=ann")];
    for (fields, expected) in [
        (cookie, [200, 429]),
        (&[("x-user", "")], [200, 200]),
        (&[("x-user", ""), ("cookie", "sid=")], [200, 200]),
    ] {
        let first = status(&app, get("/", fields)).await;
        let second = status(&app, get("/", fields)).await;
        assert_eq!([first, second], expected, "{fields:?}");
    }
}

/// As under a rule that says nothing else.
#[tokio::test]
async fn each_limits_no_request_that_lacks_the_entry() {
    let entries = Entries::new().header("user", HeaderName::from_static("x-user"));
    let app = app(LimitLayer::each("per-user", Limit::per_hour(1), entries).unwrap());
    let ann: &[(&str, &str)] = &[("x-user", "ann")];
    for (fields, expected) in [
        (ann, [200, 429]),
        (&[("x-user", "bob")], [200, 429]),
        (&[("x-user", "")], [200, 200]),
        (&[], [200, 200]),
    ] {
        let first = status(&app, get("/", fields)).await;
        let second = status(&app, get("/", fields)).await;
        assert_eq!([first, second], expected, "{fields:?}");
    }
}

#[tokio::test]
async fn the_first_path_pattern_that_fits_names_what_is_in_the_path() {
    let entries = Entries::new()
        .path_pattern("/users/me")
        .and_then(|entries| entries.path_pattern("/users/{user}"))
        .and_then(|entries| entries.path_pattern("/{kind}/{*rest}"))
        .unwrap();
    let (layer, recorder) = recorded(entries);
    let app = app(layer);
    for path in ["/users/me", "/users/7", "/users/7/orders", "/"] {
        ask(&app, get(path, &[])).await;
    }
    assert_eq!(
        recorder.take(),
        [
            "path_pattern=/users/me",
            "path_pattern=/users/{user} user=7",
            "path_pattern=/{kind}/{*rest} kind=users rest=7/orders",
            "",
        ]
    );
}

/// A path counts under one spelling, as in the server; a path without one is refused.
#[tokio::test]
async fn spellings_of_one_path_are_one() {
    let entries = || Entries::new().path().path_pattern("/users/{user}").unwrap();
    let (layer, recorder) = recorded(entries());
    let app_ = app(layer);
    for path in ["/users/7", "/users//7/", "/%75sers/x/../7;a=1?q"] {
        assert_eq!(ask(&app_, get(path, &[])).await.status, 200, "{path}");
    }
    let seen = "path=/users/7 path_pattern=/users/{user} user=7";
    assert_eq!(recorder.take(), [seen, seen, seen]);
    for path in ["/%2fusers/7", "/users/..;/7", "/%zz"] {
        assert_eq!(ask(&app_, get(path, &[])).await.status, 400, "{path}");
    }
    assert_eq!(recorder.take(), [""; 0], "nobody is asked");

    let kept = PathReading {
        ignore_case: true,
        keep_encoded_slashes: true,
    };
    let (layer, recorder) = recorded(entries().path_reading(kept));
    let app_ = app(layer);
    ask(&app_, get("/USERS/a%2fb", &[])).await;
    assert_eq!(
        recorder.take(),
        ["path=/users/a%2Fb path_pattern=/users/{user} user=a%2Fb"]
    );
}

#[tokio::test]
async fn what_other_layers_found_out_can_tell_keys_apart() {
    #[derive(Clone)]
    struct Account(Option<&'static str>);

    let entries = Entries::new()
        .extension("account", |account: &Account| account.0)
        .extension("route", |matched: &MatchedPath| {
            Some(matched.as_str().to_owned())
        })
        .header("account", HeaderName::from_static("x-account"));
    let (layer, recorder) = recorded(entries);
    let app = Router::new().route("/orders/{id}", route(|| async {}));
    let app = app.route_layer(layer);
    for (account, header) in [(Some("acme"), "evil"), (None, "fallback")] {
        let mut request = get("/orders/5", &[("x-account", header)]);
        request.extensions_mut().insert(Account(account));
        ask(&app, request).await;
    }
    assert_eq!(
        recorder.take(),
        [
            "account=acme route=/orders/{id}",
            "route=/orders/{id} account=fallback",
        ]
    );
}

#[test]
fn entries_show_their_names_and_no_secrets() {
    let entries = Entries::new()
        .method()
        .path_pattern("/{user}")
        .unwrap()
        .cookie("user", "sid")
        .cookie("session", "sid");
    assert_eq!(
        format!("{entries:?}"),
        r#"Entries { names: ["method", "path_pattern", "user", "session"], .. }"#
    );
}
