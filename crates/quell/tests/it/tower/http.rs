//! HTTP answers: what a client is told when a limit allows and when it denies.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use axum::routing::get as route;
use axum::{Extension, Router};
use quell::tower::{Entries, LimitLayer, SendFields};
use quell::{Cost, Limit, Verdict};
use quell_core::ban::Ban;
use tokio::net::TcpListener;

use super::support::{app, ask, connected, get, get_from, limiter, rule, status};

fn one_a_minute() -> Limit {
    Limit::sliding_log(1, Duration::from_secs(60))
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_refusal_says_how_long_to_wait() {
    let (limiter, clock) = limiter(vec![rule("strict", one_a_minute(), &["user"])]);
    let user = Entries::new().with("user", |request| request.uri.query().map(str::to_owned));
    let app = app(LimitLayer::new(limiter, "shop", user));

    let yes = ask(&app, get("/?alice", &[])).await;
    assert_eq!((yes.status.as_u16(), yes.body.as_str()), (200, "hello"));
    assert_eq!(yes.field("ratelimit-policy"), Some("\"strict\";q=1;w=60"));
    assert_eq!(yes.field("ratelimit"), Some("\"strict\";r=0;t=60"));
    assert_eq!(yes.field("retry-after"), None);

    clock.advance(Duration::from_millis(18_500));
    let no = ask(&app, get("/?alice", &[])).await;
    assert_eq!(no.status.as_u16(), 429);
    assert_eq!(no.field("retry-after"), Some("42"), "41.5 s, rounded up");
    assert_eq!(no.field("ratelimit"), Some("\"strict\";r=0;t=42"));
    assert_eq!(no.field("content-type"), Some("application/problem+json"));
    assert_eq!(
        no.field("content-length"),
        Some(no.body.len().to_string().as_str())
    );
    let problem: serde_json::Value = serde_json::from_str(&no.body).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"][0], "strict");
    assert_eq!(status(&app, get("/?bob", &[])).await, 200);

    clock.advance(Duration::from_millis(41_500));
    assert_eq!(status(&app, get("/?alice", &[])).await, 200);
}

#[tokio::test]
async fn a_ban_and_a_cost_that_never_fits_are_told_apart() {
    let ban = Ban::new(1, None, vec![Duration::from_secs(900)]).unwrap();
    let (limiter, _clock) = limiter(vec![
        rule("strict", one_a_minute().with_ban(ban), &["user"]),
        rule("large", one_a_minute(), &["cost"]),
    ]);
    let entries = Entries::new()
        .header("user", HeaderName::from_static("user"))
        .header("cost", HeaderName::from_static("cost"))
        .cost(|request| {
            let cost = request.headers.get("cost");
            let cost = cost.and_then(|cost| cost.to_str().ok()?.parse().ok());
            cost.and_then(Cost::new).unwrap_or_default()
        });
    let app = app(LimitLayer::new(limiter, "shop", entries));
    let never = ask(&app, get("/", &[("cost", "2")])).await;
    assert_eq!(
        (never.status.as_u16(), never.field("retry-after")),
        (429, None)
    );
    assert_eq!(never.field("ratelimit"), Some("\"large\";r=1"));
    assert!(never.body.contains("Ask for less at once"), "{never:?}");
    assert_eq!(status(&app, get("/", &[("user", "ann")])).await, 200);
    let banned = ask(&app, get("/", &[("user", "ann")])).await;
    assert_eq!(banned.field("retry-after"), Some("900"), "{banned:?}");
    assert!(banned.body.contains("Too many refusals"), "{banned:?}");
}

#[tokio::test]
async fn who_is_told_can_be_chosen() {
    for (tell, on_yes, on_no) in [
        (SendFields::Always, true, true),
        (SendFields::OnRefusal, false, true),
        (SendFields::Never, false, false),
    ] {
        let layer = LimitLayer::each("one", one_a_minute(), Entries::new()).unwrap();
        let app = app(layer.send_fields(tell));
        let yes = ask(&app, get("/", &[])).await;
        let no = ask(&app, get("/", &[])).await;
        let told = |read: &super::support::Read| read.field("ratelimit").is_some();
        assert_eq!((told(&yes), told(&no)), (on_yes, on_no), "{tell:?}");
        assert_eq!(no.field("retry-after"), Some("60"), "{tell:?}");
    }
}

#[tokio::test]
async fn the_service_and_what_is_outside_see_the_verdict() {
    let layer = LimitLayer::each("ten", Limit::per_second(10), Entries::new()).unwrap();
    let handler = |Extension(verdict): Extension<Arc<Verdict>>| async move {
        verdict.remaining.unwrap_or_default().to_string()
    };
    let app = Router::new().route("/", route(handler)).layer(layer);
    assert_eq!(ask(&app, get("/", &[])).await.body, "9");
    let response = tower::ServiceExt::oneshot(app, get("/", &[]))
        .await
        .unwrap();
    let verdict = response.extensions().get::<Arc<Verdict>>().unwrap();
    assert_eq!(verdict.remaining, Some(8));
}

#[tokio::test]
async fn two_layers_both_tell_and_the_outer_one_charges_first() {
    let inner = LimitLayer::each("inner", Limit::per_minute(1), Entries::new()).unwrap();
    let outer = LimitLayer::each("outer", Limit::per_minute(3), Entries::new()).unwrap();
    let app = app(inner).layer(outer);
    let yes = ask(&app, get("/", &[])).await;
    let fields: Vec<_> = yes.headers.get_all("ratelimit").iter().collect();
    assert_eq!(fields, ["\"inner\";r=0;t=60", "\"outer\";r=2;t=20"]);
    let no = ask(&app, get("/", &[])).await;
    let fields: Vec<_> = no.headers.get_all("ratelimit").iter().collect();
    assert_eq!(no.status, 429);
    assert_eq!(fields, ["\"inner\";r=0;t=60", "\"outer\";r=1;t=40"]);
}

#[tokio::test]
async fn limits_of_one_limiter_are_charged_together_or_not_at_all() {
    let ten = Limit::per_minute(10).build().unwrap();
    let (limiter, _clock) = limiter(vec![
        rule("all", ten, &[]),
        rule("each-user", one_a_minute(), &["user"]),
    ]);
    let entries = Entries::new().with("user", |request| request.uri.query().map(str::to_owned));
    let app = app(LimitLayer::new(limiter, "shop", entries));
    for user in ["/?a", "/?a", "/?a", "/?b"] {
        ask(&app, get(user, &[])).await;
    }
    let yes = ask(&app, get("/?c", &[])).await;
    assert_eq!(
        yes.field("ratelimit"),
        Some("\"all\";r=7;t=18, \"each-user\";r=0;t=60"),
        "three calls went on, two refusals cost nothing"
    );
    let nobody = ask(&app, get("/", &[])).await;
    assert_eq!(nobody.field("ratelimit"), Some("\"all\";r=6;t=24"));
}

#[tokio::test]
async fn shadow_rules_tell_nothing_and_refuse_nobody() {
    let mut shadow = rule("shadow", one_a_minute(), &[]);
    shadow.shadow = true;
    let (limiter, _clock) = limiter(vec![shadow]);
    let app = app(LimitLayer::new(limiter, "shop", Entries::new()));
    for _ in 0..3 {
        let yes = ask(&app, get("/", &[])).await;
        assert_eq!((yes.status.as_u16(), yes.field("ratelimit")), (200, None));
    }
}

#[tokio::test]
async fn a_server_on_a_socket_tells_who_is_connected() {
    let entries = Entries::new().remote_address(connected());
    let layer = LimitLayer::each("per-address", Limit::per_minute(2), entries).unwrap();
    let app = app(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app
        .clone()
        .into_make_service_with_connect_info::<std::net::SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, service).await });
    let mut statuses = Vec::new();
    for _ in 0..3 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        statuses.push(text.split(' ').nth(1).unwrap().to_owned());
    }
    server.abort();
    assert_eq!(statuses, ["200", "200", "429"]);
    let other = get_from("10.0.0.1:5", "/", &[]);
    assert_eq!(
        status(&app, other).await,
        200,
        "another address has its own"
    );
    let one = get_from("[2001:db8::1]:5", "/", &[]);
    assert_eq!(
        ask(&app, one).await.field("ratelimit"),
        Some("\"per-address\";r=1;t=30")
    );
    let same = get_from("[2001:db8::2]:5", "/", &[]);
    assert_eq!(
        ask(&app, same).await.field("ratelimit"),
        Some("\"per-address\";r=0;t=60")
    );
}
