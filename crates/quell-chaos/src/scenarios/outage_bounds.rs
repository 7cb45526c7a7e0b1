//! A store that stands still and comes back, or is killed and comes back empty, under servers that keep calling it
//! for six times their limit: by how much they exceed it, in any interval.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::load::Account;
use crate::pipelines::Pipelines;
use crate::process::PATIENCE;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// Servers, as many as the rule says.
const SERVERS: usize = 3;

/// Connections of callers, to all servers together.
const CONNECTIONS: usize = 12;

/// The milliseconds of an outage, and of the load after the last one: every server finds the store again and pays,
/// and some seconds more.
const OUTAGE: u64 = 3_000;
const AFTERWARDS: u64 = 5_000;

/// The user whose limit is watched.
const USER: &str = "u";

/// The rung of the rule that is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rung {
    Strict,
    Leased,
    Synced,
}

/// A failure of the store: it stands still, or it is killed and started empty.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Frozen,
    Emptied,
}

/// A bucket that is full again in a tenth of a second, so that nothing that an outage leaves behind is hidden by
/// what was not used in it; and six times of it as a load.
#[derive(Clone, Copy, Debug)]
struct Size {
    rate: u32,
    burst: u32,
    /// The rule's words about its bound, if it is leased or synced.
    bound: &'static str,
    /// Calls that a connection sends at once, and how often.
    depth: usize,
    every: Duration,
    /// The least load with which a run proves anything, in parts of the limit.
    least: f64,
}

/// Runs beside other scenarios.
const BRIEF: Size = Size {
    rate: 300,
    burst: 30,
    bound: "max_over_admission: 7",
    depth: 3,
    every: Duration::from_millis(20),
    least: 1.5,
};

/// Size that two cores carry, alone.
const LARGE: Size = Size {
    rate: 2_000,
    burst: 200,
    bound: "max_over_admission: 1%",
    depth: 5,
    every: Duration::from_millis(5),
    least: 3.0,
};

impl Size {
    fn rules(self, rung: Rung) -> String {
        let rung = match rung {
            Rung::Strict => String::new(),
            Rung::Leased => format!(", rung: leased, {}", self.bound),
            Rung::Synced => format!(", rung: synced, {}", self.bound),
        };
        let Self { rate, burst, .. } = self;
        format!(
            "
domain: d
defaults: {{ on_failure: share, nodes: {SERVERS}{rung} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {rate}/s, burst: {burst} }}
"
        )
    }

    /// In no interval more than the limit passed, once more for each outage, once more for what the store forgot,
    /// and the bound.
    fn judge(self, account: &Account, outages: &[Outage], bound: f64) -> Result<String> {
        account.is_documented()?;
        ensure!(account.degraded() > 0, "no outage was noticed; {account}");
        let (rate, burst) = (f64::from(self.rate), f64::from(self.burst));
        let offered = account.calls.len() as f64 / account.length().as_secs_f64();
        ensure!(
            offered >= self.least * rate,
            "the machine is too busy: {offered:.0} calls a second; {account}"
        );
        let emptied = outages.iter().filter(|one| matches!(one, Outage::Emptied));
        let bursts = 1 + outages.len() + emptied.count();
        let stated = bursts as f64 * burst + bound;
        let excess = account.excess(rate, 0.0);
        let said = format!(
            "{excess:.0} of {stated:.0} units above the rate, {:.0} as if decided when answered; \
             {offered:.0} calls a second; {account}",
            account.excess_at_answers(rate, 0.0)
        );
        ensure!(excess <= stated, "{said}");
        Ok(said)
    }
}

/// A store that is frozen and later killed.
pub(crate) async fn run(rung: Rung, rng: &mut Rng) -> Result<String> {
    one_run(BRIEF, rung, &[Outage::Frozen, Outage::Emptied], rng).await
}

/// One outage of each kind, and two in a row.
pub(crate) async fn run_large(rung: Rung, rng: &mut Rng) -> Result<String> {
    use Outage::{Emptied, Frozen};
    let (mut summary, mut is_kept) = (String::new(), true);
    for outages in [
        &[Frozen][..],
        &[Emptied],
        &[Frozen, Frozen],
        &[Frozen, Emptied],
        &[Emptied, Emptied],
    ] {
        let run = one_run(LARGE, rung, outages, rng).await;
        is_kept &= run.is_ok();
        let said = run.unwrap_or_else(|error| format!("{error:#}"));
        summary += &format!("\n      {said}");
    }
    if !is_kept {
        bail!("{summary}");
    }
    Ok(summary)
}

async fn one_run(size: Size, rung: Rung, outages: &[Outage], rng: &mut Rng) -> Result<String> {
    let rules = size.rules(rung);
    let mut store = Redis::start(&[]).await?;
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(Server::start(&rules, &["--store", &store.url()]).await?);
    }
    let bound = servers[0].metric("quell_over_admission_bound").await?;
    // The second outage begins while servers have hardly recovered from the first, or a while later.
    let pauses: Vec<u64> = (0..outages.len())
        .map(|place| rng.within(500..if place == 0 { 1_000 } else { 4_000 }))
        .collect();
    let length = pauses.iter().map(|pause| pause + OUTAGE).sum::<u64>() + AFTERWARDS;
    let load = Pipelines {
        ports: servers.iter().map(|server| server.resp).collect(),
        connections: CONNECTIONS,
        depth: size.depth,
        every: size.every,
        path: "/a",
        user: USER,
        length: Duration::from_millis(length),
    };
    let load = load.start();
    for (before, outage) in pauses.iter().zip(outages) {
        pause(*before).await;
        match outage {
            Outage::Frozen => store.freeze(),
            Outage::Emptied => store.kill(),
        }
        pause(OUTAGE).await;
        match outage {
            Outage::Frozen => store.thaw(),
            Outage::Emptied => store.start_again(),
        }
    }
    let account = load.finish().await?;
    for server in &servers {
        server.has_paid(PATIENCE).await?;
    }
    let said = format!("{outages:?} after {pauses:?} ms");
    let judged = size.judge(&account, outages, bound);
    let judged = judged.map(|judged| format!("{said}: {judged}"));
    judged.map_err(|error| error.context(said))
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
