//! A plan with an anchor of its own, and parts of its windows.

use serde_json::json;

use super::{Fixture, HOUR, advance, batch, call, put, set};

#[test]
fn a_plan_may_begin_its_windows_elsewhere() {
    let rules = "
domain: shop
plans:
  gold: { monthly: { limit: 500 }, api: { rate: 100/s } }
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
            json!({"plan": "gold", "change": "prorate"}),
            "for each rule by its name",
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
}
