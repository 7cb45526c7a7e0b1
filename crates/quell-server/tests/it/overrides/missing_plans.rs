//! Overrides that name plans which the rules lost.

use serde_json::json;

use super::{ACME, RULES, call, set};
use crate::harness::{Fixture, eventually, replace};

/// Somebody renames a plan in the rules, and tenants still have the old one.
#[test]
fn overrides_of_a_plan_that_is_gone_are_counted() {
    let server = Fixture::with_clock(RULES, "");
    let gold = json!({"plan": "gold"});
    set(&server, ACME, &gold);
    set(&server, "/v1/overrides/shop/*?tenant=globex", &gold);
    let other = "/v1/overrides/shop/api?tenant=initech";
    set(&server, other, &json!({"limit": 7}));
    let count = |expected: &str| {
        eventually("overrides of plans that are gone are counted", || {
            server.metric("quell_overrides_of_missing_plans").as_deref() == Some(expected)
        });
    };
    count("0");
    let file = server.path("rules.yaml");
    let renamed = RULES.replacen("gold: {", "golden: {", 1);
    replace(&file, &renamed);
    assert!(server.reload());
    count("2");
    let listed = server.get("/v1/overrides/shop?plan=gold").json();
    assert_eq!(listed["overrides"][0]["in_force"], false, "{listed}");
    server.request("DELETE", ACME, "");
    count("1");
    set(&server, ACME, &json!({"plan": "golden"}));
    replace(&file, RULES);
    assert!(server.reload());
    count("1");
    replace(&file, &renamed);
    assert!(server.reload());
    count("1");
    server.request("DELETE", "/v1/overrides/shop/*?tenant=globex", "");
    count("0");
}

/// A boost on a plan that is gone hides nothing.
#[test]
fn numbers_that_do_not_go_with_the_rule_leave_the_choice_to_the_next() {
    let server = Fixture::with_clock(RULES, "");
    let star = "/v1/overrides/shop/*?tenant=globex";
    set(&server, ACME, &json!({"refuse": true}));
    set(&server, star, &json!({"plan": "free"}));
    for target in [ACME, "/v1/overrides/shop/api?tenant=globex"] {
        set(&server, target, &json!({"plan": "gold", "until": "1h"}));
    }
    set(&server, star, &json!({"refuse": true}));
    assert_eq!(
        call(&server, "api", "acme", 1)["decisions"][0]["limit"],
        500
    );
    let renamed = RULES.replacen("gold: {", "golden: {", 1);
    replace(&server.path("rules.yaml"), &renamed);
    assert!(server.reload());
    for tenant in ["acme", "globex"] {
        let refused = call(&server, "api", tenant, 1);
        assert_eq!(refused["allowed"], false, "{tenant}: {refused}");
    }
    let shown = server.get(ACME).json();
    assert_eq!(shown["chain"][1]["in_force"], true, "{shown}");
}
