//! Crowd: many parallel calls through one store, on one server and on a cluster of three.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quell::Limiter;
use quell_redis::RedisStore;

use super::limits::{BUCKET, limiter, query};
use super::wire::Wire;
use super::{Lab, Settings, start_redis};
use crate::processes::Running;
use crate::report::{Report, progress, ratio};
use crate::table::Table;

/// Calls that wait at a time when a rate is measured.
const CALLERS: usize = 512;

/// Sends `calls` calls from this many callers. Returns calls per second, and the most that waited
/// at once.
pub(super) async fn ask(
    subject: &Arc<Limiter<RedisStore>>,
    calls: usize,
    callers: usize,
) -> Result<(f64, usize)> {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let (waiting, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (subject, next) = (Arc::clone(subject), Arc::clone(&next));
        let (waiting, most) = (Arc::clone(&waiting), Arc::clone(&most));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= calls {
                    return Ok::<(), anyhow::Error>(());
                }
                let now = waiting.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                subject.try_acquire(&query(number % 10_000)).await?;
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((
        calls as f64 / begun.elapsed().as_secs_f64(),
        most.load(Ordering::Relaxed),
    ))
}

/// Ten thousand calls that all wait at once: how many connections they take.
pub(super) fn connections(lab: &Lab, report: &mut Report) -> Result<String> {
    let mut table = Table::new([
        "calls at once",
        "connections to the store",
        "all answered within ms",
    ]);
    let runtime = super::runtime()?;
    for callers in [1, 100, 10_000] {
        let subject = Arc::new(limiter(&lab.url(), &[BUCKET])?);
        let mut wire = Wire::connect(lab.address)?;
        let before: usize = wire.info("stats", "total_connections_received")?.parse()?;
        runtime.block_on(ask(&subject, 1, 1))?;
        let begun = Instant::now();
        let (_, most) = runtime.block_on(ask(&subject, callers, callers))?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        let after: usize = wire.info("stats", "total_connections_received")?.parse()?;
        let opened = after - before;
        report.add(
            "connections",
            &callers.to_string(),
            "connections",
            opened as f64,
        );
        progress(&format!(
            "{most} calls waited at once on {opened} connections"
        ));
        table.row([
            callers.to_string(),
            opened.to_string(),
            format!("{took:.0}"),
        ]);
    }
    Ok(table.to_string())
}

/// Three masters compared with one: how calls are spread over them, and how many they answer
/// together.
pub(super) fn cluster(settings: &Settings, lab: &Lab, report: &mut Report) -> Result<String> {
    let masters = Masters::start()?;
    let one = Arc::new(limiter(&lab.url(), &[BUCKET])?);
    let three = Arc::new(limiter(&masters.url(), &[BUCKET])?);
    let runtime = super::runtime()?;
    for subject in [&one, &three] {
        runtime.block_on(ask(subject, 1_000, CALLERS))?;
    }
    let before = masters.calls()?;
    for run in 0..settings.runs {
        for turn in 0..2 {
            let (name, subject) =
                [("one master", &one), ("three masters", &three)][(run + turn) % 2];
            let (rate, _) = runtime.block_on(ask(subject, settings.calls, CALLERS))?;
            report.add("cluster", name, "per second", rate);
            progress(&format!(
                "run {}  {name:<14} {:>6.0}k per s",
                run + 1,
                rate / 1e3
            ));
        }
    }
    let after = masters.calls()?;
    let calls: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(from, to)| (to - from) as f64)
        .collect();
    let mean = calls.iter().sum::<f64>() / calls.len() as f64;
    let mut table = Table::new(["", "k per s", "script calls per master, to their mean"]);
    let rate = |name| report.median("cluster", name);
    let text = |name| format!("{:.0}", rate(name).unwrap_or(f64::NAN) / 1e3);
    let shares: Vec<String> = calls
        .iter()
        .map(|calls| format!("{:.3}", calls / mean))
        .collect();
    table.row(["one master".to_owned(), text("one master"), "1".to_owned()]);
    table.row([
        "three masters".to_owned(),
        text("three masters"),
        shares.join(", "),
    ]);
    table.row([
        "ratio".to_owned(),
        ratio(rate("three masters"), rate("one master")),
        String::new(),
    ]);
    for (number, calls) in calls.iter().enumerate() {
        report.add("calls per master", &number.to_string(), "calls", *calls);
    }
    Ok(table.to_string())
}

struct Masters {
    servers: Vec<(Running, SocketAddr)>,
}

impl Masters {
    fn start() -> Result<Self> {
        let words = ["--cluster-enabled", "yes", "--cluster-config-file"];
        let mut servers = Vec::new();
        for number in 0..3 {
            let file = format!(
                "{}/nodes-{number}-{}.conf",
                std::env::temp_dir().display(),
                std::process::id()
            );
            // A cluster's bus listens on a port 10,000 higher.
            let server = (0..50)
                .find_map(|_| start_redis(&[words.as_slice(), &[&file]].concat(), 55_000).ok());
            servers.push(server.context("no server of a cluster comes up")?);
        }
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]);
        command.args(servers.iter().map(|(_, address)| address.to_string()));
        let made = command
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .output()?;
        ensure!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stdout)
        );
        for (_, address) in &servers {
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
        Ok(Self { servers })
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|(_, address)| address.to_string())
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    fn calls(&self) -> Result<Vec<u64>> {
        let calls =
            |(_, address): &(Running, SocketAddr)| Wire::connect(*address)?.calls("evalsha");
        self.servers.iter().map(calls).collect()
    }
}
