//! Servers that charge their store in advance, while another server takes over from the store's.

use anyhow::{Context, Result, bail, ensure};

use super::leases::Leased;
use crate::load::{Account, Kind};
use crate::process::{PATIENCE, wait};
use crate::redis::{Cluster, Redis, Watched, is_primary};
use crate::rng::Rng;

/// The user whose limit is attacked.
const USER: &str = "attacked";

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    match rng.within(0..2) {
        0 => sentinel(rng).await.context("sentinel"),
        _ => cluster(rng).await.context("cluster"),
    }
}

async fn sentinel(rng: &mut Rng) -> Result<String> {
    let mut watched = Watched::start().await?;
    let leased = Leased::start(&watched.url(), rng).await?;
    let steady = leased.is_steady(rng).await?;
    let mut attacked = leased.asked(USER, 800).run(rng).await?;
    ends(&mut watched.primary, rng)?;
    wait("the replica is promoted", PATIENCE, async || {
        attacked.add(leased.asked(USER, 200).run(rng).await.ok()?);
        is_primary(&watched.replica).await.then_some(())
    })
    .await?;
    let attacked = judge(&leased, attacked, rng).await?;
    Ok(format!("sentinel, {steady}; {attacked}"))
}

async fn cluster(rng: &mut Rng) -> Result<String> {
    let mut cluster = Cluster::start().await?;
    let leased = Leased::start(&cluster.url(), rng).await?;
    let steady = leased.is_steady(rng).await?;
    for one in &cluster.servers {
        if is_primary(one).await {
            one.command(&["FLUSHALL"]).await?;
        }
    }
    let mut attacked = leased.asked(USER, 800).run(rng).await?;
    let lost = owner(&cluster).await?;
    ends(&mut cluster.servers[lost], rng)?;
    wait("a replica is promoted", PATIENCE, async || {
        attacked.add(leased.asked(USER, 200).run(rng).await.ok()?);
        let mut count = 0;
        for (at, one) in cluster.servers.iter().enumerate() {
            count += usize::from(at != lost && is_primary(one).await);
        }
        (count == 3).then_some(())
    })
    .await?;
    let attacked = judge(&leased, attacked, rng).await?;
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
async fn judge(leased: &Leased, mut attacked: Account, rng: &mut Rng) -> Result<String> {
    let before = attacked.allowed();
    wait("the new primary decides", PATIENCE, async || {
        let more = leased.asked(USER, 200).run(rng).await.ok()?;
        let decided = more.count(|call| call.kind == Kind::Allowed && !call.is_degraded);
        attacked.add(more);
        (decided > 0).then_some(())
    })
    .await?;
    let after = leased.asked(USER, 1_500).run(rng).await?;
    leased.is_bounded(&after)?;
    attacked.add(after);
    attacked.is_documented()?;
    // What the old primary had not yet replicated, at most a burst, may be admitted again.
    let promise = leased.promised(&attacked) + leased.burst();
    let admitted = attacked.allowed() as f64;
    ensure!(
        admitted <= promise,
        "{admitted} of {promise:.0}, {before} of them before; {attacked}"
    );
    leased.is_observed().await?;
    Ok(format!(
        "through the fail-over {admitted} of {promise:.0}, {attacked}"
    ))
}
