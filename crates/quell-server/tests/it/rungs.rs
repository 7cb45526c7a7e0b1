//! Local rules together with a store: how an outage of the store affects them, and calls on both
//! rungs.

use quell_testkit::redis::{Options, Redis};
use quell_testkit::wall_clock::WallClock;

use crate::harness::Fixture;

const RULES: &str = "
domain: shop
defaults: { on_failure: deny }
rules:
  - name: here
    match: { path: ['/here', '/both'] }
    rung: local
    limit: 4/h
    algorithm: fixed_window
  - name: there
    match: { path: ['/there', '/both'] }
    limit: 2/h
    algorithm: fixed_window
  - name: elsewhere
    match: { path: /elsewhere }
    limit: 2/h
    algorithm: fixed_window
";

/// Answer to a call on `path`: allowed or not, degraded or not, and what is left.
fn ask(server: &Fixture, path: &str) -> (bool, bool, Option<u64>) {
    let answer = server.acquire(path, "ann").json();
    let is = |field: &str| answer[field].as_bool().unwrap();
    (is("allowed"), is("degraded"), answer["remaining"].as_u64())
}

#[test]
fn an_outage_of_the_store_does_not_touch_local_rules() {
    let redis = Redis::start(&[]);
    let settings = format!("store = '{}'\nstore_timeout = '60s'", redis.url());
    let server = Fixture::with_clock(RULES, &settings);
    assert_eq!(ask(&server, "/both"), (true, false, Some(1)));
    assert_eq!(ask(&server, "/both"), (true, false, Some(0)));
    assert_eq!(ask(&server, "/both"), (false, false, Some(0)));
    // A call that the store refused is not charged here.
    assert_eq!(ask(&server, "/here"), (true, false, Some(1)));
    drop(redis);
    assert_eq!(ask(&server, "/elsewhere"), (false, true, Some(0)));
    assert_eq!(ask(&server, "/here"), (true, false, Some(0)));
    assert_eq!(ask(&server, "/here"), (false, false, Some(0)));
    assert_eq!(ask(&server, "/both"), (false, false, Some(0)));
}

#[test]
fn answers_of_leased_rules_say_by_how_much_the_limit_may_be_exceeded() {
    const RULES: &str = "
domain: shop
defaults: { on_failure: deny, nodes: 2, max_over_admission: 1% }
rules:
  - { name: leased, match: { path: /leased }, rate: 1000/s }
  - { name: small, match: { path: /small }, rate: 5/s }
";
    let redis = Redis::start(&[]);
    let settings = format!("store = '{}'\nstore_timeout = '60s'", redis.url());
    let server = Fixture::with_clock(RULES, &settings);
    for call in 1..=100 {
        let answer = server.acquire("/leased", "ann").json();
        assert_eq!(answer["allowed"], true, "call {call}");
        let decision = &answer["decisions"][0];
        assert_eq!(
            (decision["rung"].as_str(), decision["bound"].as_u64()),
            (Some("leased"), Some(20))
        );
    }
    let policy = |path: &str| {
        let uri = format!("X-Original-URI: {path}\r\n");
        let answer = server.request_with("GET", "/v1/authorize?domain=shop", &uri, "");
        answer.field("ratelimit-policy").map(str::to_owned)
    };
    assert_eq!(
        policy("/leased").as_deref(),
        Some("\"leased\";q=1000;w=1;quell-rung=leased;quell-bound=20")
    );
    let answer = server.acquire("/small", "ann").json();
    assert_eq!(answer["remaining"], 4);
    assert!(answer["decisions"][0].get("bound").is_none(), "{answer}");
    let exact = policy("/small");
    assert_eq!(exact.as_deref(), Some("\"small\";q=5;w=1"));
    let rules = server.request("GET", "/v1/rules", "").json();
    let [leased, small] = [0, 1].map(|at| &rules["domains"][0]["rules"][at]);
    let why = "the limit is too small to be divided: leases need a burst or limit of at least 16";
    assert_eq!(
        (&leased["rung"], &small["rung"], &small["why_strict"]),
        (&"leased".into(), &"strict".into(), &why.into())
    );
    assert!(leased.get("why_strict").is_none(), "{leased}");
    // Without a store that servers share there is nothing to lease.
    let server = Fixture::with_clock(RULES, "");
    let answer = server.acquire("/leased", "ann").json();
    assert!(answer["decisions"][0].get("bound").is_none(), "{answer}");
}

/// A rule that may not wait for the store is synced: what a server admitted is charged when it stops, and what
/// it admitted when it is killed is at most its part of the bound.
#[test]
fn a_server_that_stops_has_charged_what_its_synced_rules_admitted() {
    const RULES: &str = "
domain: shop
defaults: { on_failure: deny, nodes: 2, max_over_admission: 60, latency_budget: 500us }
rules: [{ name: synced, algorithm: fixed_window, limit: 5000/h }]
";
    let redis = Redis::start(&[]);
    let settings = format!("store = '{}'\nstore_timeout = '60s'", redis.url());
    let admit = |server: &Fixture| {
        for call in 1..=100 {
            let answer = server.acquire("/", "ann").json();
            assert_eq!(answer["allowed"], true, "call {call}");
            let decision = &answer["decisions"][0];
            let says = (decision["rung"].as_str(), decision["bound"].as_u64());
            assert_eq!(says, (Some("synced"), Some(60)));
        }
        let pending = server.metric("quell_uncharged_units").unwrap();
        let pending: u64 = pending.parse().unwrap();
        assert!(pending <= 30, "{pending} units");
        pending
    };
    let left = || {
        let server = Fixture::with_clock(RULES, &settings);
        let body = r#"{"domain":"shop","entries":{"path":"/"}}"#;
        let answer = server.request("POST", "/v1/peek", body).json();
        answer["remaining"].as_u64().unwrap()
    };
    let mut server = Fixture::with_clock(RULES, &settings);
    admit(&server);
    server.stop();
    assert_eq!(left(), 4_900);
    let mut server = Fixture::with_clock(RULES, &settings);
    let pending = admit(&server);
    server.kill();
    assert!((4_800..=4_800 + pending).contains(&left()));
}

/// A server that stops gives back what it charged in advance and did not use. The store takes units back
/// while their lease would last, half a second by its clock, which goes slowly here. A server that stops waits no
/// longer than half a second for that, and a busy machine may need longer, so there is more than one try.
#[test]
fn a_server_that_stops_gives_back_what_its_leased_rules_hold() {
    const RULES: &str = "
domain: shop
defaults: { on_failure: deny, nodes: 2, max_over_admission: 60 }
rules: [{ name: leased, per: [user], algorithm: fixed_window, limit: 5000/h }]
";
    let clock = Some(WallClock::slow());
    let redis = Redis::start_with(Options {
        clock,
        ..Options::default()
    });
    let settings = format!("store = '{}'\nstore_timeout = '60s'", redis.url());
    let watcher = Fixture::with_clock(RULES, &settings);
    let is_unused_left = |user: &str| {
        let mut server = Fixture::with_clock(RULES, &settings);
        let mut used = 0;
        while used < 20 || server.metric("quell_lease_units").as_deref() == Some("0") {
            let answer = server.acquire("/", user).json();
            assert_eq!(answer["decisions"][0]["rung"], "leased", "{answer}");
            used += u64::from(answer["allowed"].as_bool().unwrap());
        }
        server.stop();
        let body = format!(r#"{{"domain":"shop","entries":{{"path":"/","user":"{user}"}}}}"#);
        let answer = watcher.request("POST", "/v1/peek", &body).json();
        let left = answer["remaining"].as_u64().unwrap();
        assert!(left <= 5_000 - used, "{left} left, {used} used");
        left == 5_000 - used
    };
    assert!((0..20).any(|user| is_unused_left(&user.to_string())));
}
