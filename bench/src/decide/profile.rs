//! Profile: calls one rival in a loop and does nothing else, for `perf` and `callgrind`.

use anyhow::{Result, ensure};
use clap::Args;
use foldhash::quality::RandomState;
use quell::KeyedLimiter;

use super::floor::{Floor, Unaimable};
use super::leased::LimiterLeased;
use super::rivals::{
    FleetCell, GovernorDashMap, GovernorHashMap, LimiterAwaited, LimiterLocal, LimiterShares, Name,
    Read, Rival,
};
use super::{Answer, ask_all};
use crate::draws::{self, Spread};
use crate::machine::processor_time;

/// Settings of `bench profile`.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// The rival.
    #[arg(long, value_enum, default_value = "quell")]
    rival: Name,
    /// Spread of calls over keys.
    #[arg(long, value_enum, default_value = "uniform")]
    spread: Spread,
    /// The answer that every call gets.
    #[arg(long, value_enum, default_value = "allow")]
    answer: Answer,
    /// Number of different keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    /// Decisions of one pass.
    #[arg(long, default_value_t = 2_000_000)]
    decisions: usize,
    /// Number of passes.
    #[arg(long, default_value_t = 10)]
    passes: usize,
}

/// Repeats the calls, and prints how long they took.
///
/// # Errors
/// If the rival gives another answer.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.keys > 0, "--keys must be at least 1");
    match settings.rival {
        Name::Read => repeat::<Read>(settings),
        Name::Floor => repeat::<Floor<RandomState>>(settings),
        Name::FloorSipHash => repeat::<Floor<Unaimable>>(settings),
        Name::FloorAhead => repeat::<Floor<Unaimable, true>>(settings),
        Name::Quell => repeat::<KeyedLimiter<str>>(settings),
        Name::Governor => repeat::<GovernorDashMap>(settings),
        Name::GovernorHashMap => repeat::<GovernorHashMap>(settings),
        Name::FleetCell => repeat::<FleetCell>(settings),
        Name::LimiterLocal => repeat::<LimiterLocal>(settings),
        Name::LimiterAwaited => repeat::<LimiterAwaited>(settings),
        Name::LimiterShares => repeat::<LimiterShares>(settings),
        Name::LimiterLeased => repeat::<LimiterLeased>(settings),
    }
}

fn repeat<R: Rival>(settings: &Settings) -> Result<()> {
    let draws = draws::draw(settings.spread, settings.keys, settings.decisions);
    let rival = R::new(settings.answer, settings.keys)?;
    for key in &draws {
        rival.ask(key);
    }
    let begun = processor_time()?;
    for _ in 0..settings.passes {
        ask_all(&rival, &draws, 0, settings.answer)?;
    }
    let decisions = settings.passes * draws.len();
    let nanos = (processor_time()? - begun) as f64 / decisions as f64;
    println!("{decisions} decisions, {nanos:.1} ns of processor time each");
    Ok(())
}
