//! Redis: what one limit for many servers costs the store that they share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::processes::{Running, free_address, on_path};
use crate::report::Report;

pub(crate) mod cluster;
mod crowd;
mod holds;
mod latency;
pub(crate) mod leased;
mod limits;
mod rivals;
mod scripts;
mod servers;
mod strict;
mod tap;
mod together;
pub(crate) mod wire;

const QUESTION: &str = "What does one limit for many servers cost the Redis that they share?";
const OVERHEAD: &str = "Script calls are the bytes that the store sent, recorded on the way and sent again \
    by one connection that keeps 64 on the way, so the server is what is measured; its processor time \
    per call is from its own INFO and hardly hangs on what else the machine does, times and rates do. The GCRA is \
    the smallest script that can be one: it keeps a bare number, answers one number, knows one rate \
    and trusts its clock.";

/// The parts that can be measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
enum Part {
    Scripts,
    Together,
    Bytes,
    Trips,
    Latency,
    Connections,
    Strict,
    Servers,
    Holds,
}

/// What `bench redis` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Measure only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Runs of each rival; rivals alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Calls of one run.
    #[arg(long, default_value_t = 50_000)]
    calls: usize,
    /// Number of keys that are asked for in turn.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// The server that all parts share except the cluster.
struct Lab {
    _server: Running,
    address: SocketAddr,
}

impl Lab {
    /// Starts it.
    fn start() -> Result<Self> {
        let (server, address) = start_redis(&[], u16::MAX)?;
        Ok(Self {
            _server: server,
            address,
        })
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

/// Measures and prints.
///
/// # Errors
/// If redis-server or redis-cli is missing, or an answer is not as it should be.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.calls >= 1_000, "--calls must be at least 1000");
    ensure!(settings.keys >= 1_000, "--keys must be at least 1000");
    for program in ["redis-server", "redis-cli"] {
        ensure!(
            on_path(program).is_some(),
            "{program} is not installed (Debian: redis-server and redis-tools)"
        );
    }
    let mut report = Report::new("redis", QUESTION, OVERHEAD, settings)?;
    let lab = Lab::start()?;
    let mut tables = String::new();
    let all = Part::value_variants().iter();
    for part in all.filter(|part| settings.only.is_empty() || settings.only.contains(part)) {
        tables += &match part {
            Part::Scripts => scripts::run(settings, &lab, &mut report)?,
            Part::Together => together::run(settings, &lab, &mut report)?,
            Part::Bytes => scripts::bytes(&lab, &mut report)?,
            Part::Trips => scripts::trips(&lab, &mut report)?,
            Part::Latency => latency::run(settings, &lab, &mut report)?,
            Part::Connections => crowd::connections(&lab, &mut report)?,
            Part::Strict => strict::run(settings, &lab, &mut report)?,
            Part::Servers => servers::run(settings, &lab, &mut report)?,
            Part::Holds => holds::run(settings, &lab, &mut report)?,
        };
        tables.push('\n');
    }
    report.finish(&tables, settings.json)
}

/// Starts a server that keeps nothing on disk, on a free port of at most `highest`.
fn start_redis(words: &[&str], highest: u16) -> Result<(Running, SocketAddr)> {
    let mut address = free_address().context("no free port")?;
    if address.port() > highest {
        address.set_port(address.port() / 3 + 1_024);
    }
    let mut command = Command::new("redis-server");
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
    command
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(std::env::temp_dir());
    command.args(words);
    match Running::start(&format!("redis-{}", address.port()), &mut command, address) {
        Ok(running) => Ok((running, address)),
        Err(error) => bail!(error),
    }
}

/// Two threads, as many as the cores of the machine that the figures are from.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}
