//! An etcd for one test.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::{run, until};
use crate::server::lasting_port;

/// An etcd of one process, or a member of a cluster, killed when the test is over.
pub(crate) struct Etcd {
    child: Child,
    folder: TempDir,
    ports: [u16; 2],
    /// The names and peer URLs of all members.
    cluster: String,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        let [etcd] = Self::spawn([[lasting_port(), lasting_port()]]);
        etcd.until_it_answers();
        etcd
    }

    /// A cluster of three.
    pub(crate) fn three() -> [Self; 3] {
        let all = Self::spawn([(); 3].map(|()| [lasting_port(), lasting_port()]));
        all.iter().for_each(Self::until_it_answers);
        all
    }

    /// A cluster of members with these ports, for clients and for each other.
    fn spawn<const N: usize>(ports: [[u16; 2]; N]) -> [Self; N] {
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
            Self {
                child: launch(&folder, ports, &cluster),
                folder,
                ports,
                cluster: cluster.clone(),
            }
        })
    }

    fn until_it_answers(&self) {
        until("etcd answers", || {
            self.ctl(&["get", "x"]).status.success().then_some(())
        });
    }

    /// Where it is for the fleet.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Where rules are in it.
    pub(crate) fn rules(&self, name: &str) -> String {
        format!("etcd://127.0.0.1:{}/{name}", self.ports[0])
    }

    /// What `etcdctl` says.
    pub(crate) fn ctl(&self, words: &[&str]) -> crate::process::Run {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &self.endpoint(), "--dial-timeout=1s"]);
        run(command.args(words))
    }

    /// Whether it leads its cluster, as it says itself.
    pub(crate) fn leads(&self) -> bool {
        let said = self.ctl(&["endpoint", "status", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&said.stdout).unwrap_or_default();
        let status = &status[0]["Status"];
        status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
    }

    /// The revision of what is in it.
    pub(crate) fn revision(&self) -> u64 {
        let said = self.ctl(&["get", "x", "--write-out", "json"]);
        let said: serde_json::Value = serde_json::from_str(&said.expect_success()).unwrap();
        said["header"]["revision"].as_u64().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        run(Command::new("sh").args(["-c", &kill])).expect_success();
    }

    /// Starts it again, with what it had.
    pub(crate) fn restart(&mut self) {
        self.begin_again();
        self.until_it_answers();
    }

    /// Starts it again, and does not wait: a member answers when most members are there.
    pub(crate) fn begin_again(&mut self) {
        self.child = launch(&self.folder, self.ports, &self.cluster);
    }
}

/// The name of the member with this port for peers.
fn name(peer: u16) -> String {
    format!("member-{peer}")
}

fn launch(folder: &TempDir, [client, peer]: [u16; 2], cluster: &str) -> Child {
    let name = name(peer);
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--name", &name, "--initial-cluster", cluster])
        .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
        .args(["--log-level", "error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn();
    child.expect("etcd is missing: install Debian's etcd-server and etcd-client")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
