//! Holds of servers that share a store: made by one, ended by another, over HTTP and RESP.

use quell_testkit::redis::Redis;

use crate::clients::{curl, redis_cli};
use crate::process::{run, until};
use crate::server::Server;
use crate::shared_store::two_servers;

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
fn a_permit_over_resp_comes_back_to_whoever_waits_at_the_other_server() {
    let redis = Redis::start(&[]);
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
            let known = redis.command(&["EVAL", "return #redis.call('KEYS', '*id:*')", "0"]);
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
