//! A store that fails while calls wait; meanwhile holds are ended and an operator's commands are
//! sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::load::{Account, Call, Kind};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: line, match: { path: /wait }, per: [user], rate: 2/s, burst: 1 }
  - { name: jobs, match: { path: /jobs }, per: [user], algorithm: concurrency, max: 2, lease: 2s }
  - { name: calls, match: { path: /a }, per: [user], rate: 100/s }
";

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let mut client = server.client();
    for id in ["a", "b"] {
        let entries = json!({"path": "/jobs", "user": "u"});
        let body = json!({"domain": "d", "entries": entries, "id": id});
        let held = client.post("/v1/reserve", &body).await?;
        ensure!(held.is_allowed(), "{}", held.text);
    }
    let mut waiting = JoinSet::new();
    for at in 0..12 {
        let (mut client, path) = (server.client(), ["/wait", "/jobs"][at % 2]);
        waiting.spawn(async move {
            let entries = json!({"path": path, "user": "u"});
            let body = json!({"domain": "d", "entries": entries, "max_wait_ms": 120_000});
            let begun = Instant::now();
            let answer = client.post("/v1/acquire", &body).await;
            Call::new(path.to_owned(), begun, answer)
        });
    }
    tokio::time::sleep(Duration::from_millis(rng.within(200..600))).await;
    let fault = rng.pick(&[Fault::Refuse, Fault::Lose, Fault::Cut]);
    proxy.set(fault);
    let by_hand = ends(&server).await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    proxy.set(Fault::Refuse);
    proxy.set(Fault::None);
    server.is_status("ok", Duration::from_secs(10)).await?;
    for id in ["a", "b"] {
        let body = json!({"domain": "d", "id": id});
        let ended = client.post("/v1/release", &body).await?;
        ensure!(ended.status == 200, "{}", ended.text);
    }
    let mut account = Account::default();
    let end = tokio::time::timeout(Duration::from_secs(45), async {
        while let Some(call) = waiting.join_next().await {
            account.calls.push(call?);
        }
        anyhow::Ok(())
    });
    let is_over = end.await;
    account.is_documented()?;
    ensure!(is_over.is_ok(), "12 waited, and 45 s later: {account}");
    let unavailable = account.kinds(Kind::Unavailable);
    ensure!(
        unavailable == 0,
        "a verdict is due: {}",
        account.said(Kind::Unavailable)
    );
    Ok(format!("{fault:?}: waiters {account}; by hand {by_hand:?}"))
}

/// Requests without a declared answer get 503 with a problem document while the store is gone.
async fn ends(server: &Server) -> Result<BTreeMap<u16, usize>> {
    let mut client = server.client();
    let id = |more: Value| {
        let mut body = json!({"domain": "d", "id": "a"});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        body
    };
    let entries = json!({"path": "/a", "user": "u"});
    let key = json!({"domain": "d", "rule": "calls", "entries": entries});
    let ban = json!({"domain": "d", "rule": "calls", "entries": entries, "for": "10m"});
    let asked = [
        ("POST", "/v1/settle", id(json!({"actual": 1}))),
        ("POST", "/v1/cancel", id(json!({}))),
        ("POST", "/v1/release", id(json!({}))),
        ("POST", "/v1/renew", id(json!({}))),
        ("GET", "/v1/bans", Value::Null),
        ("POST", "/v1/bans", ban),
        ("DELETE", "/v1/bans", key.clone()),
        ("DELETE", "/v1/keys", key),
    ];
    let mut statuses = BTreeMap::new();
    for _ in 0..3 {
        for (method, path, body) in &asked {
            let body = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            let answer = client.request(method, path, body.into()).await?;
            let is_told = answer.status == 503 && answer.body["type"].is_string();
            ensure!(
                is_told,
                "{method} {path}: {} {}",
                answer.status,
                answer.text
            );
            *statuses.entry(answer.status).or_default() += 1;
        }
    }
    Ok(statuses)
}
