//! Stored overrides of a fleet: written at one node, in force at all, kept by the coordinator.

use quell_testkit::etcd::Etcd;
use serde_json::Value;

use super::doors::token;
use super::{Coordinator, LOOK, Node};
use crate::files::Folder;
use crate::process::{Run, quell, run, until_every};

/// A limit for the whole fleet, and two that each node decides alone.
const RULES: &str = "domain: shop
plans:
  gold: { api: { rate: 100/h, burst: 100 } }
rules:
  - { name: all, rate: 200/s, burst: 40, rung: shares, cluster_size: auto }
  - { name: api, per: [tenant], rate: 10/h, burst: 10 }
  - name: part
    per: [tenant]
    keys: [acme]
    rate: 200/s
    burst: 40
    rung: shares
    cluster_size: auto
";

impl Node {
    /// `quell overrides` at this node.
    fn overrides(&self, words: &[&str]) -> Run {
        let mut command = quell(&["overrides"]);
        let url = self.server.as_ref().unwrap().url("");
        run(command.args(words).env("QUELL_URL", url))
    }

    /// The limit that applies to a tenant here.
    fn limit(&self, tenant: &str) -> String {
        let key = format!("tenant={tenant}");
        let shown = self.overrides(&["get", "shop", "api", "-e", &key, "--json"]);
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        shown["limit"].as_str().unwrap_or_default().to_owned()
    }

    fn until_limit(&self, tenant: &str, limit: &str) {
        let what = format!("{limit} of {tenant} is in force at node {}", self.member);
        until_every(LOOK, &what, || (self.limit(tenant) == limit).then_some(()));
    }
}

#[test]
fn what_one_node_writes_is_in_force_at_all_and_outlives_the_coordinator() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let [plain, desk] = [("plain", "node"), ("desk", "node,policy")];
    let [plain, desk] = [plain, desk].map(|(name, roles)| token(&folder, name, roles));
    let place = folder.path("fleet.db");
    let credentials = folder.path("credentials.toml");
    let place = ["--embedded", &place, "--credentials", &credentials];
    let mut coordinator = Coordinator::start(&file, &place, &[]);
    let node = |member, token: &str| {
        let shown = ["--fleet-token", token];
        Node::with(&folder, &file, member, &coordinator.url(), &shown)
    };
    let (mut one, two) = (node(1, &plain), node(2, &desk));
    for node in [&one, &two] {
        node.until_limit("acme", "token_bucket 10/h, burst 10");
    }

    // The token of each node may read, and that of the desk may write.
    let key = ["shop", "api", "-e", "tenant=acme"];
    let set = |node: &Node, words: &[&str]| node.overrides(&[&["set"][..], &key, words].concat());
    let refused = set(&one, &["rate=50/h", "burst=50"]);
    assert_ne!(refused.code(), Some(0));
    assert!(refused.stderr.contains("policy"), "{refused:?}");
    let told = set(&two, &["rate=50/h", "burst=50", "--wait", "10s"]).expect_success();
    assert!(told.contains("2 of 2 servers"), "{told}");
    for node in [&two, &one] {
        node.until_limit("acme", "token_bucket 50/h, burst 50");
    }
    // Numbers that the whole fleet shares are the coordinator's.
    let words = ["set", "shop", "part", "-e", "tenant=acme", "rate=50/s"];
    let shared = two.overrides(&words);
    assert!(shared.stderr.contains("a fleet shares"), "{shared:?}");

    // Without its coordinator a node keeps what it knows; nothing is said to be written.
    coordinator.kill();
    let unwritten = set(&two, &["plan=gold"]);
    assert_ne!(unwritten.code(), Some(0), "{unwritten:?}");
    assert!(unwritten.stderr.contains("coordinator"), "{unwritten:?}");
    let decided = one.server.as_ref().unwrap().peek("shop", "tenant=acme");
    let decided = decided.expect("it answers alone");
    assert!(decided.to_string().contains("50"), "{decided}");
    coordinator.restart();
    until_every(LOOK, "the coordinator takes changes again", || {
        (set(&two, &["plan=gold"]).code() == Some(0)).then_some(())
    });
    one.until_limit("acme", "token_bucket 100/h, burst 100");

    // A node that starts has them before it answers.
    one.kill();
    one.restart();
    assert_eq!(one.limit("acme"), "token_bucket 100/h, burst 100");
    assert!(coordinator.log().contains("desk"), "{}", coordinator.log());
}

#[test]
fn coordinators_share_them_in_etcd() {
    let (folder, etcd) = (Folder::new(), Etcd::start());
    let file = folder.write("shop.yaml", RULES);
    let endpoint = etcd.endpoint();
    let place = ["--etcd", &*endpoint];
    let mut pair = [(); 2].map(|()| Coordinator::brief(&file, &place, &[]));
    let node = |member| Node::start(&folder, &file, member, &[&pair[0], &pair[1]]);
    let (one, mut two) = (node(1), node(2));
    // Without credentials of the coordinators every node may.
    let set = |burst: &str| {
        let (rate, burst) = (format!("rate={burst}/h"), format!("burst={burst}"));
        let words = ["set", "shop", "api", "-e", "tenant=acme", &rate, &burst];
        until_every(LOOK, "a coordinator makes the change", || {
            (one.overrides(&words).code() == Some(0)).then_some(())
        });
    };
    set("20");
    two.until_limit("acme", "token_bucket 20/h, burst 20");
    pair[0].kill();
    set("30");
    pair[0].restart();
    pair[1].kill();
    set("40");
    two.until_limit("acme", "token_bucket 40/h, burst 40");
    two.kill();
    two.restart();
    two.until_limit("acme", "token_bucket 40/h, burst 40");
}

/// The bound is the coordinator's, whatever a node's is.
#[test]
fn a_fleet_keeps_no_more_overrides_than_its_coordinator_allows() {
    let (folder, etcd) = (Folder::new(), Etcd::start());
    let file = folder.write("shop.yaml", RULES);
    let (path, endpoint) = (folder.path("fleet.db"), etcd.endpoint());
    for (member, place) in [(1, ["--embedded", &*path]), (2, ["--etcd", &endpoint])] {
        let place = [&place[..], &["--max-overrides", "2"]].concat();
        let coordinator = Coordinator::start(&file, &place, &[]);
        let url = coordinator.url();
        let node = Node::with(&folder, &file, member, &url, &["--max-overrides", "7"]);
        let set = |tenant: &str| {
            let key = format!("tenant={tenant}");
            node.overrides(&["set", "shop", "api", "-e", &key, "rate=20/h", "burst=20"])
        };
        until_every(LOOK, "the coordinator makes a change", || {
            (set("one").code() == Some(0)).then_some(())
        });
        set("two").expect_success();
        let full = set("three");
        assert_ne!(full.code(), Some(0), "{full:?}");
        for words in [
            "there would be 3 overrides, and the coordinator of the fleet allows 2",
            "start the coordinators with a larger --max-overrides",
        ] {
            assert!(full.stderr.contains(words), "{full:?}");
        }
        set("two").expect_success();
    }
}
