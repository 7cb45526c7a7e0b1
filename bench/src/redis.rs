//! Redis: what one limit for many servers costs the store that they share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::processes::{Running, free_address, on_path};
use crate::report::Report;

pub(crate) mod cluster;
mod crowd;
pub(crate) mod leased;
mod limits;
mod rivals;
mod strict;
pub(crate) mod wire;

const QUESTION: &str = "What does one limit for many servers cost the Redis that they share?";
const OVERHEAD: &str = "The clients share the machine with Redis and `quell serve`, so ratios count. The GCRA is the \
    smallest script that can be one: it keeps a bare number, answers one number, knows one rate and \
    trusts its clock.";

/// Settings of `bench redis`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
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
    let table = strict::run(settings, &lab, &mut report)?;
    report.finish(&table, settings.json)
}

/// Starts a server that keeps nothing on disk, on a free port of at most `highest`.
pub(crate) fn start_redis(words: &[&str], highest: u16) -> Result<(Running, SocketAddr)> {
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
