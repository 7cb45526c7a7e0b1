//! Problem documents.

use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_protocol::http::{Problem, ProblemKind};
use serde_json::{Value, json};

use crate::support::{allow, deny, verdict};

const SECOND: Duration = Duration::from_secs(1);

fn refused() -> quell_core::verdict::Verdict {
    let wait = RetryAfter::After(SECOND);
    verdict(&[
        ("login", false, deny(5, wait, SECOND)),
        ("shadow", true, deny(5, wait, SECOND)),
        ("api", false, allow(5, 5, SECOND)),
        ("größe", false, deny(5, wait, SECOND)),
    ])
}

#[test]
fn a_refusal_names_the_rules_that_deny() {
    let problem = serde_json::to_value(Problem::refusal(&refused())).unwrap();
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "Too many requests. Wait as long as Retry-After says.",
            "violated-policies": ["login", "gr%C3%B6%C3%9Fe"],
        })
    );
}

#[test]
fn a_failed_store_is_another_problem() {
    let mut verdict = refused();
    verdict.degraded = true;
    let problem = Problem::refusal(&verdict);
    assert_eq!(
        problem.kind,
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(problem.status, 503);
}

#[test]
fn details_say_what_to_do() {
    let never = verdict(&[("a", false, deny(5, RetryAfter::Never, SECOND))]);
    let mut decision = deny(5, RetryAfter::After(SECOND), SECOND);
    decision.banned = true;
    let banned = verdict(&[("a", false, decision)]);
    let detail = |verdict| Problem::refusal(verdict).detail.unwrap();
    assert!(detail(&never).contains("Ask for less at once"));
    assert!(detail(&banned).contains("every request is refused for a while"));
    assert!(detail(&refused()).contains("Retry-After"));
}

#[test]
fn each_kind_has_its_own_name_and_a_fitting_status() {
    let kinds = [
        (ProblemKind::NotPermitted, 403),
        (ProblemKind::Forbidden, 403),
        (ProblemKind::Conflict, 409),
        (ProblemKind::QuotaExceeded, 429),
        (ProblemKind::TemporarilyReduced, 503),
        (ProblemKind::BadJson, 400),
        (ProblemKind::InvalidField, 400),
        (ProblemKind::InvalidRequest, 400),
        (ProblemKind::UnknownDomain, 404),
        (ProblemKind::NotFound, 404),
        (ProblemKind::MethodNotAllowed, 405),
        (ProblemKind::RequestTimeout, 408),
        (ProblemKind::BodyTooLarge, 413),
        (ProblemKind::UnsupportedMediaType, 415),
        (ProblemKind::Unauthorized, 401),
        (ProblemKind::UnsupportedRule, 501),
        (ProblemKind::PreconditionFailed, 412),
        (ProblemKind::WrongLines, 422),
        (ProblemKind::Unconfirmed, 504),
        (ProblemKind::StoreFull, 507),
        (ProblemKind::Overloaded, 503),
        (ProblemKind::StoreOverloaded, 503),
        (ProblemKind::Internal, 500),
    ];
    let mut uris: Vec<&str> = kinds.iter().map(|(kind, _)| kind.uri()).collect();
    let mut titles: Vec<&str> = kinds.iter().map(|(kind, _)| kind.title()).collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (kind, status) in kinds {
        assert_eq!(kind.status(), status, "{kind:?}");
        assert!(kind.title().len() > 5);
        let row = format!("| {status} | `{}` |", kind.uri());
        assert!(page.contains(&row), "not in docs/http.md: {row}");
    }
    // Kinds are named in one place, so none is left out here, nor are rows of others on the page.
    let source = include_str!("../../src/http/problem.rs");
    let (_, source) = source.split_once("\nproblem_kinds! {").unwrap();
    let named = source.split_once("\n}").unwrap().0.matches(" = ").count();
    // Coordinators alone say `NotLeader`, and their API is on another page.
    assert_eq!(kinds.len() + 1, named);
    assert_eq!(ProblemKind::NotLeader.status(), 503);
    let (_, rows) = page
        .split_once("| status | type | when |\n|---|---|---|\n")
        .unwrap();
    assert_eq!(
        rows.split("\n\n").next().unwrap().lines().count(),
        kinds.len()
    );
    uris.sort_unstable();
    uris.dedup();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!((uris.len(), titles.len()), (kinds.len(), kinds.len()));
}

#[test]
fn what_is_absent_is_left_out_and_read_back() {
    let problem = Problem::new(ProblemKind::NotFound, "there is nothing: write /v1/acquire");
    let text = serde_json::to_string(&problem).unwrap();
    assert_eq!(
        text,
        concat!(
            r#"{"type":"urn:quell:problem:not-found","title":"Nothing is here","#,
            r#""status":404,"detail":"there is nothing: write /v1/acquire"}"#
        )
    );
    assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
    let later: Value = serde_json::from_str(&text).unwrap();
    let mut later = later;
    later["new"] = json!(1);
    assert_eq!(serde_json::from_value::<Problem>(later).unwrap(), problem);
}
