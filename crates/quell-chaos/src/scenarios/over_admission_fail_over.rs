//! Servers that decide in memory, on Sentinel and on a Cluster: while another server takes over from their store's,
//! and while one of them or the store is lost for a moment.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::over_admission::{Bounded, USER};
use super::over_admission_cell::{Cell, Fault, WITH_REPLICAS};
use crate::load::{Account, Kind};
use crate::process::{PATIENCE, wait};
use crate::redis::{Redis, Store, is_primary};
use crate::rng::Rng;

/// Users of whom one is first seen while the replica is cut off.
const OTHERS: u32 = 40;

/// Time before the end of a primary that hangs or is killed whose charges may be missing on the replica.
const REPLICATED: Duration = Duration::from_millis(100);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let cell = Cell::new(rng, &WITH_REPLICAS);
    let Store { url, mut servers } = Store::start(cell.store, cell.extras(), rng).await?;
    let mut bounded = Bounded::start(&url, cell).await?;
    let other = owner_first(&mut servers, &bounded, rng).await?;
    if !cell.fault.is_fail_over() {
        return bounded.check(&mut servers[0], rng).await;
    }
    let steady = bounded.is_steady(rng).await?;
    let attacked = fail_over(&bounded, &mut servers, &other, rng).await?;
    Ok(format!("{steady}; {attacked}"))
}

/// Brings the primary to the front that counts for the user under attack, and finds another user whom it counts.
/// The store has forgotten both, and so have the servers.
async fn owner_first(servers: &mut [Redis], bounded: &Bounded, rng: &mut Rng) -> Result<String> {
    let mut owner = None;
    for other in 0..=OTHERS {
        empty(servers).await?;
        let user = match other {
            0 => USER.to_owned(),
            _ => format!("other-{other}"),
        };
        let found = wait("a primary has the key", PATIENCE, async || {
            // Too seldom for the key to be busy.
            let load = bounded.asked(&user, 40).clients(1).pause(30);
            load.run(rng).await.ok()?;
            let mut found = None;
            for (at, one) in servers.iter().enumerate() {
                let is_it = is_primary(one).await;
                let keys = one.command(&["KEYS", "*"]).await.ok()?.text();
                // The servers are registered as followers of overrides beside it.
                let mut keys = keys.lines();
                if is_it && keys.any(|key| !key.starts_with("quell:overrides:")) {
                    found = Some(at);
                }
            }
            found
        })
        .await?;
        match owner {
            None => owner = Some(found),
            Some(owner) if owner == found => {
                empty(servers).await?;
                servers.swap(0, owner);
                return Ok(user);
            }
            Some(_) => {}
        }
    }
    bail!("the primary counts for one user only");
}

async fn empty(servers: &[Redis]) -> Result<()> {
    for one in servers {
        if is_primary(one).await {
            one.command(&["FLUSHALL"]).await?;
        }
    }
    Ok(())
}

/// The primary ends, and a replica takes over.
async fn fail_over(
    bounded: &Bounded,
    servers: &mut [Redis],
    other: &str,
    rng: &mut Rng,
) -> Result<String> {
    let mut all = uses_up(bounded, USER, rng).await?;
    let replica = replica_of(servers).await?;
    let is_lagging = bounded.cell.fault == Fault::Lags;
    let mut missing = Instant::now();
    if is_lagging {
        servers[replica].freeze();
        let kill = ["CLIENT", "KILL", "TYPE", "replica"];
        servers[0].command(&kill).await?;
        // The replica lacks some charges of one user, and all of the other.
        all.add(uses_up(bounded, other, rng).await?);
        let ms = rng.within(200..600);
        all.add(bounded.asked(USER, ms).run(rng).await?);
    }
    if bounded.cell.fault == Fault::Hangs {
        servers[0].freeze();
    } else {
        servers[0].kill();
    }
    if is_lagging {
        servers[replica].thaw();
    } else {
        missing = Instant::now() - REPLICATED;
    }
    let lost = Instant::now();
    // Callers go on all the time, so that no server finds the new primary without them.
    let users = [USER, other];
    wait("a replica is promoted", PATIENCE, async || {
        all.add(bounded.ask_all(&users, 200, rng).await.ok()?);
        is_primary(&servers[replica]).await.then_some(())
    })
    .await?;
    let took = lost.elapsed();
    all.add(bounded.goes_on(&users, rng).await?);
    all.is_documented()?;
    let attacked = all.of(USER);
    // What the replica lacks is admitted again: what was admitted meanwhile, and what servers then held.
    let unknown = attacked.count(|call| {
        let is_then = call.ended >= missing && call.begun <= lost;
        call.kind == Kind::Allowed && is_then
    });
    let more = (unknown as f64 + bounded.bound).min(bounded.burst());
    let judged = bounded.is_bounded(&attacked, more)?;
    let mut said = format!("through the fail-over in {took:.1?} {judged}");
    if is_lagging {
        // A key that a new primary does not know counts as used up.
        let judged = bounded.is_bounded(&all.of(other), 0.0)?;
        said.push_str(&format!("; of a user who is missing there {judged}"));
    }
    bounded.is_observed(false).await?;
    Ok(said)
}

/// Asks for a user until the limit is used up.
async fn uses_up(bounded: &Bounded, user: &str, rng: &mut Rng) -> Result<Account> {
    let mut all = Account::default();
    wait("the limit is used up", PATIENCE, async || {
        let more = bounded.asked(user, 200).pause(1).run(rng).await.ok()?;
        let refused = more.count(|call| call.kind == Kind::Refused && !call.is_degraded);
        let is_used_up = refused * 2 > more.calls.len();
        all.add(more);
        is_used_up.then_some(())
    })
    .await?;
    Ok(all)
}

/// The place of the first server's replica.
async fn replica_of(servers: &[Redis]) -> Result<usize> {
    for (place, one) in servers.iter().enumerate() {
        if one.primary().await == Some(servers[0].port) {
            return Ok(place);
        }
    }
    bail!("the primary has no replica");
}
