//! The scenario runner: what it compares, how it reports, and what it does if the subject does not
//! answer.

use quell_core::charge::Operation;
use quell_core::descriptor::Query;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;
use quell_rules::scenario::{FileReport, Report, Subject, parse_str, run};

use crate::subject::Plain;

const RULES: &str = "\
rules:
  domain: d
  rules:
    - { name: r, per: [user], rate: 1/s, burst: 2 }
    - { name: s, per: [user], algorithm: leaky_bucket, rate: 1/s, burst: 5, shadow: true }
";

/// Each field of the first failure that differs, with what was expected and what came.
fn unexpected(report: &FileReport) -> Vec<(&str, &str, &str)> {
    let unexpected = report.tests[0].failures[0].unexpected.iter();
    let fields = unexpected.map(|one| (&*one.field, &*one.expected, &*one.got));
    fields.collect()
}

/// Runs one test of these steps.
fn steps(steps: &str) -> FileReport {
    let text = format!("{RULES}tests:\n  - name: t\n    steps:\n{steps}");
    let scenarios = parse_str("f.test.yaml", &text, "").unwrap_or_else(|told| panic!("{told:#?}"));
    run(&scenarios, &mut Plain::default())
}

/// Runs a test of two calls, of which the first uses up the burst and the second is expected to be so.
fn second_call(expect: &str) -> FileReport {
    steps(&format!(
        "      - {{ at: 0s, entries: {{ user: a }}, cost: 2 }}\n\
         \x20     - {{ at: 0s, entries: {{ user: a }}, expect: {expect} }}\n"
    ))
}

#[test]
fn each_field_is_compared() {
    let good = "{ outcome: deny, binding: r, remaining: 0, retry_after: 1s, reset_after: 2s, \
                delay: 0s, permanent: false, banned: false, unmatched: false }";
    let report = second_call(good);
    assert!(report.is_ok(), "{report}");
    for (field, expected, got) in [
        ("outcome", "allow", "deny"),
        ("binding", "s", "r"),
        ("binding", "null", "r"),
        ("remaining", "1", "0"),
        ("remaining", "null", "0"),
        ("retry_after", "999.999999ms", "1s"),
        ("retry_after", "null", "1s"),
        ("reset_after", "2m", "2s"),
        ("reset_after", "null", "2s"),
        ("delay", "1ns", "0s"),
        ("permanent", "true", "false"),
        ("banned", "true", "false"),
        ("unmatched", "true", "false"),
    ] {
        let report = second_call(&format!("{{ {field}: {expected} }}"));
        assert_eq!(unexpected(&report), [(field, expected, got)]);
    }
}

/// Waits may be ranges, and single rules can be named; each failure says what differs.
#[test]
fn ranges_and_single_rules_are_compared() {
    for good in [
        "{ retry_after: { at_least: 1s } }",
        "{ retry_after: { at_least: 900ms, at_most: 1s } }",
        "{ retry_after: { about: 1100ms, tolerance: 100ms }, delay: { at_most: 0s } }",
        "{ rules: { r: { outcome: deny, remaining: 0, retry_after: 1s, banned: false } } }",
        "{ outcome: deny, rules: { s: { outcome: allow, retry_after: null, permanent: false } } }",
    ] {
        let report = second_call(good);
        assert!(report.is_ok(), "{good}: {report}");
    }
    for (expect, field, expected, got) in [
        (
            "{ retry_after: { at_least: 1001ms } }",
            "retry_after",
            "at least 1.001s",
            "1s",
        ),
        (
            "{ retry_after: { at_least: 2s, at_most: 3s } }",
            "retry_after",
            "2s to 3s",
            "1s",
        ),
        (
            "{ retry_after: { at_most: 900ms } }",
            "retry_after",
            "0s to 900ms",
            "1s",
        ),
        (
            "{ rules: { r: { remaining: 1 } } }",
            "rules.r.remaining",
            "1",
            "0",
        ),
        ("{ rules: { s: null } }", "rules.s", "null", "a decision"),
        (
            "{ rules: { x: { outcome: deny } } }",
            "rules.x",
            "a rule of this name",
            "none, did you mean `r`?",
        ),
    ] {
        let report = second_call(expect);
        assert_eq!(unexpected(&report), [(field, expected, got)]);
    }
}

/// A misspelt rule lets every call pass; that does not count as success.
#[test]
fn allow_is_what_a_rule_allows() {
    let report = steps("      - { at: 0s, entries: { usr: a }, expect: { outcome: allow } }\n");
    let unexpected = &report.tests[0].failures[0].unexpected[0];
    assert_eq!(unexpected.expected, "allow by a rule");
    for said in ["unmatched: true", "binding: null"] {
        let expect = format!("{{ outcome: allow, {said} }}");
        let step = format!("      - {{ at: 0s, entries: {{ usr: a }}, expect: {expect} }}\n");
        assert!(steps(&step).is_ok(), "{said}");
    }
}

/// Neither does it if calls are counted.
#[test]
fn calls_that_no_rule_answers_are_not_counted() {
    for counts in ["allowed: 3", "denied: 0", "allowed: 3, denied: 0"] {
        let report = steps(&format!(
            "      - {{ at: 0s, entries: {{ usr: a }}, repeat: 3, expect: {{ {counts} }} }}\n"
        ));
        let text = report.to_string();
        assert!(!report.is_ok(), "{text}");
        let told = "got 3 (write `unmatched: true` in place of the counts if that is meant)";
        assert!(text.contains(told), "{text}");
    }
}

/// A misspelt expectation must not hold because no rule answers it.
#[test]
fn what_no_rule_answers_does_not_pass() {
    let unmatched = "entries: { usr: a }";
    for (step, field, got) in [
        ("expect: { banned: false }", "unmatched", "no limit applies"),
        (
            "expect: { retry_after: null }",
            "unmatched",
            "no limit applies",
        ),
        ("expect: { delay: 0s }", "unmatched", "no limit applies"),
        (
            "expect: { rules: { R: null } }",
            "rules.R",
            "none, did you mean `r`?",
        ),
        (
            "op: release, id: job",
            "outcome",
            "write `expect: {outcome: unknown}`",
        ),
    ] {
        let key = if step.starts_with("op") {
            ""
        } else {
            unmatched
        };
        let comma = if key.is_empty() { "" } else { ", " };
        let report = steps(&format!("      - {{ at: 0s, {key}{comma}{step} }}\n"));
        let failures = &report.tests[0].failures;
        assert_eq!(failures.len(), 1, "{step}: {report}");
        let unexpected = &failures[0].unexpected[0];
        assert_eq!(unexpected.field, field, "{step}");
        assert!(unexpected.got.contains(got), "{step}: {}", unexpected.got);
    }
    for step in [
        "expect: { banned: false, unmatched: true }",
        "expect: { retry_after: null, reset_after: null }",
        "expect: { rules: { r: null, s: null } }",
    ] {
        let report = steps(&format!("      - {{ at: 0s, {unmatched}, {step} }}\n"));
        assert!(report.is_ok(), "{step}: {report}");
    }
    let ended = "      - { at: 0s, op: release, id: job, expect: { outcome: unknown } }\n";
    let report = steps(ended);
    assert!(report.is_ok(), "{report}");
}

/// An administrative step must make a difference, unless it says that it makes none.
#[test]
fn what_is_done_by_hand_is_compared() {
    let key = "entries: { user: a }";
    let report = steps(&format!(
        "      - {{ at: 0s, op: ban, rule: r, {key}, for: 10s }}
      - {{ at: 4s, {key}, expect: {{ outcome: deny, banned: true, retry_after: 6s }} }}
      - {{ at: 4s, op: lift, rule: r, {key}, expect: {{ changed: 1 }} }}
      - {{ at: 4s, {key}, cost: 2, expect: {{ outcome: allow, remaining: 0 }} }}
      - {{ at: 4s, op: forgive, rule: r, {key} }}
      - {{ at: 4s, {key}, expect: {{ outcome: allow, remaining: 1 }} }}
      - {{ at: 4s, op: ban, {key}, for: 1s, expect: {{ changed: 2 }} }}
"
    ));
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.tests[0].calls, 7);
    for (step, expected, got) in [
        (
            "op: lift, rule: r",
            "at least 1",
            "0 (write `expect: {changed: 0}` if that is meant)",
        ),
        (
            "op: forgive",
            "at least 1",
            "0 (write `expect: {changed: 0}` if that is meant)",
        ),
        (
            "op: ban, rule: r, for: 1m, expect: { changed: 2 }",
            "2",
            "1",
        ),
    ] {
        let report = steps(&format!("      - {{ at: 0s, {key}, {step} }}\n"));
        let unexpected = &report.tests[0].failures[0].unexpected[0];
        let said = (&*unexpected.field, &*unexpected.expected, &*unexpected.got);
        assert_eq!(said, ("changed", expected, got), "{step}");
    }
    let nobody = steps(&format!("      - {{ at: 0s, op: lift, rule: x, {key} }}\n"));
    let error = nobody.tests[0].error.as_deref();
    assert_eq!(error, Some("line 9, tests[0].steps[0]: no such rule"));
}

/// Each call has a place of its own in the queue.
#[test]
fn calls_that_wait_can_be_repeated() {
    let report = steps(
        "      - { at: 0s, entries: { user: a }, cost: 2 }
      - { at: 0s, entries: { user: a }, repeat: 4, max_wait: 3s, expect: { allowed: 3, denied: 1 } }
      - { at: 3s, entries: { user: a }, op: peek, expect: { outcome: deny } }
",
    );
    assert!(report.is_ok(), "{report}");
}

/// Two calls wait; the first goes away, and the second's turn comes a second earlier.
#[test]
fn who_waits_behind_a_call_that_is_cancelled_moves_up() {
    let report = steps(
        "      - { at: 0s, entries: { user: a }, cost: 2 }
      - { at: 0s, entries: { user: a }, id: first, max_wait: 3s, expect: { delay: 1s } }
      - { at: 0s, entries: { user: a }, id: second, max_wait: 3s, expect: { delay: 2s } }
      - { at: 500ms, op: cancel, id: first, expect: { outcome: cancelled } }
      - { at: 1500ms, op: peek, entries: { user: a }, expect: { outcome: deny, retry_after: 500ms } }
",
    );
    assert!(report.is_ok(), "{report}");
}

#[test]
fn a_file_may_have_several_documents() {
    let document = |name: &str, limit: u32| {
        format!(
            "rules: {{ domain: {name}, rules: [{{ name: r, rate: {limit}/s }}] }}\n\
             tests: [{{ name: {name}, steps: [{{ at: 0s, expect: {{ remaining: {} }} }}] }}]\n",
            limit - 1
        )
    };
    let text = format!("{}---\n{}", document("a", 3), document("b", 7));
    let scenarios = parse_str("f.test.yaml", &text, "").unwrap();
    let report = run(&scenarios, &mut Plain::default());
    assert_eq!(report.tests.len(), 2);
    assert!(report.is_ok(), "{report}");
    let twice = format!("{}---\n{}", document("a", 3), document("a", 3));
    let told = parse_str("f.test.yaml", &twice, "").unwrap_err()[0].to_string();
    assert!(
        told.contains("the test at line 2 has this name already"),
        "{told}"
    );
}

#[test]
fn never_is_permanent_and_no_limit_is_null() {
    let report = steps(
        "      - { at: 0s, entries: { user: a }, cost: 3, expect: { outcome: deny, permanent: true, retry_after: null, remaining: 2 } }
      - { at: 0s, expect: { outcome: allow, unmatched: true, binding: null, remaining: null, retry_after: null, reset_after: null, delay: 0s } }
",
    );
    assert!(report.is_ok(), "{report}");
}

#[test]
fn whatever_an_answer_can_hold_may_be_expected() {
    let text = "\
rules: { domain: d, rules: [{ name: r, algorithm: leaky_bucket, rate: 1/36500d, burst: 1000 }] }
tests:
  - name: ten centuries
    steps:
      - { at: 0s, cost: 1000, expect: { reset_after: 36500000d, delay: 0s } }
      - { at: 0s, cost: 10, expect: { outcome: deny, retry_after: 365000d } }
      - { at: 1d, op: peek, cost: 10, expect: { retry_after: 364999d } }
";
    let scenarios = parse_str("f", text, "").unwrap_or_else(|told| panic!("{told:#?}"));
    let report = run(&scenarios, &mut Plain::default());
    assert!(report.is_ok(), "{report}");
}

#[test]
fn failures_say_where_what_and_what_came() {
    let report = steps(
        "      - { at: 0s, entries: { user: a }, repeat: 4, every: 250ms, expect: { outcome: allow } }
      - { at: 1s, op: peek, entries: { user: a }, expect: { remaining: 2, delay: 1s } }
      - { at: 1m, entries: { user: a }, repeat: 10, expect: { allowed: 3, denied: 8 } }
      - { at: 3h, entries: { user: a } }
",
    );
    let expected = "\
f.test.yaml
  FAILED  t (16 calls)
    f.test.yaml:9:9: tests[0].steps[0] at 500ms, call 3 of 4 (the first of 2 that failed)
      outcome: expected allow, got deny
      answer: {outcome: deny, binding: r, remaining: 0, retry_after: 500ms, reset_after: 1.5s, delay: 0s, permanent: false, banned: false, unmatched: false}
        r: deny, 0 of 2 remaining, retry_after 500ms, reset_after 1.5s, delay 0s
        s: allow, 3 of 5 remaining, reset_after 1.5s, delay 0s, in shadow
    f.test.yaml:10:9: tests[0].steps[1] at 1s
      remaining: expected 2, got 1
      delay: expected 1s, got 0s
      answer: {outcome: allow, binding: r, remaining: 1, retry_after: null, reset_after: 1s, delay: 0s, permanent: false, banned: false, unmatched: false}
        r: allow, 1 of 2 remaining, reset_after 1s, delay 0s
        s: allow, 4 of 5 remaining, reset_after 1s, delay 1s, in shadow
    f.test.yaml:11:9: tests[0].steps[2] at 1m, all 10 calls
      allowed: expected 3, got 2
      denied: expected 8, got 8";
    let expected = expected.rsplit_once('\n').unwrap().0;
    assert_eq!(report.to_string(), expected);
}

#[test]
fn the_twin_for_programs_says_the_same() {
    let report = steps("      - { at: 0s, entries: { user: a }, expect: { outcome: deny } }\n");
    let mut all = Report::default();
    all.push(report);
    let json = serde_json::to_value(&all).unwrap();
    let expected = r#"{
        "ok": 0,
        "failed": 1,
        "files": [{
            "file": "f.test.yaml",
            "tests": [{
                "name": "t",
                "ok": false,
                "calls": 1,
                "failures": [{
                    "line": 9, "column": 9, "path": "tests[0].steps[0]",
                    "at": "0s", "call": 1, "calls": 1, "failed_calls": 1,
                    "unexpected": [{ "field": "outcome", "expected": "deny", "got": "allow" }],
                    "answer": {
                        "outcome": "allow", "binding": "r", "remaining": 1, "retry_after": null,
                        "reset_after": "1s", "delay": "0s", "permanent": false, "banned": false,
                        "unmatched": false,
                        "decisions": [
                            { "rule": "r", "outcome": "allow", "limit": 2, "remaining": 1,
                              "retry_after": null, "reset_after": "1s", "delay": "0s",
                              "permanent": false, "banned": false, "shadow": false },
                            { "rule": "s", "outcome": "allow", "limit": 5, "remaining": 4,
                              "retry_after": null, "reset_after": "1s", "delay": "0s",
                              "permanent": false, "banned": false, "shadow": true }
                        ]
                    }
                }],
                "error": null
            }]
        }]
    }"#;
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(json, expected);
    assert!(all.to_string().ends_with("FAILED: 0 as expected, 1 not"));
    assert!(!all.is_ok());
}

#[test]
fn every_test_starts_from_an_empty_store() {
    let text = format!(
        "{RULES}tests:
  - {{ name: one, steps: [{{ at: 0s, entries: {{ user: a }}, cost: 2, expect: {{ outcome: allow }} }}] }}
  - {{ name: two, steps: [{{ at: 0s, entries: {{ user: a }}, cost: 2, expect: {{ outcome: allow }} }}] }}
"
    );
    let scenarios = parse_str("f", &text, "").unwrap();
    assert_eq!(scenarios.tests().collect::<Vec<_>>(), ["one", "two"]);
    let mut all = Report::default();
    all.push(run(&scenarios, &mut Plain::default()));
    assert_eq!(
        all.to_string(),
        "f\n  ok      one (1 call)\n  ok      two (1 call)\nok: 2 as expected, 0 not"
    );
}

#[test]
fn several_domains_are_asked_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let rules = "domain: a\nrules: [{ name: x, rate: 1/s }]\n---\ndomain: b\nrules: [{ name: y, rate: 2/s }]\n";
    std::fs::write(directory.path().join("two.yaml"), rules).unwrap();
    let text = "\
rules: [two.yaml]
tests:
  - name: t
    domain: a
    steps:
      - { at: 0s, expect: { binding: x } }
      - { at: 0s, domain: b, expect: { binding: y } }
      - { at: 0s, domain: c, expect: { unmatched: true } }
";
    let scenarios = parse_str("f", text, directory.path()).unwrap();
    let report = run(&scenarios, &mut Plain::default());
    assert!(report.is_ok(), "{report}");
    let unsaid = text.replace("    domain: a\n", "");
    let told = parse_str("f", &unsaid, directory.path()).unwrap_err();
    assert_eq!(
        told[0].to_string(),
        "f:5:9: tests[0].steps[0]: the rules do not have one domain only: write `domain: NAME`"
    );
}

#[test]
fn mistakes_in_the_rules_are_told_where_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("bad.yaml");
    std::fs::write(&rules, "domain: a\nrules: [{ name: x, rate: 1 }]\n").unwrap();
    let text = "rules: bad.yaml\ntests: [{ name: t, steps: [{ at: 1 }] }]\n";
    let told = parse_str("f", text, directory.path()).unwrap_err();
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    let bad = rules.display();
    assert_eq!(
        told,
        [
            "f:2:34: tests[0].steps[0].at: `1` has no unit: write `1s`, `1ms` or `1m`".to_owned(),
            format!(
                "{bad}:2:26: rules[0].rate: `1` has no period: write `1/s`, `1/min` or the like"
            ),
        ]
    );
}

/// Answers a few times and then no more.
struct Tired(u32);

impl Subject for Tired {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        Ok(())
    }

    fn set_rules(&mut self, _domains: Vec<DomainRules>, _now: Now) -> Result<(), String> {
        self.answer().map(drop)
    }

    fn ask(&mut self, _: Operation, _: &Query<'_>, _: Now) -> Result<Verdict, String> {
        self.answer()
    }
}

impl Tired {
    fn answer(&mut self) -> Result<Verdict, String> {
        self.0 = self.0.checked_sub(1).ok_or("the store is gone")?;
        Ok(Verdict::default())
    }
}

#[test]
fn no_answer_ends_the_test() {
    let text = format!(
        "{RULES}tests:\n  - name: t\n    steps:\n      - {{ at: 0s, repeat: 5 }}\n      - {{ at: 0s, expect: {{ outcome: deny }} }}\n"
    );
    let scenarios = parse_str("f", &text, "").unwrap();
    for (answers, expected) in [
        (0, "f\n  FAILED  t (0 calls)\n    f: the store is gone"),
        (
            3,
            "f\n  FAILED  t (2 calls)\n    f: line 9, tests[0].steps[0]: the store is gone",
        ),
    ] {
        assert_eq!(run(&scenarios, &mut Tired(answers)).to_string(), expected);
    }
}

#[test]
fn instants_are_those_that_were_written() {
    /// Records the times at which it was asked.
    #[derive(Default)]
    struct Diary(Vec<u64>);
    impl Subject for Diary {
        fn reset(&mut self, now: Now) -> Result<(), String> {
            self.0.push(now.wall.as_nanos());
            Ok(())
        }
        fn set_rules(&mut self, _: Vec<DomainRules>, now: Now) -> Result<(), String> {
            self.0.push(now.wall.as_nanos());
            Ok(())
        }
        fn ask(&mut self, _: Operation, _: &Query<'_>, now: Now) -> Result<Verdict, String> {
            assert_eq!(now.wall.as_nanos(), now.monotonic.as_nanos());
            self.0.push(now.wall.as_nanos());
            Ok(Verdict::default())
        }
    }
    let text = format!(
        "{RULES}tests:\n  - name: t\n    start: 1970-01-01T01:00:00.000000001+01:00\n    steps:\n      \
         - {{ at: 5ns, repeat: 3, every: 2ns }}\n      - {{ at: 3ns, set_rules: {{ domain: d, rules: [] }} }}\n      - {{ at: 0s }}\n"
    );
    let mut diary = Diary::default();
    let report = run(&parse_str("f", &text, "").unwrap(), &mut diary);
    assert!(report.is_ok());
    assert_eq!(diary.0, [1, 1, 6, 8, 10, 4, 1]);
}

/// A form of a web page has both texts, and must read nothing of the machine.
#[test]
fn tests_for_given_rules_read_no_files() {
    let rules = "domain: shop\nrules: [{ name: login, algorithm: sliding_log, limit: 5/min }]";
    let rules = quell_rules::parse_str("rules", rules).unwrap().domains;
    let tests = "tests: [{ name: a, steps: [{ at: 0s, entries: {} }] }]";
    for place in ["", "rules: /etc/hostname\n", "rules: [nowhere.yaml]\n"] {
        let text = format!("{place}{tests}");
        let scenarios = quell_rules::scenario::parse_for("tests", &text, &rules).unwrap();
        assert_eq!(scenarios.tests().collect::<Vec<_>>(), ["a"]);
    }
    let wrong = "tests: [{ name: a, steps: [{ at: 0s, entris: {} }] }]";
    let problems = quell_rules::scenario::parse_for("tests", wrong, &rules).unwrap_err();
    assert!(
        problems[0].to_string().starts_with("tests:1:"),
        "{problems:?}"
    );
}
