//! Holds: how long the store works on a call for a key with many permits held, units reserved or
//! callers in a queue, up to the bounds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quell::store::HoldStore;
use quell::{Cost, Limiter, Verdict};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_redis::RedisStore;

use super::limits::{limiter, query};
use super::wire::Wire;
use super::{Lab, Settings};
use crate::report::{Report, progress};
use crate::table::Table;

/// Holds on the key: up to the bound of 1,000, with room for one more call.
const SIZES: [usize; 4] = [100, 200, 500, 990];

/// The most callers that may queue on a shared store.
const LONGEST_LINE: usize = 200;

/// The most reservations on a key that may be given back when they expire.
const MOST_RELEASED: usize = 100;

/// The most permits of a learned ceiling on a shared store.
const MOST_LEARNED: usize = 500;

/// Number of calls whose median is one figure.
const CALLS: usize = 30;

/// The holds on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// Permits, all of them held.
    Permits,
    /// The same under a limit that learns its ceiling.
    Learned,
    /// Reserved units that stay charged when they expire.
    Reserved,
    /// The same, but they are given back when they expire.
    Released,
    /// Callers that wait for a rate.
    Line,
}

/// The calls that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Peek,
    PeekAll,
    Refused,
    /// A claim that is admitted, and its end.
    Turn,
    /// A caller joins the queue, asks for its place again, and leaves.
    Join,
}

const SUBJECTS: [(Ground, Call, &str); 13] = [
    (Ground::Permits, Call::Peek, "permits: peek, refused"),
    (
        Ground::Permits,
        Call::PeekAll,
        "permits: peek at all of them",
    ),
    (Ground::Permits, Call::Refused, "permits: claim, refused"),
    (
        Ground::Permits,
        Call::Turn,
        "permits: claim, admitted|permits: release",
    ),
    (
        Ground::Learned,
        Call::PeekAll,
        "learned ceiling: peek at all",
    ),
    (
        Ground::Learned,
        Call::Turn,
        "learned ceiling: claim|learned ceiling: release",
    ),
    (Ground::Reserved, Call::PeekAll, "reserved: peek at all"),
    (
        Ground::Reserved,
        Call::Turn,
        "reserved: claim, admitted|reserved: settle",
    ),
    (
        Ground::Released,
        Call::Peek,
        "given back when over: peek, refused",
    ),
    (
        Ground::Released,
        Call::PeekAll,
        "given back when over: peek at all",
    ),
    (
        Ground::Released,
        Call::Turn,
        "given back when over: claim|given back when over: settle",
    ),
    (Ground::Line, Call::Peek, "line: peek, refused"),
    (
        Ground::Line,
        Call::Join,
        "line: joins|line: moves up|line: leaves",
    ),
];

/// Measures the time of scripts per call. Returns the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let mut wire = Wire::connect(lab.address)?;
    let runtime = super::runtime()?;
    for run in 0..settings.runs {
        for size in SIZES {
            for (ground, call, names) in SUBJECTS {
                let most = match ground {
                    Ground::Line => LONGEST_LINE,
                    Ground::Released => MOST_RELEASED,
                    Ground::Learned => MOST_LEARNED,
                    _ => usize::MAX,
                };
                if size > most {
                    continue;
                }
                wire.ask(&[b"FLUSHALL"])?;
                let micros = runtime.block_on(measure(ground, call, size, lab, &mut wire))?;
                for (name, micros) in names.split('|').zip(micros) {
                    report.add(&format!("{size} holds"), name, "us", micros);
                    progress(&format!(
                        "run {}  {size:>5}  {name:<42} {micros:>8.0} us",
                        run + 1
                    ));
                }
            }
        }
    }
    let mut table = Table::new(["script us per call", "100", "200", "500", "990"]);
    for name in SUBJECTS.iter().flat_map(|(.., names)| names.split('|')) {
        let figure = |size| {
            let median = report.median(&format!("{size} holds"), name);
            median.map_or_else(String::new, |micros| format!("{micros:.0}"))
        };
        let [one, two, five, most] = SIZES.map(figure);
        table.row([name.to_owned(), one, two, five, most]);
    }
    Ok(table.to_string())
}

/// Fills one key and calls it. Returns the median microseconds of the scripts for each kind of
/// call.
async fn measure(
    ground: Ground,
    call: Call,
    size: usize,
    lab: &Lab,
    wire: &mut Wire,
) -> Result<Vec<f64>> {
    let is_full = ground == Ground::Learned;
    let room = size + usize::from(call == Call::Turn && !is_full);
    let limit = match ground {
        Ground::Permits => format!("algorithm: concurrency, max: {room}, lease: 1h"),
        Ground::Learned => {
            format!("algorithm: concurrency, adaptive: {{ min: {room}, max: {room} }}, lease: 1h")
        }
        Ground::Reserved => format!("rate: {size}/day, burst: {room}"),
        Ground::Released => format!("rate: {size}/day, burst: {room}, on_expiry: release"),
        Ground::Line => "rate: 1/s, burst: 1".to_owned(),
    };
    let limiter = limiter(&lab.url(), &[&limit])?;
    // Leaves room for one more below the bound.
    let leaves_room =
        call == Call::Join || ((is_full || ground == Ground::Released) && call == Call::Turn);
    let places = size - usize::from(leaves_room);
    for number in 0..places {
        let verdict = put(ground, &limiter, &format!("job-{number:08}"), number).await?;
        ensure!(verdict.is_allow(), "hold {number} of {ground:?} is refused");
    }
    let mut took = vec![Vec::new(); 3];
    for number in 0..CALLS {
        ask(ground, call, &limiter, (size, number), wire, &mut took).await?;
    }
    let median = |figures: Vec<f64>| {
        let mut figures = figures;
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    };
    Ok(took.into_iter().filter_map(median).collect())
}

/// Adds one hold.
async fn put(
    ground: Ground,
    limiter: &Limiter<RedisStore>,
    name: &str,
    number: usize,
) -> Result<Verdict> {
    Ok(match ground {
        Ground::Reserved | Ground::Released => {
            let keep = Duration::from_secs(3_600 + number as u64 * 7_919 % 1_000);
            limiter.reserve(&query(0), keep, Some(name)).await?
        }
        // For as long as is allowed.
        Ground::Line => {
            let id = id(name)?;
            let claim = Claim {
                id: &id,
                hold: None,
                wait: Some(WaitLimits::of(Duration::from_secs(86_400))),
                is_named: true,
                pending: None,
            };
            limiter.hold_at(&query(0), &claim, limiter.now()).await?
        }
        _ => {
            limiter
                .reserve(&query(0), Duration::from_secs(60), Some(name))
                .await?
        }
    })
}

fn id(name: &str) -> Result<HoldId> {
    HoldId::new("bench", name).context("a bad name")
}

/// The time that scripts took since the last call of this function.
fn spent(wire: &mut Wire, since: &mut f64) -> Result<f64> {
    let mut all = 0.0;
    for command in ["cmdstat_evalsha", "cmdstat_eval"] {
        let line = wire.info("commandstats", command)?;
        let spent = line
            .split("usec=")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        all += spent.map_or(Ok(0.0), str::parse::<f64>)?;
    }
    Ok(all - std::mem::replace(since, all))
}

/// Makes the calls once, and records how long each took.
async fn ask(
    ground: Ground,
    call: Call,
    limiter: &Limiter<RedisStore>,
    (size, number): (usize, usize),
    wire: &mut Wire,
    took: &mut [Vec<f64>],
) -> Result<()> {
    let mut since = 0.0;
    spent(wire, &mut since)?;
    let all = Cost::new(size as u64).unwrap_or(Cost::ONE);
    let name = format!("turn-{number:07}");
    let mut note = |wire: &mut Wire, part: usize| -> Result<()> {
        let micros = spent(wire, &mut since)?;
        took.get_mut(part).context("no such part")?.push(micros);
        Ok(())
    };
    match call {
        Call::Peek | Call::PeekAll => {
            let cost = if call == Call::Peek { Cost::ONE } else { all };
            let verdict = limiter.peek(&query(0).cost(cost)).await?;
            ensure!(!verdict.is_allow(), "{ground:?} {call:?} is allowed");
            note(wire, 0)?;
        }
        Call::Refused => {
            let verdict = put(ground, limiter, &name, 0).await?;
            ensure!(!verdict.is_allow(), "{ground:?} {call:?} is allowed");
            note(wire, 0)?;
        }
        Call::Turn => {
            let verdict = put(ground, limiter, &name, 0).await?;
            ensure!(verdict.is_allow(), "{ground:?} {call:?} is refused");
            note(wire, 0)?;
            limiter.settle("bench", &name, 0).await?;
            note(wire, 1)?;
        }
        Call::Join => {
            put(ground, limiter, &name, 0).await?;
            note(wire, 0)?;
            limiter.store().advance(&id(&name)?, limiter.now()).await?;
            note(wire, 1)?;
            limiter
                .end_at(&id(&name)?, Ending::Cancel, limiter.now())
                .await?;
            note(wire, 2)?;
        }
    }
    Ok(())
}
