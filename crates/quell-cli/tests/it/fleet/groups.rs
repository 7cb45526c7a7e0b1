//! Limits of groups: the nodes of a group share them, and no others.

use std::time::Duration;

use super::load::{Load, excess, judge};
use super::{Coordinator, Node, RULES, count};
use crate::files::Folder;
use crate::process::{run, until};

/// Rules that nodes of every kind read.
fn rules(more: &str) -> String {
    format!(
        "{RULES}  - {{ name: render, match: {{ path: /render }}, rate: 100/s, group: gpu }}
  - {{ name: bill, match: {{ path: /bill }}, rate: 60/s, group: eu{more} }}
"
    )
}

/// The limits of a node, with what it may use of each when it is cut off.
fn shares(status: &serde_json::Value, member: usize) -> Vec<(&str, f64)> {
    let limits = status["nodes"][member - 1]["limits"].as_array().unwrap();
    let share = |limit: &'_ serde_json::Value| limit["static_per_s"].as_f64().unwrap();
    let mut shares: Vec<(&str, f64)> = limits
        .iter()
        .map(|limit| (limit["name"].as_str().unwrap(), share(limit).round()))
        .collect();
    shares.sort_by_key(|(name, _)| *name);
    shares
}

/// Answer of a node to a call to this path: allowed or not, and whether no part of its limit is granted to
/// it.
fn answer(node: &Node, path: &str) -> (bool, bool) {
    let url = format!("http://127.0.0.1:{}/v1/peek", node.port);
    let query = format!(r#"{{"domain":"shop","entries":{{"path":"{path}"}}}}"#);
    let mut curl = crate::clients::curl();
    let told = run(curl.args(["--silent", "--data", &query, &url])).expect_success();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let field = |name: &str| told[name].as_bool().unwrap();
    (field("allowed"), field("degraded"))
}

/// The answer of a node that has a part, and of one that is outside of the group.
const INSIDE: (bool, bool) = (true, false);
const OUTSIDE: (bool, bool) = (false, true);

#[test]
fn a_limit_of_a_group_is_shared_by_its_nodes_alone() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", &rules(""));
    let place = ["--embedded", &folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&file, &place, &[]);
    let url = coordinator.url();
    let node = |member, groups: &[&str]| Node::with(&folder, "fleet", member, &url, groups);
    let gpu = ["--fleet-group", "gpu"];
    let both = ["--fleet-group", "gpu", "--fleet-group", "eu"];
    let mut nodes = [node(1, &[]), node(2, &gpu), node(3, &both)];
    coordinator.until("each has its parts", |status| {
        let has_three = status["nodes"].as_array().unwrap().len() == 3 && status["applied"] == 3;
        has_three
            && shares(status, 1) == [("api", 67.0)]
            && shares(status, 2) == [("api", 67.0), ("render", 50.0)]
            && shares(status, 3) == [("api", 67.0), ("bill", 60.0), ("render", 50.0)]
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(shown.contains("bill (eu)"), "{shown}");

    // Each admits calls of its groups, and no others.
    for (node, render, bill) in [
        (&nodes[0], OUTSIDE, OUTSIDE),
        (&nodes[1], INSIDE, OUTSIDE),
        (&nodes[2], INSIDE, INSIDE),
    ] {
        until("the node has its parts", || {
            let answers = ["/", "/render", "/bill"].map(|path| answer(node, path));
            (answers == [INSIDE, render, bill]).then_some(())
        });
    }
    let node = nodes[0].server.as_ref().unwrap();
    let log = node.log_with("for groups of the fleet that this node is not in");
    assert!(!log.contains("do not share the limits of"), "{log}");

    // The rule moves to another group: its nodes have it, and the one before has it no more.
    folder.write("shop.yaml", &rules("").replace("group: eu", "group: gpu"));
    coordinator.until("the nodes of the other group have it", |status| {
        shares(status, 1) == [("api", 67.0)]
            && shares(status, 2) == [("api", 67.0), ("bill", 30.0), ("render", 50.0)]
            && shares(status, 3) == [("api", 67.0), ("bill", 30.0), ("render", 50.0)]
    });
    until("node 2 takes part", || {
        (answer(&nodes[1], "/bill") == INSIDE).then_some(())
    });

    // Limits that the group's nodes cannot share are not put into force, and the leader says why.
    folder.write("shop.yaml", &rules(", cluster_size: 7"));
    let status = coordinator.until("the leader refuses", |status| status["refused"].is_string());
    let why = status["refused"].as_str().unwrap();
    assert!(why.contains("at least 175/s"), "{why}");
    for node in &mut nodes {
        node.stop();
    }
    coordinator.stop();
}

/// A pod that replaces a dead one waits until the seat comes back by the declared policy: nobody fences.
#[test]
fn a_full_group_turns_a_node_away_until_a_dead_node_returns_its_seat() {
    let folder = Folder::new();
    let render = "name: render, match: { path: /render }, rate: 50/s, burst: 20";
    let text = format!("{RULES}  - {{ {render}, group: gpu, cluster_size: 2 }}\n");
    let file = folder.write("shop.yaml", &text);
    let place = ["--embedded", &folder.path("fleet.db")];
    // Long enough for a node that lives and is slow.
    let returns = ["--hold", "10s", "--return-seats", "1s"];
    let mut coordinator = Coordinator::brief(&file, &place, &returns);
    let url = coordinator.url();
    let node = |member| Node::with(&folder, &file, member, &url, &["--fleet-group", "gpu"]);
    let [mut one, mut two] = [1, 2].map(node);
    coordinator.until("both have their parts", |status| {
        count(status, "active") == 2 && status["applied"] == 2
    });
    let mut three = node(3);
    coordinator.until("node 3 is turned away", |status| {
        status["rejected_joins"][0]["member"] == 3
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    let why = "trouble: node 3 is given no seat: all seats of the group `gpu` are taken";
    assert!(shown.contains(why), "{shown}");
    assert_eq!(answer(&three, "/render"), OUTSIDE);

    let question = r#"{"domain":"shop","entries":{"path":"/render"}}"#;
    let ports = [&one, &two, &three].map(|node| node.port);
    let load = Load::asking(question, ports, Duration::ZERO);
    load.until_more("the nodes of the group admit", &[0, 1], 30);
    load.only(&[0]);
    coordinator.until("the only busy node has nearly all", |status| {
        let limits = status["nodes"][0]["limits"].as_array().unwrap();
        let render = limits.iter().find(|limit| limit["name"] == "render");
        render.is_some_and(|limit| limit["may_use_per_s"].as_f64() > Some(45.0))
    });
    load.until_more("it admits nearly all", &[0], 125);

    two.kill();
    coordinator.until("node 3 has a seat, and node 2 has none", |status| {
        let nodes = status["nodes"].as_array().unwrap().iter();
        let members: Vec<_> = nodes.map(|node| node["member"].as_u64()).collect();
        members == [Some(1), Some(3)] && count(status, "active") == 2
    });
    load.only(&[0, 2]);
    load.until_more("the new node admits", &[0, 2], 30);
    let admitted = load.end();
    judge(&admitted, 50, 20);
    let spare = excess(&admitted, 40, 20);
    assert!(
        spare > 0,
        "never more than four fifths of the limit were used"
    );
    one.stop();
    three.stop();
    coordinator.stop();
}
