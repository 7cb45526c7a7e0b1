//! A fleet of real processes: `quell fleet coordinator`, nodes of `quell serve --fleet`, and the commands of
//! operators.

mod answers;
mod calls;
mod candidate;
mod commands;
mod console;
mod console_limits;
mod demo;
mod doors;
mod entitled;
mod envoy;
mod etcd_access;
mod faults;
mod groups;
mod hostile;
mod large;
mod load;
pub(crate) mod metrics;
mod overrides;
mod rollout;
mod routes;
mod rules;
mod stages;

use std::process::Command;
use std::time::Duration;

use quell_testkit::port::free_port;
use quell_testkit::wall_clock::WallClock;
use serde_json::Value;

use crate::files::Folder;
use crate::process::{Run, quell, run, until, until_every};
use crate::server::Server;

/// Durations of the protocol for tests in which a leader dies or leases end.
const SHORT: [&str; 6] = ["--leader-ttl", "3s", "--lease", "7s", "--report", "200ms"];

/// The same for all others: no leader loses its lead, and no node its share, because this machine or its disk is busy.
/// A leader that was handed nothing over waits for its time to live before it grants.
const STEADY: [&str; 6] = ["--leader-ttl", "10s", "--lease", "30s", "--report", "200ms"];

/// Interval at which a fleet is looked at: each look starts a process.
const LOOK: Duration = Duration::from_millis(100);

/// Units per second of [`RULES`].
const RATE: u64 = 200;

/// Its burst.
const BURST: u64 = 40;

/// One limit for the whole fleet.
const RULES: &str = "
domain: shop
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: api, rate: 200/s, burst: 40 }
";

/// A coordinator that runs, or that will run again at the same addresses.
struct Coordinator {
    words: Vec<String>,
    nodes: u16,
    admin: u16,
    /// Its wall clock, if not the machine's.
    clock: Option<WallClock>,
    server: Option<Server>,
}

impl Coordinator {
    /// Starts a coordinator; `place` is where the fleet is kept.
    fn start(rules: &str, place: &[&str], more: &[&str]) -> Self {
        Self::with(rules, &[place, &STEADY, more].concat())
    }

    /// The same, with terms that end soon.
    fn brief(rules: &str, place: &[&str], more: &[&str]) -> Self {
        Self::with(rules, &[place, &SHORT, more].concat())
    }

    /// Starts a coordinator with these words.
    fn with(rules: &str, words: &[&str]) -> Self {
        let mut coordinator = Self::new(rules, words);
        coordinator.restart();
        coordinator
    }

    fn new(rules: &str, words: &[&str]) -> Self {
        Self {
            words: ["--rules", rules]
                .iter()
                .chain(words)
                .map(|word| (*word).to_owned())
                .collect(),
            nodes: free_port(),
            admin: free_port(),
            clock: None,
            server: None,
        }
    }

    fn restart(&mut self) {
        let listen = format!("127.0.0.1:{}", self.nodes);
        let admin = format!("127.0.0.1:{}", self.admin);
        let words = [
            "fleet",
            "coordinator",
            "--listen",
            &listen,
            "--admin",
            &admin,
        ];
        self.server = Some(spawn(&words, &self.words, self.clock.as_ref()));
    }

    /// The end of its process, as by `kill -9`.
    fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// The end of its process, as an operator wants it.
    fn stop(&mut self) {
        // Whatever was done to the fleet.
        let metrics = self.metrics();
        assert!(
            metrics.contains("\nquell_bound_violated_total 0\n"),
            "{metrics}"
        );
        let mut server = self.server.take().unwrap();
        server.signal("TERM");
        let status = server.wait();
        assert!(status.success(), "{status:?}\n{}", server.log());
        assert!(!server.log().contains("was taken from"), "{}", server.log());
    }

    fn log(&self) -> String {
        self.server.as_ref().unwrap().log()
    }

    /// Its log, once that has these words.
    fn log_with(&self, words: &str) -> String {
        self.server.as_ref().unwrap().log_with(words)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.nodes)
    }

    fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin)
    }

    /// `quell fleet` with these words, asking this coordinator.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = quell(&["fleet"]);
        command.args(words).args(["--url", &self.admin_url()]);
        command
    }

    /// Asks again for as long as a slow disk has cost it the lead; what may be done by then does no harm twice.
    fn fleet(&self, words: &[&str]) -> Run {
        until("somebody leads", || {
            let run = run(&mut self.command(words));
            let is_idle = run.stderr.contains("this coordinator does not lead");
            (!is_idle).then_some(run)
        })
    }

    /// Makes a step of a rollout. A leader may lose its lead before it can say that it is made.
    fn roll_out(&self, words: &[&str]) {
        let mut perhaps_made = false;
        until(&format!("rollout {words:?} is done"), || {
            let run = run(&mut self.command(&[&["rollout"], words].concat()));
            let is_made = ["nothing is being rolled out", "are in force already"];
            let is_made = perhaps_made && is_made.iter().any(|text| run.stderr.contains(text));
            perhaps_made |= run.stderr.contains("the change may have been made");
            (run.code() == Some(0) || is_made).then_some(())
        });
    }

    fn metrics(&self) -> String {
        let url = format!("{}/metrics", self.admin_url());
        run(crate::clients::curl().args(["--silent", &url])).expect_success()
    }

    /// The value of one line of the metrics, if it is there; the series is written as in the page.
    fn metric(&self, series: &str) -> Option<f64> {
        let metrics = self.metrics();
        let mut lines = metrics.lines();
        lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Waits until it has such a value.
    fn until_metric(&self, series: &str, is_so: impl Fn(f64) -> bool) {
        until_every(LOOK, series, || {
            self.metric(series).filter(|value| is_so(*value))
        });
    }

    /// Waits until each node has reported again and again, so that it was given whatever it would be.
    fn until_some_reports_later(&self) {
        let series = "quell_fleet_messages_total{kind=\"request\"}";
        let before = self.metric(series).unwrap();
        self.until_metric(series, |now| now >= before + 12.0);
    }

    /// Output of `quell fleet status --json`, if a coordinator leads.
    fn status(&self) -> Option<Value> {
        let shown = self.fleet(&["status", "--json"]);
        let is_led = shown.code() == Some(0);
        is_led.then(|| serde_json::from_str(&shown.stdout).unwrap())
    }

    /// Waits until the status is as it should be.
    fn until(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        until_every(LOOK, what, || self.status().filter(|status| is_so(status)))
    }
}

/// Starts `quell` with these words, under this wall clock.
fn spawn(words: &[&str], more: &[String], clock: Option<&WallClock>) -> Server {
    let mut command = quell(words);
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    Server::spawn(command.args(more))
}

/// Number of nodes of a status that have this state.
fn count(status: &Value, state: &str) -> usize {
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes.filter(|node| node["state"] == state).count()
}

/// The field of a node's first limit.
fn share(status: &Value, member: u32, field: &str) -> f64 {
    let mut nodes = status["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["member"] == member);
    node.and_then(|node| node["limits"][0][field].as_f64())
        .unwrap_or(f64::NAN)
}

/// A node with a file of its own, so that it can be started again.
struct Node {
    member: u32,
    words: Vec<String>,
    port: u16,
    /// Its wall clock, if not the machine's.
    clock: Option<WallClock>,
    server: Option<Server>,
}

impl Node {
    fn start(folder: &Folder, rules: &str, member: u32, coordinators: &[&Coordinator]) -> Self {
        let urls: Vec<String> = coordinators.iter().map(|one| one.url()).collect();
        Self::with(folder, rules, member, &urls.join(","), &[])
    }

    fn with(folder: &Folder, rules: &str, member: u32, urls: &str, more: &[&str]) -> Self {
        let mut node = Self::new(folder, rules, member, urls, more);
        node.restart();
        node
    }

    fn new(folder: &Folder, rules: &str, member: u32, urls: &str, more: &[&str]) -> Self {
        let words = [
            "--rules".to_owned(),
            rules.to_owned(),
            "--fleet".to_owned(),
            urls.to_owned(),
            "--fleet-member".to_owned(),
            format!("node-{member}"),
            "--fleet-state".to_owned(),
            folder.path(&format!("node-{member}")),
        ];
        Self {
            member,
            words: words
                .into_iter()
                .chain(more.iter().map(|word| (*word).to_owned()))
                .collect(),
            port: free_port(),
            clock: None,
            server: None,
        }
    }

    fn restart(&mut self) {
        let http = format!("127.0.0.1:{}", self.port);
        let words = ["serve", "--http", &http, "--resp", "127.0.0.1:0"];
        self.server = Some(spawn(&words, &self.words, self.clock.as_ref()));
    }

    fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn state(&self) -> String {
        let health = self.server.as_ref().unwrap().health();
        health["fleet"]["state"].as_str().unwrap().to_owned()
    }

    fn until_it_is(&self, state: &str) {
        let what = format!("node {} is {state}", self.member);
        until_every(LOOK, &what, || (self.state() == state).then_some(()));
    }
}

/// Three nodes.
fn three(folder: &Folder, rules: &str, coordinators: &[&Coordinator]) -> [Node; 3] {
    [1, 2, 3].map(|member| Node::start(folder, rules, member, coordinators))
}
