//! Overrides: what many overrides on one rule cost a decision, a reload and memory.

use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query};
use quell_core::rule::{DomainRules, LimitIds, RuleSet};
use quell_core::time::Now;
use quell_rules::{RuleChanges, parse_str};

use crate::machine::processor_time;
use crate::report::Report;
use crate::table::Table;

mod followers;
mod stored;
mod wire;

const QUESTION: &str = "What do many overrides on one rule cost?";
const OVERHEAD: &str = "`without`, `others`, `listed` and `own`: ns of processor time per call of \
    `Limiter::try_acquire_local` on one thread, of the rule without overrides, and with them for tenants \
    that have none, for tenants that follow one of five plans, and for tenants each with numbers of its own; \
    `--tenants` ask in turn. The first two have the same calls. `reload`: ms from the text \
    in which one number has changed to rules in force, of which `parse` to read it. `plans` and `own`, bytes: \
    of a rule set per override if there are five different numbers, and if each has its own.";

/// Different numbers of overrides that follow a plan.
const PLANS: usize = 5;

/// Rule sets that are kept at a time, so that their memory can be told from what a parser left behind.
const KEPT: u64 = 4;

/// Settings of `bench overrides`.
#[derive(Args, Debug, serde::Serialize)]
pub(crate) struct Settings {
    /// The number of overrides.
    #[arg(long, default_value_t = 100_000)]
    overrides: usize,
    /// Tenants that ask in turn: 20 stay in the processor's caches, 20,000 do not.
    #[arg(long, default_value_t = 20_000)]
    tenants: usize,
    /// Calls of one run.
    #[arg(long, default_value_t = 2_000_000)]
    calls: usize,
    /// Runs; cases alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Overrides that are stored beside the rules, and not in their file.
    #[arg(long)]
    stored: bool,
    /// With `--stored`, do not measure servers on the wire, which needs redis-benchmark.
    #[arg(long, requires = "stored")]
    without_wire: bool,
    /// Measure this program on the wire instead of building one.
    #[arg(long, value_name = "FILE", requires = "stored")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Servers that follow one Redis while overrides in it change, `--rate` a second.
    #[arg(long, default_value_t = 0)]
    followers: usize,
    /// Changes a second that are written to it.
    #[arg(long, default_value_t = 10_000)]
    rate: usize,
    /// Changes of one call that writes.
    #[arg(long, default_value_t = 10)]
    batch: usize,
    /// Seconds for which they are written in one run.
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// The columns of the table: a measurement and its unit.
const COLUMNS: [(&str, &str); 8] = [
    ("without", "ns"),
    ("others", "ns"),
    ("listed", "ns"),
    ("own", "ns"),
    ("parse", "ms"),
    ("reload", "ms"),
    ("plans", "bytes"),
    ("own numbers", "bytes"),
];

/// Measures and prints.
///
/// # Errors
/// If a call is refused, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.overrides > 0, "--overrides must be at least 1");
    ensure!(settings.tenants > 0, "--tenants must be at least 1");
    ensure!(settings.calls > 0, "--calls must be at least 1");
    ensure!(settings.runs > 0, "--runs must be at least 1");
    if settings.stored {
        return stored::run(settings);
    }
    if settings.followers > 0 {
        return followers::run(settings);
    }
    let case = settings.overrides.to_string();
    let mut report = Report::new("overrides", QUESTION, OVERHEAD, settings)?;
    for (name, numbers) in [("plans", PLANS), ("own numbers", settings.overrides)] {
        let bytes = bytes_each(settings.overrides, numbers)?;
        report.add(&case, name, "bytes", bytes);
    }
    let without = limiter(0, PLANS)?;
    let (with, own) = (
        limiter(settings.overrides, PLANS)?,
        limiter(settings.overrides, settings.overrides)?,
    );
    let listed = queries(0, settings.tenants);
    let others = queries(settings.overrides, settings.tenants);
    for _ in 0..settings.runs {
        for (name, limiter, queries) in [
            ("without", &without, &others),
            ("others", &with, &others),
            ("listed", &with, &listed),
            ("own", &own, &listed),
        ] {
            let nanos = ask(limiter, queries, settings.calls)?;
            report.add(&case, name, "ns", nanos);
        }
        let (parsed, all) = reload(settings.overrides)?;
        report.add(&case, "parse", "ms", parsed);
        report.add(&case, "reload", "ms", all);
    }
    let headings = COLUMNS.map(|(name, unit)| format!("{name}, {unit}"));
    let mut table = Table::new(["overrides".to_owned()].into_iter().chain(headings));
    let figures = COLUMNS.map(|(name, _)| {
        let median = report.median(&case, name);
        median.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.0}"))
    });
    table.row([case.clone()].into_iter().chain(figures));
    report.finish(&table.to_string(), settings.json)
}

/// Every number occurs `numbers` times in turn; `changed` has another one. Keys stay in use: one that rests soon
/// would be dropped and made again.
fn file(overrides: usize, numbers: usize, changed: Option<usize>) -> String {
    let mut text = String::from(
        "domain: shop\nrules:\n  - name: api-per-tenant\n    match: { path: \"/api/*\" }\n    per: [tenant]\n    \
         rate: 1000/h\n    burst: 1000000\n",
    );
    if overrides > 0 {
        text += "    overrides:\n";
    }
    for tenant in 0..overrides {
        let rate = match changed == Some(tenant) {
            true => 777_777,
            false => 1_000 + tenant % numbers,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "      - {{ when: {{ tenant: tenant-{tenant} }}, rate: {rate}/h }}"
        );
    }
    text
}

fn parse(text: &str) -> Result<Vec<DomainRules>> {
    let loaded = parse_str("overrides.yaml", text);
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    Ok(loaded.domains)
}

fn limiter(overrides: usize, numbers: usize) -> Result<Limiter<MemoryStore>> {
    let limiter = Limiter::new(MemoryStore::new());
    limiter.set_rules(parse(&file(overrides, numbers, None))?)?;
    Ok(limiter)
}

fn queries(from: usize, tenants: usize) -> Vec<Query<'static>> {
    // Not in the order in which they lie in memory.
    let tenants = (0..tenants).map(|place| from + place * 7_919 % tenants);
    let query = |tenant| {
        Query::new("shop")
            .entry("path", "/api/orders")
            .entry("tenant", format!("tenant-{tenant}"))
    };
    tenants.map(query).collect()
}

/// ns per call. Never inlined, so that callgrind can count it alone.
#[inline(never)]
fn ask(limiter: &Limiter<MemoryStore>, queries: &[Query<'_>], calls: usize) -> Result<f64> {
    let begun = processor_time()?;
    for query in queries.iter().cycle().take(calls) {
        let verdict = limiter.try_acquire_local(black_box(query))?;
        ensure!(verdict.is_allow() && !verdict.is_unmatched(), "{verdict:?}");
    }
    Ok((processor_time()? - begun) as f64 / calls as f64)
}

/// ms to read a file in which one number has changed, and to bring it into force as well.
fn reload(overrides: usize) -> Result<(f64, f64)> {
    let ids = LimitIds::default();
    let old = parse(&file(overrides, PLANS, None))?;
    let (rules, _) = RuleSet::default().reload(old, Now::default(), &ids);
    let text = file(overrides, PLANS, Some(overrides / 2));
    let begun = Instant::now();
    let new = parse(&text)?;
    let parsed = begun.elapsed();
    let named = rules.all().map(|(domain, rule)| (domain, rule.rule()));
    let of_new = new.iter().flat_map(|domain| {
        let rules = domain.rules.iter();
        rules.map(|rule| (&*domain.domain, rule))
    });
    black_box(RuleChanges::between(named, of_new));
    let (_, changes) = rules.reload(new, Now::default(), &ids);
    let all = begun.elapsed();
    ensure!(
        changes.replaced.len() == 1,
        "{} limits changed",
        changes.replaced.len()
    );
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Ok((millis(parsed), millis(all)))
}

/// Bytes of a rule set per override.
fn bytes_each(overrides: usize, numbers: usize) -> Result<f64> {
    let text = file(overrides, numbers, None);
    let fresh = || -> Result<RuleSet> {
        let rules = RuleSet::default();
        let next = rules.reload(parse(&text)?, Now::default(), &LimitIds::default());
        Ok(next.0)
    };
    // What the parser needs for a while is there already.
    let mut kept = vec![fresh()?, fresh()?];
    let before = resident()?;
    for _ in 0..KEPT {
        kept.push(fresh()?);
    }
    let bytes = (resident()? - before) as f64;
    drop(kept);
    Ok(bytes / KEPT as f64 / overrides as f64)
}

/// Bytes of memory of this process.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/statm")?;
    let pages = status
        .split(' ')
        .nth(1)
        .context("statm has no second field")?;
    Ok(pages.parse::<u64>()? * 4_096)
}
