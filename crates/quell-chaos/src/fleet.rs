//! A fleet behind proxies: etcd, coordinators, and the nodes that share a limit.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quell_testkit::etcd::Etcd;
use quell_testkit::port::free_port;
use quell_testkit::process::Process;
use quell_testkit::proxy::Proxy;
use tempfile::TempDir;

use crate::load::Account;
use crate::process::{PATIENCE, start, wait};
use crate::rng::Rng;
use crate::server::quell;

/// Coordinators of a fleet.
const COORDINATORS: usize = 2;

/// Nodes of a fleet.
const NODES: u32 = 3;

/// URL that coordinators announce: not on this machine, and without TLS.
const NOWHERE: &str = "http://192.0.2.1:7600";

/// Durations of the protocol that fit into a run.
const SHORT: [&str; 4] = ["--leader-ttl", "1s", "--report", "200ms"];

/// Greatest drift of clocks.
pub(crate) const DRIFT: f64 = 1.001;

/// Excess of nodes over their limit of `rate` a second and `burst`, in calls: negative below it.
///
/// # Errors
/// They admitted more, in some interval.
pub(crate) fn excess(account: &Account, rate: f64, burst: f64) -> Result<f64> {
    let excess = account.excess(rate * DRIFT, burst);
    ensure!(excess <= 0.0, "{excess:.1} calls too many; {account}");
    Ok(excess)
}

/// Durations of the protocol that differ between scenarios.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Durations {
    /// Time for which a node keeps its share without an answer.
    pub(crate) lease: Duration,
    /// Time for which it then keeps its static share.
    pub(crate) hold: Duration,
}

impl Durations {
    /// This lease, and a hold that outlasts every scenario of a test.
    pub(crate) const fn from_lease(lease: Duration) -> Self {
        let hold = Duration::from_secs(300);
        Self { lease, hold }
    }
}

/// A program of the fleet that is started again with the same words.
#[derive(Debug)]
pub(crate) struct Program {
    program: String,
    words: Vec<String>,
    process: Process,
}

impl Program {
    fn start(program: &Path, words: Vec<String>) -> Result<Self> {
        let program = program.display().to_string();
        let process = Self::launch(&program, &words)?;
        Ok(Self {
            program,
            words,
            process,
        })
    }

    fn launch(program: &str, words: &[String]) -> Result<Process> {
        let mut command = Command::new(program);
        command.args(words);
        Ok(start(command, tempfile::tempdir()?))
    }

    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name);
        Ok(())
    }

    /// Kills it, and starts it again.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.kill();
        self.start_again()
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = Self::launch(&self.program, &self.words)?;
        Ok(())
    }

    fn log(&self) -> String {
        self.process.stderr()
    }
}

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) etcd: Etcd,
    pub(crate) coordinators: Vec<Program>,
    pub(crate) nodes: Vec<Program>,
    /// Between each coordinator and etcd.
    backs: Vec<Proxy>,
    /// Between each node and each coordinator, by node.
    fronts: Vec<Vec<Proxy>>,
    /// Ports of the nodes.
    pub(crate) ports: Vec<u16>,
    _folder: TempDir,
}

impl Fleet {
    /// Starts all of it, with rules for coordinators and nodes.
    pub(crate) async fn start(rules: &str, durations: Durations, rng: &mut Rng) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let file = path("rules.yaml");
        fs::write(&file, rules)?;
        let etcd = tokio::task::spawn_blocking(Etcd::start).await?;
        let (mut coordinators, mut backs, mut listening) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..COORDINATORS {
            let listen = free_port();
            let back = Proxy::seeded(etcd.port(), rng.next());
            let words = [
                "fleet coordinator --admin off --rules",
                &file,
                // Nodes do not go where their list does not lead them, and so keep to their own links.
                &format!("--listen 127.0.0.1:{listen} --url {NOWHERE}"),
                &format!("--etcd {}", back.url()),
            ];
            let words = words.iter().flat_map(|words| words.split(' '));
            let words = words.chain(SHORT).map(str::to_owned);
            let lease = format!("--lease={}ms", durations.lease.as_millis());
            let hold = format!("--hold={}ms", durations.hold.as_millis());
            let words = words.chain([lease, hold]).collect();
            coordinators.push(Program::start(&quell()?, words)?);
            backs.push(back);
            listening.push(listen);
        }
        let (mut nodes, mut fronts, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for member in 1..=NODES {
            let http = free_port();
            let mut links = Vec::new();
            for listen in &listening {
                links.push(Proxy::seeded(*listen, rng.next()));
            }
            let urls: Vec<String> = links.iter().map(Proxy::url).collect();
            let words = [
                &format!("serve --resp off --http 127.0.0.1:{http} --rules"),
                &file,
                &format!("--fleet {} --fleet-member node-{member}", urls.join(",")),
                "--fleet-state",
                &path(&format!("node-{member}")),
            ];
            let words = words.iter().flat_map(|words| words.split(' '));
            nodes.push(Program::start(
                &quell()?,
                words.map(str::to_owned).collect(),
            )?);
            ports.push(http);
            fronts.push(links);
        }
        Ok(Self {
            etcd,
            coordinators,
            nodes,
            backs,
            fronts,
            ports,
            _folder: folder,
        })
    }

    /// All links.
    pub(crate) fn links(&self) -> Vec<&Proxy> {
        self.backs
            .iter()
            .chain(self.fronts.iter().flatten())
            .collect()
    }

    /// The links of a node.
    pub(crate) fn links_of(&self, node: usize) -> &[Proxy] {
        &self.fronts[node]
    }

    /// The link between a coordinator and etcd.
    pub(crate) fn back_of(&self, coordinator: usize) -> &Proxy {
        &self.backs[coordinator]
    }

    /// The place of the coordinator that this node follows.
    pub(crate) async fn leader_of(&self, node: usize) -> Result<usize> {
        let health = crate::http::Client::new(self.ports[node])
            .get("/healthz")
            .await?;
        let url = health.body["fleet"]["coordinator"].as_str();
        let mut links = self.fronts[node].iter().map(Proxy::url);
        links
            .position(|link| Some(link.as_str()) == url)
            .with_context(|| format!("node {node} follows nobody: {}", health.body))
    }

    /// Waits until every node has a share by a leader.
    pub(crate) async fn is_granted(&self) -> Result<()> {
        for (node, port) in self.nodes.iter().zip(&self.ports) {
            let granted = wait("a node is granted its share", PATIENCE, async || {
                let health = crate::http::Client::new(*port).get("/healthz").await.ok()?;
                (health.body["fleet"]["state"] == "granted").then_some(())
            });
            let logs = || self.coordinators.iter().map(Program::log);
            granted.await.map_err(|error| {
                let logs: Vec<String> = logs().chain([node.log()]).collect();
                error.context(logs.join("\n"))
            })?;
        }
        Ok(())
    }
}
