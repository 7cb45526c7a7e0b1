//! Servers: two `quell serve` on one Redis admit exactly the limit, even if answers come late.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::tap::Tap;
use super::wire::Wire;
use super::{Lab, Settings};
use crate::processes::{Running, built_quell, free_address};
use crate::report::{Report, progress};
use crate::table::Table;

/// What both together admit in an hour; the measurement takes less than an hour.
const LIMIT: u64 = 1_000;

/// Calls at each server.
const CALLS: usize = 1_500;

/// Callers at each server.
const CALLERS: usize = 30;

/// How long one call is repeated: many times what the slowest store here needs for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a store behaves: every how many answers one is late and by how much, and how long servers wait
/// for an answer.
struct Weather {
    name: &'static str,
    delay: Duration,
    every: u64,
    timeout: &'static str,
}

const WEATHERS: [Weather; 3] = [
    Weather {
        name: "at once",
        delay: Duration::ZERO,
        every: 1,
        timeout: "10s",
    },
    Weather {
        name: "200 ms late",
        delay: Duration::from_millis(200),
        every: 1,
        timeout: "10s",
    },
    Weather {
        name: "every 20th 200 ms late, given up after 100 ms and asked again",
        delay: Duration::from_millis(200),
        every: 20,
        timeout: "100ms",
    },
];

/// Counts the calls that pass. Returns the table.
pub(super) fn run(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&[])?,
    };
    let folder = std::env::temp_dir().join(format!("quell-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let rules = folder.join("rules.yaml");
    fs::write(
        &rules,
        format!(
            "domain: bench\ndefaults: {{ on_failure: deny }}\nrules:\n  - {{ name: hot, per: [user], algorithm: fixed_window, limit: {LIMIT}/h }}\n"
        ),
    )?;
    let mut table = Table::new([
        "answers of the store",
        "limit",
        "calls",
        "passed",
        "asked again",
        "used in the store",
    ]);
    for weather in &WEATHERS {
        Wire::connect(lab.address)?.ask(&[b"FLUSHALL"])?;
        let tap = Tap::start(lab.address, weather.delay, weather.every)?;
        let servers =
            [0, 1].map(|number| start(&program, &rules, tap.address, weather.timeout, number));
        let [one, other] = servers;
        let (one, other) = (one?, other?);
        let callers: Vec<_> = [one.1, other.1]
            .into_iter()
            .flat_map(|address| (0..CALLERS).map(move |_| thread::spawn(move || call(address))))
            .collect();
        let (mut passed, mut again) = (0, 0);
        for caller in callers {
            let counts = caller.join().map_err(|_| anyhow!("a caller broke off"))??;
            passed += counts.0;
            again += counts.1;
        }
        let used = LIMIT - remaining(lab, &program, &rules)?;
        let name = weather.name;
        progress(&format!(
            "{name}: {passed} of {LIMIT} passed, {again} asked again, {used} used"
        ));
        report.add(name, "passed", "calls", passed as f64);
        report.add(name, "used", "calls", used as f64);
        let numbers = [LIMIT, 2 * CALLS as u64, passed, again, used];
        table.row(
            [name.to_owned()]
                .into_iter()
                .chain(numbers.map(|number| number.to_string())),
        );
    }
    fs::remove_dir_all(&folder)?;
    Ok(table.to_string())
}

fn start(
    program: &Path,
    rules: &Path,
    store: SocketAddr,
    timeout: &str,
    number: usize,
) -> Result<(Running, SocketAddr)> {
    let (resp, http) = (free_address()?, free_address()?);
    let mut command = Command::new(program);
    command.arg("serve").arg("--rules").arg(rules);
    command.args([
        "--store",
        &format!("redis://{store}"),
        "--store-timeout",
        timeout,
    ]);
    command.args(["--resp", &resp.to_string(), "--http", &http.to_string()]);
    Ok((
        Running::start(&format!("quell-{number}"), &mut command, resp)?,
        resp,
    ))
}

/// One caller, which repeats each call until it is answered: how many calls passed, and how many were
/// repeated.
///
/// # Errors
/// If a call has no answer for [`PATIENCE`]; the error contains the last reply.
fn call(address: SocketAddr) -> Result<(u64, u64)> {
    let mut wire = Wire::connect(address)?;
    let (mut passed, mut again) = (0, 0);
    for _ in 0..CALLS / CALLERS {
        let begun = Instant::now();
        loop {
            let last = match wire.ask(&[b"QUELL.ACQUIRE", b"bench", b"user", b"hot"]) {
                Ok(answer) if !says(&answer, "degraded") => {
                    passed += u64::from(says(&answer, "allowed"));
                    break;
                }
                // The declared answer for a store that does not answer, which is to refuse.
                Ok(answer) => answer,
                Err(error) => {
                    // The server may have closed the connection.
                    wire = Wire::connect(address)?;
                    error.to_string()
                }
            };
            ensure!(
                begun.elapsed() < PATIENCE,
                "no answer of the store within {PATIENCE:?}, last: {last}"
            );
            again += 1;
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok((passed, again))
}

/// Whether a field of an answer is true.
fn says(answer: &str, field: &str) -> bool {
    let mut lines = answer.lines();
    while let Some(line) = lines.next() {
        if line == field {
            return lines
                .next()
                .is_some_and(|value| value == "1" || value == "true");
        }
    }
    false
}

/// What is left in the store, according to a server without delays.
fn remaining(lab: &Lab, program: &Path, rules: &Path) -> Result<u64> {
    let (_server, address) = start(program, rules, lab.address, "10s", 2)?;
    let answer = Wire::connect(address)?.ask(&[b"QUELL.PEEK", b"bench", b"user", b"hot"])?;
    let mut lines = answer
        .lines()
        .skip_while(|line| *line != "remaining")
        .skip(1);
    Ok(lines.next().unwrap_or_default().parse()?)
}
