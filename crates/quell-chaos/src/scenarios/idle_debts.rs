//! A store that comes back while no calls are made.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::{Account, Load};
use crate::process::wait;
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

/// A lost store is tried at least every second, and paid as soon as it is found.
const PAID: Duration = Duration::from_secs(3);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let users: Vec<String> = (0..USERS).map(|user| format!("u{user}")).collect();
    let load = |port| Load {
        users: users.clone(),
        ..Load::on(port, "/a", "").clients(4)
    };
    // No calls are made while the store is being lost, so that none is on its way.
    proxy.set(rng.pick(&[Fault::Refuse, Fault::Lose]));
    let begun = Instant::now();
    let one = Load::on(server.http, "/a", "somebody else")
        .clients(4)
        .pause(10);
    let one = one.length(300).start(rng);
    server.loses_store(begun, Duration::from_secs(2)).await?;
    one.finish().await?;
    let mut account = load(server.http).length(1_500).run(rng).await?;
    account.is_documented()?;
    ensure!(account.degraded() > 0, "no outage was noticed; {account}");
    let owing = account
        .per_user()
        .values()
        .filter(|&&count| count > 0)
        .count();

    // No request reaches this server, not even for its health: its payments are seen in the store.
    proxy.set(Fault::Refuse);
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.set(Fault::None);
    let back = Instant::now();
    let paid = async || {
        let keys = redis.command(&["DBSIZE"]).await.ok()?;
        let keys: usize = keys.text().parse().ok()?;
        // The debt of the other server counts too.
        (keys > owing).then_some(())
    };
    let what = format!("{owing} keys are paid by an idle server");
    wait(&what, PAID, paid).await?;
    let took = back.elapsed();

    // Another server does not find a fresh limit: every admitted call is charged, to the unit.
    let other = Server::start(RULES, &["--store", &redis.url(), "--store-timeout", "10s"]).await?;
    let more: Account = load(other.http).length(1_000).run(rng).await?;
    more.is_documented()?;
    account.add(more);
    let most = account.per_user().into_values().max().unwrap_or_default();
    ensure!(most <= 20, "{most} of 20 for one user; {account}");
    Ok(format!(
        "{owing} keys paid after {took:.1?}, at most {most} of 20 for each; {account}"
    ))
}
