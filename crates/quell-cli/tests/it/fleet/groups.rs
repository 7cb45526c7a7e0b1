//! Limits of groups: the nodes of a group share them, and no others.

use super::{Coordinator, Node, RULES};
use crate::files::Folder;
use crate::process::{run, until};

/// What nodes of every kind read.
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

/// Whether a node allows a call to this path.
fn allows(node: &Node, path: &str) -> bool {
    let url = format!("http://127.0.0.1:{}/v1/peek", node.port);
    let query = format!(r#"{{"domain":"shop","entries":{{"path":"{path}"}}}}"#);
    let mut curl = crate::clients::curl();
    let told = run(curl.args(["--silent", "--data", &query, &url])).expect_success();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told["allowed"].as_bool().unwrap()
}

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
        (&nodes[0], false, false),
        (&nodes[1], true, false),
        (&nodes[2], true, true),
    ] {
        until("the node has its parts", || {
            let is_so = allows(node, "/render") == render && allows(node, "/bill") == bill;
            is_so.then_some(())
        });
        assert!(allows(node, "/"));
    }
    let log = nodes[0].server.as_ref().unwrap().log();
    assert!(
        log.contains("for groups of the fleet that it is not in"),
        "{log}"
    );
    assert!(!log.contains("do not share their limits"), "{log}");

    // The rule moves to another group: its nodes have it, and the one before has it no more.
    folder.write("shop.yaml", &rules("").replace("group: eu", "group: gpu"));
    coordinator.until("the nodes of the other group have it", |status| {
        shares(status, 1) == [("api", 67.0)]
            && shares(status, 2) == [("api", 67.0), ("bill", 30.0), ("render", 50.0)]
            && shares(status, 3) == [("api", 67.0), ("bill", 30.0), ("render", 50.0)]
    });
    until("node 2 takes part", || {
        allows(&nodes[1], "/bill").then_some(())
    });

    // Limits that the group's nodes cannot share are not put into force, and the leader says why.
    folder.write("shop.yaml", &rules(", cluster_size: 7"));
    let status = coordinator.until("the leader refuses", |status| {
        status["rules"]["refused"].is_string()
    });
    let why = status["rules"]["refused"].as_str().unwrap();
    assert!(why.contains("at least 70/s"), "{why}");
    for node in &mut nodes {
        node.stop();
    }
    coordinator.stop();
}
