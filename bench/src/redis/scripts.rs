//! Scripts: what a call costs the server, compared with the smallest script and a bucket in JSON; one
//! limit of each kind, and sets of several.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::limits::{BUCKET, SUBJECTS, limiter, query};
use super::tap::Tap;
use super::wire::{Wire, frame};
use super::{Lab, Settings, rivals};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

/// Calls under way at a time: enough that the server never waits for the client.
const PIPELINE: usize = 64;

/// Bytes of the only key.
const USAGE: &[u8] = b"return redis.call('MEMORY', 'USAGE', redis.call('KEYS', '*')[1])";

/// The calls that are sent over and over, with a name.
struct Load {
    name: String,
    /// Frames of [`PIPELINE`] calls each.
    batches: Vec<Vec<u8>>,
}

/// Measures calls per second and processor time per call. Returns the tables.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let mut loads = rival_loads(settings, lab)?;
    for (name, limits) in SUBJECTS {
        loads.push(Load {
            name: name.to_owned(),
            batches: batches(&recorded(lab.address, limits, settings.keys)?),
        });
    }
    let mut wire = Wire::connect(lab.address)?;
    for run in 0..settings.runs {
        for turn in 0..loads.len() {
            let load = &loads[(run + turn) % loads.len()];
            wire.ask(&[b"FLUSHALL"])?;
            // When the measurement starts, half of the keys exist.
            saturate(&mut wire, load, settings.calls / 4)?;
            let before = wire.processor_time()?;
            let took = saturate(&mut wire, load, settings.calls)?;
            let micros = (wire.processor_time()? - before) / settings.calls as f64;
            let rate = settings.calls as f64 / took.as_secs_f64();
            report.add("rate", &load.name, "per second", rate);
            report.add("processor", &load.name, "us", micros);
            let name = &load.name;
            progress(&format!(
                "run {}  {name:<24} {:>6.0}k per s {micros:>6.2} us",
                run + 1,
                rate / 1e3
            ));
        }
    }
    Ok(table(report, &loads))
}

/// Rates depend on what else the machine does, processor time does not: a saturated server answers as
/// many calls as fit into a second of its core.
fn table(report: &Report, loads: &[Load]) -> String {
    let mut table = Table::new([
        "one call",
        "server us",
        "k per s of one core",
        "to smallest GCRA",
        "to JSON",
    ]);
    for load in loads {
        let micros = report.median("processor", &load.name);
        let known = micros.unwrap_or(f64::NAN);
        table.row([
            load.name.clone(),
            format!("{known:.2}"),
            format!("{:.0}", 1e3 / known),
            ratio(report.median("processor", "smallest GCRA"), micros),
            ratio(report.median("processor", "JSON leaky bucket"), micros),
        ]);
    }
    table.to_string()
}

fn rival_loads(settings: &Settings, lab: &Lab) -> Result<Vec<Load>> {
    let mut wire = Wire::connect(lab.address)?;
    let mut loads = Vec::new();
    let scripts = [
        ("smallest GCRA", rivals::GCRA, rivals::GCRA_NUMBERS),
        ("JSON leaky bucket", rivals::JSON, rivals::JSON_NUMBERS),
    ];
    for (name, script, numbers) in scripts {
        let hash = wire.ask(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
        let call = |user: usize| {
            let key = format!("rate:user:{:012}", scattered(user, settings.keys));
            let words = ["EVALSHA", &hash, "1", &key, numbers[0], numbers[1]];
            frame(&words.map(str::as_bytes))
        };
        let frames: Vec<_> = (0..settings.keys).map(call).collect();
        loads.push(Load {
            name: name.to_owned(),
            batches: batches(&frames),
        });
    }
    Ok(loads)
}

/// Users in an order in which neighbours are far apart, each once.
fn scattered(number: usize, users: usize) -> usize {
    // A prime that does not divide any number of keys used here.
    (number * 1_000_003) % users
}

/// The bytes that a store sends for one call on each key.
fn recorded(server: SocketAddr, limits: &[&str], keys: usize) -> Result<Vec<Vec<u8>>> {
    let tap = Tap::start(server, Duration::ZERO, 1)?;
    let subject = limiter(&format!("redis://{}", tap.address), limits)?;
    super::runtime()?.block_on(async {
        // The first calls find the script missing, and the calendar's window.
        for user in (0..2).chain(0..keys) {
            let verdict = subject.try_acquire(&query(scattered(user, keys))).await?;
            ensure!(verdict.is_allow(), "a call that should pass is refused");
        }
        Ok(())
    })?;
    let mut frames = tap.frames(b"EVALSHA");
    ensure!(frames.len() >= keys, "not every call was one EVALSHA");
    Ok(frames.split_off(frames.len() - keys))
}

fn batches(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.chunks_exact(PIPELINE).map(<[_]>::concat).collect()
}

/// Sends `calls` calls as fast as the server answers: while it works on one batch, the next is already
/// there.
fn saturate(wire: &mut Wire, load: &Load, calls: usize) -> Result<Duration> {
    let begun = Instant::now();
    let mut text = String::new();
    let count = calls.div_ceil(PIPELINE);
    let mut batches = load.batches.iter().cycle().take(count);
    if let Some(first) = batches.next() {
        wire.send(first)?;
    }
    for batch in batches.map(Some).chain([None]) {
        if let Some(batch) = batch {
            wire.send(batch)?;
        }
        for _ in 0..PIPELINE {
            text.clear();
            wire.reply(&mut text)?;
        }
    }
    Ok(begun.elapsed())
}

/// Bytes that one key takes in the server, including its name.
pub(super) fn bytes(lab: &Lab, report: &mut Report) -> Result<String> {
    let mut wire = Wire::connect(lab.address)?;
    let mut table = Table::new(["state", "bytes after 1 charge", "after 100"]);
    let mut measure = |name: &str, charge: &mut dyn FnMut(usize) -> Result<()>| -> Result<()> {
        wire.ask(&[b"FLUSHALL"])?;
        let mut cells = vec![name.to_owned()];
        for (case, charges) in [("bytes after 1", 1), ("bytes after 100", 99)] {
            for _ in 0..charges {
                charge(0)?;
            }
            let used = wire.ask(&[b"EVAL", USAGE, b"0"])?;
            let used: u64 = used
                .parse()
                .with_context(|| format!("{name} left no key"))?;
            report.add(case, name, "bytes", used as f64);
            cells.push(used.to_string());
        }
        table.row(cells);
        Ok(())
    };
    let mut rival = Wire::connect(lab.address)?;
    for (name, script, numbers) in [
        // Slow enough that the key still exists when its size is read.
        ("smallest GCRA", rivals::GCRA, ["60000000", "12000000000"]),
        ("JSON leaky bucket", rivals::JSON, rivals::JSON_NUMBERS),
    ] {
        let words = [
            "EVAL",
            script,
            "1",
            "rate:user:000000000000",
            numbers[0],
            numbers[1],
        ];
        measure(name, &mut |_| {
            rival.ask(&words.map(str::as_bytes)).map(drop)
        })?;
    }
    let runtime = super::runtime()?;
    for (name, limits) in SUBJECTS.iter().filter(|(_, limits)| limits.len() == 1) {
        let subject = limiter(&lab.url(), limits)?;
        measure(name, &mut |user| {
            runtime.block_on(subject.try_acquire(&query(user)))?;
            Ok(())
        })?;
    }
    Ok(table.to_string())
}

/// Round trips per query, according to the server's counters.
pub(super) fn trips(lab: &Lab, report: &mut Report) -> Result<String> {
    const QUERIES: usize = 1_000;
    let mut wire = Wire::connect(lab.address)?;
    let mut table = Table::new([
        "limits in the set",
        "queries",
        "script calls",
        "connections",
    ]);
    let runtime = super::runtime()?;
    for limits in [&[BUCKET; 1][..], &[BUCKET; 3], &[BUCKET; 8]] {
        let subject = limiter(&lab.url(), limits)?;
        runtime.block_on(subject.try_acquire(&query(0)))?;
        let before = (wire.calls("evalsha")?, wire.calls("eval")?);
        for user in 0..QUERIES {
            runtime.block_on(subject.try_acquire(&query(user)))?;
        }
        let calls = wire.calls("evalsha")? - before.0 + wire.calls("eval")? - before.1;
        // This program's own connection does not count.
        let connections: u64 = wire.info("clients", "connected_clients")?.parse::<u64>()? - 1;
        report.add(
            "script calls",
            &limits.len().to_string(),
            "calls",
            calls as f64,
        );
        table.row(
            [limits.len(), QUERIES]
                .map(|number| number.to_string())
                .into_iter()
                .chain([calls.to_string(), connections.to_string()]),
        );
    }
    Ok(table.to_string())
}
