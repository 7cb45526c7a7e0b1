//! `/v1/top`: the keys that are refused most often.

use quell_host::access::{NewToken, Role};
use serde_json::{Value, json};

use crate::harness::{Fixture, SHOP};

/// Each key with its refusals.
fn refusals(list: &Value) -> Vec<(&Value, u64)> {
    let keys = list["keys"].as_array().unwrap().iter();
    keys.map(|key| (&key["entries"], key["refusals"].as_u64().unwrap()))
        .collect()
}

#[test]
fn the_keys_that_are_refused_are_listed_most_often_first() {
    let server = Fixture::with_clock(SHOP, "");
    assert_eq!(
        server.get("/v1/top").json(),
        json!({"keys": [], "window_ms": 0})
    );
    for (user, times) in [("often", 5), ("seldom", 2), ("never", 1)] {
        (0..times).for_each(|_| drop(server.acquire("/strict", user)));
    }
    // None of these is a refusal: a peek, a rule in shadow, a call without a rule.
    let peek = r#"{"domain":"shop","entries":{"path":"/strict","user":"never"}}"#;
    assert_eq!(
        server.request("POST", "/v1/peek", peek).json()["allowed"],
        false
    );
    (0..2).for_each(|_| drop(server.acquire("/watched", "never")));
    server.acquire("/nowhere", "never");

    server
        .clock
        .as_ref()
        .unwrap()
        .advance(std::time::Duration::from_secs(60));
    let list = server.get("/v1/top").json();
    assert_eq!(
        list["keys"][0],
        json!({"domain": "shop", "rule": "strict", "entries": {"user": "often"}, "refusals": 4,
            "at_least": 4})
    );
    let expected = [
        (&json!({"user": "often"}), 4),
        (&json!({"user": "seldom"}), 1),
    ];
    assert_eq!(refusals(&list), expected);
    assert_eq!(list["window_ms"], 60_000);
    assert_eq!(
        refusals(&server.get("/v1/top?count=1").json()),
        expected[..1]
    );
    assert_eq!(
        refusals(&server.get("/v1/top?domain=shop&rule=strict").json()),
        expected
    );
    for other in ["rule=login", "domain=bank"] {
        assert_eq!(
            refusals(&server.get(&format!("/v1/top?{other}")).json()),
            []
        );
    }

    server
        .clock
        .as_ref()
        .unwrap()
        .advance(std::time::Duration::from_secs(3_600));
    assert_eq!(
        server.get("/v1/top").json(),
        json!({"keys": [], "window_ms": 0})
    );
}

#[test]
fn limits_that_come_with_the_call_have_their_own_rule() {
    let server = Fixture::new(SHOP, "");
    server.resp_exchange("CL.THROTTLE evil 0 1 60\r\n".repeat(2_000).as_bytes());
    let list = server.get("/v1/top?rule=cl.throttle").json();
    let [(entries, refusals)] = refusals(&list)[..] else {
        panic!("{list}");
    };
    assert_eq!(entries["key"], "evil");
    assert_eq!(list["keys"][0]["domain"], "");
    // One in 16 is counted, as 16.
    assert!((1_000..3_000).contains(&refusals), "{refusals}");
}

/// Whoever has the log with hashed keys finds the same hash here, and no key.
#[test]
fn hashes_are_those_of_the_decision_log() {
    let settings = "decision_log = 'DIR/log'\ndecision_log_hash_keys = true";
    let mut server = Fixture::new(SHOP, settings);
    (0..2).for_each(|_| drop(server.acquire("/strict", "alice")));
    let throttle = "CL.THROTTLE alice 0 1 60\r\n";
    server.resp_exchange(throttle.repeat(200).as_bytes());
    let list = server.get("/v1/top?hash=true");
    assert!(
        !list.body.contains("alice") && !list.body.contains("entries"),
        "{list:?}"
    );
    let keys = list.json();
    let hashes = ["cl.throttle", "strict"].map(|rule| {
        let mut keys = keys["keys"].as_array().unwrap().iter();
        let key = keys.find(|key| key["rule"] == rule).unwrap();
        key["hash"].as_str().unwrap().to_owned()
    });
    server.stop();
    let log = std::fs::read_to_string(server.path("log")).unwrap();
    for (rule, hash) in ["cl.throttle", "strict"].iter().zip(hashes) {
        let mut lines = log
            .lines()
            .filter(|line| line.contains(&format!("\"rule\":\"{rule}\"")));
        assert!(
            lines.next_back().unwrap().contains(&hash),
            "{rule}: {hash}\n{log}"
        );
    }
}

/// No list has values of callers where the operator wants none.
#[test]
fn hashed_keys_are_hashed_in_every_list() {
    let settings = "decision_log_hash_keys = true";
    let server = Fixture::new(SHOP, settings);
    // The second refusal bans the key.
    (0..3).for_each(|_| drop(server.acquire("/strict", "alice")));
    let list = server.get("/v1/top");
    assert!(!list.body.contains("alice"), "{list:?}");
    let list = list.json();
    let hash = list["keys"][0]["hash"].as_str().unwrap();
    assert_eq!(hash.len(), 32, "{list}");
    let page = server.get("/console");
    assert!(!page.body.contains("alice"), "{page:?}");
    assert!(
        page.body
            .contains("<td>refusal 2 within 10m, ban 1 of 1</td>"),
        "{page:?}"
    );
    // Among the keys that were refused, and among the bans.
    assert_eq!(page.body.matches(hash).count(), 2, "{page:?}");
    let bans = server.get("/v1/bans");
    assert!(
        bans.body.contains("alice"),
        "a ban is lifted by its entries: {bans:?}"
    );
}

/// The list of a token for one domain has the keys of this domain alone.
#[test]
fn a_token_sees_the_keys_of_its_domains() {
    let rules = "
domain: shop
rules: [{ name: one, per: [user], rate: 1/h }]
---
domain: bank
rules: [{ name: one, per: [user], rate: 1/h }]
";
    let mut server = Fixture::prepare(rules, "credentials = 'DIR/credentials.toml'");
    let tokens = [Some("bank"), None].map(|domain| {
        let token = NewToken::generate().unwrap();
        let domains = domain.map(|domain| vec![domain.to_owned()]);
        let roles = vec![Role::Ask, Role::Read];
        let name = domain.unwrap_or("all").parse().unwrap();
        (token.entry(name, roles, domains).unwrap(), token)
    });
    let text = tokens.iter().map(|(entry, _)| entry.as_str());
    std::fs::write(server.path("credentials.toml"), text.collect::<String>()).unwrap();
    server.start().unwrap();
    let [bank, all] =
        tokens.map(|(_, token)| format!("Authorization: Bearer {}\r\n", token.text()));
    for domain in ["shop", "bank"] {
        let body = format!(r#"{{"domain":"{domain}","entries":{{"user":"of-{domain}"}}}}"#);
        let fields = format!("Content-Type: application/json\r\n{all}");
        for _ in 0..2 {
            server.request_with("POST", "/v1/acquire", &fields, &body);
        }
    }
    server.resp_exchange(b"");
    let listed = |target: &str, token: &str| server.request_with("GET", target, token, "");
    assert_eq!(refusals(&listed("/v1/top", &all).json()).len(), 2);
    let of_bank = listed("/v1/top", &bank).json();
    assert_eq!(refusals(&of_bank), [(&json!({"user": "of-bank"}), 1)]);
    assert_eq!(
        listed("/v1/top?domain=bank", &bank).json()["keys"],
        of_bank["keys"]
    );
    listed("/v1/top?domain=shop", &bank).assert_problem(403, "not for the domain `shop`");
}

#[test]
fn wrong_parameters_say_what_to_write() {
    let server = Fixture::new(SHOP, "");
    for (query, words) in [
        ("count=0", "write 1 to 1000"),
        ("count=many", "count=many is not a number of keys"),
        ("hash=1", "write true or false"),
        ("most=3", "write domain, rule, count and hash"),
    ] {
        server
            .get(&format!("/v1/top?{query}"))
            .assert_problem(400, words);
    }
}
