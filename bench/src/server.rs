//! Server: what a decision costs on the wire, compared with Redis.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::processes::{Running, on_path};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

pub(crate) mod clients;
mod rivals;

use clients::{KEYS, Load, redis_benchmark, wrk};
use rivals::{HttpRival, Rival, Servers};

const QUESTION: &str = "What does a decision cost on the wire?";
const OVERHEAD: &str = "Thousands per second, and ratios of medians to a Redis GET, a bare look-up. Client \
    and server share this machine's cores, so ratios count, not absolutes; without pipelining the \
    client is the slower of the two and hides differences between servers, which is why the \
    processor time that a server spends on a command stands beside its rate.";

/// Requests that show how long a run must be, and warm the server up.
const FIRST_LOOK: u64 = 100_000;

/// The same, with a connection for each.
const FIRST_CONNECTIONS: u64 = 5_000;

/// The most connections of one run: each keeps one of the client's ports for a while.
const MAX_CONNECTIONS: u64 = 20_000;

/// Settings of `bench server`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Commands that a connection sends before it waits.
    #[arg(long, value_delimiter = ',', default_value = "1,16,128")]
    pipelines: Vec<u32>,
    /// Runs of each rival; rivals alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// About how long one run takes.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Do not measure Redis.
    #[arg(long)]
    without_redis: bool,
    /// Do not measure RESP.
    #[arg(long)]
    without_resp: bool,
    /// Do not measure HTTP, which needs wrk.
    #[arg(long)]
    without_http: bool,
    /// Measure throttlecrab-server too; it is installed below bench/target the first time.
    #[arg(long)]
    with_throttlecrab: bool,
    /// Measure redis-cell too, from this file (libredis_cell.so), in a Redis of its own.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    redis_cell: Option<PathBuf>,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If a server or a client is missing or fails, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.seconds > 0, "--seconds must be at least 1");
    ensure!(
        !settings.pipelines.contains(&0),
        "--pipelines must be at least 1"
    );
    ensure!(
        settings.without_resp || on_path("redis-benchmark").is_some(),
        "redis-benchmark is not installed (Debian: redis-tools); install it or say --without-resp"
    );
    ensure!(
        settings.without_http || on_path("wrk").is_some(),
        "wrk is not installed (Debian: wrk); install it or say --without-http"
    );
    let mut report = Report::new("server", QUESTION, OVERHEAD, settings)?;
    let servers = Servers::start(settings)?;
    let mut tables = String::new();
    if !settings.without_resp {
        let pipelines = settings.pipelines.iter();
        let loads = pipelines.map(|commands| Load::Pipeline(*commands));
        for load in loads.chain([Load::OneCommand]) {
            measure_resp(settings, &servers, load, &mut report)?;
            tables += &resp_table(&report, &servers, load);
            tables.push('\n');
        }
    }
    if !settings.without_http {
        for stays in [true, false] {
            measure_http(settings, &servers, stays, &mut report)?;
            tables += &http_table(&report, &servers, stays);
            tables.push('\n');
        }
    }
    drop(servers);
    report.finish(&tables, settings.json)
}

fn resp_case(load: Load) -> String {
    match load {
        Load::Pipeline(commands) => format!("RESP, pipeline {commands}"),
        Load::OneCommand => "RESP, a connection each".to_owned(),
    }
}

const fn http_case(stays: bool) -> &'static str {
    match stays {
        true => "HTTP, JSON",
        false => "HTTP, a connection each",
    }
}

fn processor_case(case: &str) -> String {
    format!("{case}, processor")
}

fn measure_resp(
    settings: &Settings,
    servers: &Servers,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    let case = resp_case(load);
    let (first, most) = match load {
        Load::Pipeline(_) => (FIRST_LOOK, u64::MAX),
        Load::OneCommand => (FIRST_CONNECTIONS, MAX_CONNECTIONS),
    };
    let look = |rival: &Rival| -> Result<u64> {
        let rate = redis_benchmark(&rival.target, load, KEYS, first, &rival.words)?;
        Ok(((rate * settings.seconds as f64) as u64).clamp(first / 10, most))
    };
    let requests: Vec<u64> = servers.resp.iter().map(look).collect::<Result<_>>()?;
    for run in 0..settings.runs {
        for turn in 0..servers.resp.len() {
            let index = (run + turn) % servers.resp.len();
            let (rival, requests) = (&servers.resp[index], requests[index]);
            let ask = || redis_benchmark(&rival.target, load, KEYS, requests, &rival.words);
            let (rate, micros) = timed(&servers.running[rival.server], requests as f64, ask)?;
            report.add(&case, rival.name, "per second", rate);
            report.add(&processor_case(&case), rival.name, "us", micros);
            say(settings, run, &case, rival.name, rate, micros);
        }
    }
    Ok(())
}

fn measure_http(
    settings: &Settings,
    servers: &Servers,
    stays: bool,
    report: &mut Report,
) -> Result<()> {
    let case = http_case(stays);
    let ask = |rival: &HttpRival, seconds| wrk(&rival.target, rival.request, stays, seconds);
    let rivals = &servers.http;
    for rival in rivals {
        ask(rival, 1)?;
    }
    for run in 0..settings.runs {
        for turn in 0..rivals.len() {
            let rival = &rivals[(run + turn) % rivals.len()];
            let server = &servers.running[rival.server];
            let before = server.processor_time()?;
            let rate = ask(rival, settings.seconds)?;
            let used = server.processor_time()?.saturating_sub(before);
            let micros = used.as_secs_f64() * 1e6 / (rate * settings.seconds as f64);
            report.add(case, rival.name, "per second", rate);
            report.add(&processor_case(case), rival.name, "us", micros);
            say(settings, run, case, rival.name, rate, micros);
        }
    }
    Ok(())
}

/// A client's rate, and the server's processor time per request in microseconds.
fn timed(server: &Running, requests: f64, ask: impl FnOnce() -> Result<f64>) -> Result<(f64, f64)> {
    let before = server.processor_time()?;
    let rate = ask()?;
    let used = server.processor_time()?.saturating_sub(before);
    Ok((rate, used.as_secs_f64() * 1e6 / requests))
}

fn say(settings: &Settings, run: usize, case: &str, rival: &str, rate: f64, micros: f64) {
    let turn = format!("run {} of {}", run + 1, settings.runs);
    let rate = rate / 1000.0;
    progress(&format!(
        "{turn}  {case:<20} {rival:<14} {rate:>8.1}k per s {micros:>8.2} us of processor"
    ));
}

fn resp_table(report: &Report, servers: &Servers, load: Load) -> String {
    let case = resp_case(load);
    let mut table = Table::new([case.as_str(), "k per s", "to GET", "server us per command"]);
    for rival in &servers.resp {
        let rate = report.median(&case, rival.name);
        table.row([
            rival.name.to_owned(),
            thousands(rate),
            ratio(rate, report.median(&case, "redis GET")),
            micros(report.median(&processor_case(&case), rival.name)),
        ]);
    }
    table.to_string()
}

fn http_table(report: &Report, servers: &Servers, stays: bool) -> String {
    let case = http_case(stays);
    let heading = [case, "k per s", "to quell", "server us per request"];
    let mut table = Table::new(heading);
    for rival in &servers.http {
        let rate = report.median(case, rival.name);
        table.row([
            rival.name.to_owned(),
            thousands(rate),
            ratio(rate, report.median(case, "quell")),
            micros(report.median(&processor_case(case), rival.name)),
        ]);
    }
    table.to_string()
}

fn thousands(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.0}", rate / 1000.0))
}

fn micros(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2}"))
}
