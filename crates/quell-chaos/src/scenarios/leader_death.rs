//! The leader dies under a steady load. Until another one grants, nodes go on with their leases, and admit what they
//! admitted before.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::fleet::{Durations, Fleet, excess};
use crate::load::{Account, Kind, Load};
use crate::rng::Rng;

/// Units per second of the limit.
const RATE: f64 = 100.0;

/// Its burst.
const BURST: f64 = 20.0;

const RULES: &str = "
domain: d
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: users, match: { path: /a }, rate: 100/s, burst: 20 }
";

/// Leases last longer than it takes to find another leader.
const LEASE: Duration = Duration::from_secs(30);

/// Time before anything is measured, in which shares follow demand and callers use up bursts.
const SETTLES: Duration = Duration::from_secs(10);

/// Times for which the rate is measured, before the leader dies and afterwards.
const BEFORE: Duration = Duration::from_secs(20);
const AFTERWARDS: Duration = Duration::from_secs(40);

/// The part of the limit that is used before, at least, and the part of that which is used afterwards.
const LEAST_USED: f64 = 0.9;
const LEAST_KEPT: f64 = 0.97;

/// Calls per second that were admitted in this time.
fn rate(account: &Account, from: Instant, length: Duration) -> f64 {
    let until = from + length;
    let is_then = |ended: Instant| from < ended && ended <= until;
    let admitted = account.count(|call| call.kind == Kind::Allowed && is_then(call.ended));
    admitted as f64 / length.as_secs_f64()
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let mut fleet = Fleet::start(RULES, Durations::from_lease(LEASE), rng).await?;
    fleet.is_granted().await?;
    // Three times the limit, spread evenly.
    let load = Load {
        ports: fleet.ports.clone(),
        length: SETTLES + BEFORE + AFTERWARDS,
        ..Load::on(0, "/a", "all").clients(9).pause(25)
    };
    let running = load.start(rng);
    tokio::time::sleep(SETTLES + BEFORE).await;
    let leader = fleet.leader_of(0).await?;
    let died = Instant::now();
    fleet.coordinators[leader].kill();
    let account = running.finish().await?;
    // The leases of the dead one are over, so another one leads.
    fleet.is_granted().await?;
    account.is_documented()?;
    excess(&account, RATE, BURST)?;
    let before = rate(&account, died - BEFORE, BEFORE);
    // Callers end a moment before the last second does.
    let afterwards = rate(&account, died, AFTERWARDS - Duration::from_secs(1));
    ensure!(
        before >= LEAST_USED * RATE,
        "only {before:.1}/s of {RATE}/s were admitted before; {account}"
    );
    ensure!(
        afterwards >= LEAST_KEPT * before,
        "{afterwards:.1}/s were admitted after the leader's death, and {before:.1}/s before; {account}"
    );
    Ok(format!(
        "{before:.1}/s of {RATE}/s before and {afterwards:.1}/s in the {} s after the death of the leader",
        AFTERWARDS.as_secs()
    ))
}
