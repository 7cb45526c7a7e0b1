//! Headline: ten nodes, each a process, share a million calls per second of which two million are offered.
//! Demand moves, then a coordinator is killed, then a node, and then the node is fenced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::draws::Random;
use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, fleet_messages, free_address, on_path};
use crate::report::{Report, progress};
use crate::table::Table;

mod figure;
mod judge;
pub(crate) mod node;

use judge::{Counts, Judge};

const QUESTION: &str = "What does a fleet admit of a million calls per second, while demand moves, a \
    coordinator dies, and a node dies?";
const OVERHEAD: &str = "Everything shares the machine: one etcd, two coordinators, and ten processes of \
    nodes, each of which asks itself in process (the load of two million calls per second would not pass \
    through sockets of two cores). Each is offered 65 % of what the next busier one is, in a random order. \
    Calls are dated by the host's monotonic clock to 10 ms, and judged by a reference bucket of the limit; \
    what a killed node admitted in its last 10 ms is not counted.";

/// The domain of the only rule.
const DOMAIN: &str = "headline";

/// Calls are counted by intervals of so many nanoseconds.
const BIN: u64 = 10_000_000;

const NODES: usize = 10;
const LIMIT: u64 = 1_000_000;

/// Reports come so often, by default.
const REPORT: Duration = Duration::from_millis(500);

/// The longest that nodes may take until all have their parts.
const JOINED_WITHIN: Duration = Duration::from_secs(30);

/// Event at the beginning of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// Demand moves, and again every ten seconds.
    Moves,
    CoordinatorDies,
    NodeDies,
    NodeIsFenced,
}

/// A part of a run: its name, how many seconds it lasts, and what happens.
const SCENES: [(&str, u64, Event); 6] = [
    ("begin", 15, Event::Nothing),
    ("still", 20, Event::Nothing),
    ("moving", 60, Event::Moves),
    ("coordinator killed", 15, Event::CoordinatorDies),
    ("node killed", 25, Event::NodeDies),
    ("node fenced", 15, Event::NodeIsFenced),
];

/// Number of times that demand moves.
const MOVES: u64 = 10;

/// Settings of `bench headline`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs, of two and a half minutes each.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The burst of the limit; by default that of a rule that says none.
    #[arg(long, default_value_t = 1_000_000)]
    burst: u64,
    /// Write the picture of the last run here, as SVG.
    #[arg(long)]
    #[serde(skip)]
    figure: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Nanoseconds of the host's monotonic clock: the same in all processes.
fn host_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

/// Plays and prints.
///
/// # Errors
/// If a process cannot be started, or the fleet exceeds its limit.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(
        on_path("etcd").is_some(),
        "there is no etcd on PATH: install etcd-server"
    );
    let quell = built_quell(&["etcd"])?;
    let mut report = Report::new("headline", QUESTION, OVERHEAD, settings)?;
    for run in 1..=settings.runs {
        let stage = Stage::open(&quell, settings, run)?;
        let (judge, messages) = stage.play()?;
        for (case, unit, value) in judge.figures() {
            report.add(case, "quell", unit, value);
        }
        report.add("messages", "quell", "1/s", messages);
        progress(&format!("run {run} of {}  {}", settings.runs, judge.line()));
        if let Some(path) = settings.figure.as_ref().filter(|_| run == settings.runs) {
            figure::draw(&judge, path)?;
        }
    }
    let mut table = Table::new(["what", "median", "lowest", "highest"]);
    for series in report.series() {
        let shown = |value: f64| format!("{value:.1} {}", series.unit);
        let (low, high) = series.ends();
        table.row([
            series.case.clone(),
            shown(series.median),
            shown(low),
            shown(high),
        ]);
    }
    report.finish(&table.to_string(), settings.json)
}

/// Everything that runs.
struct Stage {
    quell: PathBuf,
    folder: PathBuf,
    /// Each with the URL of its API.
    coordinators: Vec<(String, Option<Running>)>,
    nodes: Vec<Option<Running>>,
    begin: u64,
    /// Load offered to each node, from so many milliseconds on.
    offers: Vec<Vec<(u64, u64)>>,
    burst: u64,
    /// Dropped last.
    _etcd: Running,
}

impl Stage {
    /// Starts etcd, coordinators and nodes, and waits until all nodes have their parts.
    fn open(quell: &Path, settings: &Settings, run: usize) -> Result<Self> {
        let folder = bench_folder()
            .join("target")
            .join(format!("headline-{run}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let rules = folder.join("rules.yaml");
        let burst = settings.burst;
        let text = format!(
            "domain: {DOMAIN}\ndefaults: {{ rung: shares, cluster_size: {NODES} }}\n\
             rules: [{{ name: api, rate: {LIMIT}/s, burst: {burst} }}]\n"
        );
        fs::write(&rules, text)?;
        let (etcd, url) = etcd(&folder)?;
        let mut urls = Vec::new();
        let mut coordinators = Vec::new();
        for at in 0..2 {
            let (nodes, admin) = (free_address()?, free_address()?);
            let mut command = Command::new(quell);
            command
                .args(["fleet", "coordinator", "--etcd", &url, "--rules"])
                .arg(&rules)
                .args([
                    "--listen",
                    &nodes.to_string(),
                    "--admin",
                    &admin.to_string(),
                ]);
            let running = Running::start(&format!("coordinator-{at}"), &mut command, nodes)?;
            urls.push(format!("http://{nodes}"));
            coordinators.push((format!("http://{admin}"), Some(running)));
        }
        let begin = host_time() + 3_000_000_000;
        let offers = offers(&mut Random::new(run as u64));
        let mut stage = Self {
            quell: quell.to_owned(),
            folder,
            coordinators,
            nodes: Vec::new(),
            begin,
            offers,
            burst,
            _etcd: etcd,
        };
        for member in 0..NODES {
            let node = stage.start_node(member, &rules, &urls)?;
            stage.nodes.push(Some(node));
        }
        stage.until_joined()?;
        Ok(stage)
    }

    fn start_node(&self, member: usize, rules: &Path, urls: &[String]) -> Result<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("headline-node").arg("--rules").arg(rules);
        for url in urls {
            command.args(["--coordinator", url]);
        }
        command
            .args(["--member", &(member + 1).to_string()])
            .args(["--begin", &self.begin.to_string()])
            .arg("--counts")
            .arg(self.counts(member));
        for (millis, rate) in &self.offers[member] {
            command.args(["--offer", &format!("{millis}={rate}")]);
        }
        Running::spawn(&format!("node-{member}"), &mut command)
    }

    fn counts(&self, member: usize) -> PathBuf {
        self.folder.join(format!("node-{member}.counts"))
    }

    fn until_joined(&self) -> Result<()> {
        let begun = host_time();
        let applied = || self.leader().ok()?.1["applied"].as_u64();
        while applied().is_none_or(|applied| applied < NODES as u64) {
            let waited = Duration::from_nanos(host_time() - begun);
            ensure!(waited < JOINED_WITHIN, "the nodes found no coordinator");
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn ask(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.quell);
        Ok(command.arg("fleet").args(words).output()?)
    }

    /// The place of the coordinator that leads, and what it says of the fleet.
    fn leader(&self) -> Result<(usize, serde_json::Value)> {
        for (at, (url, running)) in self.coordinators.iter().enumerate() {
            if running.is_some() {
                let said = self.ask(&["status", "--json", "--url", url])?;
                let status: serde_json::Value = serde_json::from_slice(&said.stdout)?;
                if status["leads"] == true {
                    return Ok((at, status));
                }
            }
        }
        bail!("no coordinator leads")
    }

    /// Plays all scenes. Returns what was admitted, and the messages per second while demand moved.
    fn play(mut self) -> Result<(Judge, f64)> {
        let mut end = 0;
        let mut fenced = None;
        let mut messages = (0.0, 0);
        for (name, seconds, event) in SCENES {
            match event {
                Event::CoordinatorDies => {
                    let (leader, _) = self.leader()?;
                    self.coordinators[leader].1 = None;
                }
                // The busiest, so that most is missed.
                Event::NodeDies => {
                    let busiest = self.busiest(end * 1_000);
                    self.nodes[busiest] = None;
                    fenced = Some(busiest);
                }
                Event::NodeIsFenced => {
                    let node = fenced.context("no node died")?;
                    self.fence(node)?;
                }
                Event::Moves => messages = (0.0, self.messages()?),
                Event::Nothing => {}
            }
            end += seconds;
            self.until(end);
            if event == Event::Moves {
                let sent = self.messages()? - messages.1;
                messages.0 = sent as f64 / seconds as f64;
            }
            for (at, node) in self.nodes.iter_mut().enumerate() {
                if let Some(node) = node {
                    ensure!(
                        node.runs()?,
                        "node {at} has ended during the scene `{name}`"
                    );
                }
            }
        }
        self.nodes.clear();
        let counts = |node| Counts::read(&self.counts(node));
        let counts: Result<Vec<Counts>> = (0..NODES).map(counts).collect();
        Ok((Judge::new(self.begin, self.burst, counts?)?, messages.0))
    }

    /// Waits until so many seconds after the beginning.
    fn until(&self, second: u64) {
        let then = self.begin + second * 1_000_000_000;
        sleep(Duration::from_nanos(then.saturating_sub(host_time())));
    }

    fn busiest(&self, millis: u64) -> usize {
        let rate = |node: &usize| {
            let begun = self.offers[*node]
                .iter()
                .rev()
                .find(|(from, _)| *from <= millis);
            begun.map_or(0, |(_, rate)| *rate)
        };
        (0..NODES).max_by_key(rate).unwrap_or(0)
    }

    /// Fences a node as an orchestrator does that knows that the node is dead.
    fn fence(&self, node: usize) -> Result<()> {
        let (leader, status) = self.leader()?;
        let member = node + 1;
        let nodes = status["nodes"].as_array();
        let node = nodes.and_then(|nodes| nodes.iter().find(|node| node["member"] == member));
        let start = node.context("the dead node has no seat")?["incarnation"].as_str();
        let start = start.context("it has no incarnation")?;
        let url = &self.coordinators[leader].0;
        let member = member.to_string();
        let said = self.ask(&["fence", &member, "--incarnation", start, "--url", url])?;
        let text = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "the node cannot be fenced: {text}");
        Ok(())
    }

    /// Messages of all coordinators so far.
    fn messages(&self) -> Result<u64> {
        let mut sum = 0;
        for (url, running) in &self.coordinators {
            if running.is_some() {
                sum += fleet_messages(url.trim_start_matches("http://"))?;
            }
        }
        Ok(sum)
    }
}

/// Load offered to each node, from so many milliseconds on: twice the limit in all.
fn offers(random: &mut Random) -> Vec<Vec<(u64, u64)>> {
    let mut parts = [1_000_000_000_u64; NODES];
    for busier in 1..NODES {
        parts[busier] = parts[busier - 1] / 100 * 65;
    }
    let whole: u64 = parts.iter().sum();
    let mut offers = vec![Vec::new(); NODES];
    let mut from = 0;
    for (_, seconds, event) in SCENES {
        let moves = match event {
            Event::Moves => seconds / MOVES,
            _ => u64::from(from == 0),
        };
        for at in 0..moves {
            let mut nodes: Vec<usize> = (0..NODES).collect();
            for part in parts {
                let node = nodes.swap_remove(random.below(nodes.len()));
                let rate = u128::from(2 * LIMIT) * u128::from(part) / u128::from(whole);
                let rate = u64::try_from(rate).unwrap_or(0);
                offers[node].push(((from + at * MOVES) * 1_000, rate));
            }
        }
        from += seconds;
    }
    offers
}

/// One etcd, and its URL.
fn etcd(folder: &Path) -> Result<(Running, String)> {
    let (clients, peers) = (free_address()?, free_address()?);
    let (url, peer) = (format!("http://{clients}"), format!("http://{peers}"));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")]);
    Ok((Running::start("etcd", &mut command, clients)?, url))
}
