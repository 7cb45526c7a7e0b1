//! Servers that decide in memory, without faults: what the limit produces is used, also while all callers move from
//! server to server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::load::{Account, Call, Kind, Load};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// The limit per second, and its burst: as much as it produces while the machine stalls for a second.
const RATE: u32 = 200;

/// What each server may hold, or have admitted and not charged.
const CAP: usize = 2;

/// For how long callers ask.
const MS: u64 = 5_000;

/// For how long all callers ask one server before they move on.
const TURN: Duration = Duration::from_millis(500);

/// How often a load is tried on a machine that is too busy to use the limit up.
const ATTEMPTS: usize = 4;

/// The part of what the limit produced that was admitted, between the first and the last refusal by a server that
/// has a store: at both the limit was used up. `None` if they are not a second apart.
fn part_used(account: &Account) -> Option<f64> {
    let is_refused = |call: &&Call| call.kind == Kind::Refused && !call.is_degraded;
    let refused = account.calls.iter().filter(is_refused);
    let ends = refused.map(|call| call.ended);
    let (first, last) = ends.clone().min().zip(ends.max())?;
    let is_then = |call: &Call| first < call.ended && call.ended <= last;
    let allowed = account.count(|call| call.kind == Kind::Allowed && is_then(call));
    let produced = f64::from(RATE) * (last - first).as_secs_f64();
    (produced >= f64::from(RATE)).then(|| allowed as f64 / produced)
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let seed = usize::try_from(rng.seed() % 8)?;
    let rung = ["synced", "leased"][seed % 2];
    let pause = [4, 20][seed / 2 % 2];
    let count = [2, 8][seed / 4];
    let bound = CAP * count;
    let rules = format!(
        "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, rung: {rung}, max_over_admission: {bound} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {RATE}/s, burst: {RATE} }}
"
    );
    let redis = Redis::start(&[]).await?;
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start(&rules, &["--store", &redis.url()]).await?);
    }
    let asked = |user| {
        let mut load = Load::on(0, "/a", user).clients(8).pause(pause).length(MS);
        load.ports = servers.iter().map(|server| server.http).collect();
        load
    };
    let mut parts = Vec::new();
    for (user, moves, least) in [("stays", false, 0.97), ("moves", true, 0.93)] {
        let (mut part, mut made) = (None, Account::default());
        for _ in 0..ATTEMPTS {
            made = ask(asked(user), moves, rng).await?;
            made.is_documented()?;
            let excess = made.excess(RATE.into(), RATE.into());
            ensure!(excess <= bound as f64, "{excess} too many; {made}");
            part = part_used(&made);
            if part.is_some() {
                break;
            }
        }
        let part = part.with_context(|| format!("the machine is too busy: {made}"))?;
        ensure!(
            part >= least,
            "{rung}, {count} servers, {user}: {part:.3} of the limit was used; {made}"
        );
        parts.push(format!("{user} {part:.3}, {made}"));
    }
    for server in &servers {
        let decided = server.metric("quell_leased_decisions_total").await?;
        ensure!(decided > 0.0, "nothing was decided in memory");
    }
    let parts = parts.join("; ");
    Ok(format!("{rung}, {count} servers, part used: {parts}"))
}

/// All callers ask, each its own server or all of them one after the other.
async fn ask(load: Load, moves: bool, rng: &mut Rng) -> Result<Account> {
    if !moves {
        return load.run(rng).await;
    }
    let (aim, count) = (load.aim.clone(), load.ports.len());
    aim.at(&[0]);
    let running = load.start(rng);
    for turn in 1..MS / 500 {
        tokio::time::sleep(TURN).await;
        aim.at(&[usize::try_from(turn)? % count]);
    }
    running.finish().await
}
