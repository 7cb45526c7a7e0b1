//! Servers that charge a shared store in advance, and what happens to them and to the store.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::{Account, Load};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const BURST: f64 = 400.0;
const RATE: f64 = 200.0;
/// 5 % of a second's units and the burst.
const BOUND: f64 = 30.0;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let count = rng.pick(&[2, 2, 2, 8]);
    let rules = format!(
        "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, max_over_admission: 5% }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {RATE}/s, burst: {BURST} }}
"
    );
    let redis = Redis::start(&[]).await?;
    let store = redis.url();
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start(&rules, &["--store", &store]).await?);
    }
    let steady = asked(&servers, "steady", 2_500, rng).finish().await?;
    steady.is_documented()?;
    let (all, most) = (steady.allowed() as f64, promised(&steady));
    ensure!(all <= most + BOUND, "{all} of {most:.0}; {steady}");
    // A machine that is too slow for as many calls proves nothing.
    let is_busy = steady.calls.len() as f64 >= 2.0 * most;
    ensure!(
        all >= 0.9 * most || !is_busy,
        "only {all} of {most:.0}; {steady}"
    );
    let decided = servers[0].metric("quell_leased_decisions_total").await?;
    ensure!(decided > 0.0, "nothing was decided from leases; {steady}");

    let load = asked(&servers, "attacked", 4_500, rng);
    let pause = async |ms| tokio::time::sleep(Duration::from_millis(ms)).await;
    pause(rng.within(200..600)).await;
    servers[0].process.signal("STOP")?;
    pause(rng.within(300..900)).await;
    servers[0].process.signal("CONT")?;
    redis.freeze()?;
    pause(rng.within(300..900)).await;
    redis.thaw()?;
    pause(rng.within(200..500)).await;
    servers[1].process.crash();
    pause(rng.within(200..500)).await;
    redis.command(&["FLUSHALL"]).await?;
    let attacked = load.finish().await?;
    // The store has forgotten one burst.
    let (admitted, promise) = (attacked.allowed() as f64, promised(&attacked) + BURST);
    ensure!(
        admitted <= promise + 2.0 * BOUND,
        "{admitted} of {promise:.0} and {BOUND} twice; {attacked}"
    );
    let observed = servers[0].metric("quell_observed_excess").await?;
    ensure!(
        observed <= BOUND,
        "a server says that it exceeded the limit by {observed}"
    );
    Ok(format!(
        "{count} servers: {all} of {most:.0} from {} calls; under attack {admitted} of {promise:.0}; \
         {attacked}",
        steady.calls.len()
    ))
}

/// Callers of one user, on all servers.
fn asked(servers: &[Server], user: &str, ms: u64, rng: &mut Rng) -> crate::load::Running {
    let mut load = Load::on(0, "/a", user).clients(8).pause(2).length(ms);
    load.ports = servers.iter().map(|server| server.http).collect();
    load.start(rng)
}

/// What the limit admits in the time of these calls.
fn promised(account: &Account) -> f64 {
    BURST + RATE * account.length().as_secs_f64()
}
