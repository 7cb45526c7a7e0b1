//! An etcd for one test.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::{run, until};
use crate::shared_store::free_port;

/// An etcd of one process on free ports, killed when the test is over.
pub(crate) struct Etcd {
    child: Child,
    folder: TempDir,
    ports: [u16; 2],
}

impl Etcd {
    pub(crate) fn start() -> Self {
        let ports = [free_port(), free_port()];
        // In memory where there is such a folder: etcd 3.4 cannot leave out its syncs.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => TempDir::new_in(memory),
            false => TempDir::new(),
        };
        let folder = folder.unwrap();
        let child = launch(&folder, ports);
        let etcd = Self {
            child,
            folder,
            ports,
        };
        etcd.until_it_answers();
        etcd
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

    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Starts it again, with what it had.
    pub(crate) fn restart(&mut self) {
        self.child = launch(&self.folder, self.ports);
        self.until_it_answers();
    }
}

fn launch(folder: &TempDir, [client, peer]: [u16; 2]) -> Child {
    let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
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
