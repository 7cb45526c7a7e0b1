//! Tail: how slow the slowest calls are while a table grows to millions of keys, and while these
//! expire and others take their place.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use governor::{Quota, RateLimiter};
use quell::clock::{Clock, SystemClock};
use quell::{KeyedLimiter, Limit, Rate};
use quell_core::time::Now;
use serde::Serialize;

use crate::machine::waiting_time;
use crate::report::{Report, progress};
use crate::table::Table;
use crate::waits::Waits;

const QUESTION: &str = "How slow are the slowest calls while keys come and go?";
const OVERHEAD: &str = "us per call, by the processor's counter, every call of every thread on a key that \
    is new; a call above 20 us is asked for how long its thread waited for a processor, and that is \
    left out, but not in `slowest by the clock`. `grow` begins with nothing and ends with all keys. `replace` goes on for three times as many \
    keys, and each is at rest after as many calls as there are to be keys at once. `read` makes the same keys and asks nobody: what is slow there is the machine's doing. Medians \
    of the runs.";

/// What `bench tail` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Keys at the same time.
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Numbers of threads that run at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<u64>,
    /// Runs of each subject; subjects alternate.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only these subjects.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::ALL)]
    #[serde(skip)]
    subjects: Vec<Name>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// The subjects that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Read,
    QuellGrow,
    QuellReplace,
    GovernorGrow,
}

impl Name {
    const ALL: [Self; 4] = [
        Self::Read,
        Self::QuellGrow,
        Self::QuellReplace,
        Self::GovernorGrow,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::QuellGrow => "quell, grow",
            Self::QuellReplace => "quell, replace",
            Self::GovernorGrow => "governor, grow",
        }
    }
}

/// The columns of the table: a percentile of the calls, or another figure, with its unit.
const COLUMNS: [(&str, &str); 7] = [
    ("p50", "us"),
    ("p99", "us"),
    ("p99.99", "us"),
    ("p99.999", "us"),
    ("slowest", "us"),
    ("slowest by the clock", "us"),
    ("keys at once", "keys"),
];

/// Measures and prints.
///
/// # Errors
/// If a new key is refused or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.keys > 0, "--keys must be at least 1");
    ensure!(
        !settings.threads.contains(&0),
        "--threads must be at least 1"
    );
    let mut report = Report::new("tail", QUESTION, OVERHEAD, settings)?;
    for run in 0..settings.runs {
        for &threads in &settings.threads {
            for &name in &settings.subjects {
                let (Measured { waits, slowest }, keys) = measure(name, settings.keys, threads)?;
                let plural = if threads == 1 { "" } else { "s" };
                let case = format!("{}, {threads} thread{plural}", name.name());
                let micros = |share| waits.share(share) / 1e3;
                let figures = [
                    micros(0.5),
                    micros(0.99),
                    micros(0.9999),
                    micros(0.99999),
                    waits.slowest() / 1e3,
                    slowest as f64 / 1e3,
                    keys as f64,
                ];
                for ((column, unit), figure) in COLUMNS.iter().zip(figures) {
                    report.add(&case, column, unit, figure);
                }
                let turn = format!("run {} of {}", run + 1, settings.runs);
                progress(&format!("{turn}  {case}  {figures:.1?}"));
            }
        }
    }
    let headings = COLUMNS.iter().map(|(name, _)| *name);
    let mut table = Table::new(["case"].into_iter().chain(headings));
    for case in report.cases() {
        let figures = COLUMNS.iter().map(|(column, unit)| {
            let digits = usize::from(*unit == "us");
            let median = report.median(&case, column);
            median.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
        });
        let row: Vec<String> = [case.clone()].into_iter().chain(figures).collect();
        table.row(row);
    }
    report.finish(&table.to_string(), settings.json)
}

/// If a call takes longer than this many nanoseconds, its time is looked into.
const SLOW: u64 = 20_000;

/// How long calls took.
#[derive(Debug, Default)]
struct Measured {
    /// Without the time that threads waited for a processor.
    waits: Waits,
    /// The slowest by the clock, in nanoseconds.
    slowest: u64,
}

/// A clock that advances by a nanosecond at each reading, that is, at each call.
#[derive(Debug, Default)]
struct Calls(AtomicU64);

impl Clock for Calls {
    fn now(&self) -> Now {
        Now::from_nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// How long calls took, and how many keys were held in the end.
fn measure(name: Name, keys: u64, threads: u64) -> Result<(Measured, usize)> {
    // Room for keys that are at rest but not yet dropped.
    let most = usize::try_from(keys)? * 2;
    match name {
        Name::Read => Ok((ask_new(keys, threads, |key| !key.is_empty())?, 0)),
        Name::QuellGrow => {
            let limit = Limit::per_hour(1);
            let limiter = KeyedLimiter::<str>::with(limit, most, SystemClock::new())?;
            let waits = ask_new(keys, threads, |key| {
                limiter.try_acquire(key.as_str()).outcome.is_allow()
            })?;
            Ok((waits, limiter.keys()))
        }
        Name::QuellReplace => {
            let rate = Rate::new(1, Duration::from_nanos(keys))?;
            let limit = Limit::token_bucket(rate).build()?;
            let limiter = KeyedLimiter::<str, _>::with(limit, most, Calls::default())?;
            let measured = ask_new(keys * 3, threads, |key| {
                limiter.try_acquire(key.as_str()).outcome.is_allow()
            })?;
            Ok((measured, limiter.keys()))
        }
        Name::GovernorGrow => {
            let one = NonZeroU32::new(1).context("1 is 0")?;
            let limiter = RateLimiter::dashmap(Quota::per_hour(one));
            let waits = ask_new(keys, threads, |key: &String| limiter.check_key(key).is_ok())?;
            Ok((waits, limiter.len()))
        }
    }
}

/// Asks for new keys, each thread for a part of them.
fn ask_new(keys: u64, threads: u64, ask: impl Fn(&String) -> bool + Sync) -> Result<Measured> {
    let barrier = Barrier::new(usize::try_from(threads)?);
    let one = |thread: u64| {
        let clock = quanta::Clock::new();
        let mut measured = Measured::default();
        let mut key = String::with_capacity(32);
        barrier.wait();
        let mut waited = waiting_time()?;
        for number in (thread..keys).step_by(usize::try_from(threads)?) {
            key.clear();
            write!(key, "user:{number:012}")?;
            let begun = clock.raw();
            let is_allowed = ask(&key);
            let mut took = clock.delta_as_nanos(begun, clock.raw());
            ensure!(is_allowed, "the first call of {key} was refused");
            measured.slowest = measured.slowest.max(took);
            if took > SLOW {
                let before = std::mem::replace(&mut waited, waiting_time()?);
                took = took.saturating_sub(waited.saturating_sub(before));
            }
            measured.waits.add(took);
        }
        Ok(measured)
    };
    let one = &one;
    let all: Result<Vec<Measured>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| anyhow::bail!("a measuring thread panicked"))
        });
        joined.collect()
    });
    let mut measured = Measured::default();
    for of_thread in &all? {
        measured.waits.merge(&of_thread.waits);
        measured.slowest = measured.slowest.max(of_thread.slowest);
    }
    Ok(measured)
}
