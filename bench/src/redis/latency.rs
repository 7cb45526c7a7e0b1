//! Latency: how long one call takes, compared with a bare `GET` at the same pace.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::limits::{BUCKET, limiter, query};
use super::wire::{Wire, frame};
use super::{Lab, Settings, rivals};
use crate::report::{Report, median, progress};
use crate::table::Table;

/// Calls per second: a pace that the server hardly notices, and a tenth of what it can do.
const PACES: [u64; 2] = [1_000, 10_000];

/// Measures at each pace. Returns the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let mut wire = Wire::connect(lab.address)?;
    let hash = wire.ask(&[b"SCRIPT", b"LOAD", rivals::GCRA.as_bytes()])?;
    let tap = super::tap::Tap::start(lab.address, Duration::ZERO, 1)?;
    let subject = limiter(&format!("redis://{}", tap.address), &[BUCKET])?;
    let runtime = super::runtime()?;
    for _ in 0..2 {
        runtime.block_on(subject.try_acquire(&query(7)))?;
    }
    let quell = tap.frames(b"EVALSHA").pop().unwrap_or_default();
    let words = ["EVALSHA", &hash, "1", "rate:7", "10000", "2000000"].map(str::as_bytes);
    let loads = [
        ("GET", frame(&[b"GET", b"user:7"])),
        ("smallest GCRA", frame(&words)),
        ("quell", quell),
    ];
    wire.ask(&[b"SET", b"user:7", b"17"])?;
    for run in 0..settings.runs {
        for pace in PACES {
            for turn in 0..loads.len() {
                let (name, call) = &loads[(run + turn) % loads.len()];
                let times = paced(&mut wire, call, pace)?;
                let share = |share: f64| times[(times.len() as f64 * share) as usize];
                report.add(&format!("{pace} per s, median"), name, "us", share(0.5));
                report.add(&format!("{pace} per s, p99"), name, "us", share(0.99));
                progress(&format!(
                    "run {}  {pace:>6} per s  {name:<16} {:.0} us",
                    run + 1,
                    share(0.5)
                ));
            }
        }
    }
    let mut table = Table::new([
        "us at a pace of",
        "GET",
        "smallest GCRA",
        "quell",
        "quell to GET",
    ]);
    for case in PACES
        .iter()
        .flat_map(|pace| ["median", "p99"].map(|at| format!("{pace} per s, {at}")))
    {
        let cells = loads
            .iter()
            .map(|(name, _)| report.median(&case, name).unwrap_or(f64::NAN));
        let cells: Vec<f64> = cells.collect();
        let texts = cells.iter().map(|micros| format!("{micros:.0}"));
        let to_get = format!("{:.2}", cells[2] / cells[0]);
        table.row([case.clone()].into_iter().chain(texts).chain([to_get]));
    }
    Ok(table.to_string())
}

/// Times of one second of calls, sorted, in microseconds. A call that is due while another one is
/// under way begins after it; the time before that is not counted.
fn paced(wire: &mut Wire, call: &[u8], pace: u64) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut text = String::new();
    for number in 0..pace {
        let due = begun + Duration::from_secs(1) * u32::try_from(number)? / u32::try_from(pace)?;
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let sent = Instant::now();
        wire.send(call)?;
        text.clear();
        wire.reply(&mut text)?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    debug_assert!(median(&times) > 0.0);
    Ok(times)
}
