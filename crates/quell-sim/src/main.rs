//! The command line of the simulation: `cargo run --release -p quell-sim -- --seeds 10000`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use quell_sim::run::{Outcome, run};
use quell_sim::schedules::{SCHEDULES, Schedule};
use quell_sim::setup::{DRIFT, MAX_DRIFT, Wish};
use quell_sim::summary::Summary;
use quell_sim::{figure, many, utilisation};

/// Tries to break a simulated fleet; exits with 1 if that succeeds.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Number of seeds to run with random faults.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed, or the only one with --trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Members of each fleet [default: 2 to 6, by seed].
    #[arg(long)]
    members: Option<usize>,
    /// Limits of each fleet [default: 1 or 2, by seed].
    #[arg(long)]
    limits: Option<usize>,
    /// Simulated seconds of each seed.
    #[arg(long, default_value_t = 500)]
    seconds: u64,
    /// Parts in a million by which clocks may drift, as the protocol is told.
    #[arg(long, value_name = "PPM", default_value_t = DRIFT, value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_DRIFT))]
    drift: u64,
    /// Play one hand-made schedule, or `none`, instead of all; see --list.
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Print every event of one seed.
    #[arg(long)]
    trace: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Print the schedules, one a line.
    #[arg(long)]
    list: bool,
    /// Threads [default: one for each processor].
    #[arg(long)]
    jobs: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Draws a fleet's day as an SVG, to standard output.
    Figure,
    /// Measures how much of a limit ten nodes admit when they are offered twice as much.
    Utilisation,
}

fn main() -> ExitCode {
    match act(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let _ = writeln!(io::stderr(), "quell-sim: {error}");
            ExitCode::from(2)
        }
        // The reader of the output has closed it.
        Err(_) => ExitCode::from(1),
    }
}

fn act(arguments: &Arguments) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match arguments.command {
        Some(Command::Figure) => {
            out.write_all(figure::draw().as_bytes())?;
            return Ok(true);
        }
        Some(Command::Utilisation) => {
            let text = if arguments.json {
                format!("{:#}\n", utilisation::json())
            } else {
                utilisation::text()
            };
            out.write_all(text.as_bytes())?;
            return Ok(true);
        }
        None => {}
    }
    if arguments.list {
        for schedule in SCHEDULES {
            writeln!(out, "schedule {}: {}", schedule.name, schedule.about)?;
        }
        return Ok(true);
    }
    let schedules = schedules(arguments)?;
    if arguments.trace {
        return trace(arguments, &schedules, &mut out);
    }
    many_runs(arguments, &schedules, &mut out)
}

fn schedules(arguments: &Arguments) -> io::Result<Vec<&'static Schedule>> {
    match arguments.schedule.as_deref() {
        None => Ok(SCHEDULES.iter().collect()),
        Some("none") => Ok(Vec::new()),
        Some(name) => {
            let found: Vec<_> = SCHEDULES.iter().filter(|s| s.name == name).collect();
            if found.is_empty() {
                let text = format!("no schedule {name}; --list prints them");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Ok(found)
        }
    }
}

fn wish(arguments: &Arguments, seed: u64) -> Wish {
    Wish {
        seed,
        members: arguments.members,
        limits: arguments.limits,
        seconds: arguments.seconds.max(150),
        drift: arguments.drift,
    }
}

fn trace(
    arguments: &Arguments,
    schedules: &[&'static Schedule],
    out: &mut impl Write,
) -> io::Result<bool> {
    let schedule = arguments.schedule.as_ref().and(schedules.first().copied());
    let outcome = run(wish(arguments, arguments.seed.unwrap_or(1)), schedule, true);
    for line in &outcome.trace {
        writeln!(out, "{line}")?;
    }
    match &outcome.violation {
        Some(violation) => writeln!(
            out,
            "{} broken at {} us, event {}: {}",
            violation.promise,
            violation.at / 1_000,
            outcome.steps,
            violation.text
        )?,
        None => writeln!(out, "every promise kept; {} events", outcome.steps)?,
    }
    Ok(outcome.violation.is_none())
}

fn many_runs(
    arguments: &Arguments,
    schedules: &[&'static Schedule],
    out: &mut impl Write,
) -> io::Result<bool> {
    let started = Instant::now();
    let first = arguments.seed.unwrap_or(1);
    // If one schedule was named, it is played with every seed; otherwise each schedule is
    // played with three seeds.
    let alone = arguments.schedule.is_some() && !schedules.is_empty();
    let (random, rounds) = if alone {
        (0, arguments.seeds)
    } else {
        (arguments.seeds, 3.min(arguments.seeds))
    };
    let mut jobs: Vec<(Wish, Option<&'static Schedule>)> = Vec::new();
    for round in 0..rounds {
        let with = |schedule: &&'static Schedule| (wish(arguments, first + round), Some(*schedule));
        jobs.extend(schedules.iter().map(with));
    }
    jobs.extend((first..first + random).map(|seed| (wish(arguments, seed), None)));
    let threads = arguments.jobs.unwrap_or_else(many::processors);
    let mut summary = Summary::default();
    let total = jobs.len();
    let mut shown = Instant::now();
    let terminal = io::stderr().is_terminal();
    many::run(jobs, threads, |outcome: &Outcome, schedule| {
        summary.add(outcome, schedule);
        let every = if terminal { 1 } else { 10 };
        if shown.elapsed() > Duration::from_secs(every) {
            shown = Instant::now();
            let end = if terminal { '\r' } else { '\n' };
            let done = summary.runs();
            let broken = summary.broken();
            let took = started.elapsed().as_secs();
            let _ = write!(
                io::stderr(),
                "{done} of {total} runs, {broken} broken, {took} s{end}"
            );
        }
    });
    let text = if arguments.json {
        summary.json(!alone)
    } else {
        summary.text(started.elapsed(), !alone)
    };
    out.write_all(text.as_bytes())?;
    Ok(summary.broken() == 0)
}
