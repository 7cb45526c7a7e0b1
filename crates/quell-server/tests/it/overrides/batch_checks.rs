//! Batches that are checked and not made.

use serde_json::{Value, json};

use super::{RULES, batch};
use crate::harness::Fixture;

/// A sender of several batches learns of every mistake before the first is made.
#[test]
fn a_batch_is_checked_without_being_made() {
    let server = Fixture::with_clock(RULES, "");
    let check = |lines: &[Value]| {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let kind = "Content-Type: application/x-ndjson\r\n";
        let target = "/v1/overrides/batch?domain=shop&check=true";
        server.request_with("POST", target, kind, &body)
    };
    let line = |tenant: &str, plan: &str| json!({"rule": "api", "entries": {"tenant": tenant}, "plan": plan});
    let checked = check(&[line("a", "gold"), line("b", "gold")]).json();
    let expected = json!({"changed": 2, "skipped": 0, "revision": 0, "in_force": false});
    assert_eq!(checked, expected);
    check(&[line("a", "gold"), line("b", "platinum")]).assert_problem(422, "line 2");
    assert_eq!(batch(&server, &[line("a", "gold")]).json()["revision"], 1);
    let stale = |revision| json!({"rule": "api", "entries": {"tenant": "new"}, "limit": 1, "revision": revision});
    let none = check(&[stale(3)]);
    none.assert_problem(412, "line 1: there is no such override");
    let detail = none.json()["errors"][0]["detail"].clone();
    assert!(
        detail.as_str().unwrap().contains("leave `revision` out"),
        "{detail}"
    );
    let wrong = json!({"rule": "pair", "entries": {"tenant": "a", "user": "b"}, "rate": "10"});
    check(&[wrong]).assert_problem(422, "line 1: rule pair: rate: `10` has no period");
    let target = "/v1/overrides/batch?domain=shop&check=true";
    let kind = "Content-Type: application/x-ndjson\r\n";
    let broken = server.request_with("POST", target, kind, "{}\n{nonsense}\n");
    let detail = broken.json()["errors"][1]["detail"].clone();
    assert!(
        detail
            .as_str()
            .unwrap()
            .starts_with("key must be a string in column 2: "),
        "{detail}"
    );
    for (revision, status) in [(1, 200), (7, 412), (0, 412)] {
        let mut seen = line("a", "free");
        seen["revision"] = json!(revision);
        let checked = check(&[line("b", "gold"), seen]);
        assert_eq!(checked.status, status, "{checked:?}");
    }
    let mut gone = line("a", "gold");
    gone["delete"] = json!(true);
    assert_eq!(check(&[gone]).json()["changed"], 2);
    let listed = server.get("/v1/overrides/shop").json()["overrides"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let target = "/v1/overrides/batch?domain=shop&check=perhaps";
    server
        .request("POST", target, "")
        .assert_problem(400, "write true or false");
}
