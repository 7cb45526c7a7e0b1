//! Explanations: which rules apply and why others do not.

use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_rules::{explain, parse_str};

const RULES: &str = "\
domain: shop
rules:
  - name: login
    match: { method: [POST, PUT], path: /login }
    per: [{ remote_address: { v4: 24 } }]
    algorithm: sliding_log
    limit: 5/min
    ban: { after: 3, within: 10m, for: [1m, 1h] }
  - name: api
    match: { path: \"/api/*\" }
    per: [tenant]
    rate: 1.5/s
    burst: 20
    initial: 0
    cost: 1
    overrides:
      - { when: { tenant: internal }, unlimited: true }
      - { when: { tenant: [acme, \"a*\"] }, refill: { amount: 10, every: 1s }, burst: 50, initial: 50 }
  - name: all
    per: [user]
    on_missing: shared_key
    algorithm: fixed_window
    limit: 1000/day
    align: calendar
    time_zone: Europe/Berlin
    shadow: true
";

fn explained(query: &Query<'_>) -> String {
    explain(&parse_str("f", RULES).unwrap().domains, query).to_string()
}

#[test]
fn a_rule_that_applies_and_those_that_do_not() {
    let query = Query::new("shop")
        .entry("method", "POST")
        .entry("path", "/login")
        .entry("remote_address", "10.1.2.3")
        .entry("user", &b"a\xff"[..]);
    let expected = "\
descriptor method=POST path=/login remote_address=10.1.2.3 user=a\\xff (cost 1)
  + login: sliding_log 5/min
      key: remote_address=10.1.2.0
      cost: 1
      ban: after 3 refusals within 10m for 1m, 1h
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: nothing does: a ban counts the refusals of all servers, so the store decides on each call
  - api: does not apply: `path` is `/login` and must be `/api/*` or `/api`
  + all: fixed_window 1000 per calendar day in Europe/Berlin, in shadow
      key: user=a\\xff
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment";
    assert_eq!(explained(&query), expected);
}

#[test]
fn overrides_and_missing_entries() {
    let descriptor = |tenant: Option<&'static str>| {
        let mut descriptor = Descriptor::new();
        descriptor.push("path", "/api/x");
        if let Some(tenant) = tenant {
            descriptor.push("tenant", tenant);
        }
        descriptor.cost = Cost::new(3).unwrap();
        descriptor
    };
    let tenants = [Some("b"), Some("abc"), Some("internal"), None];
    let query = Query::with_descriptors("shop", tenants.into_iter().map(descriptor).collect());
    let expected = "\
descriptor path=/api/x tenant=b (cost 3)
  - login: does not apply: no entry `method`, which must be `POST` or `PUT`
  + api: token_bucket 3/2s, burst 20, initial 0
      key: tenant=b
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: a max_over_admission of at least 4 with nodes: 2 (and no rung: strict): then servers decide on busy keys in memory
  + all: fixed_window 1000 per calendar day in Europe/Berlin, in shadow
      key: user?
      cost: 3
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment
descriptor path=/api/x tenant=abc (cost 3)
  - login: does not apply: no entry `method`, which must be `POST` or `PUT`
  + api: token_bucket 10 every 1s, burst 50
      by overrides[1], when `tenant` is `acme` or `a*`
      key: tenant=abc
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: a max_over_admission of at least 4 with nodes: 2 (and no rung: strict): then servers decide on busy keys in memory
  + all: fixed_window 1000 per calendar day in Europe/Berlin, in shadow
      key: user?
      cost: 3
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment
descriptor path=/api/x tenant=internal (cost 3)
  - login: does not apply: no entry `method`, which must be `POST` or `PUT`
  + api: unlimited
      by overrides[0], when `tenant` is `internal`
  + all: fixed_window 1000 per calendar day in Europe/Berlin, in shadow
      key: user?
      cost: 3
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment
descriptor path=/api/x (cost 3)
  - login: does not apply: no entry `method`, which must be `POST` or `PUT`
  - api: does not apply: no entry `tenant`, by which keys are told apart (on_missing: skip)
  + all: fixed_window 1000 per calendar day in Europe/Berlin, in shadow
      key: user?
      cost: 3
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment";
    assert_eq!(explained(&query), expected);
}

/// The declared answer for an outage is shown next to the limit that it replaces.
#[test]
fn what_is_answered_without_the_store_is_said() {
    let text = "
domain: d
defaults: { on_failure: share, nodes: 3 }
rules:
  - { name: a, rate: 9/s }
  - { name: b, rate: 9/s, on_failure: deny }
";
    let explanation = explain(&parse_str("f", text).unwrap().domains, &Query::new("d"));
    let expected = "\
descriptor (cost 1)
  + a: token_bucket 9/s, burst 9
      key: one for all
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: a max_over_admission of at least 6 with nodes: 3, and a burst or limit of at least 24 (and no rung: strict): then servers decide on busy keys in memory
      on_failure: share, nodes: 3
  + b: token_bucket 9/s, burst 9
      key: one for all
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: a max_over_admission of at least 6 with nodes: 3, and a burst or limit of at least 24 (and no rung: strict): then servers decide on busy keys in memory
      on_failure: deny";
    assert_eq!(explanation.to_string(), expected);
    let json = serde_json::to_value(&explanation).unwrap();
    let rules = &json["descriptors"][0]["rules"];
    let declared = |index: usize| {
        (
            rules[index]["on_failure"].clone(),
            rules[index]["nodes"].clone(),
        )
    };
    assert_eq!(declared(0), ("share".into(), 3.into()));
    assert_eq!(declared(1), ("deny".into(), serde_json::Value::Null));
}

#[test]
fn how_end_users_are_refused_is_said() {
    let text = "{domain: d, rules: [{name: a, rate: 9/s, status: 403, body: <b>no</b>, body_type: text/html}]}";
    let loaded = parse_str("f", text).unwrap();
    let page = loaded.domains[0].rules[0].refusal_page.as_ref().unwrap();
    let body = page.page_body().unwrap();
    assert_eq!((page.status_code(), body.text()), (Some(403), "<b>no</b>"));
    let explanation = explain(&loaded.domains, &Query::new("d")).to_string();
    let end = "memory\n      status: 403\n      body: text/html";
    assert!(explanation.ends_with(end), "{explanation}");

    // Each field stands alone, and a rule without them has no page.
    let page = |fields: &str| {
        let text = format!("{{domain: d, rules: [{{name: a, rate: 9/s{fields}}}]}}");
        let loaded = parse_str("f", &text).unwrap();
        loaded.domains[0].rules[0].refusal_page.clone()
    };
    assert_eq!(page(""), None);
    assert_eq!(page(", status: 503").unwrap().page_body(), None);
    let plain = page(", body: no").unwrap();
    let kind = plain.page_body().unwrap().content_type().to_owned();
    assert_eq!(
        (plain.status_code(), &*kind),
        (None, "text/plain; charset=utf-8")
    );
}

#[test]
fn a_limit_that_may_be_exceeded_says_how_far_and_what_it_costs() {
    let rules = "\
domain: shop
defaults: { on_failure: deny, nodes: 2, max_over_admission: 1% }
rules:
  - { name: api, rate: 1000/s }
  - { name: few, algorithm: sliding_log, limit: 5/min, cost: 1 }
  - { name: exact, rate: 1000/s, max_over_admission: 0 }
  - { name: quick, rate: 1000/s, latency_budget: 500us }
  - { name: large, rate: 1000/s, cost: 6 }
";
    let loaded = parse_str("f", rules).unwrap();
    let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let few = "f:5:5: rules[1]: `sliding_log 5/min` is strict, although it may be exceeded: the limit is too small \
               to be divided: leases need a burst or limit of at least 16; if that is meant, write \
               `max_over_admission: 0`";
    let large = "f:8:5: rules[4]: `token_bucket 1000/s, burst 1000` is strict, although it may be exceeded: each \
                 server's part of the bound would not cover 2 calls: it needs a bound of at least 24 units; if that \
                 is meant, write `max_over_admission: 0`";
    assert_eq!(told, [few, large]);
    let rules = loaded.domains;
    let expected = "\
descriptor (cost 1)
  + api: token_bucket 1000/s, burst 1000
      key: one for all
      cost: 1
      rung: leased
      bound: 2 servers together exceed the limit by at most 20 for a moment
      calls to the store a second for one key, by all servers together: 10 of 10, 200 of 1000, 200 of 10000, 200 of 100000, 200 of any number above; and at most 258 while a full burst or window is used up; more if calls cost more than 1
      to change it: max_over_admission: 2% asks the store at most 100 times a second; rung: strict, without max_over_admission and latency_budget in the rule, makes the limit exact, at one call to the store for each call
      on_failure: deny, nodes: 2
  + few: sliding_log 5/min
      key: one for all
      cost: 1
      rung: strict, although it may be exceeded: the limit is too small to be divided: leases need a burst or limit of at least 16
      to change it: a max_over_admission of at least 4 with nodes: 2, and a burst or limit of at least 16: then servers decide on busy keys in memory
      on_failure: deny
  + exact: token_bucket 1000/s, burst 1000
      key: one for all
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 200 times a second for one key, and may exceed the limit by 20 for a moment
      on_failure: deny
  + quick: token_bucket 1000/s, burst 1000
      key: one for all
      cost: 1
      rung: synced
      bound: 2 servers together exceed the limit by at most 20 for a moment
      calls to the store a second for one key, by all servers together: 10 of 10, 500 of 1000, 500 of 10000, 500 of 100000, 500 of any number above; and at most 500 while a full burst or window is used up; more if calls cost more than 1
      to change it: max_over_admission: 2% asks the store at most 250 times a second; rung: leased, with no latency_budget below 1ms in the rule, asks at most 200 times, but calls may wait for a lease; rung: strict, without max_over_admission and latency_budget in the rule, makes the limit exact, at one call to the store for each call
      on_failure: deny, nodes: 2
  + large: token_bucket 1000/s, burst 1000
      key: one for all
      cost: 6
      rung: strict, although it may be exceeded: each server's part of the bound would not cover 2 calls: it needs a bound of at least 24 units
      to change it: a max_over_admission of at least 24 with nodes: 2: then servers decide on busy keys in memory
      on_failure: deny";
    assert_eq!(explain(&rules, &Query::new("shop")).to_string(), expected);
}

/// The number that follows `words` in `text`.
fn number(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// The rung and the advice for the only rule of a file.
fn rung_and_advice(defaults: &str, fields: &str) -> (&'static str, String) {
    let text = format!("{{domain: d, defaults: {{{defaults}}}, rules: [{{name: r, {fields}}}]}}");
    let loaded = parse_str("f", &text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
    let explained = explain(&loaded.domains, &Query::new("d"));
    let rule = &explained.descriptors[0].rules[0];
    (rule.rung, rule.to_change.clone().unwrap())
}

/// A rule that follows the advice is decided in memory, and with one unit less it is not.
#[test]
fn the_advice_to_a_strict_limit_works() {
    const LOG: &str = "algorithm: sliding_log, limit: {}/min";
    for (defaults, fields, burst, advised) in [
        ("max_over_admission: 1%, nodes: 2", LOG, 5, (4, 2, Some(16))),
        ("nodes: 2", LOG, 5, (4, 2, Some(16))),
        ("", LOG, 5, (4, 2, Some(16))),
        ("rung: strict", LOG, 5, (4, 2, Some(16))),
        ("nodes: 3", LOG, 5, (6, 3, Some(24))),
        ("on_failure: share, nodes: 3", LOG, 5, (6, 3, Some(24))),
        ("", "rate: 3/s, burst: {}", 20, (4, 2, None)),
        ("", "rate: 9/s, burst: {}, cost: 3", 9, (12, 2, Some(48))),
        ("", "rate: 9/s, burst: {}, cost: 3", 90, (12, 2, None)),
        (
            "max_over_admission: 10%, nodes: 2",
            "rate: 9/s, burst: {}, cost: 3",
            90,
            (12, 2, None),
        ),
        (
            "max_over_admission: 1%, nodes: 3, latency_budget: 500us",
            "rate: 9/s, burst: {}, cost: 2",
            9,
            (12, 3, None),
        ),
    ] {
        let in_memory = match defaults.contains("latency_budget") {
            true => "synced",
            false => "leased",
        };
        let rung = |defaults: &str, fields: &str, burst: u64| {
            rung_and_advice(defaults, &fields.replace("{}", &burst.to_string()))
        };
        let (before, advice) = rung(defaults, fields, burst);
        let over = number(&advice, "max_over_admission of at least ").unwrap();
        let nodes = number(&advice, "nodes: ").unwrap();
        let least = number(&advice, "burst or limit of at least ");
        assert_eq!((over, nodes, least), advised, "{defaults} {fields}");
        assert_eq!(before, "strict", "{defaults} {fields}");
        let defaults = match advice.contains("no rung: strict") {
            true => defaults.replace("rung: strict", ""),
            false => defaults.to_owned(),
        };
        let follow = |over: u64, burst: u64| {
            let fields = format!("{fields}, max_over_admission: {over}, nodes: {nodes}");
            rung(&defaults, &fields, burst).0
        };
        let enough = least.unwrap_or(burst);
        assert_eq!(
            follow(over, enough),
            in_memory,
            "{defaults} {fields}: {advice}"
        );
        assert_eq!(follow(over - 1, enough), "strict", "{fields}: {advice}");
        if let Some(least) = least {
            assert_eq!(follow(over, least - 1), "strict", "{fields}: {advice}");
        }
    }
}

/// Calls that cost more leave more of a lease unused.
#[test]
fn what_a_limit_costs_the_store_depends_on_the_cost_of_its_calls() {
    for (fields, calls) in [
        ("", 200),
        (", cost: 1", 200),
        (", cost: 2", 200),
        (", cost: 3", 224),
        (", cost: 4", 250),
        (", cost: 5", 200),
        (", latency_budget: 500us, cost: 4", 625),
    ] {
        let text = format!(
            "{{domain: d, defaults: {{nodes: 2, max_over_admission: 1%}}, rules: [{{name: r, rate: 1000/s{fields}}}]}}"
        );
        let explained = explain(&parse_str("f", &text).unwrap().domains, &Query::new("d"));
        let rule = &explained.descriptors[0].rules[0];
        assert_eq!(rule.store_calls_per_second, Some(calls), "{fields}");
        let varies = explained.to_string().contains("more if calls cost more");
        assert_eq!(varies, !fields.contains("cost"), "{explained}");
    }
}

/// The announced saving of a larger bound is the saving that it brings.
#[test]
fn a_larger_bound_that_saves_nothing_is_not_advised() {
    for (fields, said) in [
        (
            "rate: 1000/s, max_over_admission: 50%",
            "changes nothing, since servers hold at most a quarter of the burst or limit",
        ),
        (
            "rate: 100/s, burst: 2000, max_over_admission: 20",
            "max_over_admission: 40 asks the store at most 260 times while a full burst or window is used up",
        ),
        (
            "rate: 1000/s, max_over_admission: 100%, latency_budget: 500us",
            "a server admits no more than the limit before it is charged; rung: leased, with no latency_budget",
        ),
        (
            "rate: 1000/s, rung: local",
            "rung: strict, without latency_budget in the rule, has one store decide for all servers",
        ),
        (
            "algorithm: concurrency, max: 50",
            "nothing does: permits of `concurrency` are held under ids",
        ),
    ] {
        let text = format!(
            "{{domain: d, defaults: {{on_failure: deny, nodes: 2}}, rules: [{{name: r, {fields}}}]}}"
        );
        let explained = explain(&parse_str("f", &text).unwrap().domains, &Query::new("d"));
        let rule = &explained.descriptors[0].rules[0];
        let to_change = rule.to_change.as_deref().unwrap();
        assert!(to_change.contains(said), "{fields}: {to_change}");
        assert!(explained.to_string().contains(to_change), "{explained}");
    }
}

#[test]
fn the_rung_of_a_fleet_and_what_it_costs() {
    let text = "
domain: shop
defaults: { cluster_size: 4, max_over_admission: 1%, nodes: 2, on_failure: deny }
rules: [{ name: api, rate: 1000/s }]
";
    let rules = parse_str("f", text).unwrap().domains;
    let expected = "\
descriptor (cost 1)
  + api: token_bucket 1000/s, burst 1000
      key: one for all
      cost: 1
      rung: shares
      cluster_size: 4
      bound: all nodes together never exceed the limit
      calls to the store: none
      to change it: rung: strict, without max_over_admission, latency_budget, keys, group and cluster_size in the rule, has one store decide for all servers
      on_failure: deny";
    assert_eq!(explain(&rules, &Query::new("shop")).to_string(), expected);
}

#[test]
fn nothing_that_applies() {
    assert_eq!(
        explained(&Query::new("other")),
        "no domain `other` in these rules: nothing applies, every call is allowed"
    );
    let domains = parse_str(
        "f",
        "domain: d\nrules: [{ name: r, match: { a: b }, rate: 1/s }]",
    )
    .unwrap()
    .domains;
    assert_eq!(
        explain(&domains, &Query::new("d").entry("x", "y")).to_string(),
        "descriptor x=y (cost 1)\n  - r: does not apply: no entry `a`, which must be `b`\n  no limit applies: allowed"
    );
}

#[test]
fn every_algorithm_in_words() {
    for (fields, words) in [
        ("rate: 100/s", "token_bucket 100/s, burst 100"),
        ("rate: 1/year, burst: 9", "token_bucket 1/year, burst 9"),
        (
            "algorithm: leaky_bucket, rate: 2/s, burst: 5",
            "leaky_bucket 2/s, burst 5, delay_after 0",
        ),
        (
            "rate: 3/month, burst: 9, ban: { after: 2, within: 1m, for: 60s }",
            "token_bucket 3/month, burst 9",
        ),
        (
            "refill: { amount: 5, every: 60s }",
            "token_bucket 5 every 1m, burst 5",
        ),
        ("algorithm: sliding_log, limit: 5/30d", "sliding_log 5/30d"),
        (
            "algorithm: concurrency, adaptive: { min: 2, max: 50 }, lease: 30s",
            "concurrency 2 to 50 at a time, learned, lease 30s",
        ),
        (
            "algorithm: fixed_window, limit: 5/h",
            "fixed_window 5/h from the first request",
        ),
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 2026-01-31",
            "fixed_window 5 per calendar month from day 31 in UTC",
        ),
        (
            "algorithm: fixed_window, limit: 5/year, align: calendar, anchor: 04-06, time_zone: Europe/London",
            "fixed_window 5 per calendar year from 04-06 in Europe/London",
        ),
        (
            "algorithm: fixed_window, limit: 5/week, align: calendar, anchor: thursday",
            "fixed_window 5 per calendar week from thursday in UTC",
        ),
        (
            "algorithm: fixed_window, limit: 5/day, align: calendar, anchor: \"20:00\"",
            "fixed_window 5 per calendar day from 20:00 in UTC",
        ),
        (
            "algorithm: sliding_window, limit: 30/250ms",
            "sliding_window 30/250ms in 10 segments",
        ),
    ] {
        let text = format!("domain: d\nrules: [{{ name: r, {fields} }}]");
        let explanation = explain(&parse_str("f", &text).unwrap().domains, &Query::new("d"));
        assert_eq!(
            explanation.descriptors[0].rules[0].limit.as_deref(),
            Some(words)
        );
    }
}

#[test]
fn the_twin_for_programs() {
    let query = Query::new("shop")
        .entry("user", "ann")
        .entry("method", "GET");
    let json =
        serde_json::to_value(explain(&parse_str("f", RULES).unwrap().domains, &query)).unwrap();
    let no = |rule: &str, why: &str| {
        serde_json::json!({
            "rule": rule, "applies": false, "why_not": why, "override_index": null, "override_when": null,
            "unlimited": false, "limit": null, "algorithm": null, "max": null, "numbers": null, "ban": null,
            "ban_numbers": null, "colocated_by": null, "key": null, "cost": null, "shadow": false, "rung": "strict",
            "max_hold_ms": null,
            "on_failure": null, "nodes": null, "status": null, "body_type": null,
        })
    };
    let expected = serde_json::json!({
        "domain": "shop",
        "known_domain": true,
        "descriptors": [{
            "entries": [["user", "ann"], ["method", "GET"]],
            "cost": 1,
            "rules": [
                no("login", "`method` is `GET` and must be `POST` or `PUT`"),
                no("api", "no entry `path`, which must be `/api/*` or `/api`"),
                {
                    "rule": "all", "applies": true, "why_not": null, "override_index": null,
                    "override_when": null, "unlimited": false,
                    "limit": "fixed_window 1000 per calendar day in Europe/Berlin",
                    "algorithm": "fixed_window", "max": 1000,
                    "numbers": {
                        "limit": 1000, "window": "day", "align": "calendar", "time_zone": "Europe/Berlin",
                        "on_expiry": "charge",
                    },
                    "ban": null, "ban_numbers": null, "colocated_by": null, "key": "user=ann", "cost": 1,
                    "shadow": true, "rung": "strict", "to_change": "rung: leased with max_over_admission: 1% and nodes: 2 asks the store at most 80 times a second for one key, and may exceed the limit by 10 for a moment", "on_failure": null, "nodes": null, "max_hold_ms": 3_600_000, "status": null, "body_type": null,
                },
            ],
        }],
    });
    assert_eq!(json, expected);
}

/// A longer one is refused with 400, so whoever reads the rule sees it.
#[test]
fn the_longest_reservation_is_shown() {
    let text = "{domain: d, rules: [{name: a, rate: 9/s, max_hold: 10m}, {name: b, rate: 9/s}, \
                {name: c, algorithm: concurrency, max: 2, lease: 1m}]}";
    let explanation = explain(&parse_str("f", text).unwrap().domains, &Query::new("d"));
    let rules = &explanation.descriptors[0].rules;
    let longest: Vec<_> = rules.iter().map(|rule| rule.max_hold_ms).collect();
    assert_eq!(longest, [Some(600_000), Some(3_600_000), None]);
    let lines: Vec<String> = rules.iter().map(ToString::to_string).collect();
    assert!(lines[0].contains("\n      max_hold: 10m\n"), "{}", lines[0]);
    assert!(!lines[1].contains("max_hold"), "the default: {}", lines[1]);
}

/// Estimates are reserved by entries that are no part of the key, and that whoever configures Envoy has to write.
#[test]
fn a_rule_that_reserves_says_how() {
    let text = "{domain: d, rules: [{name: a, algorithm: fixed_window, limit: 9/h, reserve: {phase: p, ttl: 90s}, \
                overrides: [{when: {user: x}, unlimited: true}]}, {name: b, rate: 9/s}]}";
    let domains = parse_str("f", text).unwrap().domains;
    let explanation = explain(&domains, &Query::new("d"));
    let rules = &explanation.descriptors[0].rules;
    let reserve = serde_json::to_value(&rules[0].reserve).unwrap();
    let expected = serde_json::json!({"phase": "p", "id": "reservation", "ttl_ms": 90_000});
    assert_eq!((reserve, &rules[1].reserve), (expected, &None));
    let shown = rules[0].to_string();
    let line = "\n      reserve: { phase: p, id: reservation, ttl: 90s }\n";
    assert!(shown.contains(line), "{shown}");
    assert!(!shown.contains("to change it"), "no other rung: {shown}");
    assert!(!rules[1].to_string().contains("reserve:"));
    let unlimited = explain(&domains, &Query::new("d").entry("user", "x"));
    assert_eq!(unlimited.descriptors[0].rules[0].reserve, None);
}

fn are_in_numbers(rows: &[(&str, serde_json::Value)]) {
    for (fields, numbers) in rows {
        let text = format!("domain: d\nrules: [{{ name: r, {fields} }}]");
        let explanation = explain(&parse_str("f", &text).unwrap().domains, &Query::new("d"));
        let said = explanation.descriptors[0].rules[0].numbers.as_ref();
        assert_eq!(&serde_json::to_value(said).unwrap(), numbers, "{fields}");
    }
}

#[test]
fn buckets_in_numbers() {
    are_in_numbers(&[
        (
            "rate: 0.001/s, burst: 7, initial: 2",
            serde_json::json!({
                "rate": { "count": 1, "period_ns": 1_000_000_000_000_u64 }, "burst": 7, "initial": 2,
                "debt": false, "on_expiry": "charge",
            }),
        ),
        (
            "rate: 5/s, debt: true, on_expiry: release",
            serde_json::json!({
                "rate": { "count": 5, "period_ns": 1_000_000_000 }, "burst": 5, "initial": 5,
                "debt": true, "on_expiry": "release",
            }),
        ),
        (
            "rate: 5/s, warm_up: 4s",
            serde_json::json!({
                "rate": { "count": 5, "period_ns": 1_000_000_000 }, "burst": 1, "initial": 1,
                "debt": false, "warm_up_ns": 4_000_000_000_u64, "cold_factor": 3,
                "on_expiry": "charge",
            }),
        ),
        (
            "refill: { amount: 5, every: 90ns }",
            serde_json::json!({
                "rate": { "count": 5, "period_ns": 90 }, "burst": 5,
                "refill": { "amount": 5, "every_ns": 90 }, "initial": 5,
                "debt": false, "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: leaky_bucket, rate: 2/s, burst: 5, delay_after: burst",
            serde_json::json!({
                "rate": { "count": 2, "period_ns": 1_000_000_000 }, "burst": 5, "delay_after": 5,
                "on_expiry": "charge",
            }),
        ),
    ]);
}

#[test]
fn windows_and_permits_in_numbers() {
    are_in_numbers(&[
        (
            "algorithm: fixed_window, limit: 5/min",
            serde_json::json!({
                "limit": 5, "window_ns": 60_000_000_000_u64, "align": "first_request",
                "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar",
            serde_json::json!({
                "limit": 5, "window": "month", "align": "calendar", "time_zone": "UTC",
                "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 2026-01-31",
            serde_json::json!({
                "limit": 5, "window": "month", "align": "calendar", "time_zone": "UTC",
                "anchor": "31", "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: sliding_window, limit: 30/250ms",
            serde_json::json!({
                "limit": 30, "window_ns": 250_000_000, "segments": 10, "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: sliding_log, limit: 5/36500d",
            serde_json::json!({
                "limit": 5, "window_ns": 3_153_600_000_000_000_000_u64, "max_entries": 10_000,
                "on_expiry": "charge",
            }),
        ),
        (
            "algorithm: concurrency, max: 4, queue: 2, unit_delay: 30ms",
            serde_json::json!({
                "queue": 2, "lease_ns": 60_000_000_000_u64, "unit_delay_ns": 30_000_000,
            }),
        ),
        (
            "algorithm: concurrency, adaptive: { min: 2, max: 50 }",
            serde_json::json!({
                "adaptive": { "min": 2, "max": 50 }, "lease_ns": 60_000_000_000_u64,
            }),
        ),
    ]);
}

#[test]
fn a_ban_in_numbers() {
    let text =
        "domain: d\nrules: [{ name: r, rate: 1/s, ban: { after: 3, within: 10m, for: [1m, 1h] } }]";
    let explanation = explain(&parse_str("f", text).unwrap().domains, &Query::new("d"));
    let ban = explanation.descriptors[0].rules[0].ban_numbers.as_ref();
    assert_eq!(
        serde_json::to_value(ban).unwrap(),
        serde_json::json!({ "after": 3, "within_ms": 600_000, "for_ms": [60_000, 3_600_000] })
    );
}

#[test]
fn keys_that_lie_together_are_said_to() {
    let text =
        "domain: d\ncolocate: tenant\nrules:\n  - { name: a, per: [user, tenant], rate: 1/s }\n";
    let rules = parse_str("f", text).unwrap().domains;
    let query = Query::new("d").entry("tenant", "acme").entry("user", "u");
    let expected = "\
descriptor tenant=acme user=u (cost 1)
  + a: token_bucket 1/s, burst 1
      key: user=u tenant=acme
      together with: all keys of this `tenant`
      cost: 1
      rung: strict, never exceeded; with a store one call to it for each call
      to change it: a max_over_admission of at least 4 with nodes: 2, and a burst or limit of at least 16 (and no rung: strict): then servers decide on busy keys in memory";
    assert_eq!(explain(&rules, &query).to_string(), expected);
}

/// A key may contain a stranger's text, pasted from a log.
#[test]
fn an_explanation_obeys_no_key() {
    let text = "domain: d\nrules: [{ name: r, rate: 1/s, per: [user] }, { name: s, rate: 1/s, match: { user: ann } }]";
    let loaded = parse_str("f", text).unwrap();
    let query = Query::new("d").entry("user", "eve\u{1b}[2J\n  + r: unlimited\u{202e}");
    let shown = explain(&loaded.domains, &query).to_string();
    let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!shown.contains(obeyed), "{shown:?}");
    assert!(!shown.contains("\n  + r: unlimited"), "{shown}");
    assert!(
        shown.contains(r"key: user=eve\u{1b}[2J\u{a}  + r: unlimited\u{202e}"),
        "{shown}"
    );
}
