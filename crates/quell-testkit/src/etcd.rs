//! An etcd of one process or three.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::port::free_port;
use crate::process::{Process, Run, run};
use crate::wait::until;

/// An etcd of one process, or a member of a cluster, killed when it is dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    words: Vec<String>,
    port: u16,
    /// With TLS: its own certificate, and one for clients.
    certificates: Option<Certificates>,
}

impl Etcd {
    /// One of one process.
    pub fn start() -> Self {
        let [etcd] = Self::spawn([[free_port(), free_port()]], || None);
        etcd.until_it_answers();
        etcd
    }

    /// One that speaks TLS, to everybody.
    pub fn with_tls() -> Self {
        Self::behind_tls(&[])
    }

    fn behind_tls(more: &[&str]) -> Self {
        let certificates = || Some((Certificates::new(), more));
        let [etcd] = Self::spawn([[free_port(), free_port()]], certificates);
        etcd.until_it_answers();
        etcd
    }

    /// One that speaks to those alone that show a certificate, and then a user and a password.
    pub fn guarded(user: &str, password: &str, prefixes: &[&str]) -> Self {
        // A check of a password takes longer than a call may, as on a busy machine.
        let etcd = Self::behind_tls(&["--client-cert-auth", "--bcrypt-cost", "13"]);
        // It refuses a change that takes it too long, and may have made it all the same.
        let ctl = |words: &[&str]| {
            until("etcd made a change", || {
                let made = etcd.ctl(&[&["--command-timeout=60s"], words].concat());
                (made.status.success() || made.stderr.contains("already exists")).then_some(())
            });
        };
        for name in ["root", user] {
            ctl(&["user", "add", &format!("{name}:{password}")]);
            ctl(&["role", "add", name]);
            ctl(&["user", "grant-role", name, name]);
        }
        for prefix in prefixes {
            let grant = ["role", "grant-permission", user, "--prefix=true"];
            ctl(&[&grant[..], &["readwrite", prefix]].concat());
        }
        ctl(&["auth", "enable"]);
        etcd
    }

    /// The folder of its certificates.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().unwrap()
    }

    /// A cluster of three.
    pub fn three() -> [Self; 3] {
        let all = Self::spawn([(); 3].map(|()| [free_port(), free_port()]), || None);
        all.iter().for_each(Self::until_it_answers);
        all
    }

    /// A cluster of members with these ports, for clients and for each other.
    ///
    /// With certificates come further words.
    fn spawn<'w, const N: usize>(
        ports: [[u16; 2]; N],
        certificates: impl Fn() -> Option<(Certificates, &'w [&'w str])>,
    ) -> [Self; N] {
        let peer = |[_, peer]: &[u16; 2]| format!("{}=http://127.0.0.1:{peer}", name(*peer));
        let cluster: Vec<String> = ports.iter().map(peer).collect();
        let cluster = cluster.join(",");
        ports.map(|ports| {
            // In memory where there is such a folder: etcd 3.4 cannot leave out its syncs.
            let memory = Path::new("/dev/shm");
            let folder = match memory.is_dir() {
                true => TempDir::new_in(memory),
                false => TempDir::new(),
            };
            let folder = folder.unwrap();
            let (certificates, more) = certificates().unzip();
            let more = more.unwrap_or_default();
            let words = words(&folder, ports, &cluster, (certificates.as_ref(), more));
            Self {
                process: Process::start_in(folder, Command::new("etcd").args(&words)),
                words,
                port: ports[0],
                certificates,
            }
        })
    }

    fn until_it_answers(&self) {
        until("etcd answers", || {
            self.ctl(&["get", "x"]).status.success().then_some(())
        });
    }

    /// Its port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Endpoint for the fleet.
    pub fn endpoint(&self) -> String {
        match self.certificates {
            // As its certificate names it.
            Some(_) => format!("https://localhost:{}", self.port),
            None => format!("http://127.0.0.1:{}", self.port),
        }
    }

    /// URL of its rules.
    pub fn rules(&self, name: &str) -> String {
        match self.certificates {
            Some(_) => format!("etcds://localhost:{}/{name}", self.port),
            None => format!("etcd://127.0.0.1:{}/{name}", self.port),
        }
    }

    /// Output of `etcdctl`.
    pub fn ctl(&self, words: &[&str]) -> Run {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &self.endpoint(), "--dial-timeout=1s"]);
        if let Some(certificates) = &self.certificates {
            let [authority, cert, key] = ["ca.pem", "client.pem", "client.key"];
            let path = |name: &str| certificates.path(name);
            command.args(["--cacert", &path(authority)]);
            command.args(["--cert", &path(cert), "--key", &path(key)]);
        }
        run(command.args(words))
    }

    /// Returns true if etcd says that it leads its cluster.
    pub fn leads(&self) -> bool {
        let said = self.ctl(&["endpoint", "status", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&said.stdout).unwrap_or_default();
        let status = &status[0]["Status"];
        status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
    }

    /// The revision of what is in it.
    pub fn revision(&self) -> u64 {
        let said = self.ctl(&["get", "x", "--write-out", "json"]);
        let said: serde_json::Value = serde_json::from_str(&said.expect_success()).unwrap();
        said["header"]["revision"].as_u64().unwrap()
    }

    /// Writes a backup into this file.
    pub fn back_up(&self, file: &str) {
        self.ctl(&["snapshot", "save", file]).expect_success();
    }

    /// Replaces what it has by a backup, as an operator would; it is the only member.
    pub fn restore(&mut self, backup: &str) {
        self.kill();
        self.take(backup);
        self.restart();
    }

    /// The same of all members of a cluster.
    pub fn restore_all(all: &mut [Self], backup: &str) {
        all.iter_mut().for_each(Self::kill);
        all.iter().for_each(|etcd| etcd.take(backup));
        all.iter_mut().for_each(Self::begin_again);
        all.iter().for_each(Self::until_it_answers);
    }

    /// While it does not run, replaces what it has by a backup.
    fn take(&self, backup: &str) {
        let word = |flag: &str| {
            let at = self.words.iter().position(|word| word == flag).unwrap();
            self.words[at + 1].clone()
        };
        fs::remove_dir_all(word("--data-dir")).unwrap();
        let flags = [
            "--name",
            "--data-dir",
            "--initial-cluster",
            "--initial-advertise-peer-urls",
        ];
        let words = flags
            .iter()
            .flat_map(|flag| [(*flag).to_owned(), word(flag)]);
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let restored = self.ctl(&[&["snapshot", "restore", backup], &words[..]].concat());
        restored.expect_success();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Starts it again, with what it had.
    pub fn restart(&mut self) {
        self.begin_again();
        self.until_it_answers();
    }

    /// Starts it again, and does not wait: a member answers when most members are there.
    pub fn begin_again(&mut self) {
        let mut command = Command::new("etcd");
        self.process.replace(command.args(&self.words));
    }
}

/// The name of the member with this port for peers.
fn name(peer: u16) -> String {
    format!("member-{peer}")
}

fn words(
    folder: &TempDir,
    [client, peer]: [u16; 2],
    cluster: &str,
    (certificates, more): (Option<&Certificates>, &[&str]),
) -> Vec<String> {
    let scheme = if certificates.is_some() {
        "https"
    } else {
        "http"
    };
    let (client, name) = (format!("{scheme}://127.0.0.1:{client}"), name(peer));
    let (peer, data) = (
        format!("http://127.0.0.1:{peer}"),
        folder.path().join("data"),
    );
    let mut words = vec!["--data-dir".to_owned(), data.display().to_string()];
    let mut add = |flag: &str, value: &str| words.extend([flag.to_owned(), value.to_owned()]);
    add("--name", &name);
    add("--initial-cluster", cluster);
    add("--listen-client-urls", &client);
    add("--advertise-client-urls", &client);
    add("--listen-peer-urls", &peer);
    add("--initial-advertise-peer-urls", &peer);
    add("--heartbeat-interval", "100");
    add("--election-timeout", "1000");
    add("--log-level", "error");
    if let Some(certificates) = certificates {
        add("--cert-file", &certificates.path("server.pem"));
        add("--key-file", &certificates.path("server.key"));
        if more.contains(&"--client-cert-auth") {
            // With it, etcd wants to be shown a certificate whatever another flag says.
            add("--trusted-ca-file", &certificates.path("ca.pem"));
        }
    }
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}
