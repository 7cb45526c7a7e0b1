//! The decision log has a line per decision.

use serde_json::{Value, json};

use crate::harness::{Fixture, SHOP, eventually};

fn lines(server: &Fixture, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(server.path(name)).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn every_acquire_is_a_line() {
    let mut server = Fixture::with_clock(SHOP, "decision_log = 'DIR/log'");
    server.acquire("/strict", "alice");
    server.acquire("/strict", "alice");
    server.acquire("/nowhere", "alice");
    let peek = r#"{"domain":"shop","entries":{"path":"/strict","user":"alice"}}"#;
    server.request("POST", "/v1/peek", peek);
    server.resp_exchange(b"CL.THROTTLE k 0 1 60\r\n");
    server.stop();
    let line = |domain: &str, rule: &str, key: &str, outcome: &str| {
        json!({"time": "2023-11-14T22:13:20Z", "domain": domain, "rule": rule, "key": key,
            "outcome": outcome, "shadow": false, "banned": false, "remaining": 0, "delay_ms": 0})
    };
    let expected = [
        line("shop", "strict", "user=alice", "allow"),
        line("shop", "strict", "user=alice", "deny"),
        json!({"time": "2023-11-14T22:13:20Z", "domain": "shop", "rule": null, "key": null,
            "outcome": "allow", "shadow": false, "banned": false, "remaining": null, "delay_ms": 0}),
        line("", "cl.throttle", "k", "allow"),
    ];
    assert_eq!(lines(&server, "log"), expected);
}

#[test]
fn keys_can_be_hashed_and_queries_sampled() {
    let settings =
        "decision_log = 'DIR/log'\ndecision_log_hash_keys = true\ndecision_log_one_in = 2";
    let mut server = Fixture::new(SHOP, settings);
    for user in ["a", "b", "a", "b", "c"] {
        server.acquire("/login", user);
    }
    server.stop();
    let lines = lines(&server, "log");
    let keys: Vec<&str> = lines
        .iter()
        .map(|line| line["key"].as_str().unwrap())
        .collect();
    let [first, second, third] = keys[..] else {
        panic!("{keys:?}");
    };
    assert_eq!(first, second, "one key has one hash");
    assert_ne!(first, third);
    assert_eq!(first.len(), 32);
}

#[test]
fn a_log_that_was_moved_away_begins_anew() {
    let server = Fixture::new(SHOP, "decision_log = 'DIR/log'");
    server.acquire("/login", "a");
    eventually("the line is there", || lines(&server, "log").len() == 1);
    std::fs::rename(server.path("log"), server.path("log.1")).unwrap();
    assert!(server.reload());
    server.acquire("/login", "a");
    eventually("the next is in a new file", || {
        lines(&server, "log").len() == 1
    });
    assert_eq!(lines(&server, "log.1").len(), 1);
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let error = Fixture::try_new("", "decision_log = 'DIR/no/such'")
        .err()
        .unwrap();
    assert!(error.to_string().contains("no/such"), "{error}");
}
