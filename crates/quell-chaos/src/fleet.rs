//! A fleet behind proxies: etcd, coordinators, and the nodes that share a limit.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, free_port, run, wait};
use crate::proxy::Proxy;
use crate::rng::Rng;
use crate::server::quell;

/// Coordinators of a fleet.
const COORDINATORS: usize = 2;

/// Nodes of a fleet.
const NODES: u32 = 3;

/// Durations of the protocol that fit into a run.
const SHORT: [&str; 6] = ["--leader-ttl", "1s", "--lease", "3s", "--report", "200ms"];

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
        Process::start(command, tempfile::tempdir()?)
    }

    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Kills it, and starts it again.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.process.crash();
        self.process = Self::launch(&self.program, &self.words)?;
        Ok(())
    }

    fn log(&self) -> String {
        self.process.log()
    }
}

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) etcd: Program,
    pub(crate) coordinators: Vec<Program>,
    pub(crate) nodes: Vec<Program>,
    /// Between a coordinator and etcd, and between the nodes and a coordinator.
    pub(crate) links: Vec<Proxy>,
    /// Where the nodes are asked.
    pub(crate) ports: Vec<u16>,
    _folder: TempDir,
}

impl Fleet {
    /// Starts all of it, with rules for coordinators and nodes.
    pub(crate) async fn start(rules: &str, rng: &mut Rng) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let file = path("rules.yaml");
        fs::write(&file, rules)?;
        let (etcd, port) = etcd(&path("etcd")).await?;
        let (mut coordinators, mut links, mut urls) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..COORDINATORS {
            let listen = free_port()?;
            let back = Proxy::start(port, rng).await?;
            let front = Proxy::start(listen, rng).await?;
            let url = format!("http://127.0.0.1:{}", front.port);
            let words = [
                "fleet coordinator --admin off --rules",
                &file,
                &format!("--listen 127.0.0.1:{listen} --url {url}"),
                &format!("--etcd http://127.0.0.1:{}", back.port),
            ];
            let words = words.iter().flat_map(|words| words.split(' '));
            let words = words.chain(SHORT).map(str::to_owned).collect();
            coordinators.push(Program::start(&quell()?, words)?);
            links.extend([back, front]);
            urls.push(url);
        }
        let (mut nodes, mut ports) = (Vec::new(), Vec::new());
        for member in 1..=NODES {
            let http = free_port()?;
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
        }
        Ok(Self {
            etcd,
            coordinators,
            nodes,
            links,
            ports,
            _folder: folder,
        })
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

/// An etcd with this data, and its port.
async fn etcd(data: &str) -> Result<(Program, u16)> {
    let (client, peer) = (free_port()?, free_port()?);
    let url = |port| format!("http://127.0.0.1:{port}");
    let words = [
        format!("--name chaos --initial-cluster chaos={}", url(peer)),
        format!(
            "--listen-client-urls {0} --advertise-client-urls {0}",
            url(client)
        ),
        format!(
            "--listen-peer-urls {0} --initial-advertise-peer-urls {0}",
            url(peer)
        ),
        format!("--heartbeat-interval 50 --election-timeout 500 --data-dir {data}"),
    ];
    let words = words.iter().flat_map(|words| words.split(' '));
    let etcd = Program::start(Path::new("etcd"), words.map(str::to_owned).collect())?;
    let endpoint = format!("--endpoints={}", url(client));
    wait("etcd answers", PATIENCE, async || {
        run("etcdctl", &[&endpoint, "get", "x"]).await.ok()
    })
    .await?;
    Ok((etcd, client))
}
