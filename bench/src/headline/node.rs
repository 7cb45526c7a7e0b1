//! Node: one process of the fleet, which asks itself and counts what it admitted.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query};
use quell_core::rule::all_shared_limits;
use quell_fleet::agent::{Connector, CoordinatorUrl, Credentials, Fleet, FleetOptions, MemberId};
use quell_store::shares::SharesStore;

use super::{BIN, DOMAIN, host_time};

/// Pause of the load when it has asked what is due.
const REST: Duration = Duration::from_millis(1);

/// Number of calls that are dated by one reading of the clock.
const CHUNK: u32 = 64;

/// Calls that became due while the process did not run are asked later, up to those of so long.
const LATE: f64 = 0.25;

/// Settings of `bench headline-node`. `headline` starts it.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// The coordinators.
    #[arg(long = "coordinator", required = true)]
    coordinators: Vec<CoordinatorUrl>,
    /// A file of rules.
    #[arg(long)]
    rules: PathBuf,
    /// The node's number.
    #[arg(long)]
    member: u32,
    /// The instant from which the times of `--offer` count, in nanoseconds of the host's monotonic clock.
    #[arg(long)]
    begin: u64,
    /// Calls per second from so many milliseconds on: MILLIS=RATE.
    #[arg(long = "offer", required = true, value_parser = offer)]
    offers: Vec<(u64, u64)>,
    /// File for the counts, one line for each 10 ms: its number, calls asked, calls admitted.
    #[arg(long)]
    counts: PathBuf,
}

fn offer(text: &str) -> Result<(u64, u64)> {
    let (millis, rate) = text.split_once('=').context("write MILLIS=RATE")?;
    Ok((millis.parse()?, rate.parse()?))
}

/// Joins the fleet and asks until the process is killed.
///
/// # Errors
/// If it cannot be a node, or its counts cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let text = fs::read_to_string(&settings.rules)?;
    let rules = quell_rules::parse_str("rules", &text);
    let domains = rules.map_err(|_| anyhow!("the rules are wrong"))?.domains;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let fleet = {
        let _entered = runtime.enter();
        Fleet::start(FleetOptions {
            coordinators: settings.coordinators.clone(),
            member: MemberId(settings.member),
            weight: 1,
            groups: Vec::new(),
            credentials: Credentials::default(),
            connector: Connector::tcp(),
            file: None,
            follow_rules: false,
            clock: Arc::clone(&clock),
        })?
    };
    let limits = all_shared_limits(&domains)?;
    let keys = limits.iter();
    let keys = keys.map(|(_, limit)| (&*limit.key, limit.name.as_str().into()));
    fleet.shares().set_keys(keys);
    let store = SharesStore::new(MemoryStore::new(), fleet.shares().clone());
    let limiter = Limiter::builder(store).clock(clock).build();
    limiter.set_rules(domains)?;
    let query = Query::new(DOMAIN);
    let ask = || {
        limiter
            .try_acquire_local(&query)
            .is_ok_and(|verdict| verdict.is_allow())
    };
    offer_for_ever(settings, ask)
}

fn offer_for_ever(settings: &Settings, ask: impl Fn() -> bool) -> Result<()> {
    let mut counts = Counts::new(&settings.counts)?;
    let (mut last, mut due) = (host_time(), 0.0);
    loop {
        let now = host_time();
        let rate = settings.rate(now) as f64;
        let elapsed = (now - std::mem::replace(&mut last, now)) as f64 / 1e9;
        due = f64::min(due + rate * elapsed, rate * LATE);
        while due >= 1.0 {
            let calls = f64::min(due, CHUNK.into()) as u32;
            due -= f64::from(calls);
            counts.turn(host_time())?;
            counts.asked += calls;
            for _ in 0..calls {
                counts.admitted += u32::from(ask());
            }
        }
        counts.turn(host_time())?;
        thread::sleep(REST);
    }
}

impl Settings {
    /// Calls per second that are offered at an instant.
    fn rate(&self, now: u64) -> u64 {
        let millis = now.saturating_sub(self.begin) / 1_000_000;
        let begun = self.offers.iter().rev().find(|(from, _)| *from <= millis);
        begun.map_or(0, |(_, rate)| *rate)
    }
}

/// Calls of the current interval.
struct Counts {
    out: File,
    bin: u64,
    asked: u32,
    admitted: u32,
}

impl Counts {
    fn new(path: &PathBuf) -> Result<Self> {
        let out = File::create(path);
        let out = out.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            out,
            bin: host_time() / BIN,
            asked: 0,
            admitted: 0,
        })
    }

    /// Writes the interval that is over, if one is.
    fn turn(&mut self, now: u64) -> Result<()> {
        let bin = now / BIN;
        if bin == self.bin {
            return Ok(());
        }
        ensure!(bin > self.bin, "the host's clock went back");
        let (asked, admitted) = (
            std::mem::take(&mut self.asked),
            std::mem::take(&mut self.admitted),
        );
        let bin = std::mem::replace(&mut self.bin, bin);
        if asked > 0 {
            // One write: what is killed in between leaves whole lines.
            self.out
                .write_all(format!("{bin} {asked} {admitted}\n").as_bytes())?;
        }
        Ok(())
    }
}
