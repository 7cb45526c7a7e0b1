//! Soak: tries whether the simulation notices deliberate mistakes, then runs everything that depends on seeds in
//! rounds, each with new seeds, and a large fleet whose faults last for minutes, until the time is over.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::programs::{self, cargo};
use crate::{chaos, install, mistakes, repository, terminal};

/// Minutes if no time is given.
const MINUTES: u64 = 30;

/// Seconds of chaos per round.
const CHAOS_SECONDS: &str = "300";

/// Scenarios of chaos that take minutes, or promise a rate or a duration, and run nowhere else.
const NAMED_CHAOS: [&str; 7] = [
    "outage-strict-large",
    "outage-leased-large",
    "outage-synced-large",
    "fleet-without-etcd",
    "leader-death",
    "many-holds",
    "utilisation",
];

/// Cells of each matrix of faults of leased and synced rules per round: rounds walk through them in order.
const CELLS: u64 = 12;

/// The scenarios whose seed is the number of a cell.
const MATRIX: [&str; 2] = ["over-admission", "over-admission-fail-over"];

/// Seeds of the simulated fleet per round.
const FLEETS: &str = "500";

/// Tests of a large fleet, and for how many seconds each of its faults lasts.
const LARGE: &str = "a_large_fleet";
const OUTAGE_S: &str = "120";

/// Tests of the Redis store whose traces depend on `QUELL_SEED`.
const TRACES: [&str; 3] = ["conformance::", "hold_traces::", "hold_traces_in_slots::"];

/// Tests of the simulation whose seeds depend on `QUELL_SEED`.
const SIMULATED: [&str; 3] = ["the_bound_holds", "more_nodes_than", "fast_clocks"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    minutes: u64,
    seed: Option<u64>,
}

/// Tries the mistakes. Unless `--mistakes` asks for no more, runs rounds of chaos, simulated and large fleets and random
/// traces until the time is over, but at least one round.
///
/// # Errors
///
/// The first failure, with the seed that repeats it.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let root = repository::root()?;
    if words == ["--mistakes"] {
        return mistakes::run(&root);
    }
    let length = read(words)?;
    install::run()?;
    mistakes::run(&root)?;
    let first = match length.seed {
        Some(seed) => seed,
        None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let (begun, most) = (Instant::now(), Duration::from_secs(length.minutes * 60));
    for seed in first.. {
        terminal::line(&format!("\n==> seed {seed}"));
        round(&root, seed)
            .with_context(|| format!("again: cargo xtask soak --minutes 1 --seed {seed}"))?;
        if begun.elapsed() >= most {
            break;
        }
    }
    let took = terminal::duration(begun.elapsed());
    terminal::line(&format!("\nsoak: nothing failed in {took}"));
    Ok(())
}

fn round(root: &Path, seed: u64) -> Result<()> {
    let cell = first_cell(seed).to_string();
    let seed = seed.to_string();
    chaos::run(&["--seconds", CHAOS_SECONDS, "--seed", &seed])?;
    chaos::run(&[&NAMED_CHAOS[..], &["--seed", &seed]].concat())?;
    let cells = CELLS.to_string();
    chaos::run(&[&["--rounds", &cells, "--seed", &cell], &MATRIX[..]].concat())?;
    let mut fleets = cargo(root);
    fleets.args(["run", "--locked", "-p", "quell-sim", "--"]);
    programs::run(fleets.args(["--seeds", FLEETS, "--seed", &seed]))?;
    for (package, names) in [("quell-sim", SIMULATED), ("quell-redis", TRACES)] {
        let mut tests = cargo(root);
        tests.args(["test", "--locked", "-p", package, "--test", "it", "--"]);
        programs::run(tests.args(names).env("QUELL_SEED", &seed))?;
    }
    let mut large = cargo(root);
    large.args(["test", "--locked", "-p", "quell-cli", "--test", "it", "--"]);
    programs::run(large.arg(LARGE).env("QUELL_OUTAGE_S", OUTAGE_S))
}

/// Beginning of this seed's round in the matrix: the next one begins where it ends.
const fn first_cell(seed: u64) -> u64 {
    seed.wrapping_mul(CELLS)
}

fn read(words: &[&str]) -> Result<Length> {
    let mut length = Length {
        minutes: MINUTES,
        seed: None,
    };
    for pair in words.chunks(2) {
        match pair {
            ["--minutes", minutes] => {
                let minutes = minutes.parse().ok().filter(|minutes| *minutes > 0);
                length.minutes = minutes.context("--minutes takes a whole number from 1")?;
            }
            ["--seed", seed] => {
                length.seed = Some(seed.parse().context("--seed takes a whole number")?);
            }
            other => bail!(
                "cannot read {:?}: write --minutes N, --seed S or only --mistakes",
                other.join(" ")
            ),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_walk_through_the_matrix_in_order() {
        let cells = [40, 41, 42].map(first_cell);
        assert_eq!(cells, [40 * CELLS, 41 * CELLS, 42 * CELLS]);
    }

    #[test]
    fn time_and_seed_are_read_and_nonsense_is_refused() {
        let of = |minutes, seed| Length { minutes, seed };
        assert_eq!(read(&[]).unwrap(), of(MINUTES, None));
        let words = ["--seed", "7", "--minutes", "90"];
        assert_eq!(read(&words).unwrap(), of(90, Some(7)));
        for words in [
            &["--minutes", "0"][..],
            &["--minutes"],
            &["7"],
            &["--seed", "x"],
            &["--mistakes", "--seed", "7"],
        ] {
            assert!(read(words).is_err(), "{words:?}");
        }
    }
}
