//! Cluster: one and three primaries, how keys are spread over them, and how many calls they can answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use quell::Limiter;
use quell_redis::RedisStore;
use serde::Serialize;

use super::crowd::{CALLERS, ask};
use super::limits::{BUCKET, limiter};
use super::start_redis;
use super::wire::Wire;
use crate::processes::{Running, on_path};
use crate::report::{Report, progress, ratio};
use crate::table::Table;

const QUESTION: &str = "What do more primaries of a Redis Cluster bring?";
const OVERHEAD: &str = "All primaries and the client share the processors of this machine, so the rate \
    with three of them is bound by these. The capacity is what the primaries could answer with a processor \
    each: calls by the processor time of the busiest one, from its own INFO.";

/// Greatest distance of a primary's share from the mean.
const MAX_APART: f64 = 0.1;

/// Settings of `bench cluster`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs of each number of primaries, in turn.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Calls of one run.
    #[arg(long, default_value_t = 100_000)]
    calls: usize,
    /// Write temporary files of the primaries here.
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    folder: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// A cluster, and a limiter on it.
struct Subject {
    primaries: Primaries,
    limiter: Arc<Limiter<RedisStore>>,
    name: &'static str,
}

/// Measures and prints.
///
/// # Errors
/// If redis-server or redis-cli is missing, or a primary has more or less than its share.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.calls >= 10_000, "--calls must be at least 10000");
    for program in ["redis-server", "redis-cli"] {
        let found = on_path(program);
        ensure!(
            found.is_some(),
            "{program} is not installed (Debian: redis-server, redis-tools)"
        );
    }
    let mut report = Report::new("cluster", QUESTION, OVERHEAD, settings)?;
    let folder = settings.folder.clone().unwrap_or_else(std::env::temp_dir);
    let subject = |count, name| -> Result<Subject> {
        let primaries = Primaries::start(count, &folder)?;
        let limiter = Arc::new(limiter(&primaries.url(), &[BUCKET])?);
        Ok(Subject {
            primaries,
            limiter,
            name,
        })
    };
    let subjects = [subject(1, "1")?, subject(3, "3")?];
    let runtime = super::runtime()?;
    for run in 0..=settings.runs {
        for turn in 0..subjects.len() {
            let subject = &subjects[(run + turn) % subjects.len()];
            measure(subject, settings, &runtime, run, &mut report)?;
        }
    }
    let mut shares = Vec::new();
    for subject in &subjects {
        shares.push(subject.primaries.shares()?);
    }
    for share in shares.iter().flatten() {
        report.add("share", "of the mean", "ratio", *share);
        ensure!(
            (share - 1.0).abs() <= MAX_APART,
            "a primary has {share:.3} of the mean"
        );
    }
    let tables = table(&report, &shares);
    report.finish(&tables, settings.json)
}

/// One run; the first one opens connections and makes the keys, and does not count.
fn measure(
    subject: &Subject,
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
    run: usize,
    report: &mut Report,
) -> Result<()> {
    let before = subject.primaries.processor_times()?;
    let rate = runtime.block_on(ask(&subject.limiter, settings.calls, CALLERS))?;
    let after = subject.primaries.processor_times()?;
    let used: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(from, to)| to - from)
        .collect();
    let busiest = used.iter().copied().fold(0.0, f64::max);
    let (calls, name) = (settings.calls as f64, subject.name);
    let (capacity, each) = (calls / busiest * 1e6, used.iter().sum::<f64>() / calls);
    if run > 0 {
        report.add("rate", name, "per second", rate);
        report.add("capacity", name, "per second", capacity);
        report.add("processor", name, "us", each);
        progress(&format!(
            "run {run}  {name} primaries  {:>5.0}k per s  capacity {:>5.0}k per s  {each:.2} us a call",
            rate / 1e3,
            capacity / 1e3
        ));
    }
    Ok(())
}

fn table(report: &Report, shares: &[Vec<f64>]) -> String {
    let mut table = Table::new([
        "primaries",
        "k per s here",
        "us of a primary per call",
        "capacity, k per s",
        "to one",
        "lookups of each, to their mean",
    ]);
    for (name, shares) in ["1", "3"].into_iter().zip(shares) {
        let thousands = |what| report.median(what, name).unwrap_or(f64::NAN) / 1e3;
        let shares: Vec<String> = shares.iter().map(|share| format!("{share:.3}")).collect();
        table.row([
            name.to_owned(),
            format!("{:.0}", thousands("rate")),
            format!("{:.2}", thousands("processor") * 1e3),
            format!("{:.0}", thousands("capacity")),
            ratio(
                report.median("capacity", name),
                report.median("capacity", "1"),
            ),
            shares.join(", "),
        ]);
    }
    table.to_string()
}

/// The primaries of a cluster.
struct Primaries {
    servers: Vec<(Running, SocketAddr)>,
}

impl Primaries {
    /// Starts a cluster; its servers keep their configurations in `folder`.
    fn start(count: usize, folder: &std::path::Path) -> Result<Self> {
        let words = ["--cluster-enabled", "yes", "--cluster-config-file"];
        let mut servers = Vec::new();
        for number in 0..count {
            let file = format!("nodes-{count}-{number}-{}.conf", std::process::id());
            let file = folder.join(file).display().to_string();
            // A cluster's bus listens on a port 10,000 higher.
            let server = (0..50)
                .find_map(|_| start_redis(&[words.as_slice(), &[&file]].concat(), 55_000).ok());
            servers.push(server.context("no server of a cluster comes up")?);
        }
        let primaries = Self { servers };
        primaries.join()?;
        Ok(primaries)
    }

    /// Makes a cluster of the servers. `redis-cli` makes none of fewer than three.
    fn join(&self) -> Result<()> {
        let count = self.servers.len();
        if count == 1 {
            let mut wire = Wire::connect(self.servers[0].1)?;
            wire.ask(&[b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"])?;
        } else {
            let mut command = Command::new("redis-cli");
            command.args(["--cluster", "create"]);
            command.args(self.servers.iter().map(|(_, address)| address.to_string()));
            let made = command
                .args(["--cluster-replicas", "0", "--cluster-yes"])
                .output()?;
            ensure!(
                made.status.success(),
                "{}",
                String::from_utf8_lossy(&made.stdout)
            );
        }
        for (_, address) in &self.servers {
            let mut wire = Wire::connect(*address)?;
            let begun = Instant::now();
            while !wire
                .ask(&[b"CLUSTER", b"INFO"])?
                .contains("cluster_state:ok")
            {
                if begun.elapsed() > Duration::from_secs(20) {
                    bail!("the cluster does not come up");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn url(&self) -> String {
        let hosts = self.servers.iter().map(|(_, address)| address.to_string());
        format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Processor time of each, in microseconds.
    fn processor_times(&self) -> Result<Vec<f64>> {
        let each = self.servers.iter();
        each.map(|(_, address)| Wire::connect(*address)?.processor_time())
            .collect()
    }

    /// Number of keys that each primary has looked up, relative to the mean: a call looks up its own.
    fn shares(&self) -> Result<Vec<f64>> {
        let mut lookups = Vec::new();
        for (_, address) in &self.servers {
            let mut wire = Wire::connect(*address)?;
            let mut count = 0.0;
            for field in ["keyspace_hits", "keyspace_misses"] {
                count += wire.info("stats", field)?.parse::<f64>()?;
            }
            lookups.push(count);
        }
        let mean = lookups.iter().sum::<f64>() / lookups.len() as f64;
        Ok(lookups.iter().map(|count| count / mean).collect())
    }
}
