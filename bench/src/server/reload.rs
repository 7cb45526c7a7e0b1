//! Reload: how long a server takes to start with many rules, and how long callers wait during a
//! reload.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, free_address};
use crate::report::{Report, progress};
use crate::table::Table;

const QUESTION: &str =
    "How long does it take to start with many rules, and who waits for a reload?";
const OVERHEAD: &str = "Milliseconds. A start ends when the server accepts connections. Then two clients ask \
    one question after the other, with a pause after each: one CL.THROTTLE, one QUELL.ACQUIRE that \
    matches two rules; first while nothing else happens, then while every rule of the file gets \
    another rate again and again. What the first window shows is the machine's.";

/// Time between two changes of the file.
const EVERY: Duration = Duration::from_millis(1_500);

/// Time between an answer and the next call.
const PAUSE: Duration = Duration::from_micros(200);

/// What `bench reload` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Rules in the file.
    #[arg(long, default_value_t = 10_000)]
    rules: u32,
    /// Number of starts, and of reloads.
    #[arg(long, default_value_t = 7)]
    runs: u32,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<std::path::PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If the server fails, or does not reload.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.rules > 1, "--rules must be at least 2");
    let mut report = Report::new("reload", QUESTION, OVERHEAD, settings)?;
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&[])?,
    };
    let folder = bench_folder().join("target").join("reload");
    fs::create_dir_all(&folder)?;
    let file = folder.join("rules.yaml");
    replace(&file, &rules(settings.rules, 100))?;
    let start = || {
        let address = free_address()?;
        let mut command = Command::new(&program);
        command
            .args(["serve", "--http", "off", "--rules"])
            .arg(&file);
        command.args(["--resp", &address.to_string()]);
        let begun = Instant::now();
        let server = Running::start("reload", &mut command, address)?;
        anyhow::Ok((server, address, begun.elapsed()))
    };
    for _ in 0..settings.runs {
        let (_server, _, took) = start()?;
        report.add("start", "quell", "ms", millis(took));
    }
    let (_server, address, _) = start()?;
    let length = EVERY * settings.runs;
    let quiet = ask_during(address, || {
        std::thread::sleep(length);
        Ok(())
    })?;
    let loaded = ask_during(address, || {
        for run in 0..settings.runs {
            replace(&file, &rules(settings.rules, 101 + run))?;
            std::thread::sleep(EVERY);
        }
        Ok(())
    })?;
    let log = fs::read_to_string(bench_folder().join("target/logs/reload.log"))?;
    let reloads = log
        .lines()
        .filter(|line| line.contains("reloaded:"))
        .count();
    progress(&format!("{reloads} reloads"));
    ensure!(reloads > 0, "nothing was reloaded; the server said:\n{log}");
    let mut table = Table::new(["ms", "asked", "50 %", "99 %", "99.99 %", "slowest"]);
    for (window, asked) in [("nothing else", quiet), ("reloads", loaded)] {
        for (name, mut times) in asked {
            times.sort_unstable();
            let case = format!("{name}, {window}");
            let mut row = vec![case.clone(), times.len().to_string()];
            for share in [0.5, 0.99, 0.9999, 1.0] {
                let rank = (times.len() as f64 * share).ceil() as usize;
                let time = times.get(rank.saturating_sub(1)).context("nobody asked")?;
                report.add(&case, &format!("{share}"), "ms", millis(*time));
                row.push(format!("{:.2}", millis(*time)));
            }
            table.row(row);
        }
    }
    let start = report.median("start", "quell").unwrap_or_default();
    let tables = format!(
        "Start with {} rules: {start:.0} ms.\n\n{table}",
        settings.rules
    );
    report.finish(&tables, settings.json)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `count` rules with this rate; two of them match every query.
fn rules(count: u32, rate: u32) -> String {
    let mut text = String::from("domain: bench\nrules:\n");
    for number in 0..count / 2 {
        for kind in ["user", "tenant"] {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  - {{name: {kind}-{number}, match: {{path: /p{number}}}, per: [{kind}], rate: {rate}/s}}"
            );
        }
    }
    text
}

/// Replaces a file as editors do: a new file takes its name.
fn replace(file: &Path, text: &str) -> Result<()> {
    let other = file.with_extension("new");
    fs::write(&other, text)?;
    fs::rename(&other, file).with_context(|| format!("cannot write {}", file.display()))
}

type Times = Vec<(&'static str, Vec<Duration>)>;

/// How long answers take while `work` runs.
fn ask_during(address: SocketAddr, work: impl FnOnce() -> Result<()>) -> Result<Times> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = ["CL.THROTTLE", "QUELL.ACQUIRE"]
            .map(|name| (name, scope.spawn(|| ask(address, name, &over))))
            .into();
        let done = work();
        over.store(true, Ordering::Relaxed);
        done?;
        let times = clients
            .into_iter()
            .map(|(name, client)| match client.join() {
                Ok(times) => Ok((name, times?)),
                Err(_) => anyhow::bail!("a client panicked"),
            });
        times.collect()
    })
}

fn ask(address: SocketAddr, name: &str, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    let mut reply = [0; 4_096];
    let mut number = 0_u32;
    while !over.load(Ordering::Relaxed) {
        number = number.wrapping_add(1) % 1_000;
        let question = match name {
            "CL.THROTTLE" => format!("CL.THROTTLE user:{number} 100 100 60\r\n"),
            _ => format!("QUELL.ACQUIRE bench path /p0 user u{number} tenant t{number}\r\n"),
        };
        let begun = Instant::now();
        stream.write_all(question.as_bytes())?;
        let length = stream.read(&mut reply)?;
        times.push(begun.elapsed());
        let reply = &reply[..length];
        ensure!(reply.starts_with(b"*"), "{name}: {}", reply.escape_ascii());
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}
