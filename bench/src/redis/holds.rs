//! Holds: what a look at a key costs the store with so many permits held, units reserved or callers in
//! line on it, as far as the bounds go.

use std::time::Duration;

use anyhow::{Result, ensure};
use quell::{Cost, Limiter, Query};
use quell_core::hold::{Claim, HoldId, Patience};
use quell_redis::RedisStore;

use super::limits::{limiter, query};
use super::wire::Wire;
use super::{Lab, Settings};
use crate::report::{Report, progress};
use crate::table::Table;

/// How much there is on the key: up to the bound of 1,000 holds, with room for one call more.
const SIZES: [usize; 3] = [100, 200, 990];

/// Callers who may stand in line on a shared store.
const LONGEST_LINE: usize = 200;

/// Calls of which one figure is made.
const CALLS: usize = 50;

/// What lies on a key, and what is asked of it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    PermitPeek,
    PermitPeekAll,
    PermitRefused,
    PermitTurn,
    ReservedPeek,
    ReservedTurn,
    LinePeek,
    Fill,
}

const SUBJECTS: [(Subject, &str); 8] = [
    (Subject::PermitPeek, "permits: peek, refused"),
    (Subject::PermitPeekAll, "permits: peek at all of them"),
    (Subject::PermitRefused, "permits: claim, refused"),
    (Subject::PermitTurn, "permits: claim and release"),
    (Subject::ReservedPeek, "released when over: peek at all"),
    (
        Subject::ReservedTurn,
        "released when over: reserve and settle",
    ),
    (Subject::LinePeek, "line: peek, refused"),
    (Subject::Fill, "permits: claim while it fills"),
];

/// Measures processor time per call; the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let mut wire = Wire::connect(lab.address)?;
    let runtime = super::runtime()?;
    for run in 0..settings.runs {
        for size in SIZES {
            for (subject, name) in SUBJECTS {
                if subject == Subject::LinePeek && size > LONGEST_LINE {
                    continue;
                }
                wire.ask(&[b"FLUSHALL"])?;
                let micros = runtime.block_on(measure(subject, size, lab, &mut wire))?;
                report.add(&format!("{size} holds"), name, "us", micros);
                progress(&format!(
                    "run {}  {size:>5}  {name:<42} {micros:>8.0} us",
                    run + 1
                ));
            }
        }
    }
    let mut table = Table::new(["server us per call", "100", "200", "990"]);
    for (_, name) in SUBJECTS {
        let figure = |size| report.median(&format!("{size} holds"), name);
        let figure = |size| figure(size).map_or_else(String::new, |micros| format!("{micros:.0}"));
        table.row([name.to_owned(), figure(100), figure(200), figure(990)]);
    }
    Ok(table.to_string())
}

/// Fills one key and asks; microseconds of the server per call.
async fn measure(subject: Subject, size: usize, lab: &Lab, wire: &mut Wire) -> Result<f64> {
    let room = size + usize::from(subject == Subject::PermitTurn);
    let limit = match subject {
        Subject::ReservedPeek | Subject::ReservedTurn => {
            format!("rate: {size}/day, burst: {}, on_expiry: release", size + 1)
        }
        Subject::LinePeek => "rate: 1/s, burst: 1".to_owned(),
        _ => format!("algorithm: concurrency, max: {room}, lease: 1h"),
    };
    let limiter = limiter(&lab.url(), &[&limit])?;
    let before = wire.processor_time()?;
    for number in 0..size {
        put(subject, &limiter, number).await?;
    }
    if subject == Subject::Fill {
        return Ok((wire.processor_time()? - before) / size as f64);
    }
    let before = wire.processor_time()?;
    let mut calls = 0;
    for number in 0..CALLS {
        calls += ask(subject, &limiter, size, number).await?;
    }
    Ok((wire.processor_time()? - before) / f64::from(calls))
}

/// Adds one hold.
async fn put(subject: Subject, limiter: &Limiter<RedisStore>, number: usize) -> Result<()> {
    let name = format!("job-{number:08}");
    let verdict = match subject {
        Subject::ReservedPeek | Subject::ReservedTurn => {
            let keep = Duration::from_secs(3_600 + number as u64 * 7_919 % 1_000);
            limiter.reserve(&query(0), keep, Some(&name)).await?
        }
        Subject::LinePeek => wait(limiter, &query(0), &name).await?,
        _ => limiter.try_acquire(&query(0)).await?,
    };
    ensure!(
        verdict.is_allow(),
        "hold {number} of {subject:?} is refused"
    );
    Ok(())
}

/// Takes a place in the line, for as long as it may take.
async fn wait(
    limiter: &Limiter<RedisStore>,
    query: &Query<'_>,
    name: &str,
) -> Result<quell::Verdict> {
    let id = HoldId::new(query.domain(), name).ok_or_else(|| anyhow::anyhow!("a bad name"))?;
    let claim = Claim {
        id: &id,
        hold: None,
        wait: Some(Patience::of(Duration::from_secs(86_400))),
        is_named: true,
    };
    Ok(limiter.hold_at(query, &claim, limiter.now()).await?)
}

/// Asks once; how many calls that took.
async fn ask(
    subject: Subject,
    limiter: &Limiter<RedisStore>,
    size: usize,
    number: usize,
) -> Result<u32> {
    let all = Cost::new(size as u64).unwrap_or(Cost::ONE);
    let is_refused = match subject {
        Subject::PermitPeek | Subject::LinePeek => !limiter.peek(&query(0)).await?.is_allow(),
        Subject::PermitPeekAll | Subject::ReservedPeek => {
            !limiter.peek(&query(0).cost(all)).await?.is_allow()
        }
        Subject::PermitRefused => !limiter.try_acquire(&query(0)).await?.is_allow(),
        Subject::PermitTurn => {
            let verdict = limiter.try_acquire(&query(0)).await?;
            let id = verdict.id.unwrap_or_default();
            limiter.release("bench", &id).await?;
            return Ok(2);
        }
        Subject::ReservedTurn => {
            let name = format!("turn-{number}");
            limiter
                .reserve(&query(0), Duration::from_secs(60), Some(&name))
                .await?;
            limiter.settle("bench", &name, 0).await?;
            return Ok(2);
        }
        Subject::Fill => return Ok(1),
    };
    ensure!(is_refused, "{subject:?} is allowed");
    Ok(1)
}
