//! Two servers that lose the store together, and find it again one after the other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};
use serde_json::json;

use crate::load::{Account, Call, Load};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const LIMIT: usize = 100;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 2 }
rules:
  - { name: fixed, match: { path: /fixed }, per: [user], algorithm: fixed_window, limit: 100/h }
  - { name: log, match: { path: /log }, per: [user], algorithm: sliding_log, limit: 100/h }
";

const PATHS: [&str; 2] = ["/fixed", "/log"];

/// A lost store is tried at least every second, so both servers find it within two seconds.
const MOST_LATER: u64 = 900;

const PAID: Duration = Duration::from_secs(5);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let (mut proxies, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let proxy = Proxy::seeded(redis.port, rng.next());
        let words = ["--store", &proxy.redis_url(), "--store-timeout", "300ms"];
        servers.push(Server::start(RULES, &words).await?);
        proxies.push(proxy);
    }
    let mut accounts = PATHS.map(|path| (path, Account::default()));
    // Both servers learn how much is left: the server that asked first asks once more at the end.
    for (path, account) in &mut accounts {
        for (server, times) in [(0, rng.within(1..20)), (1, rng.within(1..20)), (0, 1)] {
            for _ in 0..times {
                account.calls.push(ask(&servers[server], path).await);
            }
        }
        ensure!(
            account.degraded() == 0,
            "before anything happened: {account}"
        );
    }
    let fault = rng.pick(&[Fault::Refuse, Fault::Lose]);
    lose(&servers, &proxies, fault, rng).await?;
    let mut running = Vec::new();
    for (place, (path, _)) in accounts.iter().enumerate() {
        for server in &servers {
            let load = Load::on(server.http, path, "u").clients(2).pause(5);
            running.push((place, load.length(6_000).start(rng)));
        }
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let later = Duration::from_millis(rng.within(0..MOST_LATER));
    let first = usize::try_from(rng.within(0..2))?;
    for place in [first, 1 - first] {
        proxies[place].set(Fault::Refuse);
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxies[place].set(Fault::None);
        tokio::time::sleep(later).await;
    }
    for (place, load) in running {
        accounts[place].1.add(load.finish().await?);
    }
    for server in &servers {
        server.has_paid(PAID).await?;
    }
    let mut summary = Vec::new();
    for (path, account) in accounts {
        account.is_documented()?;
        ensure!(account.degraded() > 0, "no outage was noticed; {account}");
        let admitted = account.allowed();
        ensure!(
            admitted <= LIMIT,
            "{path}: {admitted} of {LIMIT}; {account}"
        );
        let used = servers[0].used(path, "u", LIMIT).await?;
        ensure!(
            used == admitted,
            "{path}: {admitted}, and the store counts {used}; {account}"
        );
        summary.push(format!("{path} {admitted} of {LIMIT}"));
    }
    Ok(format!(
        "{later:.1?} apart ({fault:?}): {}",
        summary.join(", ")
    ))
}

/// All servers lose the store. No calls are made for the keys that count, so that none is on its way.
async fn lose(servers: &[Server], proxies: &[Proxy], fault: Fault, rng: &mut Rng) -> Result<()> {
    let begun = Instant::now();
    for (proxy, server) in proxies.iter().zip(servers) {
        proxy.set(fault);
        let others = Load::on(server.http, "/fixed", "others").pause(10);
        let others = others.clients(4).length(1_000).start(rng);
        server.loses_store(begun, Duration::from_secs(5)).await?;
        others.finish().await?;
    }
    Ok(())
}

async fn ask(server: &Server, path: &str) -> Call {
    let body = json!({"domain": "d", "entries": {"path": path, "user": "u"}});
    let begun = Instant::now();
    let answer = server.client().post("/v1/acquire", &body).await;
    Call::new("u".to_owned(), begun, answer)
}
