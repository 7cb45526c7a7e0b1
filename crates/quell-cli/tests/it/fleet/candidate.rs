//! A candidate for a fleet: handed out by the leader, decided in shadow at each node, added up at the leader.

use serde_json::Value;

use super::{Coordinator, Node, RULES};
use crate::clients::curl;
use crate::files::Folder;
use crate::process::{run, until};

/// Asks a node once, and returns whether it allowed the call.
fn ask(node: &Node) -> bool {
    let question = r#"{"domain":"shop","entries":{},"cost":20}"#;
    let url = node.server.as_ref().unwrap().url("/v1/acquire");
    let answer = run(curl().args(["--silent", "--json", question, &url])).expect_success();
    answer.contains(r#""allowed":true"#)
}

/// Output of `quell fleet candidate show --json`.
fn show(coordinator: &Coordinator) -> Value {
    let shown = coordinator.fleet(&["candidate", "show", "--json"]).stdout;
    serde_json::from_str::<Value>(&shown).unwrap()["candidate"].take()
}

/// Waits until the leader says so of the candidate.
fn until_it(coordinator: &Coordinator, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    until(what, || {
        Some(show(coordinator)).filter(|candidate| is_so(candidate))
    })
}

/// A coordinator, and nodes of which two follow its rules.
fn fleet(folder: &Folder) -> (Coordinator, [Node; 2], Node) {
    let rules = RULES.replace("200/s, burst: 40", "100000/s, burst: 20000");
    let file = folder.write("shop.yaml", &rules);
    let place = folder.path("fleet.db");
    let coordinator = Coordinator::start(&file, &["--embedded", &place], &[]);
    let nodes = [1, 2].map(|member| Node::start(folder, "fleet", member, &[&coordinator]));
    let own = Node::start(folder, &file, 3, &[&coordinator]);
    for node in nodes.iter().chain([&own]) {
        node.until_it_is("granted");
    }
    (coordinator, nodes, own)
}

/// Starts a candidate whose whole limit has room for a call, and a third of it has not.
fn start(coordinator: &Coordinator, folder: &Folder) {
    let new = RULES.replace("200/s, burst: 40", "75/s, burst: 30");
    let new = folder.write("new.yaml", &new);
    let words = ["candidate", "start", &*new, "--note", "fewer"];
    let started = coordinator.fleet(&words).expect_success();
    assert!(
        started.contains("runs in shadow: 1 changed (shop/api)"),
        "{started}"
    );
    until_so_many_run_it(coordinator, 2);
}

fn until_so_many_run_it(coordinator: &Coordinator, nodes: usize) -> Value {
    until_it(coordinator, &format!("{nodes} nodes run it"), |candidate| {
        candidate["nodes"]["running"] == nodes
    })
}

#[test]
fn what_nodes_would_refuse_adds_up_at_the_leader() {
    let folder = Folder::new();
    let (coordinator, nodes, _own) = fleet(&folder);
    let none = coordinator.fleet(&["candidate", "show"]);
    assert_eq!(
        (none.code(), &*none.stderr),
        (Some(1), "no candidate runs\n")
    );
    // What the fleet could not share is refused, with what to write.
    let wrong = folder.write("wrong.yaml", &RULES.replace("rung: shares", "rung: strict"));
    let wrong = coordinator.fleet(&["candidate", "start", &wrong]);
    assert!(
        wrong.stderr.contains("no rule says `rung: shares`"),
        "{wrong:?}"
    );

    start(&coordinator, &folder);
    let mut asked = 0_u64;
    let shown = until("both nodes would refuse", || {
        for node in &nodes {
            asked += u64::from(ask(node));
        }
        let candidate = show(&coordinator);
        let refused = candidate["would_refuse"].as_u64().unwrap();
        (refused > 8).then_some(candidate)
    });
    assert_eq!(shown["nodes"]["of"], 3);
    assert_eq!(
        (&shown["note"], &shown["keys"][0]["rule"]),
        (&"fewer".into(), &"api".into())
    );
    until_it(&coordinator, "every call would be refused", |candidate| {
        candidate["would_refuse"] == asked
    });
    let text = coordinator.fleet(&["candidate", "show"]).expect_success();
    assert!(
        text.contains("runs on 2/3 nodes") && text.contains("why: fewer"),
        "{text}"
    );
}

#[test]
fn a_candidate_ends_at_a_node_with_the_leader_and_by_command() {
    let folder = Folder::new();
    let (mut coordinator, mut nodes, _own) = fleet(&folder);
    start(&coordinator, &folder);
    // Somebody stops it at a node; the node says so.
    let url = nodes[0].server.as_ref().unwrap().url("/v1/candidate");
    let stopped = run(curl().args(["--silent", "-X", "DELETE", &url])).expect_success();
    assert_eq!(stopped, r#"{"stopped":true}"#);
    let refused = until_so_many_run_it(&coordinator, 1);
    let why = refused["nodes"]["refused"][0].as_str().unwrap();
    assert!(
        why.starts_with("node 1: the candidate was stopped at this server"),
        "{why}"
    );

    // A node that is started again runs it again.
    nodes[0].kill();
    nodes[0].restart();
    until_so_many_run_it(&coordinator, 2);

    // It ends with the leader, and so it does at the nodes.
    let runs = |node: &Node| {
        let shown = node.server.as_ref().unwrap().get("/v1/candidate");
        !shown.contains(r#""candidate":null"#)
    };
    assert!(runs(&nodes[1]));
    coordinator.kill();
    coordinator.restart();
    until("no node runs it", || {
        (!nodes.iter().any(runs)).then_some(())
    });
    assert_eq!(show(&coordinator), Value::Null);
    start(&coordinator, &folder);
    let stop = coordinator.fleet(&["candidate", "stop"]);
    assert_eq!((stop.code(), &*stop.stdout), (Some(0), "stopped\n"));
    let stop = coordinator.fleet(&["candidate", "stop"]);
    assert_eq!(stop.code(), Some(1));
}
