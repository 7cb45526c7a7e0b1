//! The machine with the primary and the first sentinel hangs; a cluster loses a primary.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Account, Load};
use crate::process::{PATIENCE, wait};
use crate::redis::{Cluster, Extras, Watched, is_primary};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
";

/// How long answers may stay degraded once there is a new primary.
const FOUND: Duration = Duration::from_secs(5);

/// How long the log may take to report it: the server waits until no answer was degraded for five
/// seconds, and checks once a second.
const BACK: Duration = Duration::from_secs(8);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let (mut one, mut other) = (rng.fork(), rng.fork());
    let (sentinel, cluster) = tokio::join!(sentinel(&mut one), cluster(&mut other));
    let (sentinel, cluster) = (sentinel.context("sentinel")?, cluster.context("cluster")?);
    Ok(format!(
        "after a new primary was there: {sentinel}; {cluster}"
    ))
}

async fn sentinel(rng: &mut Rng) -> Result<String> {
    let watched = Watched::start(Extras::default(), rng).await?;
    let timeout = rng.pick(&["50ms", "2s"]);
    let words = ["--store", &watched.url(), "--store-timeout", timeout];
    let server = Server::start(RULES, &words).await?;
    agrees(&server, rng).await.context("before the fault")?;
    // A value that Quell did not write: only its key suffers, and for all others the primary stays
    // available.
    let spoiled = Load::on(server.http, "/a", "spoiled");
    spoiled.clone().length(50).run(rng).await?;
    let count = watched.primary.spoil(["LPUSH", "foreign"]).await?;
    ensure!(count >= 1, "no state was spoiled");
    let spoiled = spoiled.pause(2).length(400).start(rng);
    let others = Load::on(server.http, "/a", "other").pause(2).length(400);
    let others = others.run(rng).await?;
    spoiled.finish().await?.is_documented()?;
    let degraded = others.degraded();
    ensure!(
        degraded == 0,
        "a foreign value under one key: others are degraded, {others}"
    );
    watched.primary.command(&["FLUSHALL"]).await?;

    watched.primary.freeze();
    watched.sentinels[0].freeze();
    wait("the replica is promoted", PATIENCE, async || {
        // Calls go on meanwhile, so that the server notices.
        drop(Load::on(server.http, "/a", "u").length(20).run(rng).await);
        is_primary(&watched.replica).await.then_some(())
    })
    .await?;
    let promoted = Instant::now();
    agrees(&server, rng).await?;
    let took = promoted.elapsed();
    ends_back(&server).await?;
    Ok(format!("sentinel with {timeout} {took:.1?}"))
}

async fn cluster(rng: &mut Rng) -> Result<String> {
    let mut cluster = Cluster::start(Extras::default(), rng).await?;
    let server = Server::start(RULES, &["--store", &cluster.url()]).await?;
    agrees(&server, rng).await.context("before the fault")?;
    let mut primaries = Vec::new();
    for (at, one) in cluster.servers.iter().enumerate() {
        if is_primary(one).await {
            primaries.push(at);
        }
    }
    let lost = rng.pick(&primaries);
    let hangs = rng.within(0..2) == 0;
    if hangs {
        cluster.servers[lost].freeze();
    } else {
        cluster.servers[lost].kill();
    }
    wait("a replica is promoted", PATIENCE, async || {
        drop(users(&server).length(20).run(rng).await);
        let mut count = 0;
        for (at, one) in cluster.servers.iter().enumerate() {
            count += usize::from(at != lost && is_primary(one).await);
        }
        (count == 3).then_some(())
    })
    .await?;
    let promoted = Instant::now();
    agrees(&server, rng).await?;
    let took = promoted.elapsed();
    ends_back(&server).await?;
    let how = if hangs { "hangs" } else { "is gone" };
    Ok(format!("cluster whose primary {how} {took:.1?}"))
}

/// The last line of the log says that the store is back; the server writes it when no answer was
/// degraded for a while.
async fn ends_back(server: &Server) -> Result<()> {
    wait("the log ends with the store being back", BACK, async || {
        let log = server.process.stderr();
        let last = log.lines().rfind(|line| line.contains("the store is "));
        last?.contains("back").then_some(())
    })
    .await
}

fn users(server: &Server) -> Load {
    let users = (0..40).map(|user| format!("u{user}")).collect();
    let load = Load::on(server.http, "/a", "").clients(2).pause(1);
    Load { users, ..load }
}

/// Waits until no answer is degraded for 200 ms.
async fn agrees(server: &Server, rng: &mut Rng) -> Result<()> {
    let mut last = Account::default();
    let seen = wait("no answer is degraded", FOUND, async || {
        last = users(server).length(200).run(rng).await.ok()?;
        (last.allowed() == last.calls.len() && last.degraded() == 0).then_some(())
    })
    .await;
    match seen {
        Ok(()) => Ok(()),
        Err(error) => bail!("{error}: {last}; {}", server.health().await?),
    }
}
