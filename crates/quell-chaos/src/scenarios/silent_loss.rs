//! A connection that was dropped in silence while nobody asked, and values that are not ours.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::Load;
use crate::process::wait;
use crate::proxy::Proxy;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
  - { name: slow, match: { path: /slow }, per: [user], rate: 10/h }
";

/// Calls that may be answered apart from the store until the connection is made anew: one that ran
/// out of time, and one beside it.
const MOST_DEGRADED: usize = 2;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::start(redis.port, rng).await?;
    let server = Server::start(
        RULES,
        &["--store", &proxy.url(), "--store-timeout", "300ms"],
    )
    .await?;
    let quiet = |ms| Load::on(server.http, "/a", "quiet").pause(50).length(ms);
    let before = quiet(300).run(rng).await?;
    before.is_documented()?;
    ensure!(before.degraded() == 0, "before anything happened: {before}");
    tokio::time::sleep(Duration::from_millis(rng.within(6_000..8_000))).await;
    proxy.forget_connections();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = quiet(1_500).run(rng).await?;
    after.is_documented()?;
    let degraded = after.degraded();
    ensure!(
        degraded <= MOST_DEGRADED,
        "{degraded} calls until it connected anew: {after}"
    );

    // Garbage under the key of a state: nobody else suffers, and the key itself not for ever.
    let used = Load::on(server.http, "/slow", "spoiled")
        .length(500)
        .run(rng)
        .await?;
    ensure!(used.allowed() == 10, "{used}");
    let keys = redis.command(&["KEYS", "*"]).await?.text();
    let garbage = rng.pick(&["garbage", "", "\u{1}\u{2}\u{3}"]);
    for key in keys.lines().filter(|key| key.contains("{")) {
        redis.command(&["SET", key, garbage]).await?;
    }
    let spoiled = Load::on(server.http, "/slow", "spoiled")
        .pause(50)
        .length(2_000)
        .start(rng);
    let others = Load::on(server.http, "/a", "other")
        .pause(20)
        .length(2_000)
        .run(rng)
        .await?;
    let spoiled = spoiled.finish().await?;
    others.is_documented()?;
    spoiled.is_documented()?;
    ensure!(others.degraded() == 0, "others suffer: {others}");
    let allowed = spoiled.allowed();
    ensure!(
        allowed == 0,
        "what is spoiled counts as used up, and {allowed} were let pass: {spoiled}"
    );
    wait(
        "a spoiled key is well again",
        Duration::from_secs(10),
        async || {
            let load = Load::on(server.http, "/a", "quiet").length(50);
            let account = load.run(rng).await.ok()?;
            (account.degraded() == 0 && account.allowed() > 0).then_some(())
        },
    )
    .await?;
    Ok(format!(
        "{degraded} degraded after a silent loss; spoiled keys: {spoiled}"
    ))
}
