//! Rules, apps and requests that the tests of layers share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use axum::routing::any;
use http_body_util::BodyExt;
use quell::clock::{Clock, ManualClock};
use quell::observer::{Event, Observer};
use quell::store::memory::MemoryStore;
use quell::tower::{LimitLayer, RemoteAddress};
use quell::{Limit, Limiter};
use quell_core::rule::{DomainRules, Rule};
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// A rule for every query, with one key per value of `per`.
pub(crate) fn rule(name: &str, limit: Limit, per: &[&str]) -> Rule {
    let rule = Rule::new(name, limit).unwrap();
    per.iter().fold(rule, |rule, entry| rule.per(*entry))
}

/// A limiter with these rules in the domain `shop`, on a clock that stands still.
pub(crate) fn limiter(rules: Vec<Rule>) -> (Limiter<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let limiter = Limiter::builder(MemoryStore::new()).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(vec![shop(rules)]).unwrap();
    (limiter, clock)
}

pub(crate) fn shop(rules: Vec<Rule>) -> DomainRules {
    DomainRules::new("shop", rules)
}

/// An app that says hello on every path, behind `layer`.
pub(crate) fn app<S: quell::store::HoldStore>(layer: LimitLayer<S>) -> Router {
    let hello = any(|| async { "hello" });
    Router::new()
        .route("/", hello.clone())
        .route("/{*rest}", hello)
        .layer(layer)
}

/// The address that axum's server provides.
pub(crate) fn connected() -> RemoteAddress {
    RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0))
}

/// Lets every task run as far as it can at this instant.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Advances the clock in steps of 10 ms, and lets every task run after each.
pub(crate) async fn pass(clock: &ManualClock, time: Duration) {
    settle().await;
    for _ in 0..time.as_millis() / 10 {
        clock.advance(Duration::from_millis(10));
        settle().await;
    }
}

/// A request in flight: its status, and when it was answered.
pub(crate) fn under_way(
    app: &Router,
    clock: &Arc<ManualClock>,
    request: Request<Body>,
) -> JoinHandle<(u16, Duration)> {
    let (app, clock) = (app.clone(), Arc::clone(clock));
    tokio::spawn(async move {
        let status = status(&app, request).await;
        (
            status,
            Duration::from_nanos(clock.now().monotonic.as_nanos()),
        )
    })
}

/// A GET of `target` with these fields.
pub(crate) fn get(target: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

/// The same, on a connection from this address.
pub(crate) fn get_from(address: &str, target: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = get(target, fields);
    let address: SocketAddr = address.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

/// Answer of an app, read to its end.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Read {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }
}

pub(crate) async fn ask(app: &Router, request: Request<Body>) -> Read {
    read(app.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn status(app: &Router, request: Request<Body>) -> u16 {
    ask(app, request).await.status.as_u16()
}

pub(crate) async fn read(response: Response) -> Read {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Read {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Records the entries and the cost of each query.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        let Event::Query { query, .. } = event else {
            return;
        };
        for descriptor in query.descriptors() {
            let entries = descriptor.entries().iter();
            let mut words: Vec<String> = entries
                .map(|entry| format!("{}={}", entry.name, String::from_utf8_lossy(&entry.value)))
                .collect();
            if descriptor.cost.get() > 1 {
                words.push(format!("cost {}", descriptor.cost));
            }
            self.0.lock().unwrap().push(words.join(" "));
        }
    }
}
