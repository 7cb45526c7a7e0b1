//! A connection that was silently dropped while no calls were made, and values that Quell did not
//! write.

use std::time::Duration;

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::Load;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
  - { name: slow, match: { path: /slow }, per: [user], rate: 10/h }
  - { name: quick, match: { path: /quick }, per: [user], rate: 20/s }
";

/// How many calls may be answered without the store until a new connection is open: one that timed
/// out, and one in parallel.
const MOST_DEGRADED: usize = 2;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(
        RULES,
        &["--store", &proxy.redis_url(), "--store-timeout", "300ms"],
    )
    .await?;
    let quiet = |ms| Load::on(server.http, "/a", "quiet").pause(50).length(ms);
    let before = quiet(300).run(rng).await?;
    before.is_documented()?;
    ensure!(before.degraded() == 0, "before anything happened: {before}");
    tokio::time::sleep(Duration::from_millis(rng.within(6_000..8_000))).await;
    proxy.set(Fault::Forgotten);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = quiet(1_500).run(rng).await?;
    after.is_documented()?;
    let degraded = after.degraded();
    ensure!(
        degraded <= MOST_DEGRADED,
        "{degraded} calls until it connected anew: {after}"
    );

    let spoiled = spoils(&redis, &server, rng).await?;
    Ok(format!(
        "{degraded} degraded after a silent loss; spoiled keys: {spoiled}"
    ))
}

/// Puts garbage under the key of a state: no other key suffers, and the key itself recovers.
async fn spoils(redis: &Redis, server: &Server, rng: &mut Rng) -> Result<String> {
    let load = |path| Load::on(server.http, path, "spoiled").pause(20);
    let used = load("/slow").length(500).run(rng).await?;
    ensure!(used.allowed() == 10, "{used}");
    let used = load("/quick").length(200).run(rng).await?;
    ensure!(used.allowed() > 0, "{used}");
    let garbage = rng.pick(&[
        ["SET", "garbage"],
        ["SET", ""],
        ["SET", "\u{1}\u{2}\u{3}"],
        ["RPUSH", "garbage"],
    ]);
    let count = redis.spoil(garbage).await?;
    ensure!(count >= 2, "{count} states were spoiled");
    let slow = load("/slow").length(2_000).start(rng);
    let quick = load("/quick").length(2_000).start(rng);
    let others = Load::on(server.http, "/a", "other").pause(20);
    let others = others.length(2_000).run(rng).await?;
    let (slow, quick) = (slow.finish().await?, quick.finish().await?);
    for account in [&others, &slow, &quick] {
        account.is_documented()?;
        ensure!(account.degraded() == 0, "it suffers: {account}");
    }
    ensure!(others.allowed() == others.calls.len(), "{others}");
    let allowed = slow.allowed();
    ensure!(
        allowed == 0,
        "a spoiled key counts as used up, and {allowed} calls were admitted: {slow}"
    );
    // From then on it drains as if it had been used up.
    let (allowed, most) = (quick.allowed() as f64, 20.0 * quick.length().as_secs_f64());
    ensure!(
        allowed > most / 2.0 && allowed <= most,
        "{allowed} of {most:.1} since it was spoiled by {garbage:?}: {quick}"
    );
    Ok(format!("{slow}, and of 20/s {allowed} of {most:.1}"))
}
