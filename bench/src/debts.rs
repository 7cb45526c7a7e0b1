//! Debts: how much memory keys take that are used during an outage of the store, and how much is
//! left once their debts are paid. Each length of key is measured in a process of its own.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use quell::clock::SystemClock;
use quell::{Limiter, Query};
use quell_redis::{FallbackStore, RedisStore};
use serde::{Deserialize, Serialize};

use crate::memory::subject::Growth;
use crate::processes::{Running, free_address, on_path};
use crate::report::{Report, progress};
use crate::table::Table;

const QUESTION: &str =
    "How much memory do the debts of an outage take, and how much is freed when they are paid?";
const OVERHEAD: &str = "Bytes by which a process grew that asks for so many keys once while its store is \
    gone, under a rule that says `share`: when all were asked, and when all that is owed was paid to \
    Redis and given up. `table` is what the table of such keys counts (`quell_share_bytes`), `allocated` \
    what the process asked its allocator for and still holds, with what it remembers of the answers to \
    the payments, and `resident` what the system gave it, with what the allocator keeps.";

/// The longest that paying may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// What `bench debts` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Number of keys.
    #[arg(long, default_value_t = 262_144)]
    keys: usize,
    /// Lengths of the keys' values.
    #[arg(long, value_delimiter = ',', default_value = "16,2000")]
    lengths: Vec<usize>,
    /// Processes for each length.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Settings of one outage.
#[derive(Args, Debug)]
pub(crate) struct OutageSettings {
    keys: usize,
    length: usize,
}

/// What a process uses at one stage of an outage.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Stage {
    /// Keys with a debt.
    owed: usize,
    table: usize,
    growth: Growth,
}

/// Measures and prints.
///
/// # Errors
/// If redis-server is missing, or a debt is not paid.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    let is_there = on_path("redis-server").is_some();
    ensure!(
        is_there,
        "redis-server is not installed (Debian: redis-server)"
    );
    let mut report = Report::new("debts", QUESTION, OVERHEAD, settings)?;
    let mut table = Table::new([
        "bytes of a value",
        "stage",
        "keys that owe",
        "table",
        "allocated",
        "resident",
    ]);
    for length in &settings.lengths {
        for run in 0..settings.runs {
            let stages = in_a_process(settings.keys, *length)?;
            progress(&format!("run {} of {}  {stages:?}", run + 1, settings.runs));
            for (name, stage) in NAMES.iter().zip(stages) {
                let [(_, allocated), (_, resident), _] = stage.growth.parts();
                let figures = [stage.owed as u64, stage.table as u64, allocated, resident];
                for (part, figure) in PARTS.iter().zip(figures) {
                    let case = format!("{length} bytes, {name}");
                    report.add(&case, part, "", figure as f64);
                }
            }
        }
        for name in NAMES {
            let mut row = vec![length.to_string(), name.to_owned()];
            for part in PARTS {
                let median = report.median(&format!("{length} bytes, {name}"), part);
                row.push(median.map_or_else(|| "-".to_owned(), |figure| figure.to_string()));
            }
            table.row(row);
        }
    }
    report.finish(&table.to_string(), settings.json)
}

const NAMES: [&str; 3] = ["before", "owed", "paid"];
const PARTS: [&str; 4] = ["keys that owe", "table", "allocated", "resident"];

fn in_a_process(keys: usize, length: usize) -> Result<[Stage; 3]> {
    let me = std::env::current_exe().context("cannot find this program")?;
    let output = Command::new(me)
        .args(["debts-of", &keys.to_string(), &length.to_string()])
        .output()
        .context("cannot start this program again")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "an outage failed: {}", said.trim());
    serde_json::from_slice(&output.stdout).context("an outage printed something else")
}

/// Goes through one outage and prints what it used, as JSON.
///
/// # Errors
/// If the store does not come back, or a debt is not paid.
pub(crate) fn one_outage(settings: &OutageSettings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let stages = runtime.block_on(outage(settings))?;
    println!("{}", serde_json::to_string(&stages)?);
    Ok(())
}

async fn outage(settings: &OutageSettings) -> Result<[Stage; 3]> {
    let rules = "domain: shop\nrules: [{ name: one, per: [user], algorithm: fixed_window, limit: 1/h }]\n\
        defaults: { on_failure: share, nodes: 1 }\n";
    let loaded = quell_rules::parse_str("rules.yaml", rules);
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    let address = free_address()?;
    let url = format!("redis://{address}").parse()?;
    let clock = Arc::new(SystemClock::new());
    let store = RedisStore::builder(url)
        .timeout(Duration::from_secs(1))
        .build();
    let store = FallbackStore::new(store, Arc::clone(&clock) as _);
    let limiter = Limiter::builder(store).clock(clock as _).build();
    limiter.set_rules(loaded.domains)?;
    let begun = Growth::now()?;
    let stage = || {
        let numbers = limiter.store().fallback_numbers();
        anyhow::Ok(Stage {
            owed: numbers.owed,
            table: numbers.share_bytes,
            growth: begun.until_now()?,
        })
    };
    let before = stage()?;
    let mut passed = 0;
    for user in 0..settings.keys {
        let user = format!("{user:0>width$}", width = settings.length);
        let verdict = limiter
            .try_acquire(&Query::new("shop").entry("user", user))
            .await?;
        passed += usize::from(verdict.is_allow());
    }
    let owed = stage()?;
    ensure!(
        passed >= owed.owed && owed.owed > 0,
        "{passed} passed: {owed:?}"
    );
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(std::env::temp_dir());
    let _server = Running::start("redis-debts", &mut command, address)?;
    let began = Instant::now();
    // Keys that share a state owe nothing, and keep the state until it is at rest.
    while stage()?.owed > 0 || stage()?.table > 1_000_000 {
        ensure!(
            began.elapsed() < PATIENCE,
            "it was not paid: {:?}",
            stage()?
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok([before, owed, stage()?])
}
