//! Rollouts that the leader takes back by itself.

use std::time::Duration;

use serde_json::Value;

use super::load::Load;
use super::{Coordinator, Node, RULES, count};
use crate::files::Folder;
use crate::process::until;

/// A caller of each node asks some 200 times a second.
const PAUSE: Duration = Duration::from_millis(5);

/// More than they ask for.
const AMPLE: &str = "100000/s, burst: 20000";

const TAKEN_BACK: &str = "a rollout left its band and is taken back";

fn rules(limit: &str) -> String {
    RULES.replace("200/s, burst: 40", limit)
}

#[test]
fn a_rollout_is_taken_back_when_nobody_looks() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", &rules(AMPLE));
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&file, &place, &["--changes", "staged"]);
    let nodes = [1, 2].map(|member| Node::start(&folder, &file, member, &[&coordinator]));
    coordinator.until("two nodes are there", |status| {
        count(status, "active") == 2 && status["applied"] == 2
    });
    let load = Load::paced(nodes.iter().map(|node| node.port), PAUSE);
    let begin = |limit: &str| {
        folder.write("shop.yaml", &rules(limit));
        coordinator.until("the change waits", |status| status["waits"] == true);
        let words = "rollout --node node-1 --max-refused 5% --max-degraded 1% --window 5s";
        let words: Vec<&str> = words.split(' ').collect();
        // On a busy machine a leader may just have been elected.
        until("it is begun", || {
            (coordinator.fleet(&words).code() == Some(0)).then_some(())
        });
    };

    // One that nobody notices stays, and is for all nodes in the end.
    begin("90000/s, burst: 20000");
    let is_heard =
        |status: &Value| status["rollout"]["band"]["answered"][0]["asked"].as_f64() > Some(100.0);
    // At 5 ms a call, that is longer than a window.
    load.until_more("a window is over", &[0], 1_400);
    let status = coordinator.until("its calls are heard", is_heard);
    let band = &status["rollout"]["band"];
    assert_eq!(band["max_refused_percent"], 5.0, "{status}");
    assert_eq!(band["answered"][0]["refused_percent"], 0.0, "{status}");
    let shown = coordinator.fleet(&["status"]).expect_success();
    let words = "it is taken back by itself above 5 % refused or 1 % answered degraded over 5 s";
    assert!(shown.contains(words), "{shown}");
    coordinator.fleet(&["rollout", "--all"]).expect_success();
    coordinator.until("all follow it", |status| {
        status["limits"][0]["rate_per_s"] == 90_000.0 && status["applied"] == 2
    });
    assert!(!coordinator.log().contains(TAKEN_BACK));

    // One that refuses calls does not, and is not tried again.
    begin("100/s, burst: 40");
    until("it is taken back", || {
        coordinator.log().contains(TAKEN_BACK).then_some(())
    });
    is_taken_back(&coordinator);
    let metric = "\nquell_fleet_rollouts_taken_back_total 1\n";
    assert!(coordinator.metrics().contains(metric));

    // Nor does it when its leader dies: the next one knows the band.
    begin("90/s, burst: 40");
    coordinator.until("its calls are heard", is_heard);
    coordinator.kill();
    coordinator.restart();
    until("the next leader takes it back", || {
        coordinator.log().contains(TAKEN_BACK).then_some(())
    });
    is_taken_back(&coordinator);
    load.end();
}

fn is_taken_back(coordinator: &Coordinator) {
    let status = coordinator.until("both nodes follow the limits in force", |status| {
        status["applied"] == 2 && status["rollout"].is_null()
    });
    assert_eq!(status["limits"][0]["rate_per_s"], 90_000.0, "{status}");
    assert_eq!(status["waits"], true, "{status}");
    let why = status["taken_back"]["why"].as_str().unwrap();
    assert!(
        why.starts_with("`api` refused ") && why.ends_with(" % > 5 % over 5 s"),
        "{why}"
    );
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(
        shown.contains("trouble: the last rollout was taken back at 2"),
        "{shown}"
    );
}
