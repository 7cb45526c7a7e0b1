//! Batches that are checked and not made.

use serde_json::{Value, json};

use super::{RULES, batch};
use crate::harness::Fixture;

/// Who sends a file in several batches learns of every mistake before the first is made.
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
