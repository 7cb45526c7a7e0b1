//! Several servers on one store: who has a change, who is behind, and what is told when the store lost changes.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::override_store::{OverrideStore as _, Position};
use quell_core::time::Now;
use quell_redis::RedisOverrides;
use quell_testkit::redis::Redis;
use serde_json::{Value, json};

use super::{ACME, HOUR, RULES, batch, call, put, set};
use crate::harness::{Fixture, eventually, store_settings};

/// The same rules for other tenants.
const OTHER_RULES: &str = "
domain: shop
defaults: { on_failure: deny }
rules: [{ name: api, match: { kind: api }, per: [tenant], algorithm: fixed_window, limit: 7/day }]
";

/// `ACME`, with the longest wait for all servers.
const WAIT: &str = "/v1/overrides/shop/api?tenant=acme&wait=10s";

fn limit(server: &Fixture) -> String {
    let key = server.get(ACME).json();
    key["limit"].as_str().unwrap().to_owned()
}

/// The limit by which a server decides a call.
fn decided(server: &Fixture, tenant: &str) -> u64 {
    let verdict = call(server, "api", tenant, 1);
    let limit = verdict["decisions"][0]["limit"].as_u64();
    limit.unwrap_or_else(|| panic!("{verdict}"))
}

fn overrides_health(server: &Fixture) -> Value {
    server.get("/healthz").json()["overrides"].clone()
}

#[test]
fn a_change_that_waits_is_in_force_on_all_servers() {
    let redis = Redis::start(&[]);
    let store = store_settings(&redis);
    let one = Fixture::new(RULES, &store);
    let mut other = Fixture::new(OTHER_RULES, &store);
    for number in 1..=20 {
        let record = set(&one, WAIT, &json!({"limit": number}));
        assert_eq!(record["servers"], json!({"have": 2, "of": 2}), "{record}");
        // No wait: it has it when the other answers.
        assert_eq!(decided(&other, "acme"), number);
    }
    let line = json!({"rule": "api", "entries": {"tenant": "acme"}, "limit": 30});
    let answer = one.request_with(
        "POST",
        "/v1/overrides/batch?domain=shop&wait=10s",
        "Content-Type: application/x-ndjson\r\n",
        &line.to_string(),
    );
    let answer = answer.json();
    assert_eq!(answer["servers"], json!({"have": 2, "of": 2}), "{answer}");
    assert_eq!(decided(&other, "acme"), 30);
    // Who does not wait is not told of others.
    let record = set(&one, ACME, &json!({"limit": 40}));
    assert!(record.get("servers").is_none(), "{record}");
    let answer = batch(&one, &[line]).json();
    assert!(answer.get("servers").is_none(), "{answer}");
    let deleted = other.request("DELETE", WAIT, "").json();
    assert_eq!(deleted["servers"], json!({"have": 2, "of": 2}), "{deleted}");
    assert_eq!(limit(&one), "fixed_window 100 per calendar day in UTC");

    // One that stops is waited for no more.
    other.stop();
    let record = set(&one, WAIT, &json!({"limit": 50}));
    assert_eq!(record["servers"], json!({"have": 1, "of": 1}), "{record}");
    // One that was killed is, for some seconds: the change is made all the same.
    let mut killed = Fixture::new(RULES, &store);
    killed.kill();
    let short = WAIT.replace("10s", "300ms");
    let mut record = Value::Null;
    eventually("this server has it", || {
        record = put(&one, &short, &json!({"limit": 60})).json();
        record["servers"]["have"] == 1
    });
    assert_eq!(record["servers"]["of"], 2, "{record}");
    let missing = record["servers"]["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{record}");
    // A record may be sent back.
    let answer = batch(&one, std::slice::from_ref(&record)).json();
    assert_eq!(answer["changed"], 1, "{answer}");
}

#[test]
fn a_server_that_is_alone_is_all_servers() {
    let server = Fixture::with_clock(RULES, "");
    let record = set(&server, WAIT, &json!({"limit": 5}));
    assert_eq!(record["servers"], json!({"have": 1, "of": 1}));
    let health = overrides_health(&server);
    assert!(health.get("servers").is_none(), "{health}");
    assert_eq!(server.metric("quell_overrides_servers"), None);
}

#[test]
fn health_and_metrics_name_servers_that_are_behind() {
    let redis = Redis::start(&[]);
    let server = Fixture::new(RULES, &store_settings(&redis));
    set(&server, WAIT, &json!({"limit": 5}));
    let health = overrides_health(&server);
    assert_eq!(health["servers"], 1, "{health}");
    assert!(health.get("servers_behind").is_none(), "{health}");
    let other = RedisOverrides::new(&redis.url().parse().unwrap());
    let (nothing, late) = (Position::default(), Duration::from_secs(2));
    eventually("the other server is named", || {
        let report = other.report("slow-1", &nothing, late);
        server.block_on(report).unwrap();
        let health = overrides_health(&server);
        health["servers"] == 2 && health["servers_behind"] == json!(["slow-1"])
    });
    // It is that server that is not well.
    assert_eq!(server.get("/healthz").json()["status"], "ok");
    eventually("it is counted", || {
        let report = other.report("slow-1", &nothing, late);
        server.block_on(report).unwrap();
        let metric = |name| server.metric(name);
        metric("quell_overrides_servers").as_deref() == Some("2")
            && metric("quell_overrides_servers_behind").as_deref() == Some("1")
    });
    let name = overrides_health(&server)["server"].clone();
    assert!(name.as_str().is_some_and(|name| name != "slow-1"), "{name}");
}

/// What was known stays in force and is told, until somebody writes to the store.
#[test]
fn a_store_that_comes_back_empty_takes_nothing_away() {
    let mut redis = Redis::start(&[]);
    let store = format!("store = '{}'", redis.url());
    let server = Fixture::new(RULES, &store);
    set(&server, WAIT, &json!({"limit": 5}));
    redis.restart();
    eventually("health says so", || {
        let health = server.get("/healthz").json();
        health["status"] == "degraded" && health["overrides"]["emptied"] == true
    });
    assert_eq!(decided(&server, "acme"), 5);
    let health = overrides_health(&server);
    assert_eq!(
        (&health["keys"], &health["times_lost"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        server.metric("quell_overrides_emptied").as_deref(),
        Some("1")
    );
    assert_eq!(
        server.metric("quell_overrides_lost_total").as_deref(),
        Some("1")
    );
    // Answers say that the store has less than decides here.
    let key = server.get(ACME).json();
    assert_eq!(
        (&key["emptied"], &key["overrides"], &key["limit"]),
        (
            &json!(true),
            &json!([]),
            &json!("fixed_window 5 per calendar day in UTC")
        )
    );
    let links = key["chain"].as_array().unwrap();
    assert!(links.iter().all(|link| link["in_force"] == false), "{key}");
    let list = server.get("/v1/overrides/shop").json();
    let emptied = json!({"overrides": [], "next": null, "emptied": true});
    assert_eq!(list, emptied);
    for page in [
        "?domain=shop",
        "/key?domain=shop&rule=api&entries=tenant%3Dacme",
    ] {
        let page = server.get(&format!("/console/overrides{page}")).body;
        assert!(page.contains("The store of overrides is empty"), "{page}");
    }
    // A key that has none of its own is decided as the chain says.
    let other = server.get(&ACME.replace("acme", "other")).json();
    assert_eq!(other["chain"][0]["in_force"], true, "{other}");
    // Rules that change list the store again, and take nothing away either.
    let rules = RULES.replace("name: pair", "name: pairs");
    std::fs::write(server.path("rules.yaml"), rules).unwrap();
    assert!(server.reload());
    assert_eq!(decided(&server, "acme"), 5);
    // A server that starts now has the numbers of the rules, and what is written applies everywhere.
    let other = Fixture::new(RULES, &store);
    assert_eq!(decided(&other, "acme"), 100);
    let globex = WAIT.replace("acme", "globex");
    let record = set(&other, &globex, &json!({"limit": 9}));
    assert_eq!(record["servers"], json!({"have": 2, "of": 2}), "{record}");
    assert_eq!(decided(&server, "acme"), 100);
    assert_eq!(decided(&server, "globex"), 9);
    let health = server.get("/healthz").json();
    assert_eq!(health["overrides"].get("emptied"), None, "{health}");
    for target in [ACME, "/v1/overrides/shop"] {
        let read = server.get(target).json();
        assert_eq!(read.get("emptied"), None, "{read}");
    }
    assert_eq!(health["overrides"]["times_lost"], 1, "{health}");
}

/// A clock that is set ahead of an end, and back.
#[test]
fn an_end_is_by_the_clock_however_it_is_set() {
    let redis = Redis::start(&[]);
    let store = store_settings(&redis);
    let begin = Now::from_nanos(1_700_000_000_000_000_000);
    let clocks = [(); 2].map(|()| Arc::new(ManualClock::new(begin)));
    let [one, other] = clocks
        .each_ref()
        .map(|clock| Fixture::with_other_clock(RULES, &store, Arc::clone(clock) as Arc<_>));
    set(&one, WAIT, &json!({"limit": 20}));
    let boost = json!({"limit": 900, "from": "1h", "until": "3h"});
    put(&one, WAIT, &boost);
    let at = |hours: u32| {
        let wall = begin.wall.saturating_add(HOUR * hours);
        Now { wall, ..begin }
    };
    for (hours, expected) in [
        (0, 20),
        (1, 900),
        (2, 900),
        (3, 20),
        (50, 20),
        (2, 900),
        (0, 20),
        (2, 900),
        (4, 20),
    ] {
        for (clock, server) in clocks.iter().zip([&one, &other]) {
            clock.set(at(hours));
            assert_eq!(decided(server, "acme"), expected, "at {hours} h");
        }
    }
    // One of them steps alone.
    clocks[1].set(at(2));
    assert_eq!(decided(&one, "acme"), 20);
    assert_eq!(decided(&other, "acme"), 900);
}
