//! Overrides without an end that begin later.

use std::time::Duration;

use serde_json::json;

use super::{ACME, RULES, advance, batch, call, put, set};
use crate::harness::Fixture;

/// Somebody plans the plan of next month, and means to keep the present one until then.
#[test]
fn an_override_of_later_does_not_end_what_stands_now() {
    let server = Fixture::with_clock(RULES, "");
    let later = json!({"plan": "free", "from": "2h"});
    let gold = set(&server, ACME, &json!({"plan": "gold"}));
    put(&server, ACME, &later).assert_problem(400, "write the present numbers once more");
    let line = |numbers: serde_json::Value| {
        let mut line = json!({"rule": "api", "entries": {"tenant": "acme"}});
        let members = line.as_object_mut().unwrap();
        members.extend(numbers.as_object().unwrap().clone());
        line
    };
    let refused = batch(
        &server,
        &[
            line(json!({"limit": 9, "until": "1h"})),
            line(later.clone()),
        ],
    );
    refused.assert_problem(422, "line 2: a key has one override without an end");
    // With its revision it is ended on purpose.
    let seen = format!(
        "Content-Type: application/json\r\nIf-Match: \"{}\"\r\n",
        gold["revision"]
    );
    let ended = server.request_with("PUT", ACME, &seen, &later.to_string());
    assert_eq!(ended.status, 200, "{ended:?}");
    // An override of later replaces one of later.
    assert_eq!(put(&server, ACME, &later).status, 200);

    set(&server, ACME, &json!({"plan": "gold"}));
    set(&server, ACME, &json!({"plan": "gold", "until": "2h"}));
    assert_eq!(put(&server, ACME, &later).status, 200);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 499);
    advance(&server, Duration::from_secs(7_201));
    assert_eq!(
        call(&server, "api", "acme", 1)["decisions"][0]["limit"],
        100
    );

    // Both in one batch.
    let other = "/v1/overrides/shop/api?tenant=globex";
    set(&server, other, &json!({"plan": "gold"}));
    let of_globex = |numbers| {
        let mut line = line(numbers);
        line["entries"] = json!({"tenant": "globex"});
        line
    };
    let both = [
        of_globex(later),
        of_globex(json!({"plan": "gold", "until": "2h"})),
    ];
    assert_eq!(batch(&server, &both).json()["changed"], 2);

    // One that is deleted in the same batch covers nothing.
    let mut boost = of_globex(json!({"delete": true}));
    boost["which"] = json!("boost");
    let later = of_globex(json!({"plan": "free", "from": "1h"}));
    set(&server, other, &json!({"plan": "gold"}));
    batch(&server, &[boost, later]).assert_problem(422, "line 2: a key has one override");
    let never = json!({"limit": 7, "until": "9999-12-31T00:00:00Z"});
    put(&server, other, &never).assert_problem(400, "leave `until` out");
}
