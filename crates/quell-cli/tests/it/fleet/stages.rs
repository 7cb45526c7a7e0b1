//! A whole text of rules in stages: who follows the rollout has it, and nobody else has.

use quell_testkit::etcd::Etcd;
use quell_testkit::redis::Redis;
use serde_json::Value;

use super::rules::{follow, in_force, rules};
use super::{Coordinator, LOOK, Node};
use crate::files::Folder;
use crate::process::{until, until_every};

/// The fleet shares the first rule; each node decides the second one by itself.
const TEXT: &str = "
domain: shop
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: api, rate: 200/s, burst: 40 }
  - { name: login, match: { path: /login }, rate: 5/s, rung: local }
";

/// Waits until nodes have these versions in force.
fn until_they_have(nodes: &[Node], versions: &[u64]) {
    until_every(LOOK, &format!("nodes have {versions:?}"), || {
        let has = nodes.iter().map(|node| in_force(node).0);
        has.eq(versions.iter().copied().map(Some)).then_some(())
    });
}

/// The versions in force, rolled out and waiting, once all nodes have what they are to have.
fn until_it_says(coordinator: &Coordinator, versions: [Option<u64>; 3]) {
    coordinator.until(&format!("versions are {versions:?}"), |status| {
        let rules = &status["rules"];
        let has = ["version", "rolled_out", "waiting"].map(|field| rules[field].as_u64());
        has == versions
            && rules["followers"].as_u64() > Some(0)
            && rules["applied"] == rules["followers"]
    });
}

#[test]
fn a_whole_text_goes_in_stages_and_back() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let url = redis.url();
    rules(&url, &["push", &folder.write("shop.yaml", TEXT)]);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&url, &place, &["--changes", "staged"]);
    let start =
        |member, coordinator: &Coordinator| Node::start(&folder, "fleet", member, &[coordinator]);
    let mut nodes = vec![start(1, &coordinator), start(2, &coordinator)];
    follow(&coordinator, &nodes, 1, "200/");

    // Nothing of it is in force, although the fleet shares nothing of what it changes.
    rules(&url, &["set", "login", "rate=9/s"]);
    coordinator.until("it waits", |status| {
        status["rules"]["waiting"] == 2 && status["waits"] == true
    });
    until_it_says(&coordinator, [Some(1), None, Some(2)]);
    let change = "  shop/login: token_bucket 5/s, burst 5 becomes 9/s, burst 9";
    until("what waits is compared", || {
        let shown = coordinator.fleet(&["preview"]).stdout;
        (shown.lines().last() == Some(change)).then_some(())
    });
    let shown = super::console::page(&coordinator, "/console/rollout");
    assert!(shown.contains(change.trim()), "{shown}");
    coordinator.until_some_reports_later();
    until_they_have(&nodes, &[1, 1]);

    coordinator.roll_out(&["--node", "node-1"]);
    until_they_have(&nodes, &[2, 1]);
    until_it_says(&coordinator, [Some(1), Some(2), None]);
    let shown = coordinator.fleet(&["status"]).expect_success();
    let words =
        "rules version 1 by ann, and version 2 on the nodes of the rollout, applied by 2/2 nodes";
    assert!(shown.contains(words), "{shown}");

    // Neither the next leader nor who joins takes it further.
    coordinator.kill();
    coordinator.restart();
    until_it_says(&coordinator, [Some(1), Some(2), None]);
    nodes.push(start(3, &coordinator));
    until_they_have(&nodes, &[2, 1, 1]);

    // What is pushed meanwhile waits, also when nodes go back.
    rules(&url, &["set", "api", "rate=300/s"]);
    until_it_says(&coordinator, [Some(1), Some(2), Some(3)]);
    coordinator.roll_out(&["--back"]);
    until_they_have(&nodes, &[1, 1, 1]);
    until_it_says(&coordinator, [Some(1), None, Some(3)]);
    coordinator.roll_out(&["--percent", "34"]);
    until_they_have(&nodes, &[3, 3, 1]);
    coordinator.roll_out(&["--all"]);
    until_they_have(&nodes, &[3, 3, 3]);
    until_it_says(&coordinator, [Some(3), None, None]);
    let status = coordinator.until("nothing waits", |status| status["waits"] == false);
    assert_eq!(status["limits"][0]["rate_per_s"], 300.0, "{status}");

    // An older text is a change as any other.
    rules(&url, &["rollback", "1"]);
    until_it_says(&coordinator, [Some(3), None, Some(4)]);
    coordinator.roll_out(&["--all"]);
    until_they_have(&nodes, &[4, 4, 4]);
}

/// Files have no versions before: a coordinator that starts with others has nothing to give until they are rolled
/// out, and takes nothing from anybody.
#[test]
fn files_that_changed_while_a_coordinator_was_away_wait_too() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", TEXT);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&file, &place, &["--changes", "staged"]);
    let mut nodes = vec![Node::start(&folder, "fleet", 1, &[&coordinator])];
    follow(&coordinator, &nodes, 1, "200/");
    coordinator.kill();
    folder.write("shop.yaml", &TEXT.replace("200/s", "300/s"));
    coordinator.restart();
    let missing = |status: &Value| status["rules"]["missing"].as_str().map(str::to_owned);
    let status = coordinator.until("it says so", |status| {
        status["waits"] == true && missing(status).is_some()
    });
    let why = missing(&status).unwrap();
    assert!(why.contains("`quell fleet rollout --all`"), "{why}");
    nodes.push(Node::start(&folder, "fleet", 2, &[&coordinator]));
    nodes[1].until_it_is("granted");
    coordinator.until_some_reports_later();
    assert!(in_force(&nodes[0]).1.contains("200/"));
    assert_eq!(in_force(&nodes[1]).0, None);
    // Also while it is on one node: the status says what is known.
    coordinator.roll_out(&["--node", "node-2"]);
    until("the node has it", || {
        in_force(&nodes[1]).1.contains("300/").then_some(())
    });
    let status = coordinator.until("it is known", |status| {
        missing(status).is_some() && status["rules"]["rolled_out"].is_u64()
    });
    assert_eq!(status["rules"]["followers"], 2, "{status}");
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(shown.contains("the newest rules are version "), "{shown}");
    assert!(in_force(&nodes[0]).1.contains("200/"));
    coordinator.roll_out(&["--all"]);
    for node in &nodes {
        until("all have the new text", || {
            in_force(node).1.contains("300/").then_some(())
        });
    }
    coordinator.until("nothing is missing", |status| {
        missing(status).is_none() && status["rules"]["applied"] == 2
    });
}

/// Two coordinators read files of their own, and one of them has others than the fleet.
#[test]
fn whoever_leads_gives_what_is_in_force_and_not_what_it_has() {
    let (etcd, folder) = (Etcd::start(), Folder::new());
    let place = ["--etcd", &*etcd.endpoint()];
    let more = ["--changes", "staged"];
    let files = ["one.yaml", "two.yaml"].map(|name| folder.write(name, TEXT));
    let mut coordinators = files
        .each_ref()
        .map(|file| Coordinator::start(file, &place, &more));
    let urls: Vec<&Coordinator> = coordinators.iter().collect();
    let nodes = [1, 2].map(|member| Node::start(&folder, "fleet", member, &urls));
    let leads = |coordinator: &Coordinator| {
        let status = coordinator.status();
        status.is_some_and(|status| status["leads"] == true)
    };
    let first = until("one leads", || coordinators.iter().position(leads));
    let changed = TEXT.replace("5/s", "9/s");
    for node in &nodes {
        until("all have the text", || {
            in_force(node).1.contains("200/").then_some(())
        });
    }
    folder.write(["one.yaml", "two.yaml"][first], &changed);
    coordinators[first].until("it waits", |status| status["waits"] == true);
    coordinators[first].roll_out(&["--node", "node-1"]);
    let login = |node: &Node| {
        let told = node.server.as_ref().unwrap().get("/v1/rules");
        let told: Value = serde_json::from_str(&told).unwrap();
        let limit = told["domains"][0]["rules"][1]["limit"].as_str();
        limit.unwrap_or_default().to_owned()
    };
    let until_they_say = |rates: [&str; 2]| {
        until_every(LOOK, &format!("logins are {rates:?}"), || {
            let mut both = nodes.iter().zip(rates);
            both.all(|(node, rate)| login(node).contains(rate))
                .then_some(())
        });
    };
    until_they_say(["9/s", "5/s"]);

    // The next one never read the text of the rollout.
    coordinators[first].kill();
    let next = &coordinators[1 - first];
    let status = next.until("it leads, and lacks it", |status| {
        status["grants"] == true
            && status["rules"]["missing"].is_string()
            && status["rules"]["followers"] == 2
    });
    let rules = &status["rules"];
    assert_eq!(
        (&rules["version"], &rules["applied"]),
        (&1.into(), &1.into()),
        "{status}"
    );
    let shown = next.fleet(&["status"]).expect_success();
    assert!(shown.contains("\nrules version 1 by "), "{shown}");
    next.until_some_reports_later();
    until_they_say(["9/s", "5/s"]);
    next.roll_out(&["--back"]);
    until_they_say(["5/s", "5/s"]);
    next.until("nothing waits", |status| {
        status["waits"] == false && status["rules"]["missing"].is_null()
    });
}
