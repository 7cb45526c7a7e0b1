//! Holds of servers that share a store: made by one, ended by another, over HTTP and RESP.

use crate::clients::{curl, redis_cli};
use crate::files::Folder;
use crate::process::{quell, run, until};
use crate::server::Server;
use crate::shared_store::{Redis, two_servers};

const RULES: &str = "
domain: models
defaults: { on_failure: deny }
rules:
  - { name: tokens, per: [team], rate: 10000/h }
  - { name: requests, per: [team], algorithm: fixed_window, limit: 60/h, cost: 1 }
  - name: batches
    match: { kind: batch }
    per: [team]
    algorithm: concurrency
    max: 1
    lease: 30m
";

fn post(server: &Server, path: &str, body: &str) -> String {
    let output = run(curl().args(["-s", &server.url(path), "--json", body]));
    output.expect_success()
}

#[test]
fn a_reservation_of_one_server_is_settled_at_the_other() {
    let redis = Redis::start();
    let [one, other] = two_servers(&redis, RULES);
    let reserve = r#"{"domain":"models","entries":{"team":"red"},"cost":4000,"id":"a"}"#;
    for server in [&one, &other, &one] {
        let verdict = post(server, "/v1/reserve", reserve);
        assert!(verdict.contains(r#""allowed":true"#), "{verdict}");
        assert!(verdict.contains(r#""id":"a""#), "{verdict}");
    }
    let peek = r#"{"domain":"models","entries":{"team":"red"}}"#;
    let left = post(&other, "/v1/peek", peek);
    assert!(left.contains(r#""remaining":59"#), "{left}");
    let taken = r#"{"domain":"models","entries":{"team":"blue"},"id":"a"}"#;
    let taken = post(&other, "/v1/reserve", taken);
    assert!(taken.contains("choose a new one"), "{taken}");
    for repeated in ["false", "true"] {
        let settle = r#"{"domain":"models","id":"a","actual":9999}"#;
        let settled = post(&other, "/v1/settle", settle);
        assert!(settled.contains(r#""outcome":"settled""#), "{settled}");
        let says = format!(r#""repeated":{repeated}"#);
        assert!(settled.contains(&says), "{settled}");
    }
    let more = r#"{"domain":"models","entries":{"team":"red"},"cost":5000}"#;
    let refused = post(&one, "/v1/acquire", more);
    assert!(refused.contains(r#""allowed":false"#), "{refused}");
    for server in [one, other] {
        server.stop();
    }
}

#[test]
fn what_one_server_made_is_listed_at_the_other() {
    let redis = Redis::start();
    let [one, other] = two_servers(&redis, RULES);
    let holds = |more: &[&str]| {
        let mut asked = vec!["holds", "-d", "models", "-e", "team=red"];
        asked.extend(more);
        run(quell(&asked).args(["--url", &other.url("")])).expect_success()
    };
    assert_eq!(holds(&[]), "nothing is held\n");
    let reserve = r#"{"domain":"models","entries":{"team":"red"},"cost":4000,"id":"a"}"#;
    post(&one, "/v1/reserve", reserve);
    let told = holds(&[]);
    // The first column is how long is left.
    let rows = told
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().skip(1));
    let rows: Vec<String> = rows.map(|row| row.collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        rows,
        ["taken 4000 tokens a", "taken 1 requests a"],
        "{told}"
    );
    let told = holds(&["--rule", "requests", "--json"]);
    assert!(told.contains(r#""holds":[{"id":"a","units":1,"#), "{told}");
    assert!(!told.contains("tokens"), "{told}");
    for server in [one, other] {
        server.stop();
    }
}

#[test]
fn a_permit_over_resp_comes_back_to_whoever_waits_at_the_other_server() {
    let redis = Redis::start();
    let [one, other] = two_servers(&redis, RULES);
    let say = |server: &Server, words: &[&str]| run(redis_cli(server.resp).args(words)).stdout;
    let reserved = say(
        &one,
        &[
            "QUELL.RESERVE",
            "models",
            "r",
            "60000",
            "COST",
            "7",
            "team",
            "red",
        ],
    );
    assert!(reserved.contains("allowed"), "{reserved}");
    let held = say(
        &one,
        &[
            "QUELL.RESERVE",
            "models",
            "p",
            "60000",
            "team",
            "red",
            "kind",
            "batch",
        ],
    );
    assert!(held.contains("allowed"), "{held}");
    let ask =
        r#"{"domain":"models","entries":{"team":"red","kind":"batch"},"max_wait_ms":3600000}"#;
    let verdict = std::thread::scope(|scope| {
        let waits = scope.spawn(|| post(&other, "/v1/acquire", ask));
        // It waits in the queue once its id is known.
        until("it has its place", || {
            let known = redis.say(&["EVAL", "return #redis.call('KEYS', '*id:*')", "0"]);
            (known.trim() == "3").then_some(())
        });
        assert!(!waits.is_finished(), "its turn is half an hour away");
        let released = say(&one, &["QUELL.RELEASE", "models", "p"]);
        assert!(released.contains("released"), "{released}");
        waits.join().unwrap()
    });
    assert!(verdict.contains(r#""allowed":true"#), "{verdict}");
    let settled = say(&other, &["QUELL.SETTLE", "models", "r", "1"]);
    assert!(settled.contains("settled"), "{settled}");
    for server in [one, other] {
        server.stop();
    }
}

/// Each server counts what its own callers hold and wait for; an expired hold is counted by the server
/// that notices it.
#[test]
fn what_is_held_waits_and_is_over_is_counted_at_each_server() {
    let redis = Redis::start();
    let [one, other] = two_servers(&redis, RULES);
    let numbers = |server: &Server| {
        let metric = |name: &str| server.metric(name).unwrap();
        [
            metric("quell_permits_held"),
            metric("quell_reservations"),
            metric("quell_waiters"),
            metric("quell_wait_seconds_count"),
            metric("quell_expired_holds_total"),
        ]
    };
    let reserve = |server: &Server, id: &str, hold_ms: u64| {
        let entries = r#"{"team":"red","kind":"batch"}"#;
        let body =
            format!(r#"{{"domain":"models","entries":{entries},"id":"{id}","hold_ms":{hold_ms}}}"#);
        post(server, "/v1/reserve", &body)
    };
    assert!(reserve(&one, "a", 60_000).contains(r#""allowed":true"#));
    assert_eq!(numbers(&one), [1, 1, 0, 0, 0]);
    assert_eq!(numbers(&other), [0, 0, 0, 0, 0]);
    let ask =
        r#"{"domain":"models","entries":{"team":"red","kind":"batch"},"max_wait_ms":3600000}"#;
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| post(&other, "/v1/acquire", ask));
        until("it waits", || (numbers(&other)[2] == 1).then_some(()));
        assert_eq!(numbers(&one), [1, 1, 0, 0, 0]);
        let cancel = r#"{"domain":"models","id":"a"}"#;
        assert!(post(&one, "/v1/cancel", cancel).contains("cancelled"));
        waits.join().unwrap()
    });
    assert!(waited.contains(r#""allowed":true"#), "{waited}");
    assert_eq!(numbers(&one), [0, 0, 0, 0, 0]);
    assert_eq!(numbers(&other)[..4], [1, 1, 0, 1]);
    // A reservation of tokens alone, for one millisecond, and then another call for its key.
    let tokens = r#"{"domain":"models","entries":{"team":"blue"},"hold_ms":1}"#;
    post(&one, "/v1/reserve", tokens);
    until("somebody asks after its time", || {
        post(
            &other,
            "/v1/acquire",
            r#"{"domain":"models","entries":{"team":"blue"}}"#,
        );
        (numbers(&other)[4] == 1).then_some(())
    });
    until("it is over for who made it too", || {
        (numbers(&one) == [0, 0, 0, 0, 0]).then_some(())
    });
    for server in [one, other] {
        server.stop();
    }
}

/// One ceiling for both servers, which begins at `min`; the answers and the metric show its value.
#[test]
fn a_ceiling_is_learned_by_all_servers_together() {
    let redis = Redis::start();
    let rules = "{domain: d, defaults: {on_failure: deny}, rules: [{name: x, algorithm: concurrency, adaptive: {min: 2, max: 9}}]}";
    let [one, other] = two_servers(&redis, rules);
    let ask = |server: &Server| post(server, "/v1/acquire", r#"{"domain":"d"}"#);
    for server in [&one, &other] {
        let held = ask(server);
        assert!(held.contains(r#""allowed":true"#), "{held}");
    }
    let refused = ask(&one);
    assert!(refused.contains(r#""allowed":false"#), "{refused}");
    assert!(refused.contains(r#""limit":2"#), "{refused}");
    let learned = r#"quell_learned_permits{domain="d",rule="x"}"#;
    assert_eq!(one.metric(learned), Some(2));
    for server in [one, other] {
        server.stop();
    }
}

/// A request without a declared answer is told that the store is the cause, and when to try again.
#[test]
fn ends_of_holds_and_bans_are_503_while_the_store_is_gone() {
    let redis = Redis::start();
    let folder = Folder::new();
    let rules = folder.write("rules.yaml", RULES);
    let server = Server::start(&["--rules", &rules, "--store", &redis.url()]);
    drop(redis);
    let end = r#"{"domain":"models","id":"a"}"#;
    let settle = r#"{"domain":"models","id":"a","actual":1}"#;
    let key = r#"{"domain":"models","entries":{"team":"red"}}"#;
    let ban = r#"{"domain":"models","entries":{"team":"red"},"for":"1m"}"#;
    let asked = [
        ("POST", "/v1/settle", settle),
        ("POST", "/v1/cancel", end),
        ("POST", "/v1/release", end),
        ("POST", "/v1/renew", end),
        ("GET", "/v1/bans", ""),
        ("POST", "/v1/bans", ban),
        ("DELETE", "/v1/bans", key),
        ("DELETE", "/v1/keys", key),
        ("POST", "/v1/holds", key),
    ];
    for (method, path, body) in asked {
        let mut curl = curl();
        curl.args(["-s", "-i", "-X", method, &server.url(path)]);
        if !body.is_empty() {
            curl.args(["--json", body]);
        }
        let answer = run(&mut curl).expect_success();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
        assert!(answer.contains("retry-after: 1\r\n"), "{path}: {answer}");
        assert!(
            answer.contains("#temporary-reduced-capacity"),
            "{path}: {answer}"
        );
        assert!(
            answer.contains("the store does not answer"),
            "{path}: {answer}"
        );
    }
    let settled = run(redis_cli(server.resp).args(["QUELL.SETTLE", "models", "a", "1"])).stdout;
    assert!(settled.contains("the store does not answer"), "{settled}");
    server.stop();
}
