//! Servers that decide in memory, while another server takes over from their store's.

use anyhow::{Context, Result, bail, ensure};

use super::over_admission::{Bounded, Rung};
use crate::load::{Account, Kind};
use crate::process::{PATIENCE, wait};
use crate::redis::{Cluster, Redis, Watched, is_primary};
use crate::rng::Rng;

/// The user whose limit is attacked.
const USER: &str = "attacked";

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    // The scenario without fail-over tries the other rung with the same seed.
    let rung = Rung::drawn(rng).other();
    match rng.within(0..2) {
        0 => sentinel(rung, rng).await.context("sentinel"),
        _ => cluster(rung, rng).await.context("cluster"),
    }
}

async fn sentinel(rung: Rung, rng: &mut Rng) -> Result<String> {
    let mut watched = Watched::start().await?;
    let bounded = Bounded::start(&watched.url(), rung, rng).await?;
    let steady = bounded.is_steady(rng).await?;
    let mut attacked = bounded.asked(USER, 800).run(rng).await?;
    ends(&mut watched.primary, rng)?;
    wait("the replica is promoted", PATIENCE, async || {
        attacked.add(bounded.asked(USER, 200).run(rng).await.ok()?);
        is_primary(&watched.replica).await.then_some(())
    })
    .await?;
    let attacked = judge(&bounded, attacked, rng).await?;
    Ok(format!("sentinel, {steady}; {attacked}"))
}

async fn cluster(rung: Rung, rng: &mut Rng) -> Result<String> {
    let mut cluster = Cluster::start().await?;
    let bounded = Bounded::start(&cluster.url(), rung, rng).await?;
    let steady = bounded.is_steady(rng).await?;
    for one in &cluster.servers {
        if is_primary(one).await {
            one.command(&["FLUSHALL"]).await?;
        }
    }
    let mut attacked = bounded.asked(USER, 800).run(rng).await?;
    let lost = owner(&cluster).await?;
    ends(&mut cluster.servers[lost], rng)?;
    wait("a replica is promoted", PATIENCE, async || {
        attacked.add(bounded.asked(USER, 200).run(rng).await.ok()?);
        let mut count = 0;
        for (at, one) in cluster.servers.iter().enumerate() {
            count += usize::from(at != lost && is_primary(one).await);
        }
        (count == 3).then_some(())
    })
    .await?;
    let attacked = judge(&bounded, attacked, rng).await?;
    Ok(format!("cluster, {steady}; {attacked}"))
}

/// The primary that counts for the user under attack, the only one who was asked for since all were emptied.
async fn owner(cluster: &Cluster) -> Result<usize> {
    for (at, one) in cluster.servers.iter().enumerate() {
        if is_primary(one).await && one.command(&["DBSIZE"]).await?.text() != "0" {
            return Ok(at);
        }
    }
    bail!("no primary has a key");
}

/// A server hangs or is killed.
fn ends(server: &mut Redis, rng: &mut Rng) -> Result<()> {
    if rng.within(0..2) == 0 {
        return server.freeze();
    }
    server.crash();
    Ok(())
}

/// Goes on until the store decides again, and a while longer; then adds up.
async fn judge(bounded: &Bounded, mut attacked: Account, rng: &mut Rng) -> Result<String> {
    let before = attacked.allowed();
    wait("the new primary decides", PATIENCE, async || {
        let more = bounded.asked(USER, 200).run(rng).await.ok()?;
        let decided = more.count(|call| call.kind == Kind::Allowed && !call.is_degraded);
        attacked.add(more);
        (decided > 0).then_some(())
    })
    .await?;
    let after = bounded.asked(USER, 1_500).run(rng).await?;
    bounded.is_bounded(&after, 0)?;
    attacked.add(after);
    attacked.is_documented()?;
    // What the old primary had not yet replicated, at most a burst, may be admitted again.
    let promise = bounded.promised(&attacked) + bounded.burst();
    let admitted = attacked.allowed() as f64;
    ensure!(
        admitted <= promise,
        "{admitted} of {promise:.0}, {before} of them before; {attacked}"
    );
    bounded.is_observed().await?;
    Ok(format!(
        "through the fail-over {admitted} of {promise:.0}, {attacked}"
    ))
}
