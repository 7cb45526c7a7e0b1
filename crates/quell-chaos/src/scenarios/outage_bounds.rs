//! A store that stands still and comes back, and then is killed and comes back empty, under servers that keep
//! calling it for several times their limit: by how much they exceed it, in any interval.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::{Account, Load};
use crate::process::PATIENCE;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// Servers, as many as the rule says.
const SERVERS: usize = 3;

/// A bucket that is full again in a tenth of a second: nothing that an outage leaves behind is hidden by what was
/// not used in it.
const RATE: u32 = 300;
const BURST: u32 = 30;

/// Callers of all servers, and the pause of each between two calls in milliseconds: together some six times the
/// limit, less on a machine that is too slow for that.
const CALLERS: usize = 24;
const PAUSE: u64 = 12;

/// The least of that with which a run proves anything, in parts of the limit.
const LEAST_OFFERED: f64 = 1.5;

/// How long each outage takes, and how long callers go on after the last: until every server has found the store
/// and paid, and some seconds more.
const OUTAGE: u64 = 3_000;
const AFTERWARDS: u64 = 5_000;

/// The user whose limit is watched.
const USER: &str = "u";

/// How a rule is decided, and its words for that.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    Strict,
    Leased,
    Synced,
}

impl Rung {
    const fn words(self) -> &'static str {
        match self {
            Self::Strict => "",
            Self::Leased => ", rung: leased, max_over_admission: 7",
            Self::Synced => ", rung: synced, max_over_admission: 7",
        }
    }
}

pub(crate) async fn run(rung: Rung, rng: &mut Rng) -> Result<String> {
    let rules = format!(
        "
domain: d
defaults: {{ on_failure: share, nodes: {SERVERS}{} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {RATE}/s, burst: {BURST} }}
",
        rung.words()
    );
    let mut store = Redis::start(&[]).await?;
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(Server::start(&rules, &["--store", &store.url()]).await?);
    }
    let bound = servers[0].metric("quell_over_admission_bound").await?;
    // The second outage begins while servers have hardly recovered from the first, or a while later.
    let (before, between) = (rng.within(500..1_000), rng.within(500..4_000));
    let length = before + 2 * OUTAGE + between + AFTERWARDS;
    let mut load = Load::on(0, "/a", USER).clients(CALLERS).pause(PAUSE);
    load.ports = servers.iter().map(|server| server.http).collect();
    let load = load.length(length).start(rng);
    pause(before).await;
    store.freeze();
    pause(OUTAGE).await;
    store.thaw();
    pause(between).await;
    store.kill();
    pause(OUTAGE).await;
    store.start_again();
    let account = load.finish().await?;
    for server in &servers {
        server.has_paid(PATIENCE).await?;
    }
    judge(&account, bound, between)
}

/// In no interval more than the limit passed, once more for each outage, once more for what the store forgot, and
/// the bound.
fn judge(account: &Account, bound: f64, between: u64) -> Result<String> {
    account.is_documented()?;
    ensure!(account.degraded() > 0, "no outage was noticed; {account}");
    let (rate, burst) = (f64::from(RATE), f64::from(BURST));
    let offered = account.calls.len() as f64 / account.length().as_secs_f64();
    ensure!(
        offered >= LEAST_OFFERED * rate,
        "the machine is too busy: {offered:.0} calls a second; {account}"
    );
    let (excess, stated) = (account.excess(rate, 0.0), 4.0 * burst + bound);
    ensure!(
        excess <= stated,
        "{excess:.0} units above the rate, and {stated:.0} are stated, with {between} ms between two outages; \
         {account}"
    );
    Ok(format!(
        "{excess:.0} of {stated:.0} units above the rate, with {between} ms between two outages; {account}"
    ))
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
