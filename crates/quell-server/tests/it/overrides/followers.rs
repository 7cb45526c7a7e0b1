//! Who may change and follow overrides: the stream of changes, tokens, nodes of a fleet.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;

use quell_host::access::{NewToken, Role};
use serde_json::{Value, json};

use super::{ACME, RULES, set};
use crate::harness::{Fixture, connect, request};

fn stream(server: &Fixture, target: &str, fields: &str) -> BufReader<TcpStream> {
    let mut stream = connect(server.http());
    let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    BufReader::new(stream)
}

/// The next event of a stream: its name, its id, and its data.
fn next_event(stream: &mut impl BufRead) -> (String, String, Value) {
    let (mut name, mut id) = (String::new(), String::new());
    loop {
        let mut line = String::new();
        assert!(
            stream.read_line(&mut line).unwrap() > 0,
            "ended after {name:?}"
        );
        let line = line.trim_end();
        if let Some(text) = line.strip_prefix("event: ") {
            text.clone_into(&mut name);
        } else if let Some(text) = line.strip_prefix("id: ") {
            text.clone_into(&mut id);
        } else if let Some(text) = line.strip_prefix("data: ") {
            return (name, id, serde_json::from_str(text).unwrap());
        }
    }
}

fn read_to_end_of_answer(stream: &mut impl BufRead) {
    let mut line = String::new();
    while line != "0\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
}

#[test]
fn a_stream_has_every_change_and_goes_on_from_a_position() {
    let mut server = Fixture::with_clock(RULES, "");
    let mut all = stream(&server, "/v1/overrides/changes", "");
    let (name, begin, _) = next_event(&mut all);
    assert_eq!(name, "list", "a client that has nothing lists first");
    let record = set(&server, ACME, &json!({"limit": "200/day"}));
    let (name, first, data) = next_event(&mut all);
    assert_eq!((&*name, data), ("put", record));
    server.request("DELETE", ACME, "");
    let deleted = json!({
        "domain": "shop", "rule": "api", "entries": {"tenant": "acme"}, "which": "standing", "revision": 2,
    });
    let (name, _, data) = next_event(&mut all);
    assert_eq!((&*name, &data), ("delete", &deleted));
    // Only what came after it.
    let since = format!("/v1/overrides/changes?since={first}");
    let mut rest = stream(&server, &since, "");
    assert_eq!(next_event(&mut rest).2, deleted);
    let mut rest = stream(
        &server,
        "/v1/overrides/changes",
        &format!("Last-Event-ID: {first}\r\n"),
    );
    assert_eq!(next_event(&mut rest).2, deleted);
    let mut foreign = stream(&server, "/v1/overrides/changes?since=7-8-abc", "");
    assert_eq!(next_event(&mut foreign).0, "list");
    assert!(!begin.is_empty());
    drop((rest, foreign));
    let stopped = server.stop_aside();
    read_to_end_of_answer(&mut all);
    drop(all);
    server.wait_for(stopped).unwrap();
}

const TWO: &str = "
domain: shop
rules: [{ name: api, per: [tenant], rate: 10/s }]
---
domain: bank
rules: [{ name: api, per: [tenant], rate: 10/s }]
";

#[test]
fn a_token_changes_and_sees_overrides_of_its_domains_alone() {
    let mut server = Fixture::prepare(TWO, "credentials = 'DIR/credentials.toml'");
    let entry = |name: &str, role, domains: Option<&str>| {
        let token = NewToken::generate().unwrap();
        let domains = domains.map(|domain| vec![domain.to_owned()]);
        let entry = token
            .entry(name.parse().unwrap(), vec![role], domains)
            .unwrap();
        (format!("Authorization: Bearer {}\r\n", token.text()), entry)
    };
    let (billing, first) = entry("billing", Role::Policy, Some("shop"));
    let (reader, second) = entry("reader", Role::Read, None);
    let (ops, third) = entry("ops", Role::Admin, None);
    std::fs::write(server.path("credentials.toml"), first + &second + &third).unwrap();
    server.stop_clock();
    server.start().unwrap();
    let ask = |who: &str, method: &str, target: &str, body: &str| {
        let fields = format!("Content-Type: application/json\r\n{who}");
        request(server.http(), (method, target, body), &fields)
    };
    let bank = "/v1/overrides/bank/api?tenant=acme";
    let mut events = stream(&server, "/v1/overrides/changes", &billing);
    assert_eq!(next_event(&mut events).0, "list");
    assert_eq!(ask(&ops, "PUT", bank, r#"{"rate":"5/s"}"#).status, 201);
    let set = ask(&billing, "PUT", ACME, r#"{"rate":"50/s"}"#);
    assert_eq!(set.json()["by"], "billing");
    // The other domain is left out.
    assert_eq!(next_event(&mut events).2["domain"], "shop");
    for target in [
        bank,
        "/v1/overrides/nosuch/api?tenant=acme",
        "/v1/overrides/bank/nosuch",
    ] {
        for (method, body) in [("PUT", r#"{"rate":"1/s"}"#), ("GET", ""), ("DELETE", "")] {
            ask(&billing, method, target, body).assert_problem(403, "not for the domain");
        }
    }
    ask(&billing, "GET", "/v1/overrides/bank", "").assert_problem(403, "not for the domain");
    let target = "/v1/overrides/batch?domain=bank";
    ask(&billing, "POST", target, "{}").assert_problem(403, "not for the domain");
    assert_eq!(ask(&billing, "GET", ACME, "").status, 200);
    assert_eq!(ask(&reader, "GET", bank, "").status, 200);
    ask(&reader, "PUT", bank, r#"{"rate":"1/s"}"#).assert_problem(403, "role `policy`");
    ask(&reader, "DELETE", bank, "").assert_problem(403, "role `policy`");
    // Lines are checked for who may write them.
    let lines = |who: &str, target: &str| {
        let fields = format!("Content-Type: application/x-ndjson\r\n{who}");
        request(server.http(), ("POST", target, ""), &fields)
    };
    let check = "/v1/overrides/batch?check=true&domain=bank";
    for target in [check, target] {
        lines(&reader, target).assert_problem(403, "role `policy`");
    }
    lines(&billing, check).assert_problem(403, "not for the domain");
    ask(&billing, "GET", "/v1/rules", "").assert_problem(403, "role `read`");
    ask("", "GET", "/v1/overrides/changes", "").assert_problem(401, "quell token new");
    // Who it is may have changed.
    std::fs::write(server.path("credentials.toml"), "").unwrap();
    assert!(server.reload());
    read_to_end_of_answer(&mut events);
}

#[test]
fn a_node_of_a_fleet_without_a_coordinator_writes_none() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    let node =
        format!("fleet = ['http://{address}']\nfleet_member = 'node-7'\ndata_dir = 'DIR/data'");
    let server = Fixture::with_clock(TWO, &node);
    for (method, body) in [("PUT", r#"{"rate":"1/s"}"#), ("DELETE", ""), ("GET", "")] {
        let answer = server.request(method, ACME, body);
        answer.assert_problem(503, "no coordinator answers");
    }
    // It answers by the rules, and says what it lacks.
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    let reason = &health["overrides"]["failure"]["reasons"][0];
    assert_eq!(reason, "no coordinator answers");
}
