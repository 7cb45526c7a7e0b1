//! One source of limits: rules in etcd, which coordinators read and nodes are given.

use quell::rule_store::Head;
use quell_testkit::etcd::Etcd;
use quell_testkit::redis::{Options, Redis};
use serde_json::Value;

use super::console::page;
use super::doors::token;
use super::{Coordinator, LOOK, Node, RULES, count};
use crate::clients::curl;
use crate::files::Folder;
use crate::process::{quell, run, until, until_every};

/// `quell rules` with these words.
pub(super) fn rules(url: &str, words: &[&str]) -> String {
    let mut command = quell(&["rules"]);
    command.args(words).args(["--store", url]);
    run(command.env("USER", "ann")).expect_success()
}

/// The version of the rules that a node has in force, and the rate of its first rule.
pub(super) fn in_force(node: &Node) -> (Option<u64>, String) {
    let told = node.server.as_ref().unwrap().get("/v1/rules");
    let told: Value = serde_json::from_str(&told).unwrap();
    let limit = told["domains"][0]["rules"][0]["limit"].as_str();
    let limit = limit.unwrap_or_default();
    (told["stores"][0]["version"].as_u64(), limit.to_owned())
}

/// Waits until every node has that version in force, and its coordinator knows.
pub(super) fn follow(coordinator: &Coordinator, nodes: &[Node], version: u64, rate: &str) -> Value {
    for node in nodes {
        let what = format!("node {} has version {version}", node.member);
        until(&what, || {
            let (has, limit) = in_force(node);
            (has == Some(version) && limit.contains(rate)).then_some(())
        });
    }
    coordinator.until("the leader knows", |status| {
        let rules = &status["rules"];
        rules["version"] == version && rules["applied"] == nodes.len()
    })
}

/// Writes by hand what a push of `text` as the version `number` leaves.
fn write_by_hand(etcd: &Etcd, number: u64, text: &str) {
    let head = Head::new(number, text).to_string();
    let entry = format!(
        "{{\"head\":\"{head}\",\"at_ms\":1,\"who\":\"eve\",\"change\":\"\",\"note\":\"\",\"bytes\":{}}}",
        text.len()
    );
    for (key, value) in [
        (format!("entry/{number:020}"), &*entry),
        (format!("text/{number:020}"), text),
        ("head".to_owned(), &*head),
    ] {
        let key = format!("/quell-rules/shop/{key}");
        assert!(etcd.ctl(&["put", &key, value]).status.success());
    }
}

/// Waits until the console of a coordinator that does not lead says where that of the leader is.
fn leads_to(follower: &Coordinator, leader: &Coordinator) {
    let link = format!(r#"href="{}/console">its console"#, leader.admin_url());
    until_every(LOOK, "the console leads to that of the leader", || {
        let shown = page(follower, "/console");
        (shown.contains(&link) && !shown.contains("All may use")).then_some(())
    });
    assert!(page(leader, "/console").contains("All may use"));
}

#[test]
fn edited_once_every_node_follows_and_back_again() {
    let (mut etcd, folder) = (Etcd::start(), Folder::new());
    let url = etcd.rules("shop");
    rules(&url, &["push", &folder.write("shop.yaml", RULES)]);
    let place = ["--etcd", &etcd.endpoint()];
    let mut coordinators = [(); 2].map(|()| Coordinator::start(&url, &place, &[]));
    let urls: Vec<&Coordinator> = coordinators.iter().collect();
    let mut nodes = [1, 2, 3].map(|member| Node::start(&folder, "fleet", member, &urls));
    let [one, _] = &coordinators;
    let status = follow(one, &nodes, 1, "200/");
    assert_eq!(status["rules"]["followers"], 3);
    assert_eq!(count(&status, "active"), 3);

    rules(&url, &["set", "api", "rate=400/s"]);
    let status = follow(one, &nodes, 2, "400/");
    assert_eq!(status["rules"]["by"], "ann");
    one.until("the limit is shared", |status| {
        status["limits"][0]["rate_per_s"] == 400.0
    });
    let shown = one.fleet(&["status"]).expect_success();
    assert!(
        shown.contains("rules version 2 by ann, applied by 3/3 nodes"),
        "{shown}"
    );
    rules(&url, &["rollback", "1"]);
    follow(one, &nodes, 3, "200/");

    // One that nobody can use: all stay with the last good one, and say so.
    write_by_hand(&etcd, 4, &RULES.replace("200/s", "200/moment"));
    let status = one.until("the leader tells", |status| {
        let why = status["rules"]["refused"].as_str();
        why.is_some_and(|why| why.starts_with("version 4: ") && why.contains("moment"))
    });
    assert_eq!(
        (&status["rules"]["version"], &status["rules"]["applied"]),
        (&3.into(), &3.into())
    );
    assert!(nodes.iter().all(|node| in_force(node).0 == Some(3)));
    rules(&url, &["rollback", "2"]);
    let status = follow(one, &nodes, 5, "400/");
    assert_eq!(status["rules"]["refused"], Value::Null);

    // Another coordinator leads, and goes on with that.
    let leads = |coordinator: &Coordinator| {
        let status = coordinator.fleet(&["status", "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        status["leader"]["url"] == coordinator.url()
    };
    let first = usize::from(!leads(&coordinators[0]));
    leads_to(&coordinators[1 - first], &coordinators[first]);
    coordinators[first].stop();
    let left = &coordinators[1 - first];
    rules(&url, &["rollback", "1"]);
    follow(left, &nodes, 6, "200/");

    // A node starts with what it had when nothing else is up.
    coordinators[1 - first].stop();
    etcd.kill();
    nodes[0].kill();
    nodes[0].restart();
    assert_eq!(in_force(&nodes[0]).0, Some(6));
    assert_eq!(
        nodes[0].server.as_ref().unwrap().health()["rules_stores"][0]["url"],
        "fleet"
    );
    for node in &mut nodes {
        node.kill();
    }
}

/// The commands that a page offers, as a shell reads them.
fn offered(page: &str) -> Vec<String> {
    let ends = [("data-copy>", "</pre>"), ("<code>quell", "</code>")];
    let found = ends.iter().flat_map(|(begin, end)| {
        let texts = page.split(begin).skip(1);
        let texts = texts.filter_map(move |rest| Some(rest.split_once(*end)?.0));
        texts.map(move |text| match begin.contains("quell") {
            true => format!("quell{text}"),
            false => text.to_owned(),
        })
    });
    let unescaped = |text: String| {
        let escapes = [
            ("&#34;", "\""),
            ("&#39;", "'"),
            ("&#60;", "<"),
            ("&#62;", ">"),
            ("&#38;", "&"),
        ];
        let apply = |text: String, (escape, plain): &(&str, &str)| text.replace(escape, plain);
        escapes.iter().fold(text, apply)
    };
    found.map(unescaped).collect()
}

/// Each of them is run: one that nobody can mean exits with 2.
#[test]
fn a_node_that_follows_offers_commands_that_run() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &[]);
    let node = Node::start(&folder, "fleet", 1, &[&coordinator]);
    node.until_it_is("granted");
    until("it has the rules", || {
        in_force(&node).0.is_some().then_some(())
    });
    folder.write("FILE", RULES);
    let (server, mut commands) = (node.server.as_ref().unwrap(), Vec::new());
    for path in [
        "/console",
        "/console/keys?domain=shop&rule=api",
        "/console/rules",
        "/console/rules/edit?store=0",
        "/console/rules/candidate",
    ] {
        let page = server.get(path);
        assert!(page.contains("</html>"), "{path}: {page}");
        commands.extend(offered(&page));
    }
    assert!(!commands.is_empty(), "no command was found");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_quell"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binary.parent().unwrap().display());
    for command in &commands {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", command])
            .env("PATH", &path)
            .current_dir(folder.path(""));
        let ran = run(&mut shell);
        assert_ne!(ran.code(), Some(2), "{command}: {ran:?}");
    }
}

/// Health that a coordinator reports at this path: the status of the answer, and its body.
fn health(coordinator: &Coordinator, path: &str, token: &str) -> (String, Value) {
    let (url, token) = (
        format!("{}{path}", coordinator.admin_url()),
        format!("X-Quell-Token: {token}"),
    );
    let mut curl = curl();
    curl.args(["--silent", "--write-out", "\n%{http_code}", "-H", &token]);
    let told = run(curl.arg(&url)).expect_success();
    let (body, code) = told.rsplit_once('\n').unwrap();
    (code.to_owned(), serde_json::from_str(body).unwrap())
}

/// No orchestrator restarts a coordinator for its rules, and operators are told.
#[test]
fn a_coordinator_with_bad_rules_is_degraded_and_leads_on() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let token = std::fs::read_to_string(token(&folder, "ops", "read,metrics")).unwrap();
    let token = token.trim();
    let credentials = folder.path("credentials.toml");
    let place = ["--embedded", &*folder.path("fleet.db")];
    let coordinator = Coordinator::start(&rules, &place, &["--credentials", &credentials]);
    let paths = ["/healthz", "/readyz"];
    let until_it_is = |status: &str| {
        let what = format!("a coordinator is {status}");
        until(&what, || {
            let told = paths.map(|path| health(&coordinator, path, token));
            let mut all = told.iter();
            all.all(|(code, body)| code == "200" && body["status"] == status)
                .then_some(told)
        })
    };
    until_it_is("ok");
    let failing = |number: u8| {
        let url = format!("{}/metrics", coordinator.admin_url());
        let token = format!("X-Quell-Token: {token}");
        let text = run(curl().args(["--silent", "-H", &token, &url])).expect_success();
        let line = format!("\nquell_fleet_rules_failing {number}\n");
        assert!(text.contains(&line), "{text}");
    };
    failing(0);

    folder.write("shop.yaml", &RULES.replace("200/s", "200/moment"));
    for (_, body) in until_it_is("degraded") {
        let reasons = body["reasons"].as_array().unwrap();
        let reason = reasons[0].as_str().unwrap();
        assert!(
            reasons.len() == 1
                && reason.starts_with("newer rules are not used: the files: ")
                && reason.contains("`moment`"),
            "{body}"
        );
    }
    for path in paths {
        let (code, body) = health(&coordinator, path, "quell_x");
        assert_eq!(
            (&*code, body.to_string()),
            ("200", r#"{"status":"degraded"}"#.to_owned())
        );
    }
    failing(1);

    // A file that is gone cannot be read at all.
    std::fs::remove_file(&rules).unwrap();
    until("it says that", || {
        let (_, body) = health(&coordinator, "/healthz", token);
        body["reasons"]
            .to_string()
            .contains("No such file")
            .then_some(())
    });
    folder.write("shop.yaml", RULES);
    until_it_is("ok");
    failing(0);
}

/// A link in the middle of the path is swapped: the system tells nobody, as with a network drive.
#[test]
fn a_change_that_the_system_does_not_tell_is_found() {
    let folder = Folder::new();
    for (version, rate) in [("1", "200/s"), ("2", "300/s")] {
        std::fs::create_dir(folder.path(version)).unwrap();
        folder.write(
            &format!("{version}/shop.yaml"),
            &RULES.replace("200/s", rate),
        );
    }
    let link = |version: &str| {
        std::os::unix::fs::symlink(version, folder.path("next")).unwrap();
        std::fs::rename(folder.path("next"), folder.path("current")).unwrap();
    };
    link("1");
    let rules = folder.path("current/shop.yaml");
    let place = ["--embedded", &*folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&rules, &place, &[]);
    let mut node = Node::start(&folder, &rules, 1, &[&coordinator]);
    node.until_it_is("granted");
    link("2");
    coordinator.until("the coordinator has the limit", |status| {
        status["limits"][0]["rate_per_s"] == 300.0
    });
    until("the node has it, too", || {
        in_force(&node).1.contains("300/").then_some(())
    });
    node.stop();
    coordinator.stop();
}

/// Files of a coordinator are given to nodes as well.
#[test]
fn nodes_are_given_the_files_of_their_coordinator() {
    let folder = Folder::new();
    let file = folder.write("shop.yaml", RULES);
    let place = ["--embedded", &folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&file, &place, &[]);
    let mut node = Node::start(&folder, "fleet", 1, &[&coordinator]);
    follow(&coordinator, std::slice::from_ref(&node), 1, "200/");
    folder.write("shop.yaml", &RULES.replace("200/s", "300/s"));
    follow(&coordinator, std::slice::from_ref(&node), 2, "300/");
    node.stop();
    coordinator.stop();
}

/// While rules cannot be read, the limits stay, and an operator is told until they can.
#[test]
fn a_store_of_rules_that_is_gone_is_seen_until_it_is_back() {
    let (redis, folder) = (Redis::start(&[]), Folder::new());
    let (url, port) = (redis.url(), redis.port());
    let file = folder.write("shop.yaml", RULES);
    rules(&url, &["push", &file]);
    let place = ["--embedded", &folder.path("fleet.db")];
    let mut coordinator = Coordinator::start(&url, &place, &[]);
    let age = || {
        let metrics = coordinator.metrics();
        let mut lines = metrics.lines();
        let age = lines.find_map(|line| line.strip_prefix("quell_fleet_config_age_seconds "));
        age.unwrap().parse::<u64>().unwrap()
    };
    drop(redis);
    coordinator.until("the leader tells", |status| {
        let why = status["rules"]["unreadable"].as_str();
        why.is_some_and(|why| !why.is_empty()) && status["rules"]["version"] == 1
    });
    let shown = coordinator.fleet(&["status"]).expect_success();
    let trouble = "the rules cannot be read, and stay as they are: ";
    assert!(shown.contains(&format!("trouble: {trouble}")), "{shown}");
    let (code, body) = health(&coordinator, "/readyz", "");
    let reason = body["reasons"][0].as_str().unwrap();
    assert!(code == "200" && reason.starts_with(trouble), "{body}");
    until("the rules grow old", || (age() >= 4).then_some(()));

    // It has the same version again: nothing is new, and all is well.
    let _redis = Redis::start_on(port, Options::default());
    rules(&url, &["push", &file]);
    coordinator.until("they can be read", |status| {
        status["rules"]["unreadable"].is_null()
    });
    assert!(age() < 4, "{}", coordinator.metrics());
    let shown = coordinator.fleet(&["status"]).expect_success();
    assert!(!shown.contains("trouble"), "{shown}");
    coordinator.stop();
}

#[test]
fn sources_with_mistakes_say_what_to_write() {
    let folder = Folder::new();
    let etcd = Etcd::start();
    let empty = etcd.rules("none");
    for (source, code, expected) in [
        ("fleet", 2, "--rules: nodes follow their coordinators"),
        ("a.yaml,redis://h", 2, "or one store"),
        ("etcd://h", 2, "is not a name of rules"),
        (
            &*empty,
            1,
            "has no rules yet: `quell rules push --store etcd",
        ),
    ] {
        let place = ["--embedded", &folder.path("fleet.db"), "--rules", source];
        let told = run(quell(&["fleet", "coordinator"]).args(place));
        assert_eq!(told.code(), Some(code), "{told:?}");
        assert!(told.stderr.contains(expected), "{told:?}");
    }
    let told = run(&mut quell(&["serve", "--rules", "fleet"]));
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(
        told.stderr
            .contains("write fleet, the URL of a coordinator"),
        "{told:?}"
    );
}
