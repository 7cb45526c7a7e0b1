//! Servers that decide in memory, on Sentinel and on a Cluster: while another server takes over from their store's,
//! and while one of them or the store is lost for a moment.

use anyhow::{Context, Result, bail};

use super::over_admission::{Bounded, Means, USER};
use super::over_admission_cell::{Cell, Fault, WITH_REPLICAS};
use crate::load::Account;
use crate::process::{PATIENCE, wait};
use crate::redis::{Cluster, Redis, Watched, is_primary};
use crate::rng::Rng;

/// The servers of a store: the first of them is the primary of the user under attack.
type Servers = Vec<Redis>;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let cell = Cell::of(rng, &WITH_REPLICAS);
    let run = async {
        match cell.store {
            "sentinel" => {
                let mut watched = Watched::start().await?;
                let bounded = Bounded::start(&watched.url(), cell).await?;
                let steady = bounded.is_steady(rng).await?;
                let servers = vec![watched.primary, watched.replica];
                let ended = attack(bounded, servers, rng).await;
                // Sentinels live until then.
                watched.sentinels.clear();
                Ok::<_, anyhow::Error>((steady, ended?))
            }
            _ => {
                let cluster = Cluster::start().await?;
                let bounded = Bounded::start(&cluster.url(), cell).await?;
                let steady = bounded.is_steady(rng).await?;
                let servers = owner_first(cluster, &bounded, rng).await?;
                Ok((steady, attack(bounded, servers, rng).await?))
            }
        }
    };
    let (steady, attacked) = run.await.context(cell.store)?;
    Ok(format!("{steady}; {attacked}"))
}

/// The servers of a cluster, first the primary that counts for the user under attack: the only one who was asked
/// for since all were emptied.
async fn owner_first(cluster: Cluster, bounded: &Bounded, rng: &mut Rng) -> Result<Servers> {
    let mut servers = cluster.servers;
    for one in &servers {
        if is_primary(one).await {
            one.command(&["FLUSHALL"]).await?;
        }
    }
    bounded.asked(USER, 100).run(rng).await?;
    for at in 0..servers.len() {
        let one = &servers[at];
        if is_primary(one).await && one.command(&["DBSIZE"]).await?.text() != "0" {
            servers.swap(0, at);
            return Ok(servers);
        }
    }
    bail!("no primary has a key");
}

async fn attack(mut bounded: Bounded, mut servers: Servers, rng: &mut Rng) -> Result<String> {
    if matches!(bounded.cell.fault, Fault::Hangs | Fault::Dies | Fault::Lags) {
        return fail_over(&bounded, &mut servers, rng).await;
    }
    let attacked = bounded
        .attack(&mut servers[0], Means::default(), rng)
        .await?;
    let judged = bounded.judge(&attacked).await?;
    bounded.goes_on(rng).await?;
    Ok(judged)
}

/// The primary ends, and a replica takes over.
async fn fail_over(bounded: &Bounded, servers: &mut Servers, rng: &mut Rng) -> Result<String> {
    let mut attacked = bounded.asked(USER, 800).run(rng).await?;
    let replica = replica_of(servers).await?;
    ends(bounded, servers, replica, &mut attacked, rng).await?;
    wait("a replica is promoted", PATIENCE, async || {
        attacked.add(bounded.asked(USER, 200).run(rng).await.ok()?);
        is_primary(&servers[replica]).await.then_some(())
    })
    .await?;
    attacked.add(bounded.goes_on(rng).await?);
    let after = bounded.asked(USER, 1_500).run(rng).await?;
    bounded.is_bounded(&after, 0.0)?;
    attacked.add(after);
    attacked.is_documented()?;
    // What the old primary had not yet replicated, at most a burst, may be admitted again.
    let judged = bounded.is_bounded(&attacked, bounded.burst())?;
    bounded.is_observed(false).await?;
    Ok(format!("through the fail-over {judged}"))
}

/// The place of the first server's replica.
async fn replica_of(servers: &Servers) -> Result<usize> {
    for (place, one) in servers.iter().enumerate() {
        if one.primary().await == Some(servers[0].port) {
            return Ok(place);
        }
    }
    bail!("the primary has no replica");
}

/// The primary hangs or is killed. One that lags: what is charged before that does not reach its replica.
async fn ends(
    bounded: &Bounded,
    servers: &mut Servers,
    replica: usize,
    attacked: &mut Account,
    rng: &mut Rng,
) -> Result<()> {
    match bounded.cell.fault {
        Fault::Hangs => servers[0].freeze(),
        Fault::Lags => {
            servers[replica].freeze()?;
            servers[0]
                .command(&["CLIENT", "KILL", "TYPE", "replica"])
                .await?;
            let ms = rng.within(200..600);
            attacked.add(bounded.asked(USER, ms).run(rng).await?);
            servers[0].crash();
            servers[replica].thaw()
        }
        _ => {
            servers[0].crash();
            Ok(())
        }
    }
}
