//! Attacks on real servers and real stores: `cargo xtask chaos`.
//!
//! Each scenario starts what it needs on free loopback ports, drives it with load, injects faults, and
//! checks the answers of all callers against a promise in plain words. `docs/chaos.md` has an overview.

mod audit;
mod fleet;
mod http;
mod load;
mod pipelines;
mod process;
mod redis;
mod resp;
mod rng;
mod scenarios;
mod server;
mod stall;

use std::cmp::Reverse;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};

use crate::rng::Rng;
use crate::scenarios::{SCENARIOS, Scenario, TIMED};
use crate::stall::Stopwatch;

/// The longest that a scenario may take; one that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(300);

/// The most seconds of a scenario that runs although nobody named it, if it promises no rate or duration.
const BRIEF: u64 = 60;

/// Attacks real servers and stores; exits with 1 if a promise is broken.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Scenarios to run; without it, all that take no longer than a minute and promise no rate or duration.
    #[arg(value_name = "SCENARIO")]
    names: Vec<String>,
    /// After one round, run further rounds with other seeds as far as they fit into this time.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Run so many rounds, each with the next seed, however long they take.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// The seed of the first round [default: by the clock].
    #[arg(long)]
    seed: Option<u64>,
    /// Print each scenario and its promise, one per line.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match start() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            drop(writeln!(std::io::stderr().lock(), "quell-chaos: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Returns how many scenarios failed.
fn start() -> Result<usize> {
    let arguments = Arguments::parse();
    let named = |scenario: &&Scenario| match &*arguments.names {
        [] => {
            let is_timed = TIMED.contains(&scenario.name);
            arguments.list || scenario.seconds <= BRIEF && !is_timed
        }
        names => names.iter().any(|name| name == scenario.name),
    };
    for name in &arguments.names {
        let is_known = SCENARIOS.iter().any(|scenario| scenario.name == name);
        ensure!(is_known, "there is no scenario {name:?}; see --list");
    }
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(named).collect();
    if arguments.list {
        for scenario in chosen {
            say(&format!("{}: {}", scenario.name, scenario.promise));
        }
        return Ok(0);
    }
    server::quell()?;
    stall::measure();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = arguments.seed.unwrap_or(now.as_secs());
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // Child processes end with this process, also when it is told to stop.
        let (mut term, mut int) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        tokio::select! {
            failed = rounds(&chosen, seed, &arguments) => failed,
            _ = term.recv() => bail!("told to stop"),
            _ = int.recv() => bail!("told to stop"),
        }
    })
}

/// Number of scenarios that run in parallel: most of them wait most of the time.
const BESIDE: usize = 3;

/// Runs as many rounds as are wanted, and further rounds as far as their scenarios fit into the time. Returns how
/// many scenarios failed.
async fn rounds<'s>(chosen: &[&'s Scenario], seed: u64, wanted: &Arguments) -> Result<usize> {
    let length = Duration::from_secs(wanted.seconds);
    let (start, mut passed, mut failed) = (Instant::now(), 0, 0);
    for round in 0.. {
        let fits = |scenario: &Scenario| {
            let takes = Duration::from_secs(scenario.seconds);
            round < wanted.rounds.max(1) || start.elapsed() + takes <= length
        };
        let run = async |scenario: &'s Scenario| {
            let fits = fits(scenario);
            let held = fits && once(scenario, seed.wrapping_add(round)).await;
            (fits, held)
        };
        let (alone, mut beside): (Vec<&'s Scenario>, Vec<&'s Scenario>) =
            chosen.iter().partition(|scenario| scenario.is_alone);
        // The longest first: at the end none runs long beside nothing.
        beside.sort_by_key(|scenario| Reverse(scenario.seconds));
        let mut ended = Vec::new();
        for (several, scenarios) in [(1, alone), (BESIDE, beside)] {
            let running = stream::iter(scenarios).map(&run).buffer_unordered(several);
            ended.extend(running.collect::<Vec<_>>().await);
        }
        let held = ended.iter().filter(|(_, held)| *held).count();
        let begun = ended.iter().filter(|(begun, _)| *begun).count();
        (passed, failed) = (passed + held, failed + begun - held);
        let is_over = start.elapsed() >= length && round + 1 >= wanted.rounds;
        if begun == 0 || is_over {
            break;
        }
    }
    say(&format!("chaos: {passed} passed, {failed} failed"));
    Ok(failed)
}

/// Runs a scenario once. Returns whether its promise held.
async fn once(scenario: &Scenario, seed: u64) -> bool {
    let (start, stopwatch) = (Instant::now(), Stopwatch::start());
    let mut rng = Rng::new(seed);
    let run = AssertUnwindSafe((scenario.run)(&mut rng)).catch_unwind();
    let outcome = tokio::time::timeout(LONGEST, run).await;
    let outcome = outcome.context("it hangs");
    let outcome = outcome.and_then(|end| end.unwrap_or_else(|_| bail!("it panicked, see above")));
    let took = start.elapsed().as_secs_f32();
    let name = scenario.name;
    match &outcome {
        Ok(summary) => say(&format!(
            "ok    {name} (seed {seed}, {took:.1} s): {summary}"
        )),
        Err(error) => {
            say(&format!(
                "FAIL  {name} (seed {seed}, {took:.1} s): {error:#}"
            ));
            say(&format!("      promised: {}", scenario.promise));
            say(&format!(
                "      the machine stalled for {:.1?} of it",
                stopwatch.stalls()
            ));
            say(&format!(
                "      again: cargo xtask chaos --seed {seed} {name}"
            ));
        }
    }
    outcome.is_ok()
}

/// Prints one line at once. A closed pipe is not an error.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{text}").and_then(|()| out.flush()));
}
