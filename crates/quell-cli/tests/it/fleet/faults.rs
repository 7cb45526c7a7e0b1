//! What a fleet admits while its processes are killed: never more than the limit, and never nothing.

use serde_json::Value;

use super::load::{Load, excess};
use super::{BURST, Coordinator, Node, RATE, RULES, count, share, three};
use crate::etcd::Etcd;
use crate::files::Folder;
use crate::process::until;

/// Ends the load and judges what was admitted. Clocks may drift by a thousandth.
fn judge(load: Load) {
    let admitted = load.end();
    let (rate, burst) = (RATE as f64 * 1.001, BURST as f64);
    let worst = excess(&admitted, rate, burst);
    assert!(
        worst <= 0.0,
        "{} admitted, {worst} too many",
        admitted.len()
    );
}

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
    judge(load);
    for mut node in nodes {
        node.stop();
    }
}

/// Two coordinators on one etcd.
struct Pair {
    both: [Coordinator; 2],
}

impl Pair {
    fn start(etcd: &Etcd, rules: &str) -> Self {
        let url = etcd.endpoint();
        let start = |_| Coordinator::start(rules, &["--etcd", &url], &[]);
        Self {
            both: [0, 1].map(start),
        }
    }

    /// Waits until one of those that run leads and grants.
    fn leader(&self, above: u64) -> (usize, u64) {
        until("a coordinator leads", || {
            let running = (0..2).filter(|at| self.both[*at].server.is_some());
            let mut leading = running.filter_map(|at| {
                let status = self.both[at].status()?;
                let epoch: u64 = status["epoch"].as_str()?.parse().ok()?;
                let admin = status["leader"]["admin"].as_str()? == self.both[at].admin_url();
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
    let mut etcd = Etcd::start();
    let mut pair = Pair::start(&etcd, &rules);
    let nodes = three(&folder, &rules, &[&pair.both[0], &pair.both[1]]);
    let load = Load::on(nodes.iter().map(|node| node.port));
    let all = [0, 1, 2];
    load.until_more("all nodes admit", &all, 30);

    let (first, epoch) = pair.leader(0);
    let second = 1 - first;
    // Whichever is asked, the leader answers.
    let asked = pair.both[second].until("all nodes are there", |status: &Value| {
        count(status, "active") == 3
    });
    assert_eq!(asked["leader"]["admin"], pair.both[first].admin_url());
    pair.both[first].kill();
    let (leader, epoch) = pair.leader(epoch);
    assert_eq!(leader, second);
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit under the second", &all, 50);

    pair.both[first].restart();
    pair.both[second].stop();
    let (leader, epoch) = pair.leader(epoch);
    assert_eq!(leader, first);
    load.until_more("all nodes admit under the first", &all, 50);

    etcd.kill();
    until_all_are(&nodes, "static");
    load.until_more("all nodes admit without etcd", &all, 50);
    etcd.restart();
    pair.leader(epoch);
    until_all_are(&nodes, "granted");
    load.until_more("all nodes admit with etcd", &all, 50);

    pair.both[first].kill();
    until_all_are(&nodes, "static");
    load.until_more("all nodes admit without coordinators", &all, 50);
    judge(load);
}
