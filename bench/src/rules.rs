//! Rules: what it costs to find the one rule of many that applies and to charge its limit; how long
//! ten thousand rules take to come into force, and how that affects a caller.

use std::fmt::Write;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query};
use serde::Serialize;

use crate::machine::processor_time;
use crate::report::{Report, progress};
use crate::table::Table;
use crate::waits::Waits;

const QUESTION: &str =
    "What does a decision by rules cost, and how long do they take to come into force?";
const OVERHEAD: &str = "ns of processor time per call of `Limiter::try_acquire_local` on one thread: the rule is found, its \
    key made and its token bucket charged, the verdict named and combined. Each rule matches on two \
    entries, the method and a path or an address; the queries are made before and ask for 1,000 users \
    in turn. `last` matches the last rule of the file, `glob` the last one of those with a pattern or a \
    network, `none` none of them. `load` is ms from \
    text to rules in force, `reload` the same with every limit changed; us are those of a caller who \
    asks without a pause while rules are reloaded, and include all that the machine does besides.";

/// Settings of `bench rules`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Numbers of rules.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000")]
    rules: Vec<usize>,
    /// Properties on which rules match, besides the method.
    #[arg(long, value_delimiter = ',', default_value = "path,address")]
    by: Vec<By>,
    /// The queries to ask; choose a single one for callgrind.
    #[arg(long, value_delimiter = ',', default_value = "last,glob,none")]
    queries: Vec<String>,
    /// Calls of one run.
    #[arg(long, default_value_t = 1_000_000)]
    calls: usize,
    /// Runs of each case; cases alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Difference between the rules of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
enum By {
    Path,
    Address,
}

impl By {
    const fn entry(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Address => "remote_address",
        }
    }

    /// The pattern of a rule; every second one matches many values.
    fn pattern(self, rule: usize) -> String {
        let (high, low) = (rule / 256, rule % 256);
        match (self, rule.is_multiple_of(2)) {
            (Self::Path, true) => format!("/api/tenant-{rule}/*"),
            (Self::Path, false) => format!("/api/tenant-{rule}"),
            (Self::Address, true) => format!("10.{high}.{low}.0/24"),
            (Self::Address, false) => format!("10.{high}.{low}.1"),
        }
    }

    /// A value that a rule matches.
    fn value(self, rule: usize) -> String {
        match self {
            Self::Path => self.pattern(rule).replace('*', "orders"),
            Self::Address => self.pattern(rule).replace("0/24", "1"),
        }
    }

    /// A value that no rule matches.
    const fn other(self) -> &'static str {
        match self {
            Self::Path => "/elsewhere",
            Self::Address => "192.0.2.1",
        }
    }

    fn case(self, rules: usize) -> String {
        match self {
            Self::Path => rules.to_string(),
            Self::Address => format!("{rules} by address"),
        }
    }
}

/// Users that ask in turn.
const USERS: usize = 1_000;

/// Reloads while a caller asks.
const RELOADS: usize = 10;

/// Measures and prints.
///
/// # Errors
/// If a query is not answered as its case requires, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(!settings.rules.contains(&0), "--rules must be at least 1");
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.calls > 0, "--calls must be at least 1");
    let mut report = Report::new("rules", QUESTION, OVERHEAD, settings)?;
    for run in 0..settings.runs {
        for (by, rules) in cases(settings) {
            one_run(settings, by, rules, &mut report)?;
            let turn = format!("run {} of {}", run + 1, settings.runs);
            progress(&format!("{turn}  {} rules", by.case(rules)));
        }
    }
    let columns = [
        "last", "glob", "none", "load", "reload", "p99.99", "slowest",
    ];
    let units = ["ns", "ns", "ns", "ms", "ms", "us", "us"];
    let headings = columns
        .iter()
        .zip(units)
        .map(|(name, unit)| format!("{name}, {unit}"));
    let mut table = Table::new(["rules".to_owned()].into_iter().chain(headings));
    for (by, rules) in cases(settings) {
        let case = by.case(rules);
        let median = |name: &str| report.median(&case, name);
        let figures = columns.map(|name| {
            median(name).map_or_else(|| "-".to_owned(), |figure| format!("{figure:.0}"))
        });
        table.row([case.clone()].into_iter().chain(figures));
    }
    report.finish(&table.to_string(), settings.json)
}

fn cases(settings: &Settings) -> impl Iterator<Item = (By, usize)> {
    let with = |by: &By| {
        settings.rules.iter().map({
            let by = *by;
            move |rules| (by, *rules)
        })
    };
    settings.by.iter().flat_map(with)
}

fn one_run(settings: &Settings, by: By, rules: usize, report: &mut Report) -> Result<()> {
    let case = by.case(rules);
    let limiter = Limiter::new(MemoryStore::new());
    let begun = Instant::now();
    bring_into_force(&limiter, &file(by, rules, 1_000_000))?;
    report.add(&case, "load", "ms", millis(begun));
    let last = rules - 1;
    let glob = last - last % 2;
    let values = [
        ("last", by.value(last), true),
        ("glob", by.value(glob), true),
        ("none", by.other().to_owned(), false),
    ];
    let is_asked = |name: &str| settings.queries.iter().any(|asked| asked == name);
    for (name, value, is_matched) in values.iter().filter(|(name, ..)| is_asked(name)) {
        let value = (by.entry(), value.as_str());
        let nanos = ask(&limiter, value, *is_matched, settings.calls)?;
        report.add(&case, name, "ns", nanos);
    }
    let (took, waits) = reload_under_load(&limiter, by, rules)?;
    report.add(&case, "reload", "ms", took);
    report.add(&case, "p99.99", "us", waits.share(0.9999) / 1e3);
    report.add(&case, "slowest", "us", waits.slowest() / 1e3);
    Ok(())
}

fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// A rules file; each rule allows `burst` calls an hour per user.
fn file(by: By, rules: usize, burst: usize) -> String {
    let mut text = "domain: shop\nrules:\n".to_owned();
    let entry = by.entry();
    for rule in 0..rules {
        let pattern = by.pattern(rule);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  - {{ name: rule-{rule}, match: {{ method: POST, {entry}: \"{pattern}\" }}, per: [user], \
             rate: 1000/h, burst: {burst} }}"
        );
    }
    text
}

fn bring_into_force(limiter: &Limiter<MemoryStore>, text: &str) -> Result<()> {
    let loaded = quell_rules::parse_str("rules.yaml", text);
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    limiter.set_rules(loaded.domains)?;
    Ok(())
}

/// ns per call. Never inlined, so that callgrind can count it alone.
#[inline(never)]
fn ask(
    limiter: &Limiter<MemoryStore>,
    value: (&str, &str),
    is_matched: bool,
    calls: usize,
) -> Result<f64> {
    let users: Vec<String> = (0..USERS).map(|user| format!("user-{user}")).collect();
    let queries = users.iter().map(|user| query(value, user));
    let queries: Vec<Query<'_>> = queries.collect();
    let mut matched = 0;
    let begun = processor_time()?;
    for query in queries.iter().cycle().take(calls) {
        let verdict = limiter.try_acquire_local(black_box(query))?;
        matched += usize::from(!verdict.is_unmatched() && verdict.is_allow());
    }
    let nanos = (processor_time()? - begun) as f64 / calls as f64;
    let expected = if is_matched { calls } else { 0 };
    ensure!(matched == expected, "{matched} of {calls} calls matched");
    Ok(nanos)
}

fn query<'q>((entry, value): (&'q str, &'q str), user: &'q str) -> Query<'q> {
    Query::new("shop")
        .entry("method", "POST")
        .entry(entry, value)
        .entry("user", user)
}

/// ms for one reload that changes every limit, and how long calls took during all reloads.
fn reload_under_load(limiter: &Limiter<MemoryStore>, by: By, rules: usize) -> Result<(f64, Waits)> {
    let is_over = AtomicBool::new(false);
    let value = by.value(rules - 1);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let clock = quanta::Clock::new();
            let mut waits = Waits::default();
            let query = query((by.entry(), &value), "user-0");
            while !is_over.load(Ordering::Relaxed) {
                let begun = clock.raw();
                let verdict = limiter.try_acquire_local(black_box(&query));
                waits.add(clock.delta_as_nanos(begun, clock.raw()));
                let verdict = verdict?;
                ensure!(verdict.is_allow(), "refused during a reload: {verdict:?}");
            }
            Ok(waits)
        });
        let begun = Instant::now();
        let reloads = (0..RELOADS).try_for_each(|round| {
            bring_into_force(limiter, &file(by, rules, 1_000_000_000 + round))
        });
        let took = millis(begun) / RELOADS as f64;
        is_over.store(true, Ordering::Relaxed);
        let waits = asking.join().ok().context("the caller panicked")?;
        reloads?;
        Ok((took, waits?))
    })
}
