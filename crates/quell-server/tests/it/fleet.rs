//! A server that is a node of a fleet, while no coordinator is up, and what it refuses.

use std::net::TcpListener;

use crate::harness::Fixture;

const RULES: &str = "
domain: shop
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: api, match: { path: /api }, rate: 1000/s }
  - { name: mine, match: { path: [/api, /mine] }, rate: 5/h, rung: local }
";

/// Settings of a node whose coordinator nobody is.
fn node(more: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    format!("fleet = ['http://{address}']\nfleet_member = 'node-7'\n{more}")
}

#[test]
fn a_node_without_a_coordinator_says_so_and_admits_nothing_of_the_fleet() {
    // The directory is made, as it is for a server that is no node.
    let server = Fixture::with_clock(RULES, &node("data_dir = 'DIR/new/data'"));
    assert!(server.directory.path().join("new/data/fleet.lock").exists());
    let api = server.acquire("/api", "ann").json();
    assert_eq!(
        (api["allowed"].as_bool(), api["degraded"].as_bool()),
        (Some(false), Some(true))
    );
    assert_eq!(api["decisions"][0]["rung"], "shares");
    assert_eq!(api["retry_after_ms"], 1_000);
    // The other limit of the set is not charged.
    let mine = server.acquire("/mine", "ann").json();
    assert_eq!(
        (mine["allowed"].as_bool(), mine["remaining"].as_u64()),
        (Some(true), Some(4))
    );
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    assert_eq!(
        (&health["fleet"]["member"], &health["fleet"]["state"]),
        (&7.into(), &"joining".into())
    );
    assert_eq!(server.get("/readyz").status, 200);
    let metric = |series: &str| server.metric(series);
    assert_eq!(
        metric("quell_fleet_state{state=\"joining\"}").as_deref(),
        Some("1")
    );
    assert_eq!(
        metric("quell_fleet_lease_seconds").as_deref(),
        Some("0.000000000")
    );
    let rules = server.get("/v1/rules").json();
    let rule = &rules["domains"][0]["rules"][0];
    assert_eq!(
        (&rule["rung"], &rule["cluster_size"], &rule["on_failure"]),
        (&"shares".into(), &"auto".into(), &"share".into())
    );
    // A reservation cannot be made.
    let query = r#"{"domain":"shop","entries":{"path":"/api"},"id":"a"}"#;
    let reserved = server.request("POST", "/v1/reserve", query);
    let problem = reserved.json()["detail"].to_string();
    assert!(problem.contains("makes no reservations"), "{problem}");
}

#[test]
fn rules_of_a_fleet_need_a_fleet_and_names_of_their_own() {
    let error = Fixture::try_new(RULES, "").err().unwrap().to_string();
    assert!(error.contains("start the server with --fleet"), "{error}");
    let twice = format!(
        "{RULES}---\n{}",
        RULES.replace("domain: shop", "domain: api")
    );
    let error = Fixture::try_new(&twice, &node(""))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("a fleet has a limit `api` already"),
        "{error}"
    );
}

#[test]
fn rules_are_followed_and_a_reload_that_is_refused_changes_nothing() {
    let server = Fixture::with_clock(RULES, &node(""));
    let file = server.directory.path().join("rules.yaml");
    let twice = format!(
        "{RULES}---\n{}",
        RULES.replace("domain: shop", "domain: api")
    );
    std::fs::write(&file, twice).unwrap();
    assert!(!server.reload());
    assert_eq!(
        server.get("/v1/rules").json()["domains"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    std::fs::write(&file, RULES.replace("1000/s", "2000/s")).unwrap();
    assert!(server.reload());
    let api = server.acquire("/api", "ann").json();
    assert_eq!(api["decisions"][0]["limit"], 2_000);
}
