//! Servers that decide in memory, without faults: what the limit produces is used, also while all callers move from
//! server to server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::load::{Account, Call, Kind, Load};
use crate::redis::{Extras, Store};
use crate::rng::Rng;
use crate::server::Server;

/// Units that each server may hold, or have admitted and not charged.
const CAP: u32 = 2;

/// For how long all callers ask one server before they move on.
const TURN: Duration = Duration::from_millis(500);

/// Time after the first refusal from which no server has anything left of the burst.
const SETTLED: Duration = Duration::from_secs(1);

/// Number of attempts at a load on a machine that is too busy to use the limit up.
const ATTEMPTS: usize = 4;

/// A limit, and how much is offered.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// About how many times the limit.
    times: u32,
    servers: u32,
    /// The limit per second, and its burst: as much as it produces while the machine stalls for a second.
    rate: u32,
    /// The pause of each caller between two calls, in milliseconds.
    pause: u64,
    /// For how long callers ask, in milliseconds.
    ms: u64,
}

/// A machine that is shared makes some 2,000 calls a second at best, so 40 times the limit is offered to a smaller
/// one, for longer, and by two servers only: what eight may hold, 16 units, would be too large a part of it.
const OFFERS: [Offer; 5] = [
    Offer {
        times: 10,
        servers: 2,
        rate: 200,
        pause: 4,
        ms: 5_000,
    },
    Offer {
        times: 2,
        servers: 2,
        rate: 200,
        pause: 20,
        ms: 5_000,
    },
    Offer {
        times: 40,
        servers: 2,
        rate: 50,
        pause: 4,
        ms: 10_000,
    },
    Offer {
        times: 2,
        servers: 8,
        rate: 200,
        pause: 20,
        ms: 5_000,
    },
    Offer {
        times: 10,
        servers: 8,
        rate: 200,
        pause: 4,
        ms: 5_000,
    },
];

/// The part of what the limit produced that was admitted between two refusals by a server that has a store, some
/// time after the first one and the last: at both the limit was used up, but for what other servers hold. `None` if
/// they are not a second apart.
fn part_used(account: &Account, rate: f64) -> Option<f64> {
    let is_refused = |call: &&Call| call.kind == Kind::Refused && !call.is_degraded;
    let refused = account.calls.iter().filter(is_refused);
    let ends = refused.map(|call| call.ended);
    let (first, last) = ends.clone().min().zip(ends.clone().max())?;
    let first = ends.filter(|ended| *ended >= first + SETTLED).min()?;
    let is_then = |call: &Call| first < call.ended && call.ended <= last;
    let allowed = account.count(|call| call.kind == Kind::Allowed && is_then(call));
    let produced = rate * (last - first).as_secs_f64();
    (produced >= rate).then(|| allowed as f64 / produced)
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let mut rest = usize::try_from(rng.seed() % 30)?;
    let mut next = |count| {
        let place = rest % count;
        rest /= count;
        place
    };
    let rung = ["synced", "leased"][next(2)];
    let kind = ["sentinel", "redis", "cluster"][next(3)];
    let offer = OFFERS[next(OFFERS.len())];
    let Offer {
        times,
        servers: count,
        rate,
        pause,
        ms,
    } = offer;
    let bound = CAP * count;
    let rules = format!(
        "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, rung: {rung}, max_over_admission: {bound} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {rate}/s, burst: {rate} }}
"
    );
    let store = Store::start(kind, Extras::default(), rng).await?;
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start(&rules, &["--store", &store.url]).await?);
    }
    let asked = |user| {
        let mut load = Load::on(0, "/a", user).clients(8).pause(pause).length(ms);
        load.ports = servers.iter().map(|server| server.http).collect();
        load
    };
    let cell = format!("{kind}, {rung}, {count} servers, {times} times the limit");
    let mut parts = Vec::new();
    for (user, moves, least) in [("stays", false, 0.97), ("moves", true, 0.93)] {
        let (mut part, mut made) = (None, Account::default());
        for _ in 0..ATTEMPTS {
            made = ask(asked(user), moves, rng).await?;
            made.is_documented()?;
            let excess = made.excess(rate.into(), rate.into());
            ensure!(excess <= bound.into(), "{cell}: {excess} too many; {made}");
            part = part_used(&made, rate.into());
            if part.is_some() {
                break;
            }
        }
        let part = part.with_context(|| format!("{cell}: the machine is too busy: {made}"))?;
        ensure!(
            part >= least,
            "{cell}, {user}: {part:.3} of the limit was used; {made}"
        );
        parts.push(format!("{user} {part:.3}, {made}"));
    }
    for server in &servers {
        let decided = server.metric("quell_leased_decisions_total").await?;
        ensure!(decided > 0.0, "nothing was decided in memory");
    }
    let parts = parts.join("; ");
    Ok(format!("{cell}, part used: {parts}"))
}

/// All callers ask, each its own server or all of them one after the other.
async fn ask(load: Load, moves: bool, rng: &mut Rng) -> Result<Account> {
    if !moves {
        return load.run(rng).await;
    }
    let (aim, count) = (load.aim.clone(), load.ports.len());
    let turns = load.length.as_millis() / TURN.as_millis();
    aim.at(&[0]);
    let running = load.start(rng);
    for turn in 1..turns {
        tokio::time::sleep(TURN).await;
        aim.at(&[usize::try_from(turn)? % count]);
    }
    running.finish().await
}
