//! Three etcd, three coordinators and five nodes under load. Whatever happens to them and to the network between
//! them, the fleet's auditor finds no call too many.

use std::time::{Duration, Instant};

use quell_testkit::etcd::Etcd;
use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::wall_clock::WallClock;
use serde_json::Value;

use super::faults::{Coordinators, until_all_are};
use super::load::{Load, judge};
use super::{BURST, Coordinator, LOOK, Node, RATE, RULES, count, share};
use crate::files::Folder;
use crate::process::{until, until_every};

/// URL that coordinators announce: where no node goes, so that nodes keep to their own links.
const NOWHERE: &str = "http://192.0.2.1:7600";

/// Answers arrive this much later on a slow network.
const SLOW: Duration = Duration::from_millis(120);

const ALL: [usize; 5] = [0, 1, 2, 3, 4];

/// For how long a fault lasts once it is noticed: seconds that `cargo xtask soak` says, else no time.
fn outage() -> Duration {
    let seconds = std::env::var("QUELL_OUTAGE_S");
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
}

/// The place of the etcd that leads, of those that answer.
fn leading(etcd: &[Etcd], answering: [bool; 3]) -> usize {
    until_every(LOOK, "an etcd leads", || {
        (0..3).find(|at| answering[*at] && etcd[*at].leads())
    })
}

fn set<'p>(links: impl IntoIterator<Item = &'p Proxy>, fault: Fault) {
    links.into_iter().for_each(|link| link.set(fault));
}

/// All that is there of everything.
struct Large {
    etcd: [Etcd; 3],
    coordinators: Coordinators<3>,
    nodes: [Node; 5],
    /// Between each node and each coordinator, by node.
    fronts: [[Proxy; 3]; 5],
    /// Between each coordinator and each etcd, by coordinator.
    backs: [[Proxy; 3]; 3],
    load: Load,
}

impl Large {
    fn start(folder: &Folder, rules: &str, lease: &str) -> Self {
        let etcd = Etcd::three();
        let urls = |links: &[Proxy; 3]| links.each_ref().map(Proxy::url).join(",");
        let backs = [(); 3].map(|()| etcd.each_ref().map(|etcd| Proxy::start(etcd.port())));
        let coordinators = backs.each_ref().map(|links| {
            let words = [
                ["--etcd", &urls(links)],
                ["--url", NOWHERE],
                ["--leader-ttl", "1s"],
                ["--lease", lease],
                ["--report", "200ms"],
            ];
            let mut coordinator = Coordinator::new(rules, words.as_flattened());
            coordinator.clock = Some(WallClock::new());
            coordinator.restart();
            coordinator
        });
        let front = |one: &Coordinator| Proxy::start(one.nodes);
        let fronts = [(); 5].map(|()| coordinators.each_ref().map(front));
        let nodes = ALL.map(|at| {
            let member = u32::try_from(at).unwrap() + 1;
            let mut node = Node::new(folder, rules, member, &urls(&fronts[at]), &[]);
            node.clock = Some(WallClock::new());
            node.restart();
            node
        });
        until_all_are(&nodes, "granted");
        let load = Load::on(nodes.iter().map(|node| node.port));
        load.until_more("all nodes admit", &ALL, 30);
        Self {
            etcd,
            coordinators: Coordinators(coordinators),
            nodes,
            fronts,
            backs,
            load,
        }
    }

    fn leader(&self) -> &Coordinator {
        &self.coordinators.0[self.coordinators.leader(0).0]
    }

    fn until_all_admit(&self, what: &str) {
        until_all_are(&self.nodes, "granted");
        self.load.until_more(what, &ALL, 30);
    }

    /// Only this node is asked, until it has nearly all of the limit.
    fn ask_only(&self, node: usize) {
        self.load.only(&[node]);
        let member = u32::try_from(node).unwrap() + 1;
        let what = "the only busy node has nearly all";
        self.leader().until(what, |status| {
            share(status, member, "may_use_per_s") > 0.9 * RATE as f64
        });
    }

    /// The fault goes on, and these nodes admit meanwhile.
    fn last(&self, what: &str, nodes: &[usize]) {
        let (begun, outage) = (Instant::now(), outage());
        self.load.until_more(what, nodes, 20);
        while begun.elapsed() < outage {
            self.load.until_more(what, nodes, 20);
        }
    }

    /// Every message arrives late, each way, also at etcd and back, while demand moves.
    fn delay(&self) {
        let links = || self.fronts.iter().chain(&self.backs).flatten();
        set(links(), Fault::Delay(SLOW));
        self.ask_only(0);
        self.load.only(&ALL);
        self.until_all_admit("all nodes admit on a slow network");
        self.last("all nodes go on", &ALL);
        set(links(), Fault::None);
    }

    /// Nodes reach the leader, and it does not reach them; then the other way round. No other leads meanwhile,
    /// since it reaches etcd.
    fn lose_one_way(&self) {
        let (at, _) = self.coordinators.leader(0);
        let leader = &self.coordinators.0[at];
        let links = || self.fronts.iter().map(move |links| &links[at]);
        self.ask_only(0);
        let begun = Instant::now();
        set(links(), Fault::LoseAnswers);
        self.load.only(&ALL);
        // Until they give the connection up, since no answer comes.
        leader.until("it hears each of them", |status| {
            let since = u64::try_from(begun.elapsed().as_millis()).unwrap();
            let nodes = status["nodes"].as_array().unwrap().iter();
            let heard = nodes.filter(|node| node["heard_ms_ago"].as_u64().unwrap() < since);
            heard.count() == 5
        });
        until_all_are(&self.nodes, "static");
        self.last(
            "all nodes admit their static shares when no answer comes",
            &ALL,
        );
        set(links(), Fault::LoseRequests);
        leader.until("it hears nobody", |status| count(status, "silent") == 5);
        self.last("all nodes admit their static shares", &ALL);
        set(links(), Fault::None);
        self.until_all_admit("all nodes admit when nothing is lost any more");
    }

    /// Two nodes lose all that they say and hear, and one of them has nearly all of the limit; the connections
    /// of a third end. Then everybody wants everything.
    fn cut_nodes_off(&self) {
        self.ask_only(0);
        let [one, two, three, ..] = &self.fronts;
        set(one.iter().chain(two), Fault::Lose);
        set(three, Fault::Refuse);
        self.load.only(&ALL);
        until_all_are(&self.nodes[..3], "static");
        until_all_are(&self.nodes[3..], "granted");
        self.last("all nodes admit, cut off or not", &ALL);
        set(self.fronts.iter().flatten(), Fault::None);
        self.until_all_admit("all nodes admit when nobody is cut off");
    }

    /// The leader reaches etcd, and does not hear it; the connections of the next one to etcd end. Nobody else
    /// notices a thing.
    fn cut_leader_off(&self) {
        let (first, epoch) = self.coordinators.leader(0);
        set(&self.backs[first], Fault::LoseAnswers);
        let (second, epoch) = self.coordinators.leader(epoch);
        self.until_all_admit("all nodes admit under the second leader");
        set(&self.backs[first], Fault::None);
        set(&self.backs[second], Fault::Refuse);
        self.coordinators.leader(epoch);
        self.until_all_admit("all nodes admit under the third leader");
        self.last("all nodes go on under the third leader", &ALL);
        set(&self.backs[second], Fault::None);
    }

    /// The leader is killed, a coordinator that does not lead, and a node; each starts again.
    fn kill_each(&mut self) {
        let (first, epoch) = self.coordinators.leader(0);
        self.coordinators.0[first].kill();
        let (second, _) = self.coordinators.leader(epoch);
        self.until_all_admit("all nodes admit under the second leader");
        self.coordinators.0[first].restart();
        self.coordinators.0[3 - first - second].kill();
        self.nodes[3].kill();
        let leader = &self.coordinators.0[second];
        leader.until("node 4 is silent", |status| count(status, "silent") == 1);
        self.last("the others go on", &[0, 1, 2, 4]);
        self.nodes[3].restart();
        self.coordinators.0[3 - first - second].restart();
        self.until_all_admit("all nodes admit, and so does the one that was killed");
    }

    /// The leader stands still, and comes back as one that does not lead.
    fn freeze_leader(&self) {
        let (first, epoch) = self.coordinators.leader(0);
        let frozen = &self.coordinators.0[first];
        frozen.server.as_ref().unwrap().signal("STOP");
        let mut answering = [true; 3];
        answering[first] = false;
        self.coordinators.leader_of(&answering, epoch);
        self.until_all_admit("all nodes admit while the first leader stands still");
        self.last("all nodes go on", &ALL);
        frozen.server.as_ref().unwrap().signal("CONT");
        frozen.until("it knows the new leader", |status| {
            status["leader"]["admin"] != frozen.admin_url()
        });
    }

    /// A node stands still for longer than its leases last.
    fn freeze_node(&self) {
        let node = self.nodes[4].server.as_ref().unwrap();
        node.signal("STOP");
        let leader = self.leader();
        leader.until("node 5 is silent", |status| count(status, "silent") == 1);
        self.load.until_more("the others go on", &[0, 1, 2, 3], 100);
        self.last("the others go on and on", &[0, 1, 2, 3]);
        node.signal("CONT");
        leader.until("node 5 is back", |status| count(status, "active") == 5);
        self.until_all_admit("all nodes admit, and so does the one that stood still");
    }

    /// The etcd that leads stands still, then one is killed, then all, and what was written long ago goes.
    fn lose_etcd(&mut self) {
        let frozen = leading(&self.etcd, [true; 3]);
        self.etcd[frozen].signal("STOP");
        let mut answering = [true; 3];
        answering[frozen] = false;
        let next = leading(&self.etcd, answering);
        self.coordinators.leader(0);
        self.until_all_admit("all nodes admit while an etcd stands still");
        self.last("all nodes go on while it does", &ALL);
        self.etcd[frozen].signal("CONT");
        self.etcd[next].kill();
        let mut answering = [true; 3];
        answering[next] = false;
        leading(&self.etcd, answering);
        self.coordinators.leader(0);
        self.until_all_admit("all nodes admit without one etcd");
        self.etcd[next].restart();
        let revision = self.etcd[0].revision().to_string();
        self.etcd[0].ctl(&["compact", &revision]).expect_success();

        self.etcd.iter_mut().for_each(Etcd::kill);
        until_all_are(&self.nodes, "static");
        self.last("all nodes admit without etcd", &ALL);
        self.etcd.iter_mut().for_each(Etcd::begin_again);
        self.coordinators.leader(0);
        self.until_all_admit("all nodes admit with etcd");
        // A change is stored and followed, by everybody.
        let leader = self.leader();
        leader.fleet(&["weight", "5", "2"]).expect_success();
        leader.until("the weight is in force", |status| {
            let nodes = status["nodes"].as_array().unwrap();
            let is_it = |node: &Value| node["member"] == 5 && node["weight"] == 2;
            status["applied"] == 5 && nodes.iter().any(is_it)
        });
    }

    /// "Restore of etcd" of `docs/fleet.md`, of a cluster of three.
    fn restore_etcd(&mut self, backup: &str) {
        Etcd::restore_all(&mut self.etcd, backup);
        until("a coordinator says what happened", || {
            let mut all = self.coordinators.0.iter();
            let noticed = all.any(|one| one.log().contains("restored from a backup"));
            noticed.then_some(())
        });
        until_all_are(&self.nodes, "static");
        self.last("all nodes go on with their static shares", &ALL);
        let coordinator = &self.coordinators.0[0];
        let command = |words: &[&str]| coordinator.fleet(words).expect_success();
        command(&["generation", "261124"]);
        until_all_are(&self.nodes, "granted");
        coordinator.until("all nodes have seats again", |status| {
            count(status, "active") == 5 && status["applied"] == 5
        });
        command(&["restored", "--all-heard"]);
        self.until_all_admit("all nodes admit in the new generation");
    }

    /// As after a power cut.
    fn restart_everything(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
        self.coordinators.0.iter_mut().for_each(Coordinator::kill);
        self.etcd.iter_mut().for_each(Etcd::kill);
        self.etcd.iter_mut().for_each(Etcd::begin_again);
        self.coordinators
            .0
            .iter_mut()
            .for_each(Coordinator::restart);
        self.nodes.iter_mut().for_each(Node::restart);
        self.until_all_admit("all nodes admit after everything was started again");
    }

    /// Demand is still, and the leader dies. How much of its share the busy node keeps meanwhile is a rate: the simulation
    /// and the chaos scenario `leader-death` hold it.
    fn kill_leader_of_a_busy_node(&mut self) {
        self.ask_only(0);
        let (first, epoch) = self.coordinators.leader(0);
        self.coordinators.0[first].kill();
        self.coordinators.leader(epoch);
        let what = "it goes on under the next leader";
        self.load.until_more(what, &[0], 2 * RATE);
        self.coordinators.0[first].restart();
    }

    /// The machine of the busy node was suspended, and the clock by which its lease ends has not counted that:
    /// the wall clock is ahead of it, once it is right again. The node ends its lease, although nobody can tell
    /// it anything.
    fn suspend_node(&self) {
        let stopped = "the machine was suspended and its clock stood still: this node's leases end";
        self.ask_only(0);
        let node = &self.nodes[0];
        let clock = node.clock.as_ref().unwrap();
        let log = || node.server.as_ref().unwrap().log();
        // A clock that is set back is no pause, and nor is a pause that both clocks count: it has to be a real one.
        clock.set(-3_600.0);
        node.server.as_ref().unwrap().signal("STOP");
        self.leader()
            .until("it was not heard for seconds", |status| {
                let mut nodes = status["nodes"].as_array().unwrap().iter();
                nodes.any(|node| node["member"] == 1 && node["heard_ms_ago"].as_u64() > Some(2_000))
            });
        node.server.as_ref().unwrap().signal("CONT");
        self.load.until_more("it goes on", &[0], RATE);
        assert!(!log().contains(stopped), "{}", log());

        set(&self.fronts[0], Fault::Lose);
        clock.set(-3_480.0);
        self.load.only(&ALL);
        until("its lease is over", || {
            (node.state() != "granted").then_some(())
        });
        assert!(log().contains(stopped), "{}", log());
        set(&self.fronts[0], Fault::None);
        self.until_all_admit("all nodes admit, and so does the one that was suspended");
    }

    /// The same happens to the leader, which does not lead on.
    fn suspend_leader(&self) {
        let (first, epoch) = self.coordinators.leader(0);
        let leader = &self.coordinators.0[first];
        leader.clock.as_ref().unwrap().set(30.0);
        until("it does not lead on", || {
            let log = leader.log();
            log.contains("the machine was suspended: this coordinator gives up the lead")
                .then_some(())
        });
        self.coordinators.leader(epoch);
        self.until_all_admit("all nodes admit under the next leader");
    }

    /// Ends. No call was too many, says the auditor of the test, and so does that of the leader, which is fed
    /// with what nodes counted.
    fn end(self) {
        let metrics = self.leader().metrics();
        assert!(
            metrics.contains("\nquell_bound_violated_total 0\n"),
            "{metrics}"
        );
        judge(&self.load.end(), RATE, BURST);
    }
}

/// A process that stands still believes for a while that nothing has happened, which is worse than being
/// dead.
#[test]
fn a_large_fleet_keeps_its_limit_whatever_stands_still_or_dies() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut fleet = Large::start(&folder, &rules, "3s");
    let backup = folder.path("backup.db");
    fleet.etcd[0].back_up(&backup);
    fleet.kill_each();
    fleet.freeze_leader();
    fleet.freeze_node();
    fleet.lose_etcd();
    fleet.restart_everything();
    fleet.restore_etcd(&backup);
    fleet.end();
}

#[test]
fn a_large_fleet_keeps_its_limit_on_a_network_that_delays_loses_and_cuts() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let fleet = Large::start(&folder, &rules, "3s");
    fleet.delay();
    fleet.lose_one_way();
    fleet.cut_nodes_off();
    fleet.cut_leader_off();
    fleet.end();
}

/// Leases last longer than it takes to find another leader.
#[test]
fn another_leads_after_the_death_of_the_leader_and_a_suspended_node_ends_its_lease() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut fleet = Large::start(&folder, &rules, "30s");
    fleet.kill_leader_of_a_busy_node();
    fleet.suspend_node();
    fleet.suspend_leader();
    fleet.end();
}
