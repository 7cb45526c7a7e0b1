//! Administration of rules, bans and keys; health; and the OpenAPI description.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Fixture, SHOP};

#[test]
fn the_rules_in_force_are_listed() {
    let server = Fixture::new(SHOP, "");
    let rules = server.get("/v1/rules").json();
    assert_eq!(rules["domains"][0]["domain"], "shop");
    let login = &rules["domains"][0]["rules"][0];
    assert_eq!(login["name"], "login");
    assert_eq!(
        login["match"],
        json!([{"entry": "path", "patterns": ["/login"]}])
    );
    assert_eq!(login["per"], json!(["user"]));
    assert_eq!(login["algorithm"], "token_bucket");
    assert_eq!(login["limit"], "token_bucket 100/min, burst 100");
    assert_eq!(
        login["numbers"],
        json!({"rate": {"count": 100, "period_ns": 60_000_000_000_u64}, "burst": 100, "initial": 100, "debt": false, "on_expiry": "charge"})
    );
    assert_eq!(
        (&login["max"], &login["shadow"]),
        (&json!(100), &json!(false))
    );
    let strict = &rules["domains"][0]["rules"][2];
    assert_eq!(
        strict["ban"],
        json!({"after": 2, "within_ms": 600_000, "for_ms": [3_600_000]})
    );
}

#[test]
fn rules_are_listed_in_numbers() {
    let rules = "
domain: d
rules:
  - name: cut
    per: [{ remote_address: { v4: 24, v6: 48 } }, user]
    algorithm: fixed_window
    limit: 7/month
    align: calendar
    overrides: [{ when: { user: a }, limit: 9 }, { when: { user: b }, unlimited: true }]
    on_failure: share
    nodes: 2
  - { name: learned, algorithm: concurrency, adaptive: { min: 2, max: 50 }, lease: 30s, on_failure: deny }
  - { name: queued, algorithm: concurrency, max: 4, queue: 2 }
  - { name: warming, rate: 5/s, warm_up: 4s, on_expiry: release, max_hold: 10m }
";
    let server = Fixture::new(rules, "");
    let rules = server.get("/v1/rules").json();
    let rule = &rules["domains"][0]["rules"][0];
    let others = &rules["domains"][0]["rules"];
    assert_eq!(
        rule["prefixes"],
        json!({"remote_address": {"v4": 24, "v6": 48}})
    );
    let numbers = |limit: u64| json!({"limit": limit, "window": "month", "align": "calendar", "time_zone": "UTC", "on_expiry": "charge"});
    assert_eq!(rule["numbers"], numbers(7));
    assert_eq!(rule["overrides"][0]["numbers"], numbers(9));
    assert_eq!(rule["overrides"][1]["numbers"], json!(null));
    assert_eq!(rule["overrides"][1]["unlimited"], true);
    let schemas = &server.get("/openapi.json").json()["components"]["schemas"];
    let over = &schemas["Override"];
    are_described(rule, &schemas["Rule"]);
    are_described(&rule["numbers"], &schemas["Numbers"]);
    are_described(&rule["overrides"][0], over);
    assert_eq!(rule["on_failure"], "share");
    assert_eq!(rule["nodes"], 2);
    let (learned, queued) = (&others[1], &others[2]);
    assert_eq!(learned["on_failure"], "deny");
    assert_eq!(
        (learned.get("nodes"), queued.get("on_failure")),
        (None, None)
    );
    assert_eq!(
        learned["numbers"],
        json!({"adaptive": {"min": 2, "max": 50}, "lease_ns": 30_000_000_000_u64})
    );
    assert_eq!(
        queued["numbers"],
        json!({"queue": 2, "lease_ns": 60_000_000_000_u64, "unit_delay_ns": 0})
    );
    let warming = &others[3];
    assert_eq!(
        warming["numbers"],
        json!({
            "rate": {"count": 5, "period_ns": 1_000_000_000}, "burst": 1, "initial": 1, "debt": false,
            "warm_up_ns": 4_000_000_000_u64, "cold_factor": 3, "on_expiry": "release",
        })
    );
    assert_eq!(
        [&others[0], queued, warming].map(|rule| rule.get("max_hold_ms").cloned()),
        [Some(json!(3_600_000)), None, Some(json!(600_000))]
    );
    for rule in [learned, queued, warming] {
        are_described(rule, &schemas["Rule"]);
        are_described(&rule["numbers"], &schemas["Numbers"]);
    }
}

#[test]
fn a_rule_that_reserves_is_listed_with_its_entries() {
    let rules = "
domain: d
rules:
  - { name: tokens, algorithm: fixed_window, limit: 9/h, reserve: { ttl: 90s } }
  - { name: others, rate: 5/s }
";
    let server = Fixture::new(rules, "");
    let rules = server.get("/v1/rules").json();
    let rules = &rules["domains"][0]["rules"];
    let schemas = &server.get("/openapi.json").json()["components"]["schemas"];
    let reserve = json!({"phase": "phase", "id": "reservation", "ttl_ms": 90_000});
    assert_eq!(rules[0]["reserve"], reserve);
    assert_eq!(rules[1].get("reserve"), None);
    are_described(&rules[0], &schemas["Rule"]);
    are_described(&reserve, &schemas["ReserveDescription"]);
}

/// Every member of an object is in its schema, and every required member exists.
fn are_described(object: &Value, schema: &Value) {
    let members = object.as_object().unwrap();
    for name in members.keys() {
        assert!(schema["properties"][name].is_object(), "{name}: {schema}");
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(members.contains_key(name.as_str().unwrap()), "{name}");
    }
}

#[test]
fn a_ban_is_set_listed_and_lifted() {
    let server = Fixture::with_clock(SHOP, "");
    let key = r#""domain":"shop","rule":"login","entries":{"user":"eve"}"#;
    let set = server.request(
        "POST",
        "/v1/bans",
        &format!("{{{key},\"for\":\"10m\",\"reason\":\"tries \\\"all\\\"\"}}"),
    );
    assert_eq!((set.status, set.json()), (200, json!({"changed": 1})));
    let denied = server.acquire("/login", "eve").json();
    assert_eq!(
        (&denied["banned"], &denied["retry_after_ms"]),
        (&json!(true), &json!(600_000))
    );
    let bans = server.get("/v1/bans").json();
    let expected = json!({"bans": [{"domain": "shop", "rule": "login", "entries": {"user": "eve"}, "left_ms": 600_000, "reason": "tries \"all\"", "cause": null}], "total": 1, "next": null});
    assert_eq!(bans, expected);
    server.request("POST", "/v1/bans", &format!("{{{key},\"for\":\"10m\"}}"));
    let newer = server.get("/v1/bans").json();
    assert_eq!(newer["bans"][0]["reason"], json!(null), "of another ban");
    assert_eq!(server.metric("quell_bans").as_deref(), Some("1"));
    let lifted = server.request("DELETE", "/v1/bans", &format!("{{{key}}}"));
    assert_eq!(lifted.json(), json!({"changed": 1}));
    assert_eq!(server.acquire("/login", "eve").json()["allowed"], true);
    let none = json!({"bans": [], "total": 0, "next": null});
    assert_eq!(server.get("/v1/bans").json(), none);
}

#[test]
fn a_list_of_bans_is_bounded_and_says_how_many_there_are() {
    let server = Fixture::with_clock(SHOP, "");
    for (user, length) in [("ann", "10m"), ("bob", "30m"), ("eve", "20m")] {
        let body = format!(
            r#"{{"domain":"shop","rule":"login","entries":{{"user":"{user}"}},"for":"{length}"}}"#
        );
        assert_eq!(server.request("POST", "/v1/bans", &body).status, 200);
    }
    let listed = server.get("/v1/bans?most=2").json();
    let users: Vec<_> = (0..2)
        .map(|row| &listed["bans"][row]["entries"]["user"])
        .collect();
    assert_eq!(users, [&json!("bob"), &json!("eve")]);
    assert_eq!(listed["total"], 3);
    assert_eq!(listed["bans"].as_array().unwrap().len(), 2);
    assert_eq!(server.metric("quell_bans").as_deref(), Some("3"));
    let schemas = &server.get("/openapi.json").json()["components"]["schemas"];
    are_described(&listed, &schemas["Bans"]);
    let next = listed["next"].as_str().unwrap();
    let rest = server.get(&format!("/v1/bans?most=2&after={next}")).json();
    assert_eq!(rest["bans"][0]["entries"]["user"], "ann");
    assert_eq!(
        (&rest["next"], rest["bans"].as_array().unwrap().len()),
        (&json!(null), 1)
    );
    are_described(&rest, &schemas["Bans"]);
    let other = server.get("/v1/bans?domain=bank").json();
    assert_eq!(other, json!({ "bans": [], "total": null, "next": null }));
    assert_eq!(server.get("/v1/bans?most=1000").status, 200);
    let more = server.get("/v1/bans?most=1001");
    more.assert_problem(400, "write 1 to 1000");
    server
        .get("/v1/bans?after=9")
        .assert_problem(400, "write what `next` of the page before says");
    // One of the bans is over, and the list has not been read since.
    let clock = server.clock.as_ref().unwrap();
    clock.advance(Duration::from_secs(601));
    assert_eq!(server.metric("quell_bans").as_deref(), Some("2"));
}

#[test]
fn a_key_is_forgiven() {
    let server = Fixture::new(SHOP, "");
    for _ in 0..3 {
        server.acquire("/strict", "a");
    }
    assert_eq!(server.acquire("/strict", "a").json()["banned"], true);
    let body = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"}}"#;
    assert_eq!(
        server.request("DELETE", "/v1/keys", body).json(),
        json!({"changed": 1})
    );
    assert_eq!(server.acquire("/strict", "a").json()["allowed"], true);
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::new(SHOP, "");
    let ban = |body: &str| server.request("POST", "/v1/bans", body);
    ban("[").assert_problem(400, "write {\"domain\"");
    ban(r#"{"domain":"shop","who":1}"#)
        .assert_problem(400, "write domain, rule, entries, for or reason");
    let eve = r#""domain":"shop","rule":"login","entries":{"user":"eve"}"#;
    ban(&format!("{{{eve}}}")).assert_problem(400, "\"for\": \"10m\"");
    ban(&format!("{{{eve},\"for\":\"0s\"}}")).assert_problem(400, "longer than 0");
    ban(&format!("{{{eve},\"for\":\"5\"}}")).assert_problem(400, "no unit");
    let long = "x".repeat(201);
    ban(&format!("{{{eve},\"for\":\"5m\",\"reason\":\"{long}\"}}"))
        .assert_problem(400, "at most 200 characters");
    for (body, pointer) in [
        (format!("{{{eve},\"for\":5}}"), "/for"),
        (format!("{{{eve},\"for\":\"5\"}}"), "/for"),
        (format!("{{{eve}}}"), ""),
        (
            r#"{"domain":"shop","entries":{"user":5},"for":"1m"}"#.to_owned(),
            "/entries/user",
        ),
        (
            r#"{"domain":"shop","entries":{"remote_address":"10.0.0.300"},"for":"1m"}"#.to_owned(),
            "/entries/remote_address",
        ),
        (
            r#"{"domain":"shop","rule":"login","entries":{"x":"y"},"for":"1m"}"#.to_owned(),
            "/entries",
        ),
    ] {
        let problem = ban(&body).json();
        assert_eq!(problem["pointer"], pointer, "{body}: {problem}");
        assert_eq!(problem["title"], "Something in the body is wrong");
    }
    let nobody = r#"{"domain":"shop","rule":"login","entries":{},"for":"1m"}"#;
    ban(nobody).assert_problem(400, "write \"user\" among the entries");
    let nosuch = r#"{"domain":"shop","rule":"nosuch","for":"1m"}"#;
    ban(nosuch).assert_problem(404, "GET /v1/rules");
    ban(r#"{"domain":"x","rule":"login","for":"1m"}"#).assert_problem(404, "write one of shop");
    let body = format!("{{{eve},\"for\":\"1m\"}}");
    server
        .request("DELETE", "/v1/bans", &body)
        .assert_problem(400, "leave \"for\" out");
    server
        .get("/v1/bans?most=0")
        .assert_problem(400, "write 1 to 1000");
    server
        .get("/v1/bans?x=0")
        .assert_problem(400, "write most, domain and after");
}

#[test]
fn health_says_how_it_is() {
    let server = Fixture::new(SHOP, "");
    for path in ["/healthz", "/readyz"] {
        let health = server.get(path);
        assert_eq!(health.status, 200);
        let health = health.json();
        assert_eq!(
            (&health["status"], &health["rules"]),
            (&json!("ok"), &json!(3))
        );
    }
}

/// Every described route exists, with exactly these methods; and every route is described.
#[test]
fn the_description_is_complete() {
    let server = Fixture::new(SHOP, "");
    let openapi = server.get("/openapi.json").json();
    let paths = openapi["paths"].as_object().unwrap();
    let router = include_str!("../../src/http.rs");
    for (path, methods) in paths {
        assert!(
            router.contains(&format!("\"{path}\"")),
            "{path} is described only"
        );
        for method in ["get", "post", "put", "delete", "patch"] {
            // A stream that is wanted has no end.
            let target = path.replace("/changes", "/changes?since=wrong");
            let answer = server.request(&method.to_ascii_uppercase(), &target, "");
            let is_described = methods.get(method).is_some();
            assert_eq!(
                answer.status != 405,
                is_described,
                "{method} {path}: {answer:?}"
            );
            assert_ne!(answer.status, 501, "{method} {path}");
            if !is_described {
                answer.assert_problem(405, &write_instead(&answer));
            }
        }
    }
    let routes = router
        .split('"')
        .filter(|text| text.starts_with('/') && !text.starts_with("//"));
    let page = include_str!("../../../../docs/http.md");
    for route in routes {
        assert!(paths.contains_key(route), "{route} is not described");
        assert!(page.contains(route), "docs/http.md does not name {route}");
    }
}

/// The text that the problem should contain: the methods of the Allow field, except HEAD.
fn write_instead(answer: &Answer) -> String {
    let allow = answer.field("allow").unwrap().to_ascii_uppercase();
    let methods: Vec<&str> = allow.split(',').filter(|name| *name != "HEAD").collect();
    match methods.split_last() {
        Some((last, [])) => format!(": write {last}"),
        Some((last, others)) => format!(": write {} or {last}", others.join(", ")),
        None => panic!("{answer:?}"),
    }
}
