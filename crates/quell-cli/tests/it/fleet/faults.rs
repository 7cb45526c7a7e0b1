//! What a fleet admits while its processes are killed: never more than the limit, and never nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::{Admitted, Load, judge};
use super::proxy::Loss;
use super::{BURST, Coordinator, LOOK, Node, RATE, RULES, count, share, three};
use crate::etcd::Etcd;
use crate::files::Folder;
use crate::process::{until, until_every};

fn until_all_are(nodes: &[Node], state: &str) {
    for node in nodes {
        node.until_it_is(state);
    }
}

#[test]
fn nodes_share_a_limit_whoever_is_killed() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&rules, &place, &[]);
    let mut nodes = three(&folder, &rules, &[&coordinator]);
    let load = Load::on(nodes.iter().map(|node| node.port));
    load.until_more("all nodes admit", &[0, 1, 2], 30);

    load.only(&[0]);
    coordinator.until("the only busy node has nearly all", |status| {
        share(status, 1, "may_use_per_s") > 0.9 * RATE as f64
    });
    load.only(&[0, 1, 2]);
    load.until_more("all nodes admit again", &[0, 1, 2], 30);
    // Then every bucket fills, and is emptied at once.
    load.only(&[]);
    coordinator.until("nobody asks", |status| {
        (1..=3).all(|member| share(status, member, "demand_per_s") < 1.0)
    });
    load.only(&[0, 1, 2]);
    load.until_more("all nodes admit their bursts", &[0, 1, 2], 30);

    nodes[2].kill();
    coordinator.until("node 3 is silent", |status| count(status, "silent") == 1);
    load.until_more("the others go on", &[0, 1], 50);
    nodes[2].restart();
    coordinator.until("node 3 has its seat again", |status| {
        count(status, "active") == 3
    });
    load.until_more("node 3 admits again", &[2], 30);

    coordinator.kill();
    until_all_are(&nodes, "static");
    load.until_more("nodes admit without a coordinator", &[0, 1, 2], 50);
    // From its file: nobody else is there.
    nodes[1].kill();
    nodes[1].restart();
    nodes[1].until_it_is("joining");
    load.until_more("a node that begins from its file admits its floor", &[1], 5);

    coordinator.restart();
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit under the next leader", &[0, 1, 2], 50);
    coordinator.stop();
    coordinator.restart();
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit after a hand-over", &[0, 1, 2], 50);
    judge(&load.end(), RATE, BURST);
    for mut node in nodes {
        node.stop();
    }
}

#[test]
fn a_node_that_is_killed_and_starts_again_is_not_cut_off_unless_it_is_alone() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&rules, &place, &[]);
    let mut node = Node::start(&folder, &rules, 1, &[&coordinator]);
    let alone = "no coordinator has answered for long";
    let log = |node: &Node| node.server.as_ref().unwrap().log();
    node.until_it_is("granted");

    node.kill();
    node.words
        .extend(["--fleet-weight", "3"].map(str::to_owned));
    node.restart();
    node.until_it_is("granted");
    assert!(!log(&node).contains(alone), "{}", log(&node));
    // The weight is that of its first join.
    let status = coordinator.until("it has its seat again", |status| {
        count(status, "active") == 1 && status["nodes"][0]["incarnation"] == "2"
    });
    assert_eq!(status["nodes"][0]["weight"], 1);
    let told = "a node names another weight than its seat has, which stays";
    let of_leader = coordinator.log();
    assert!(of_leader.contains(told), "{of_leader}");

    // One that leaves has another seat when it is back.
    node.stop();
    node.restart();
    coordinator.until("its seat has the weight", |status| {
        status["nodes"][0]["weight"] == 3
    });
    coordinator.kill();
    node.kill();
    node.restart();
    node.until_it_is("joining");
    node.until_it_is("floor");
    until("it says so", || log(&node).contains(alone).then_some(()));
    node.kill();
}

/// Some coordinators on one etcd.
struct Coordinators<const N: usize>([Coordinator; N]);

impl<const N: usize> Coordinators<N> {
    fn start(etcd: &[Etcd], rules: &str) -> Self {
        let urls: Vec<String> = etcd.iter().map(Etcd::endpoint).collect();
        let start = |()| Coordinator::start(rules, &["--etcd", &urls.join(",")], &[]);
        Self([(); N].map(start))
    }

    /// Waits until one of those that run leads and grants.
    fn leader(&self, above: u64) -> (usize, u64) {
        self.leader_of(&[true; N], above)
    }

    /// Waits until one of those that can answer leads and grants.
    fn leader_of(&self, answering: &[bool; N], above: u64) -> (usize, u64) {
        let Self(all) = self;
        until_every(LOOK, "a coordinator leads", || {
            let running = (0..N).filter(|at| answering[*at] && all[*at].server.is_some());
            let mut leading = running.filter_map(|at| {
                let status = all[at].status()?;
                // With the generation before it, once there is one.
                let epoch = status["epoch"].as_str()?.rsplit('-').next()?;
                let epoch: u64 = epoch.parse().ok()?;
                let admin = status["leader"]["admin"].as_str()? == all[at].admin_url();
                (admin && epoch > above && status["grants"] == true).then_some((at, epoch))
            });
            leading.next()
        })
    }
}

#[test]
fn another_coordinator_takes_over_on_etcd() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut etcd = [Etcd::start()];
    let mut pair = Coordinators::<2>::start(&etcd, &rules);
    let nodes = three(&folder, &rules, &[&pair.0[0], &pair.0[1]]);
    let load = Load::on(nodes.iter().map(|node| node.port));
    let all = [0, 1, 2];
    load.until_more("all nodes admit", &all, 30);

    let (first, epoch) = pair.leader(0);
    let second = 1 - first;
    // Whichever is asked, the leader answers.
    let asked = pair.0[second].until("all nodes are there", |status: &Value| {
        count(status, "active") == 3
    });
    assert_eq!(asked["leader"]["admin"], pair.0[first].admin_url());
    pair.0[first].kill();
    let (leader, epoch) = pair.leader(epoch);
    assert_eq!(leader, second);
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit under the second", &all, 50);

    pair.0[first].restart();
    pair.0[second].stop();
    let (leader, epoch) = pair.leader(epoch);
    assert_eq!(leader, first);
    load.until_more("all nodes admit under the first", &all, 50);

    etcd[0].kill();
    until_all_are(&nodes, "static");
    load.until_more("all nodes admit without etcd", &all, 50);
    etcd[0].restart();
    pair.leader(epoch);
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit with etcd", &all, 50);

    pair.0[first].kill();
    until_all_are(&nodes, "static");
    load.until_more("all nodes admit without coordinators", &all, 50);
    judge(&load.end(), RATE, BURST);
}

/// Demand is still, and leases last longer than it takes to find another leader.
#[test]
fn nobody_loses_its_rate_when_only_the_leader_dies() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    let words = [
        "--etcd",
        &endpoint,
        "--leader-ttl",
        "1s",
        "--lease",
        "10s",
        "--report",
        "200ms",
    ];
    let mut pair = Coordinators([(); 2].map(|()| Coordinator::with(&rules, &words)));
    let nodes = three(&folder, &rules, &[&pair.0[0], &pair.0[1]]);
    until_all_are(&nodes, "granted");
    let load = Load::on(nodes.iter().map(|node| node.port));
    load.only(&[0]);
    let (first, epoch) = pair.leader(0);
    pair.0[first].until("the only busy node has nearly all", |status| {
        share(status, 1, "may_use_per_s") > 0.9 * RATE as f64
    });

    let killed = Instant::now();
    pair.0[first].kill();
    pair.leader(epoch);
    load.until_more("it goes on under the next leader", &[0], 2 * RATE);
    let seconds = killed.elapsed().as_secs();
    let admitted = load.end();
    for second in 1..seconds {
        let from = killed + Duration::from_secs(second - 1);
        let is_then =
            |call: &&Admitted| call.heard >= from && call.heard < from + Duration::from_secs(2);
        let count = admitted.iter().filter(is_then).count() as u64;
        // Over two seconds, since this machine may stop for a moment. It has more than 90 %, and its static
        // share is a third.
        assert!(
            10 * count >= 8 * 2 * RATE,
            "{count} in two seconds from {second} of {seconds}"
        );
    }
    judge(&admitted, RATE, BURST);
}

/// "Restore of etcd" of `docs/fleet.md`, step by step, while nodes are asked.
#[test]
fn after_a_restore_nodes_keep_the_limit_until_the_generation_is_raised() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    let mut coordinator = Coordinator::start(&rules, &["--etcd", &endpoint], &[]);
    let start = |member| Node::start(&folder, &rules, member, &[&coordinator]);
    let [one, two] = [1, 2].map(start);
    one.until_it_is("granted");
    two.until_it_is("granted");
    let backup = folder.path("backup.db");
    etcd.back_up(&backup);

    // The backup knows neither a node that joins now nor the next leader.
    let three = start(3);
    coordinator.stop();
    coordinator.restart();
    let nodes = [one, two, three];
    until_all_are(&nodes, "granted");
    let all = [0, 1, 2];
    let load = Load::on(nodes.iter().map(|node| node.port));
    load.until_more("all nodes admit", &all, 30);
    etcd.restore(&backup);
    until("the coordinator says what happened", || {
        let log = coordinator.log();
        log.contains("restored from a backup").then_some(())
    });
    until_all_are(&nodes, "static");
    load.until_more("all nodes go on with their static shares", &all, 30);

    let raised = coordinator.fleet(&["generation", "261124"]);
    raised.expect_success();
    until_all_are(&nodes, "granted");
    coordinator.until("all nodes have seats again", |status| {
        count(status, "active") == 3 && status["applied"] == 3
    });
    coordinator.fleet(&["strangers", "--none"]).expect_success();
    load.until_more("all nodes admit in the new generation", &all, 50);
    judge(&load.end(), RATE, BURST);
}

/// The place of the etcd that leads, of those that answer.
fn leading(etcd: &[Etcd], answering: [bool; 3]) -> usize {
    until_every(LOOK, "an etcd leads", || {
        (0..3).find(|at| answering[*at] && etcd[*at].leads())
    })
}

/// All that is there of everything.
struct Large {
    etcd: [Etcd; 3],
    coordinators: Coordinators<3>,
    nodes: [Node; 5],
    load: Load,
}

const ALL: [usize; 5] = [0, 1, 2, 3, 4];

impl Large {
    /// The coordinator that is behind a proxy leads.
    fn start(folder: &Folder, rules: &str) -> Self {
        let etcd = Etcd::three();
        let urls = etcd.each_ref().map(Etcd::endpoint).join(",");
        let place = ["--etcd", &urls];
        let first = Coordinator::behind_a_proxy(rules, &place);
        first.until("the first coordinator leads", |status| {
            status["grants"] == true
        });
        let [second, third] = [(); 2].map(|()| Coordinator::start(rules, &place, &[]));
        let coordinators = Coordinators([first, second, third]);
        let places = coordinators.0.each_ref();
        let nodes = [1, 2, 3, 4, 5].map(|member| Node::start(folder, rules, member, &places));
        until_all_are(&nodes, "granted");
        let load = Load::on(nodes.iter().map(|node| node.port));
        load.until_more("all nodes admit", &ALL, 30);
        Self {
            etcd,
            coordinators,
            nodes,
            load,
        }
    }

    fn until_all_admit(&self, what: &str) {
        until_all_are(&self.nodes, "granted");
        self.load.until_more(what, &ALL, 30);
    }

    /// Nodes reach the leader, and it does not reach them; then the other way round. No other leads meanwhile,
    /// since it reaches etcd.
    fn lose_one_way(&self) {
        let leader = &self.coordinators.0[0];
        let proxy = leader.proxy.as_ref().unwrap();
        self.load.only(&[0]);
        leader.until("the only busy node has nearly all", |status| {
            share(status, 1, "may_use_per_s") > 0.8 * RATE as f64
        });
        proxy.lose(Loss::Answers);
        self.load.only(&ALL);
        until_all_are(&self.nodes, "static");
        // One after the other: each tries anew when no answer comes, and is heard once a try.
        let heard = RefCell::new(BTreeSet::new());
        leader.until("it hears each of them", |status| {
            let nodes = status["nodes"].as_array().unwrap().iter();
            let active = nodes.filter(|node| node["state"] == "active");
            let active = active.map(|node| node["member"].as_u64().unwrap());
            heard.borrow_mut().extend(active);
            heard.borrow().len() == 5
        });
        proxy.lose(Loss::Requests);
        leader.until("it hears nobody", |status| count(status, "silent") == 5);
        self.load
            .until_more("all nodes admit their static shares", &ALL, 20);
        proxy.lose(Loss::Nothing);
        self.until_all_admit("all nodes admit when nothing is lost any more");
    }

    /// The leader stands still, and comes back as one that does not lead.
    fn freeze_leader(&self, epoch: u64) -> u64 {
        let (first, _) = self.coordinators.leader(epoch - 1);
        let frozen = &self.coordinators.0[first];
        frozen.server.as_ref().unwrap().signal("STOP");
        let mut answering = [true; 3];
        answering[first] = false;
        let (_, next) = self.coordinators.leader_of(&answering, epoch);
        self.until_all_admit("all nodes admit while the first leader stands still");
        frozen.server.as_ref().unwrap().signal("CONT");
        frozen.until("it knows the new leader", |status| {
            status["leader"]["admin"] != frozen.admin_url()
        });
        next
    }

    /// A node stands still for longer than its leases last.
    fn freeze_node(&self) {
        let node = self.nodes[4].server.as_ref().unwrap();
        node.signal("STOP");
        let coordinator = &self.coordinators.0[0];
        coordinator.until("node 5 is silent", |status| count(status, "silent") == 1);
        self.load.until_more("the others go on", &[0, 1, 2, 3], 100);
        node.signal("CONT");
        coordinator.until("node 5 is back", |status| count(status, "active") == 5);
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
        self.load
            .until_more("all nodes admit without etcd", &ALL, 20);
        self.etcd.iter_mut().for_each(Etcd::begin_again);
        self.coordinators.leader(0);
        self.until_all_admit("all nodes admit with etcd");
        // A change is stored and followed, by everybody.
        let (leader, _) = self.coordinators.leader(0);
        let leader = &self.coordinators.0[leader];
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
        self.load
            .until_more("all nodes go on with their static shares", &ALL, 20);
        let coordinator = &self.coordinators.0[0];
        let command = |words: &[&str]| coordinator.fleet(words).expect_success();
        command(&["generation", "261124"]);
        until_all_are(&self.nodes, "granted");
        coordinator.until("all nodes have seats again", |status| {
            count(status, "active") == 5 && status["applied"] == 5
        });
        command(&["strangers", "--none"]);
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
}

/// Three etcd, three coordinators and five nodes. What stands still believes for a while that nothing has
/// happened, which is worse than being dead.
#[test]
fn a_large_fleet_keeps_its_limit_whatever_stands_still_or_dies() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut fleet = Large::start(&folder, &rules);
    fleet.lose_one_way();
    let backup = folder.path("backup.db");
    fleet.etcd[0].back_up(&backup);
    let (_, epoch) = fleet.coordinators.leader(0);
    fleet.freeze_leader(epoch);
    fleet.freeze_node();
    fleet.lose_etcd();
    fleet.restart_everything();
    fleet.restore_etcd(&backup);
    // The leader's auditor, fed with what nodes counted, finds what that of the test finds.
    let (leader, _) = fleet.coordinators.leader(0);
    let metrics = fleet.coordinators.0[leader].metrics();
    assert!(
        metrics.contains("\nquell_bound_violated_total 0\n"),
        "{metrics}"
    );
    judge(&fleet.load.end(), RATE, BURST);
}

/// Each of two nodes ends at half of the limit by itself. The coordinator lives, and nobody reaches it.
#[test]
fn two_nodes_that_are_cut_off_end_at_half_of_the_limit() {
    let folder = Folder::new();
    let text = RULES.replace("200/s, burst: 40", "100/s, burst: 20");
    let rules = folder.write("shop.yaml", &text);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::behind_a_proxy(&rules, &place);
    let nodes = [1, 2].map(|member| Node::start(&folder, &rules, member, &[&coordinator]));
    until_all_are(&nodes, "granted");
    let load = Load::on(nodes.iter().map(|node| node.port));
    // One has nearly all when both are cut off.
    load.only(&[0]);
    coordinator.until("the only busy node has nearly all", |status| {
        share(status, 1, "may_use_per_s") > 90.0
    });
    let proxy = coordinator.proxy.as_ref().unwrap();
    proxy.lose(Loss::Both);
    load.only(&[0, 1]);
    for node in &nodes {
        node.until_it_is("static");
        let server = node.server.as_ref().unwrap();
        assert_eq!(server.metric("quell_fleet_share{limit=\"api\"}"), Some(50));
    }
    load.until_more("both admit", &[0, 1], 150);
    proxy.lose(Loss::Nothing);
    until_all_are(&nodes, "granted");
    load.until_more("both admit when they are back", &[0, 1], 20);
    judge(&load.end(), 100, 20);
    coordinator.stop();
}
