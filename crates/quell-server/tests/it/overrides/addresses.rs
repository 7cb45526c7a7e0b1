//! Keys of addresses: those that a rule counts as one have one override.

use serde_json::{Value, json};

use super::{Fixture, batch, put, set};
use crate::harness::{eventually, replace};

const RULES: &str = "
domain: shop
rules:
  - { name: caller, match: { kind: caller }, per: [remote_address], rate: 10/s }
  - name: net
    match: { kind: net }
    per: [{ remote_address: { v4: 24 } }]
    rate: 10/s
";

/// The limit of a caller with this address.
fn limit_of(server: &Fixture, kind: &str, address: &str) -> Value {
    let entries = json!({"kind": kind, "remote_address": address});
    let body = json!({"domain": "shop", "entries": entries});
    let answer = server.request("POST", "/v1/acquire", &body.to_string());
    answer.json()["decisions"][0]["limit"].clone()
}

#[test]
fn addresses_that_count_as_one_have_one_override() {
    let server = Fixture::with_clock(RULES, "");
    let at =
        |rule: &str, address: &str| format!("/v1/overrides/shop/{rule}?remote_address={address}");
    for (rule, [one, same, other]) in [
        ("caller", ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]),
        ("caller", ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"]),
        ("net", ["10.1.2.3", "10.1.2.8", "10.1.3.3"]),
    ] {
        let limit = |address| limit_of(&server, rule, address);
        set(&server, &at(rule, one), &json!({"rate": "50/s"}));
        assert_eq!([limit(one), limit(same), limit(other)], [50, 50, 10]);
        let key = server.request("GET", &at(rule, same), "").json();
        assert_eq!(key["overrides"][0]["rate"], "50/s", "{key}");
        let record = set(&server, &at(rule, same), &json!({"rate": "60/s"}));
        assert_eq!([limit(one), limit(same)], [60, 60], "{record}");
        let deleted = server.request("DELETE", &at(rule, one), "");
        assert_eq!(deleted.status, 200, "{deleted:?}");
        assert_eq!([limit(one), limit(same)], [10, 10]);
        let none = server.request("GET", &at(rule, same), "").json();
        assert_eq!(none["overrides"], json!([]), "{none}");
    }
    // Each of the rules would have another key.
    let all = put(&server, &at("*", "10.1.2.3"), &json!({"rate": "50/s"}));
    assert_eq!(all.status, 400, "{all:?}");
    assert!(all.body.contains("for each rule by its name"), "{all:?}");
    let nobody = at("caller", "");
    let empty = put(&server, &nobody, &json!({"rate": "50/s"}));
    assert_eq!(empty.status, 400, "{empty:?}");
    assert!(empty.body.contains("write a value"), "{empty:?}");
    let empty = server.request("GET", &nobody, "");
    assert_eq!(empty.status, 400, "{empty:?}");
}

/// An address that rules count otherwise after a reload is in no key. Its override is shown and deleted by the address as
/// it was written, over HTTP and in a batch.
#[test]
fn overrides_of_addresses_stay_within_reach_when_prefixes_change() {
    let fine = RULES.replace("v4: 24", "v4: 32");
    let server = Fixture::with_clock(&fine, "");
    let at = |address: &str| format!("/v1/overrides/shop/net?remote_address={address}");
    for address in ["10.1.2.3", "10.1.2.4"] {
        set(&server, &at(address), &json!({"rate": "50/s"}));
    }
    replace(&server.path("rules.yaml"), RULES);
    assert!(server.reload());
    let limit = |address| limit_of(&server, "net", address);
    eventually("a network has the numbers of the rule", || {
        limit("10.1.2.9") == 10
    });
    assert_eq!(limit("10.1.2.3"), 10);
    let shown = server.get(&at("10.1.2.3")).json();
    assert_eq!(shown["overrides"][0]["rate"], "50/s", "{shown}");
    assert_eq!(shown["overrides"][0]["in_force"], false, "{shown}");
    // The key is that of the network now.
    set(&server, &at("10.1.2.4"), &json!({"rate": "70/s"}));
    assert_eq!(limit("10.1.2.3"), 70);
    let deleted = server.request("DELETE", &at("10.1.2.3"), "");
    assert_eq!(deleted.json()["deleted"], 2, "{deleted:?}");
    assert_eq!(limit("10.1.2.3"), 10);
    let line = json!({"rule": "net", "entries": {"remote_address": "10.1.2.4"}, "delete": true});
    assert_eq!(batch(&server, &[line]).json()["changed"], 1);
    let left = server.get("/v1/overrides/shop").json();
    assert_eq!(left["overrides"], json!([]), "{left}");
}
