//! Reports of a fleet's nodes on their calls: whom they refuse, who is banned, how long decisions take.

use quell_testkit::redis::Redis;
use serde_json::Value;

use super::console::page;
use super::{Coordinator, Node, RULES, count};
use crate::clients::curl;
use crate::files::Folder;
use crate::process::{quell, run};

/// Asks a node for a user.
fn ask(node: &Node, user: &str) {
    let question = format!(r#"{{"domain":"shop","entries":{{"user":"{user}"}}}}"#);
    let url = node.server.as_ref().unwrap().url("/v1/acquire");
    run(curl().args(["--silent", "--json", &question, &url])).expect_success();
}

/// Bans a user of `login` at a node.
fn ban(node: &Node, user: &str) {
    let (url, user) = (
        node.server.as_ref().unwrap().url(""),
        format!("user={user}"),
    );
    let words = [
        "bans", "set", "--domain", "shop", "--rule", "login", "-e", &user, "--for", "1h",
    ];
    let more = ["--reason", "<b>abuse", "--url", url.trim_end_matches('/')];
    run(quell(&words).args(more)).expect_success();
}

/// The names of keys of a list, such as those of bans.
fn users<'a>(status: &'a Value, list: &str) -> Vec<&'a str> {
    let keys = status["calls"][list].as_array().into_iter().flatten();
    keys.filter_map(|key| key["entries"]["user"].as_str())
        .collect()
}

#[test]
fn who_is_refused_or_banned_at_a_node_is_seen_at_the_coordinator() {
    let folder = Folder::new();
    let login = "  - { name: login, per: [user], rate: 1/h, rung: local }\n";
    let file = folder.write("shop.yaml", &format!("{RULES}{login}"));
    let place = folder.path("fleet.db");
    let coordinator = Coordinator::start(&file, &["--embedded", &place], &[]);
    let [one, mut two] = [1, 2].map(|member| Node::start(&folder, &file, member, &[&coordinator]));
    for node in [&one, &two] {
        node.until_it_is("granted");
    }
    // The first call of each is allowed; `ann` is refused at both, `eve` at one.
    for (node, user, calls) in [(&one, "ann", 4), (&two, "ann", 3), (&two, "eve", 2)] {
        (0..calls).for_each(|_| ask(node, user));
    }
    ban(&one, "mallory");
    let is_seen = |status: &Value| {
        status["calls"]["nodes"] == 2
            && users(status, "refused") == ["ann", "eve"]
            && users(status, "bans") == ["mallory"]
            && status["calls"]["p50_ns"].is_u64()
    };
    let status = coordinator.until("calls of both nodes are seen", is_seen);
    let calls = &status["calls"];
    let ann = &calls["refused"][0];
    assert_eq!(
        (&ann["domain"], &ann["rule"]),
        (&"shop".into(), &"login".into())
    );
    assert_eq!((&ann["at_least"], &ann["refusals"]), (&5.into(), &5.into()));
    let ban = &calls["bans"][0];
    assert_eq!(
        (&ban["rule"], &ban["reason"]),
        (&"login".into(), &"<b>abuse".into())
    );
    let left = ban["left_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&left), "{calls}");
    assert_eq!(
        (&calls["bans_at_least"], &calls["bans_at_most"]),
        (&1.into(), &1.into())
    );
    assert_eq!(calls["bans_unknown_nodes"], 0);
    for some in ["decisions_per_s", "allowed_per_s", "denied_per_s"] {
        assert!(calls[some].as_f64() > Some(0.0), "{calls}");
    }
    assert_eq!(calls["degraded_per_s"], 0.0, "{calls}");

    // The same without scripts, and in the shell.
    let shown = page(&coordinator, "/console");
    let rows = [
        r#"<td>login</td><td class="key">user=ann</td><td class="number">5</td>"#,
        r#"<td class="key">user=mallory</td>"#,
        "<td>&#60;b&#62;abuse</td>",
        "at 2/2 nodes",
    ];
    for row in rows {
        assert!(shown.contains(row), "{row}\n{shown}");
    }
    let shown = coordinator.fleet(&["status"]).stdout;
    let line = "refused most often: user=ann by login of shop, 5 times; banned keys: 1";
    assert!(shown.contains(line), "{shown}");

    // With the node its numbers go.
    two.stop();
    let is_gone = |status: &Value| users(status, "refused") == ["ann"];
    let status = coordinator.until("a node has left", is_gone);
    assert_eq!(status["calls"]["refused"][0]["refusals"], 3, "{status}");
}

/// Both nodes know the ban, which is one; neither does when their store is gone, and their reports go on.
#[test]
fn a_ban_on_a_shared_store_is_one_and_not_known_when_the_store_is_gone() {
    let (folder, redis) = (Folder::new(), Redis::start(&[]));
    let login = "  - { name: login, per: [user], rate: 1/h, rung: strict, on_failure: allow }\n";
    let file = folder.write("shop.yaml", &format!("{RULES}{login}"));
    let place = folder.path("fleet.db");
    let coordinator = Coordinator::start(&file, &["--embedded", &place], &[]);
    let store = ["--store", &*redis.url(), "--store-timeout", "10s"];
    let node = |member| Node::with(&folder, &file, member, &coordinator.url(), &store);
    let one = node(1);
    ban(&one, "mallory");
    let _two = node(2);
    let is_known = |status: &Value| {
        let calls = &status["calls"];
        calls["nodes"] == 2
            && calls["bans_unknown_nodes"] == 0
            && users(status, "bans") == ["mallory"]
            && ["bans_at_least", "bans_at_most"].map(|field| &calls[field]) == [1, 1]
    };
    coordinator.until("both nodes know the ban", is_known);
    drop(redis);
    let is_unknown = |status: &Value| status["calls"]["bans_unknown_nodes"] == 2;
    let status = coordinator.until("no node knows who is banned", is_unknown);
    assert_eq!(count(&status, "active"), 2, "{status}");
    assert_eq!(users(&status, "bans"), Vec::<&str>::new());
    let shown = page(&coordinator, "/console");
    assert!(
        shown.contains("At 2 of these nodes bans are not known"),
        "{shown}"
    );
}
