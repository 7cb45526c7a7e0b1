//! Coordinator: how much of a core a coordinator takes for a large fleet, on the wire.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use quell::clock::{Clock, SystemClock};
use quell::store::memory::MemoryStore;
use quell::store::shares::SharesStore;
use quell::{Limiter, Query};
use quell_core::rule::{DomainRules, all_shared_limits};
use quell_fleet::agent::{Credentials, Fleet, FleetOptions, MemberId, NodeState};
use serde::Serialize;

use crate::draws::Random;
use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, fleet_messages, free_address};
use crate::report::{Report, progress};
use crate::table::Table;

const QUESTION: &str = "How much of one core does a coordinator take, as nodes and limits grow?";
const OVERHEAD: &str = "The coordinator is a process; all nodes are agents in the process of the \
    benchmark, on the same machine, each with a connection of its own. Every node asks for every limit, and \
    how much it asks changes every second, so shares are planned anew as often as they ever are. Processor \
    time of the coordinator's process, to 10 ms, after all nodes have their shares. Each node sends two reports \
    a second, and each is answered.";

/// Nodes and limits of a row.
const FLEETS: [(u32, usize); 4] = [(10, 100), (100, 100), (1_000, 10), (1_000, 100)];

/// The longest that nodes may take until all have their shares.
const JOINED_WITHIN: Duration = Duration::from_secs(120);

/// What `bench coordinator` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs of each fleet.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// For how long each is measured, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If a process cannot be started, or a node gets no share.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(
        settings.runs > 0 && settings.seconds > 0,
        "--runs and --seconds must be at least 1"
    );
    let quell = built_quell(&[])?;
    let mut report = Report::new("coordinator", QUESTION, OVERHEAD, settings)?;
    let mut table = Table::new(["nodes", "limits", "one core", "messages/s", "memory"]);
    for (nodes, limits) in FLEETS {
        let case = format!("{nodes} nodes, {limits} limits");
        for run in 1..=settings.runs {
            let taken = measure(&quell, nodes, limits, settings.seconds)?;
            report.add(&case, "processor", "%", taken.busy);
            report.add(&case, "messages", "1/s", taken.messages);
            report.add(&case, "memory", "MB", taken.memory);
            progress(&format!(
                "run {run} of {}  {case}: {:.1} % of a core, {:.0} messages/s",
                settings.runs, taken.busy, taken.messages
            ));
        }
        let shown = |rival: &str| report.median(&case, rival).unwrap_or(0.0);
        table.row([
            nodes.to_string(),
            limits.to_string(),
            format!("{:.1} %", shown("processor")),
            format!("{:.0}", shown("messages")),
            format!("{:.0} MB", shown("memory")),
        ]);
    }
    report.finish(&table.to_string(), settings.json)
}

/// What a coordinator takes.
struct Taken {
    /// Percent of a core.
    busy: f64,
    /// Messages to and from it, in a second.
    messages: f64,
    /// Megabytes.
    memory: f64,
}

fn measure(quell: &Path, nodes: u32, limits: usize, seconds: u64) -> Result<Taken> {
    let folder = bench_folder().join("target").join("coordinator");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("rules"))?;
    let mut domains = Vec::new();
    for limit in 0..limits {
        let text = format!(
            "domain: {}\ndefaults: {{ rung: shares, cluster_size: {nodes} }}\n\
             rules: [{{ name: limit-{limit}, rate: 1000000/s }}]\n",
            domain(limit)
        );
        fs::write(folder.join("rules").join(format!("{limit}.yaml")), &text)?;
        let read = quell_rules::parse_str("rules", &text);
        domains.extend(read.map_err(|problems| anyhow!("{problems:?}"))?.domains);
    }
    let (address, admin) = (free_address()?, free_address()?);
    let mut command = Command::new(quell);
    command
        .args(["fleet", "coordinator", "--embedded"])
        .arg(folder.join("fleet.db"))
        .arg("--rules")
        .arg(folder.join("rules"))
        .args([
            "--listen",
            &address.to_string(),
            "--admin",
            &admin.to_string(),
        ]);
    let coordinator = Running::start("coordinator", &mut command, address)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let entered = runtime.enter();
    let url = format!("http://{address}");
    let started: Result<Vec<Node>> = (1..=nodes)
        .map(|it| Node::start(it, &url, &domains))
        .collect();
    let started = started?;
    drop(entered);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| ask(&started, limits, &stop));
        let measured = watch(&coordinator, &admin.to_string(), &started, seconds);
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

fn domain(limit: usize) -> String {
    format!("d{limit}")
}

fn watch(coordinator: &Running, admin: &str, nodes: &[Node], seconds: u64) -> Result<Taken> {
    let begun = Instant::now();
    while !nodes.iter().all(Node::is_granted) {
        ensure!(
            begun.elapsed() < JOINED_WITHIN,
            "not all nodes have a share"
        );
        thread::sleep(Duration::from_millis(100));
    }
    // Joins are over, and demand is heard.
    thread::sleep(Duration::from_secs(5));
    let messages = fleet_messages(admin)?;
    let (before, begun) = (coordinator.processor_time()?, Instant::now());
    thread::sleep(Duration::from_secs(seconds));
    let (busy, took) = (coordinator.processor_time()? - before, begun.elapsed());
    let messages = fleet_messages(admin)? - messages;
    ensure!(
        nodes.iter().all(Node::is_granted),
        "a node has lost its share"
    );
    Ok(Taken {
        busy: busy.as_secs_f64() / took.as_secs_f64() * 100.0,
        messages: messages as f64 / took.as_secs_f64(),
        memory: coordinator.resident()? as f64 / 1e6,
    })
}

/// One node.
struct Node {
    fleet: Fleet,
    limiter: Limiter<SharesStore>,
    clock: Arc<dyn Clock>,
}

impl Node {
    fn start(member: u32, coordinator: &str, domains: &[DomainRules]) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let url = coordinator
            .parse()
            .map_err(|error: String| anyhow!(error))?;
        let fleet = Fleet::start(FleetOptions {
            coordinators: vec![url],
            member: MemberId(member),
            weight: 1,
            groups: Vec::new(),
            credentials: Credentials::default(),
            file: None,
            follow_rules: false,
            clock: Arc::clone(&clock),
        })?;
        let limits = all_shared_limits(domains)?;
        let keys = limits.iter();
        let keys = keys.map(|(_, limit)| (&*limit.key, limit.name.as_str().into()));
        fleet.shares().set_keys(keys);
        let store = SharesStore::new(MemoryStore::new(), fleet.shares().clone());
        let limiter = Limiter::builder(store).clock(Arc::clone(&clock)).build();
        limiter.set_rules(domains.to_vec())?;
        Ok(Self {
            fleet,
            limiter,
            clock,
        })
    }

    fn is_granted(&self) -> bool {
        let status = self.fleet.status().borrow().clone();
        status.state(self.clock.monotonic()) == NodeState::Granted
    }
}

/// Asks for every limit at every node, now more and now less.
fn ask(nodes: &[Node], limits: usize, stop: &AtomicBool) {
    let mut random = Random::new(1);
    let names: Vec<String> = (0..limits).map(domain).collect();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        for node in nodes {
            for name in &names {
                let query = Query::new(name);
                for _ in 0..random.below(8) {
                    // A refusal is demand, too.
                    let _ = node.limiter.try_acquire_local(&query);
                }
            }
        }
        thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
}
