//! Decide: what one decision costs in process, compared with governor and with the floor.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::draws::{self, Spread};
use crate::report::{Report, median, progress, ratio};
use crate::table::Table;

mod floor;
mod leased;
pub(crate) mod profile;
mod rivals;

use rivals::{Name, Rival};

const QUESTION: &str = "What does one decision cost in process?";
const OVERHEAD: &str = "ns per decision and thread. `read` is the loop around every rival: it reads \
    the key's first byte and asks nobody. `floor` is the least a decision on a key can cost here: a \
    keyed 64-bit hash, an open table of 24-byte slots, one clock reading, one compare-and-swap; it \
    keeps no full key, cannot grow, forgets nothing. `floor, SipHash` is that with the hash that Quell \
    promises, 91 bits that nobody can aim at; `floor, ahead` is that with its slot asked for before the \
    clock is read, as quell does. quell answers with remaining, retry_after and reset_after, governor \
    with allowed or not. Above 1, quell is faster than governor.";

/// The ratios of the table: of the fastest of some rivals to another one. Of governor's two stores the faster is to
/// beat.
const RATIOS: [(&str, &[Name], Name); 4] = [
    (
        "governor / quell",
        &[Name::Governor, Name::GovernorHashMap],
        Name::Quell,
    ),
    ("quell / floor", &[Name::Quell], Name::Floor),
    ("quell / floor, SipHash", &[Name::Quell], Name::FloorSipHash),
    (
        "leased / local, awaited",
        &[Name::LimiterLeased],
        Name::LimiterAwaited,
    ),
];

/// Settings of `bench decide`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Number of different keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    /// Decisions of one thread in one pass.
    #[arg(long, default_value_t = 500_000)]
    decisions: usize,
    /// Runs, each on newly made rivals.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Passes of one run, in which rivals take turns, after one pass that is not timed; a rival's
    /// figure is the median of its passes.
    #[arg(long, default_value_t = 5)]
    passes: usize,
    /// Numbers of threads that run at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Only these spreads of calls over keys.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "skewed,uniform,hot"
    )]
    #[serde(skip)]
    spreads: Vec<Spread>,
    /// Only these answers; leases are for limits that are not as small as that of `deny`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "allow,deny")]
    #[serde(skip)]
    answers: Vec<Answer>,
    /// Only these rivals.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::ALL)]
    #[serde(skip)]
    rivals: Vec<Name>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// The answer that every call of a run gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Answer {
    /// A burst that no run uses up.
    Allow,
    /// One call an hour, and that call has been made.
    Deny,
}

impl Answer {
    const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// One row of the table, without the rival.
#[derive(Debug)]
struct Case<'a> {
    spread: Spread,
    answer: Answer,
    /// Every key once.
    all: &'a [String],
    draws: &'a [String],
}

impl Case<'_> {
    fn name(&self, threads: usize) -> String {
        let plural = if threads == 1 { "" } else { "s" };
        format!(
            "{}, {}, {threads} thread{plural}",
            self.spread.name(),
            self.answer.name()
        )
    }
}

/// Measures and prints.
///
/// # Errors
/// If a rival gives another answer than the case requires, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.keys > 0, "--keys must be at least 1");
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.passes > 0, "--passes must be at least 1");
    ensure!(settings.decisions > 0, "--decisions must be at least 1");
    ensure!(
        !settings.threads.contains(&0),
        "--threads must be at least 1 each"
    );
    let mut report = Report::new("decide", QUESTION, OVERHEAD, settings)?;
    let all = draws::all(settings.keys);
    for spread in &settings.spreads {
        let draws = draws::draw(*spread, settings.keys, settings.decisions);
        let all = if *spread == Spread::Hot {
            &draws[..1]
        } else {
            &all[..]
        };
        for answer in &settings.answers {
            let case = Case {
                spread: *spread,
                answer: *answer,
                all,
                draws: &draws,
            };
            measure_case(settings, &case, &mut report)?;
        }
    }
    let tables = tables(&report, &settings.rivals);
    report.finish(&tables, settings.json)
}

/// A rival that has seen every key once: ns per decision of one pass with this many threads.
type Timed<'a> = Box<dyn Fn(usize) -> Result<f64> + 'a>;

/// Measures all rivals in turn, pass by pass: a disturbance of the machine for some tenths of a second
/// affects them all. Each run starts with another rival.
fn measure_case(settings: &Settings, case: &Case<'_>, report: &mut Report) -> Result<()> {
    for run in 0..settings.runs {
        let mut order = settings.rivals.clone();
        let first = run % order.len().max(1);
        order.rotate_left(first);
        let rivals: Result<Vec<Timed<'_>>> = order.iter().map(|name| name.timed(case)).collect();
        let rivals = rivals?;
        for threads in &settings.threads {
            let mut passes = vec![Vec::new(); rivals.len()];
            for pass in 0..=settings.passes {
                for (timed, passes) in rivals.iter().zip(&mut passes) {
                    let nanos = timed(*threads)?;
                    // The first pass only fills the caches.
                    if pass > 0 {
                        passes.push(nanos);
                    }
                }
            }
            let case = case.name(*threads);
            for (name, passes) in order.iter().zip(&passes) {
                let nanos = median(passes);
                report.add(&case, name.name(), "ns", nanos);
                let turn = format!("run {} of {}", run + 1, settings.runs);
                progress(&format!(
                    "{turn}  {case}  {:<16} {nanos:>6.1} ns",
                    name.name()
                ));
            }
        }
    }
    Ok(())
}

/// Makes a limiter and asks it once for every key.
fn timed<'a, R: Rival + 'a>(case: &'a Case<'_>) -> Result<Timed<'a>> {
    let rival = R::new(case.answer, case.all.len())?;
    for key in case.all {
        rival.ask(key);
    }
    Ok(Box::new(move |threads| pass(&rival, case, threads)))
}

/// ns per decision of one pass; each thread starts at another position of the same sequence.
fn pass<R: Rival>(rival: &R, case: &Case<'_>, threads: usize) -> Result<f64> {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        barrier.wait();
        let start = case.draws.len() / threads * thread;
        let begun = Instant::now();
        ask_all(rival, case.draws, start, case.answer)?;
        Ok(begun.elapsed().as_secs_f64() * 1e9 / case.draws.len() as f64)
    };
    let one = &one;
    let times: Result<Vec<f64>> = std::thread::scope(|scope| {
        let others = 1..threads;
        let running: Vec<_> = others
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        // One of the threads is this one: a new thread may begin on a processor that has to wake up.
        let mine = one(0);
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| anyhow::bail!("a measuring thread panicked"))
        });
        std::iter::once(mine).chain(joined).collect()
    });
    let times = times?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// Asks for every key of the sequence once, beginning at `start` and wrapping around.
#[inline(never)]
fn ask_all<R: Rival>(rival: &R, draws: &[String], start: usize, answer: Answer) -> Result<()> {
    let (later, sooner) = draws.split_at(start);
    let mut allowed = 0_usize;
    for key in sooner.iter().chain(later) {
        allowed += usize::from(black_box(rival.ask(black_box(key))));
    }
    let expected = match answer {
        Answer::Allow => draws.len(),
        Answer::Deny => 0,
    };
    ensure!(
        R::DECIDES_NOTHING || allowed == expected,
        "{allowed} calls of {} were allowed, {expected} should have been",
        draws.len()
    );
    Ok(())
}

fn tables(report: &Report, names: &[Name]) -> String {
    let mut heading = vec!["case"];
    heading.extend(names.iter().map(|name| name.name()));
    heading.extend(RATIOS.map(|(heading, ..)| heading));
    let mut table = Table::new(heading);
    for case in report.cases() {
        let measured = |name: &Name| report.median(&case, name.name());
        let figure =
            |name| measured(name).map_or_else(|| "-".to_owned(), |nanos| format!("{nanos:.0}"));
        let fastest = |names: &[Name]| names.iter().filter_map(measured).reduce(f64::min);
        let mut row = vec![case.clone()];
        row.extend(names.iter().map(figure));
        row.extend(RATIOS.map(|(_, some, other)| ratio(fastest(some), measured(&other))));
        table.row(row);
    }
    table.to_string()
}
