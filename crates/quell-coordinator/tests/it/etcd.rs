//! An etcd for one test.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quell_coordinator::store::{EtcdOptions, EtcdStore};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that is stopped when it is dropped.
pub(crate) struct Etcd {
    nodes: Vec<Node>,
    folder: TempDir,
}

struct Node {
    client: u16,
    peer: u16,
    data: PathBuf,
    process: Option<Child>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill(at);
        }
    }
}

/// Ports that were free a moment ago.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: Vec<TcpListener> = (0..count).map(bind).collect();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    listeners.iter().map(port).collect()
}

impl Etcd {
    pub(crate) fn start() -> Self {
        Self::cluster(1)
    }

    pub(crate) fn cluster(size: usize) -> Self {
        for _ in 0..5 {
            let ports = free_ports(2 * size);
            // In memory where there is such a folder: etcd 3.4 cannot leave out its syncs.
            let memory = Path::new("/dev/shm");
            let folder = if memory.is_dir() {
                TempDir::new_in(memory)
            } else {
                TempDir::new()
            };
            let folder = folder.unwrap();
            let node = |(at, ports): (usize, &[u16])| Node {
                client: ports[0],
                peer: ports[1],
                data: folder.path().join(format!("n{at}")),
                process: None,
            };
            let nodes = ports.chunks(2).enumerate().map(node).collect();
            let mut etcd = Self { nodes, folder };
            for at in 0..size {
                etcd.launch(at);
            }
            if etcd.is_up() {
                return etcd;
            }
        }
        panic!("no etcd comes up: are Debian's etcd-server and etcd-client installed?");
    }

    fn name(at: usize) -> String {
        format!("n{at}")
    }

    fn peers(&self) -> String {
        let peer = |(at, node): (usize, &Node)| {
            format!("{}=http://127.0.0.1:{}", Self::name(at), node.peer)
        };
        let peers: Vec<String> = self.nodes.iter().enumerate().map(peer).collect();
        peers.join(",")
    }

    /// Starts the process of a node that does not run.
    pub(crate) fn launch(&mut self, at: usize) {
        let peers = self.peers();
        let node = &mut self.nodes[at];
        let client = format!("http://127.0.0.1:{}", node.client);
        let peer = format!("http://127.0.0.1:{}", node.peer);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &Self::name(at), "--data-dir"])
            .arg(&node.data)
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(["--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let started = command.spawn();
        node.process = Some(started.expect("etcd does not start: install Debian's etcd-server"));
    }

    /// Waits until all nodes serve.
    pub(crate) fn is_up(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let has_ended = |node: &mut Node| {
                let process = node.process.as_mut();
                process.is_some_and(|process| process.try_wait().unwrap().is_some())
            };
            if self.nodes.iter_mut().any(has_ended) {
                return false;
            }
            let listens = |node: &Node| TcpStream::connect(("127.0.0.1", node.client)).is_ok();
            if self.nodes.iter().all(listens) && self.try_ctl(&["get", "x"]).is_some() {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    pub(crate) fn port(&self, at: usize) -> u16 {
        self.nodes[at].client
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let url = |node: &Node| format!("http://127.0.0.1:{}", node.client);
        self.nodes.iter().map(url).collect()
    }

    pub(crate) fn store(&self) -> EtcdStore {
        EtcdStore::new(self.urls(), EtcdOptions::default()).unwrap()
    }

    /// Kills a node, if it runs.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.nodes[at].process.take() {
            process.kill().ok();
            process.wait().ok();
        }
    }

    /// The node that leads the cluster.
    pub(crate) fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let leads = |at: &usize| {
                let url = &self.urls()[*at];
                let status = ctl(url, &["endpoint", "status", "--write-out=fields"]);
                let status = status.unwrap_or_default();
                let field = |name: &str| {
                    let line = status.lines().find(|line| line.starts_with(name));
                    line.and_then(|line| line.split(" : ").nth(1))
                        .map(str::to_owned)
                };
                field("\"Leader\"").is_some() && field("\"Leader\"") == field("\"MemberID\"")
            };
            if let Some(at) = (0..self.nodes.len()).find(leads) {
                return at;
            }
            sleep(Duration::from_millis(50));
        }
        panic!("etcd elects no leader");
    }

    fn try_ctl(&self, words: &[&str]) -> Option<String> {
        ctl(&self.urls().join(","), words)
    }

    /// What `etcdctl` prints.
    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        self.try_ctl(words)
            .unwrap_or_else(|| panic!("etcdctl {words:?} failed"))
    }

    /// Writes a backup of the only node.
    pub(crate) fn back_up(&self) -> PathBuf {
        let file = self.folder.path().join("backup.db");
        self.ctl(&["snapshot", "save", file.to_str().unwrap()]);
        file
    }

    /// Replaces the data of the only node by those of a backup, as an operator would.
    pub(crate) fn restore(&mut self, backup: &Path) {
        self.kill(0);
        let (peers, node) = (self.peers(), &self.nodes[0]);
        fs::remove_dir_all(&node.data).unwrap();
        let data = node.data.to_str().unwrap().to_owned();
        let peer = format!("http://127.0.0.1:{}", node.peer);
        let backup = backup.to_str().unwrap();
        self.ctl(&[
            "snapshot",
            "restore",
            backup,
            "--name",
            "n0",
            "--data-dir",
            &data,
            "--initial-cluster",
            &peers,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        self.launch(0);
        assert!(self.is_up());
    }
}

fn ctl(endpoints: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", endpoints]);
    command.args(["--dial-timeout=2s", "--command-timeout=3s"]);
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.expect("etcdctl does not start: install Debian's etcd-client");
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}
