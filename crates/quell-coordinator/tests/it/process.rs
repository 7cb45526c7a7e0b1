//! Coordinators that are processes, on three etcds, and are killed and stopped.

use std::env;
use std::process::Command;
use std::time::Duration;

use quell_coordinator::codec::decode_record;
use quell_coordinator::leader::Leader;
use quell_coordinator::session::{Session, SessionOptions};
use quell_coordinator::store::{ConfigStore, EtcdOptions, EtcdStore};
use quell_testkit::process::Process;
use quell_testkit::wait::{paced_by, until_it};
use tokio::sync::watch;

use crate::etcd::Etcd;
use crate::leader::wanted;

/// Variable from which a process that another test starts learns the place of etcd, and its name.
const PLACE: &str = "QUELL_TEST_COORDINATOR";

const CALL: Duration = Duration::from_secs(5);

/// Starts a coordinator with this name.
fn start(etcd: &Etcd, name: &str) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "process::is_what_other_tests_start"]);
    command.env(PLACE, format!("{name} {}", etcd.urls().join(",")));
    Process::start(&mut command)
}

/// Started by itself it has nothing to do. Otherwise it is a coordinator that changes its limits all the
/// time, and so writes all the time while it leads; their names say who wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn is_what_other_tests_start() {
    let Ok(place) = env::var(PLACE) else {
        assert!(env::current_exe().unwrap().is_file());
        return;
    };
    let (name, urls) = place.split_once(' ').unwrap();
    let urls = urls.split(',').map(str::to_owned).collect();
    let store = EtcdStore::new(urls, EtcdOptions::default()).unwrap();
    let of = |rate: u64| {
        let mut wanted = wanted(&[rate]);
        wanted.limits[0].name = name.into();
        wanted
    };
    let (want, wants) = watch::channel(of(1_000));
    let session = Session::start(store, SessionOptions::new("test", name)).unwrap();
    let _leader = Leader::start(session, wants);
    for rate in 1_000.. {
        want.send_replace(of(rate));
        paced_by(Duration::from_millis(50)).await;
    }
}

/// Follows the record. Its version never goes back, and what was written since the leader's key was created is by the
/// process that has the key: so whoever had it before has not written again.
struct Writers {
    store: EtcdStore,
    version: u64,
    writer: String,
    gone: Vec<String>,
}

impl Writers {
    async fn look(&mut self) {
        let listing = match self.store.read("/quell/test/", CALL).await {
            Ok(listing) => listing,
            Err(error) => {
                assert!(error.is_passing(), "{error}");
                return;
            }
        };
        let Some(entry) = listing.entries.get("/quell/test/record") else {
            return;
        };
        let record = decode_record(&entry.value).unwrap();
        assert!(record.version >= self.version);
        self.version = record.version;
        let writer = record.plan.limits[0].name.to_string();
        let key = listing.entries.get("/quell/test/leader");
        if let Some(key) = key.filter(|key| entry.changed > key.created) {
            assert_eq!(key.value, writer.as_bytes());
        }
        self.writer = writer;
    }

    /// Waits until another process than those that are gone writes.
    async fn next(&mut self) -> String {
        let before = self.version;
        let had = std::mem::take(&mut self.gone);
        until_it("somebody leads", async || {
            self.look().await;
            self.version > before && !had.contains(&self.writer)
        })
        .await;
        self.gone = had;
        self.writer.clone()
    }

    /// Looks at so many more versions.
    async fn watch(&mut self, versions: u64) {
        let last = self.version + versions;
        until_it("it goes on", async || {
            self.look().await;
            self.version >= last
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_next_coordinator_leads_and_the_old_one_never_writes_again() {
    let mut etcd = Etcd::three();
    let names = ["a", "b", "c"];
    let mut processes: Vec<Option<Process>> =
        names.iter().map(|name| Some(start(&etcd, name))).collect();
    let at = |name: &str| names.iter().position(|other| *other == name).unwrap();
    let mut writers = Writers {
        store: etcd.store(),
        version: 0,
        writer: String::new(),
        gone: Vec::new(),
    };
    until_it("somebody writes", async || {
        writers.look().await;
        writers.version > 0
    })
    .await;
    // Killed, in the middle of its writes.
    let first = writers.next().await;
    drop(processes[at(&first)].take());
    writers.gone.push(first);
    let second = writers.next().await;
    // Stopped for as long as the next one needs, and then it goes on with what it was doing.
    let stopped = processes[at(&second)].as_ref().unwrap();
    stopped.signal("STOP");
    writers.gone.push(second.clone());
    writers.next().await;
    stopped.signal("CONT");
    writers.watch(20).await;
    // The leader of etcd is killed: the coordinators go on, whoever leads them.
    let leader = etcd.leader();
    etcd.kill(leader);
    writers.gone.retain(|name| *name != second);
    writers.next().await;
}
