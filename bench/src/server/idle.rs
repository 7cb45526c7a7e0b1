//! Idle: does a server answer as fast when most of its connections are silent, and how much memory
//! does each of those take?

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::clients::{CONNECTIONS, Load, Target, redis_benchmark};
use super::rivals::THROTTLE;
use super::{micros, thousands, timed};
use crate::processes::{Running, built_quell, free_address, on_path};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

const QUESTION: &str = "What do silent connections cost?";
const OVERHEAD: &str = "One server for each number of connections, all of them running at once; 50 of the \
    connections ask CL.THROTTLE, the others have said PING once. Runs alternate. Bytes are what the \
    process grew by when the silent ones came, divided by their number.";

/// What `bench idle` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Numbers of open connections, including the 50 that ask; the others are compared with the
    /// first number.
    #[arg(long, value_delimiter = ',', default_value = "50,1000,10000")]
    connections: Vec<u32>,
    /// Commands that a connection sends before it waits.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    pipelines: Vec<u32>,
    /// Runs of each number; they alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Commands of one run, times the pipeline.
    #[arg(long, default_value_t = 100_000)]
    commands: u64,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// A server with silent connections.
#[derive(Debug)]
struct Crowd {
    name: String,
    server: Running,
    address: SocketAddr,
    _silent: Vec<TcpStream>,
}

/// Measures and prints.
///
/// # Errors
/// If the server or the client is missing or fails, or not all connections can be opened.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    let least = settings.connections.iter().min();
    ensure!(
        least.is_some_and(|least| *least >= CONNECTIONS),
        "--connections must be at least {CONNECTIONS} each"
    );
    ensure!(
        on_path("redis-benchmark").is_some(),
        "redis-benchmark is not installed (Debian: redis-tools)"
    );
    let mut report = Report::new("idle", QUESTION, OVERHEAD, settings)?;
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&[])?,
    };
    let crowds = settings.connections.iter();
    let crowds: Vec<Crowd> = crowds
        .map(|connections| Crowd::gather(&program, *connections, &mut report))
        .collect::<Result<_>>()?;
    for pipeline in &settings.pipelines {
        let load = Load::Pipeline(*pipeline);
        let case = super::resp_case(load);
        let commands = settings.commands * u64::from(*pipeline).min(16);
        for run in 0..settings.runs {
            for turn in 0..crowds.len() {
                let crowd = &crowds[(run + turn) % crowds.len()];
                let target = Target::plain(crowd.address);
                let ask = || redis_benchmark(&target, load, commands, &THROTTLE);
                let (rate, micros) = timed(&crowd.server, commands as f64, ask)?;
                report.add(&case, &crowd.name, "per second", rate);
                report.add(&super::processor_case(&case), &crowd.name, "us", micros);
                progress(&format!("{case}  {}  {:.0}k per s", crowd.name, rate / 1e3));
            }
        }
    }
    let mut tables = String::new();
    for pipeline in &settings.pipelines {
        tables += &table(
            &report,
            &crowds,
            &super::resp_case(Load::Pipeline(*pipeline)),
        );
        tables.push('\n');
    }
    drop(crowds);
    report.finish(&tables, settings.json)
}

impl Crowd {
    fn gather(program: &PathBuf, connections: u32, report: &mut Report) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(program);
        command.args(["serve", "--http", "off"]);
        command.args(["--resp", &address.to_string()]);
        command.args(["--max-connections", &(connections + 1).to_string()]);
        // A variable, which an older program ignores.
        command.env("QUELL_MAX_CONNECTIONS_PER_ADDRESS", "0");
        let name = format!("{connections} connections");
        let server = Running::start(&name, &mut command, address)?;
        let before = server.resident()?;
        let silent = connections - CONNECTIONS;
        let silent: Vec<TcpStream> = (0..silent)
            .map(|_| greet(address))
            .collect::<Result<_>>()
            .with_context(|| {
                format!("cannot open {connections} connections: is `ulimit -n` above twice that?")
            })?;
        if !silent.is_empty() {
            let grown = server.resident()?.saturating_sub(before);
            let bytes = grown as f64 / silent.len() as f64;
            report.add("memory", &name, "bytes per connection", bytes);
        }
        Ok(Self {
            name,
            server,
            address,
            _silent: silent,
        })
    }
}

/// A connection that has been answered once.
fn greet(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    ensure!(&reply == b"+PONG\r\n", "PING is answered {reply:?}");
    Ok(stream)
}

fn table(report: &Report, crowds: &[Crowd], case: &str) -> String {
    let heading = [
        "k per s",
        "to the first",
        "server us per command",
        "bytes each",
    ];
    let mut table = Table::new([case].into_iter().chain(heading));
    let first = crowds
        .first()
        .and_then(|crowd| report.median(case, &crowd.name));
    for crowd in crowds {
        let rate = report.median(case, &crowd.name);
        let bytes = report.median("memory", &crowd.name);
        table.row([
            crowd.name.clone(),
            thousands(rate),
            ratio(rate, first),
            micros(report.median(&super::processor_case(case), &crowd.name)),
            bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.0}")),
        ]);
    }
    table.to_string()
}
