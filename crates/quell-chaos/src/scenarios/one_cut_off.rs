//! One of two servers is cut off from the store, and the other is not.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::{Account, Load, Running};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 2 }
rules:
  - { name: rated, match: { path: /rated }, per: [user], rate: 50/s, burst: 50 }
  - { name: quota, match: { path: /quota }, per: [user], algorithm: fixed_window, limit: 400/h }
";

const CLIENTS: usize = 4;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let near = Proxy::seeded(redis.port, rng.next());
    let far = Proxy::seeded(redis.port, rng.next());
    let servers = [
        Server::start(RULES, &["--store", &near.redis_url()]).await?,
        Server::start(RULES, &["--store", &far.redis_url()]).await?,
    ];
    let load = |path| Load {
        ports: servers.each_ref().map(|server| server.http).to_vec(),
        ..Load::on(0, path, "u").clients(CLIENTS).pause(8)
    };
    let rated = servers.each_ref().map(|server| {
        let load = Load::on(server.http, "/rated", "u").clients(CLIENTS / 2);
        load.pause(8).length(6_000).start(rng)
    });
    let quota = load("/quota").length(6_000).start(rng);
    tokio::time::sleep(Duration::from_millis(rng.within(50..600))).await;
    let fault = rng.pick(&[Fault::Refuse, Fault::Lose, Fault::Stall]);
    let both = rng.within(0..2) == 0;
    let (begun, soon) = (Instant::now(), Duration::from_secs(2));
    far.set(fault);
    let mut times = Vec::new();
    if both {
        near.set(fault);
        times.push(servers[0].loses_store(begun, soon).await?);
    }
    times.push(servers[1].loses_store(begun, soon).await?);
    tokio::time::sleep(Duration::from_secs(1)).await;
    if both {
        near.set(Fault::Refuse);
        tokio::time::sleep(Duration::from_millis(20)).await;
        near.set(Fault::None);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    far.set(Fault::Refuse);
    tokio::time::sleep(Duration::from_millis(20)).await;
    far.set(Fault::None);
    let (rated, quota) = (finish(rated).await?, quota.finish().await?);
    times.extend(rated.given_up().into_iter().chain(quota.given_up()));
    let mut summary = Vec::new();
    let seconds = rated.length().as_secs_f64();
    for (name, account, limit) in [
        ("rated", rated, 50.0 + 50.0 * seconds),
        ("quota", quota, 400.0),
    ] {
        account.is_documented()?;
        ensure!(account.degraded() > 0, "no outage was noticed; {account}");
        let uncertain = account.on_the_way(&times);
        let admitted = account.allowed() as f64;
        let text = format!(
            "{name} {admitted} of {limit:.0} ({:.2}x), {uncertain} perhaps on their way",
            admitted / limit
        );
        ensure!(
            admitted <= 1.5 * limit + uncertain as f64,
            "{text}, both cut off: {both}; {account}"
        );
        summary.push(text);
    }
    let cut_off = if both {
        "both, one longer"
    } else {
        "one of two"
    };
    Ok(format!(
        "{cut_off} cut off ({fault:?}): {}",
        summary.join(", ")
    ))
}

/// Joins the calls of all servers, and checks that each server kept to its share.
async fn finish(loads: [Running; 2]) -> Result<Account> {
    let mut all = Account::default();
    for load in loads {
        let account = load.finish().await?;
        is_within_share(&account)?;
        all.add(account);
    }
    Ok(all)
}

/// Checks that a server that was cut off admitted no more than its half of the rate.
fn is_within_share(account: &Account) -> Result<()> {
    let mut apart = account.clone();
    apart.calls.retain(|call| call.is_degraded);
    let (admitted, seconds) = (apart.allowed(), apart.length().as_secs_f64());
    ensure!(
        admitted as f64 <= 25.0 + 25.0 * seconds,
        "a server that was cut off admitted {admitted} in {seconds:.1} s, and its half is 25 and 25/s; {account}"
    );
    Ok(())
}
