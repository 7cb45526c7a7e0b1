//! Servers that are replaced one by one, behind a balancer that asks whether they are ready and never
//! sends a request twice.
//!
//! The new servers have another version of a limit. Some calls use a connection that is kept open, others
//! open one each; a server that has closed its listeners would lose the latter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use crate::http::Client;
use crate::load::{Account, Call};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// No user comes near the first limit; all exceed the second.
const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: users, match: { path: /a }, per: [user], algorithm: fixed_window, limit: 1000000/h }
  - { name: few, match: { path: /few }, per: [user], algorithm: fixed_window, limit: FEW/h }
";

const PATHS: [&str; 2] = ["/a", "/few"];

/// Numbers of clients: 24 keep connections busy all the time, 2 do not.
const CLIENTS: [usize; 2] = [2, 24];

/// Interval at which the balancer asks each server whether it is ready. A server that is told to stop keeps
/// serving until no one has asked it for a second.
const CHECK: Duration = Duration::from_millis(100);

/// The ports that receive calls, and whether the run is over.
#[derive(Debug, Default)]
struct Balancer {
    known: Vec<u16>,
    ready: Vec<u16>,
    is_over: bool,
}

type Shared = Arc<Mutex<Balancer>>;

fn with<T>(shared: &Shared, change: impl FnOnce(&mut Balancer) -> T) -> T {
    change(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let url = redis.url();
    let words = ["--store", &url, "--store-timeout", "10s"];
    let shared = Shared::default();
    let mut servers = Vec::new();
    let versions = rng.pick(&[[60, 25], [25, 60]]);
    let [old_rules, new_rules] = versions.map(|few| RULES.replace("FEW", &few.to_string()));
    for _ in 0..2 {
        let server = Server::start(&old_rules, &words).await?;
        with(&shared, |balancer| balancer.known.push(server.http));
        servers.push(server);
    }
    let checks = tokio::spawn(check(Arc::clone(&shared)));
    while with(&shared, |balancer| balancer.ready.len()) < servers.len() {
        tokio::time::sleep(CHECK).await;
    }
    let mut clients = JoinSet::new();
    for _ in 0..rng.pick(&CLIENTS) {
        clients.spawn(ask(Arc::clone(&shared), rng.fork()));
    }
    let mut ends = Vec::new();
    for place in &mut servers {
        tokio::time::sleep(Duration::from_millis(rng.within(100..500))).await;
        let next = Server::start(&new_rules, &words).await?;
        with(&shared, |balancer| balancer.known.push(next.http));
        tokio::time::sleep(5 * CHECK).await;
        let mut old = std::mem::replace(place, next);
        old.process.signal("TERM");
        let told = Instant::now();
        let status = old.end(Duration::from_secs(30)).await?;
        ensure!(
            status.success(),
            "{status} after SIGTERM:\n{}",
            old.process.stderr()
        );
        ends.push(format!("{:.1?}", told.elapsed()));
        with(&shared, |balancer| {
            balancer.known.retain(|port| *port != old.http);
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    with(&shared, |balancer| balancer.is_over = true);
    let mut account = Account::default();
    while let Some(calls) = clients.join_next().await {
        account.add(Account { calls: calls? });
    }
    checks.abort();
    account.is_documented()?;
    ensure!(account.degraded() == 0, "{account}");
    let [charged, few] = PATHS.map(|path| account.of(path).allowed());
    let used = servers[0].used("/a", "u", 1_000_000).await?;
    ensure!(
        used == charged,
        "{charged} were admitted and {used} are charged"
    );
    ensure!(few <= 60, "{few} of {versions:?} per hour");
    let most = account.longest();
    Ok(format!(
        "servers ended after {}; {few} of {versions:?}; longest answer {most:.1?}; {account}",
        ends.join(" and ")
    ))
}

async fn check(shared: Shared) {
    loop {
        let mut ready = Vec::new();
        for port in with(&shared, |balancer| balancer.known.clone()) {
            let answer = Client::new(port).get("/readyz").await;
            if answer.is_ok_and(|answer| answer.status == 200) {
                ready.push(port);
            }
        }
        with(&shared, |balancer| balancer.ready = ready);
        tokio::time::sleep(CHECK).await;
    }
}

/// Sends calls to servers that are ready, over connections that stay open as long as the servers are
/// ready.
async fn ask(shared: Shared, mut rng: Rng) -> Vec<Call> {
    let mut clients: HashMap<u16, Client> = HashMap::new();
    let mut calls = Vec::new();
    loop {
        let path = rng.pick(&PATHS);
        let body = json!({"domain": "d", "entries": {"path": path, "user": "u"}});
        let (ready, is_over) = with(&shared, |balancer| {
            (balancer.ready.clone(), balancer.is_over)
        });
        if is_over {
            return calls;
        }
        clients.retain(|port, _| ready.contains(port));
        if !ready.is_empty() {
            let port = rng.pick(&ready);
            let kept = clients.entry(port).or_insert_with(|| Client::new(port));
            let mut own = Client::new(port);
            let client = if rng.within(0..2) == 0 {
                kept
            } else {
                &mut own
            };
            let begun = Instant::now();
            let answer = client.post("/v1/acquire", &body).await;
            calls.push(Call::new(path.to_owned(), begun, answer));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
