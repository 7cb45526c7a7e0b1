//! A plan with an anchor of its own, and parts of its windows.

use quell_testkit::redis::{Redis, try_command};
use serde_json::json;

use super::{Fixture, HOUR, advance, batch, call, put, set};
use crate::harness::store_settings;

#[test]
fn a_plan_may_begin_its_windows_elsewhere() {
    let rules = "
domain: shop
plans:
  gold: { monthly: { limit: 500 }, api: { rate: 100/s } }
  silver: { api: { rate: 50/s } }
defaults: { on_failure: deny }
rules:
  - { name: api, match: { kind: api }, per: [tenant], rate: 5/s }
  - { name: monthly, match: { kind: monthly }, per: [tenant], algorithm: fixed_window, limit: 9/month,
      align: calendar }
";
    let server = Fixture::with_clock(rules, "");
    let star = "/v1/overrides/shop/*?tenant=acme";
    let record = set(&server, star, &json!({"plan": "gold", "anchor": 17}));
    assert_eq!(
        (&record["plan"], &record["anchor"], record.get("fields")),
        (&json!("gold"), &json!(17), None)
    );
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 99);
    assert_eq!(call(&server, "monthly", "acme", 100)["remaining"], 400);
    // It is November 14.
    advance(&server, 2 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 399);
    advance(&server, 24 * HOUR);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 499);
    let shown = server.get("/v1/overrides/shop/monthly?tenant=acme").json();
    let link = &shown["chain"][1];
    assert_eq!(
        (&link["plan"], &link["limit"], &link["in_force"]),
        (
            &json!("gold"),
            &json!("fixed_window 500 per calendar month from day 17 in UTC"),
            &json!(true)
        )
    );
    let listed = server.get("/v1/overrides/shop?plan=gold").json();
    assert_eq!(listed["overrides"][0]["anchor"], 17);
    let listed = listed["overrides"].as_array().unwrap().clone();
    assert_eq!(batch(&server, &listed).json()["changed"], 1);
    // Use is kept when the anchor goes.
    set(&server, star, &json!({"plan": "gold"}));
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 498);
    let api = "/v1/overrides/shop/api?tenant=acme";
    for (target, body, words) in [
        (
            api,
            json!({"plan": "gold", "anchor": 17}),
            "has no limit with `align: calendar` for rule `api`",
        ),
        (
            star,
            json!({"plan": "gold", "anchor": "noon"}),
            "unknown anchor `noon`",
        ),
        (star, json!({"plan": "gold", "burst": 7}), "leave burst out"),
        (
            star,
            json!({"plan": "golf", "anchor": 17}),
            "no plan `golf`",
        ),
        (
            star,
            json!({"refuse": true, "change": "prorate"}),
            "this is for api and monthly: write `change: prorate` for each rule",
        ),
        (
            star,
            json!({"plan": "silver", "change": "prorate"}),
            "for no rule of these keys",
        ),
        (
            api,
            json!({"plan": "gold", "change": "prorate"}),
            "only windows of the calendar",
        ),
    ] {
        put(&server, target, &body).assert_problem(400, words);
    }
    // From 9 a month to 500 in a window of 31 days, of which half a day is over.
    call(&server, "monthly", "b", 1);
    let body = json!({"plan": "gold", "anchor": 17, "change": "prorate"});
    let record = set(&server, "/v1/overrides/shop/monthly?tenant=b", &body);
    assert_eq!(
        (&record["prorated"]["until"], &record["anchor"]),
        (&json!("2023-12-17T00:00:00Z"), &json!(17))
    );
    let limit = record["prorated"]["limit"].as_u64().unwrap();
    assert!((480..500).contains(&limit), "{record}");
    let used = call(&server, "monthly", "b", 1);
    assert_eq!(used["remaining"], limit - 2);
    // The same for all rules of the key, of which this one alone has windows.
    call(&server, "monthly", "c", 1);
    let record = set(&server, "/v1/overrides/shop/*?tenant=c", &body);
    assert_eq!(record["prorated"]["limit"], limit);
    assert_eq!(call(&server, "monthly", "c", 1)["remaining"], limit - 2);
    assert_eq!(call(&server, "api", "c", 1)["remaining"], 99);
    let shown = server.get("/v1/overrides/shop/monthly?tenant=c").json();
    let words = shown["chain"][1]["limit"].as_str().unwrap();
    assert!(
        words.starts_with(&format!("fixed_window {limit} per")),
        "{shown}"
    );
    advance(&server, 31 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "c", 1)["remaining"], 499);
}

const BY_PERIOD: &str = "
domain: shop
defaults: { on_failure: deny }
rules:
  - { name: monthly, match: { kind: monthly }, per: [tenant], algorithm: fixed_window, limit: 100/month,
      align: calendar }
  - { name: yearly, match: { kind: yearly }, per: [tenant], algorithm: fixed_window, limit: 9/year, align: calendar }
";

/// Nobody calls between the change and the end of the old window.
#[test]
fn a_new_anchor_counts_although_nobody_calls_meanwhile() {
    let server = Fixture::with_clock(BY_PERIOD, "");
    let monthly = |anchor: u32| json!({"limit": "100/month", "anchor": anchor});
    let named = |tenant: &str| format!("/v1/overrides/shop/monthly?tenant={tenant}");
    set(&server, &named("deleted"), &monthly(12));
    let tenants = ["put", "batch", "deleted", "ended", "there and back"];
    for tenant in tenants {
        assert_eq!(call(&server, "monthly", tenant, 80)["remaining"], 20);
    }
    // It is November 14.
    set(&server, &named("put"), &monthly(10));
    let lines = [
        json!({"rule": "monthly", "entries": {"tenant": "batch"}, "limit": "100/month", "anchor": 10}),
    ];
    assert_eq!(batch(&server, &lines).json()["changed"], 1);
    let deleted = server.request("DELETE", &named("deleted"), "");
    assert_eq!(deleted.json()["deleted"], 1, "{deleted:?}");
    let back = named("there%20and%20back");
    set(&server, &back, &monthly(10));
    advance(&server, HOUR);
    assert_eq!(server.request("DELETE", &back, "").status, 200);
    // December 3, when the month of anchor 1 is over, and that of anchor 10 is not.
    advance(&server, 19 * 24 * HOUR);
    for (tenant, left) in [
        ("put", 19),
        ("batch", 19),
        ("ended", 99),
        ("there and back", 99),
        ("new", 99),
    ] {
        assert_eq!(
            call(&server, "monthly", tenant, 1)["remaining"],
            left,
            "{tenant}"
        );
    }
    // Use under anchor 12 counted until the first edge of the rule's own windows.
    assert_eq!(call(&server, "monthly", "deleted", 1)["remaining"], 99);
    advance(&server, 7 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "put", 1)["remaining"], 99);
}

/// On a store that servers share the server that writes the override carries it: the state has another expiry.
#[test]
fn a_new_anchor_reaches_the_state_on_a_shared_store_at_once() {
    const DAY: i64 = 86_400_000;
    let redis = Redis::start(&[]);
    let server = Fixture::new(BY_PERIOD, &store_settings(&redis));
    let before = redis.keys();
    call(&server, "yearly", "acme", 5);
    let mut new = redis.keys();
    new.retain(|key| !before.contains(key));
    let left = || -> i64 {
        let [state] = new.as_slice() else {
            panic!("{new:?}")
        };
        let answer = try_command(redis.port(), &[b"PTTL", &state[..]]);
        answer.unwrap().trim().parse().unwrap()
    };
    let until_january = left();
    set(
        &server,
        "/v1/overrides/shop/yearly?tenant=acme",
        &json!({"limit": "9/year", "anchor": "2026-07-01"}),
    );
    let until_july = left();
    assert!(
        (until_july - until_january).abs() > 100 * DAY,
        "{until_january} {until_july}"
    );
    assert_eq!(call(&server, "yearly", "acme", 1)["remaining"], 3);
}
