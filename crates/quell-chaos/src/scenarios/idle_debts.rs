//! A store that comes back while nobody asks.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::load::{Account, Load};
use crate::process::wait;
use crate::proxy::{Fault, Proxy};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], algorithm: fixed_window, limit: 20/h }
";

const USERS: usize = 50;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::start(redis.port, rng).await?;
    let server = Server::start(RULES, &["--store", &proxy.url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    proxy.set(rng.pick(&[Fault::Refuse, Fault::Drop]));
    let users: Vec<String> = (0..USERS).map(|user| format!("u{user}")).collect();
    let load = |port| Load {
        users: users.clone(),
        ..Load::on(port, "/a", "").clients(4)
    };
    let mut account = load(server.http).length(1_500).run(rng).await?;
    account.is_documented()?;
    ensure!(account.degraded() > 0, "no outage was noticed; {account}");
    let owing = account
        .per_user()
        .values()
        .filter(|&&count| count > 0)
        .count();

    // Nobody asks this server anything, not even how it is: what it pays is seen in the store.
    proxy.set(Fault::Refuse);
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.set(Fault::None);
    let back = Instant::now();
    let paid = async || {
        let keys = redis.command(&["DBSIZE"]).await.ok()?;
        let keys: usize = keys.text().parse().ok()?;
        (keys >= owing).then_some(())
    };
    let what = format!("{owing} keys are paid by an idle server");
    wait(&what, Duration::from_secs(8), paid).await?;
    let took = back.elapsed();

    // Whoever is ready owes nothing, and no other server finds a fresh limit.
    // Health says degraded for five seconds longer.
    server.is_status("ok", Duration::from_secs(12)).await?;
    let health = server.health().await?;
    let owed = &health["store"]["owed_keys"];
    ensure!(
        health["status"] != "ok" || owed == 0,
        "it is ok and owes {owed} keys"
    );
    let other = Server::start(RULES, &["--store", &redis.url(), "--store-timeout", "10s"]).await?;
    let more: Account = load(other.http).length(1_000).run(rng).await?;
    more.is_documented()?;
    account.add(more);
    let most = account.per_user().into_values().max().unwrap_or_default();
    // Calls on their way when the store was lost count as charged: as many as are asked at a time, and
    // those that it takes to find it lost.
    ensure!(most <= 20 + 4 + 5, "{most} of 20 for one user; {account}");
    Ok(format!(
        "{owing} keys paid after {took:.1?}, at most {most} of 20 for each; {account}"
    ))
}
