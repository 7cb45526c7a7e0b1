//! Admissions of a fleet while its processes are killed: never more than the limit, and never none.

use quell_testkit::etcd::Etcd;
use quell_testkit::proxy::{Fault, Proxy};
use serde_json::Value;

use super::entitled::Entitled;
use super::load::{Load, judge};
use super::{BURST, Coordinator, LOOK, Node, RATE, RULES, count, share, three};
use crate::files::Folder;
use crate::process::{until, until_every};

pub(super) fn until_all_are(nodes: &[Node], state: &str) {
    for node in nodes {
        node.until_it_is(state);
    }
}

/// As on a full disk: the file of `--embedded` cannot be replaced. Everybody who is concerned is told, and the log once.
#[test]
fn a_full_disk_is_seen_and_a_dead_node_is_in_the_first_line() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&rules, &place, &[]);
    let mut one = Node::start(&folder, &rules, 1, &[&coordinator]);
    one.until_it_is("granted");
    let in_the_way = folder.path("fleet.db.copy.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let mut two = Node::start(&folder, &rules, 2, &[&coordinator]);
    let told = until("node 2 is told", || {
        let health = two.server.as_ref().unwrap().health();
        let trouble = health["fleet"]["trouble"].as_str()?.to_owned();
        trouble.contains("cannot write").then_some(trouble)
    });
    assert!(told.contains("gives this node no seat"), "{told}");
    let shown = until("the status says why", || {
        let shown = coordinator.fleet(&["status"]).expect_success();
        shown
            .starts_with("trouble: the configuration store takes no writes")
            .then_some(shown)
    });
    assert!(shown.contains("fleet.db"), "{shown}");
    let weight = coordinator.fleet(&["weight", "1", "2"]);
    assert!(weight.stderr.contains("fleet.db"), "{weight:?}");
    coordinator.until_metric("quell_fleet_store_writes", |writes| writes == 0.0);
    let log = coordinator.log();
    assert_eq!(
        log.matches("cannot write the fleet's record: nodes")
            .count(),
        1,
        "{log}"
    );
    one.until_it_is("granted");
    std::fs::remove_dir(&in_the_way).unwrap();
    two.until_it_is("granted");

    two.kill();
    let shown = until("node 2 is silent", || {
        let shown = coordinator.fleet(&["status"]).expect_success();
        shown
            .starts_with("trouble: node 2 is silent since")
            .then_some(shown)
    });
    let mut lines = shown.lines();
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(first.contains("of api lie idle"), "{first}");
    assert!(
        first.contains("`quell fleet fence 2 --incarnation"),
        "{first}"
    );
    assert!(
        second.ends_with("applied by 1/2 nodes, 1 silent"),
        "{second}"
    );
    one.stop();
    coordinator.stop();
}

/// A node that hears nothing of a cut has its part of the limit before, so as long all may use more than the limit
/// in force, and what is shown as the most that they use is the limit before.
#[test]
fn a_limit_that_is_cut_is_shown_until_nobody_has_a_part_of_it() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let mut nodes = three(&folder, &rules, &[&coordinator]);
    let load = Load::on(nodes.iter().map(|node| node.port));
    let micros = |rate: f64| (rate * 1e6).round();
    // Whenever it is looked at.
    let limit = |status: &Value| {
        let fields = ["rate_per_s", "most_per_s", "may_use_per_s"];
        let [rate, most, may_use] =
            fields.map(|field| status["limits"][0][field].as_f64().unwrap());
        assert!(may_use <= most, "{status}");
        let shares = (1..=3).map(|member| share(status, member, "may_use_per_s"));
        let sum: f64 = shares.filter(|share| share.is_finite()).map(micros).sum();
        // Parts are rounded up when they are counted as parts of another limit.
        let is_granting = status["grants"] == true;
        assert!(!is_granting || sum <= micros(most) + 10.0, "{status}");
        (rate, most, may_use)
    };
    coordinator.until("all nodes share it", |status| {
        let (_, _, may_use) = limit(status);
        status["applied"] == 3 && may_use > 190.0
    });
    nodes[2].kill();
    load.only(&[0, 1]);
    folder.write("shop.yaml", &RULES.replace("200/s", "100/s"));
    coordinator.until("a node that is gone has more than is left", |status| {
        let (rate, most, may_use) = limit(status);
        let is_cut = rate == 100.0 && status["applied"] == 2;
        assert!(!is_cut || most == 200.0, "{status}");
        is_cut && may_use > 120.0
    });
    let dead = coordinator.fleet(&["deregister", "node-3"]);
    dead.expect_success();
    coordinator.until("the line falls", |status| {
        let (_, most, may_use) = limit(status);
        most == 100.0 && may_use > 90.0
    });
    load.end();
}

#[test]
fn nodes_share_a_limit_whoever_is_killed() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::brief(&rules, &place, &[]);
    let mut nodes = three(&folder, &rules, &[&coordinator]);
    let load = Load::on(nodes.iter().map(|node| node.port));
    let entitled = Entitled::to(nodes.iter().map(|node| node.port));
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
    entitled.judge(RATE);
    for mut node in nodes {
        node.stop();
    }
}

#[test]
fn a_node_that_is_killed_and_starts_again_is_not_cut_off_unless_it_is_alone() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::brief(&rules, &place, &[]);
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
    let told = "a node joined with another weight than its seat has";
    coordinator.log_with(told);

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
pub(super) struct Coordinators<const N: usize>(pub(super) [Coordinator; N]);

impl<const N: usize> Coordinators<N> {
    fn start(etcd: &[Etcd], rules: &str) -> Self {
        let urls: Vec<String> = etcd.iter().map(Etcd::endpoint).collect();
        let start = |()| Coordinator::brief(rules, &["--etcd", &urls.join(",")], &[]);
        Self([(); N].map(start))
    }

    /// Waits until one of those that run leads and grants.
    pub(super) fn leader(&self, above: u64) -> (usize, u64) {
        self.leader_of(&[true; N], above)
    }

    /// Waits until one of those that can answer leads and grants.
    pub(super) fn leader_of(&self, answering: &[bool; N], above: u64) -> (usize, u64) {
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

/// "Restore of etcd" of `docs/fleet.md`, step by step, while nodes are asked.
#[test]
fn after_a_restore_nodes_keep_the_limit_until_the_generation_is_raised() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let mut etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    let mut coordinator = Coordinator::brief(&rules, &["--etcd", &endpoint], &[]);
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
    coordinator
        .fleet(&["restored", "--all-heard"])
        .expect_success();
    load.until_more("all nodes admit in the new generation", &all, 50);
    judge(&load.end(), RATE, BURST);
}

/// Each of two nodes ends at half of the limit by itself. The coordinator lives, and nobody reaches it.
#[test]
fn two_nodes_that_are_cut_off_end_at_half_of_the_limit() {
    let folder = Folder::new();
    let text = RULES.replace("200/s, burst: 40", "100/s, burst: 20");
    let rules = folder.write("shop.yaml", &text);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::brief(&rules, &place, &[]);
    let proxy = Proxy::start(coordinator.nodes);
    let start = |member| Node::with(&folder, &rules, member, &proxy.url(), &[]);
    let nodes = [1, 2].map(start);
    until_all_are(&nodes, "granted");
    let load = Load::on(nodes.iter().map(|node| node.port));
    // One has nearly all when both are cut off.
    load.only(&[0]);
    coordinator.until("the only busy node has nearly all", |status| {
        share(status, 1, "may_use_per_s") > 90.0
    });
    proxy.set(Fault::Lose);
    load.only(&[0, 1]);
    for node in &nodes {
        node.until_it_is("static");
        let server = node.server.as_ref().unwrap();
        assert_eq!(server.metric("quell_fleet_share{limit=\"api\"}"), Some(50));
    }
    load.until_more("both admit", &[0, 1], 150);
    proxy.set(Fault::None);
    until_all_are(&nodes, "granted");
    load.until_more("both admit when they are back", &[0, 1], 20);
    judge(&load.end(), 100, 20);
    coordinator.stop();
}
