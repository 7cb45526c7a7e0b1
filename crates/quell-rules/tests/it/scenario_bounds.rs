//! A scenario is held to the bounds of a query that servers apply.

use quell_rules::scenario::{parse_str, run};

use crate::subject::Plain;

const RULES: &str = "rules: { domain: d, rules: [{ name: r, per: [user], rate: 1/s }] }\n";

/// Mistake in a test of this step.
fn mistake(step: &str) -> String {
    let text = format!("{RULES}tests:\n  - {{ name: t, steps: [{{ at: 0s, {step} }}] }}\n");
    let problems = parse_str("f.test.yaml", &text, "").expect_err(step);
    let problems = problems.iter().map(ToString::to_string);
    problems.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_a_server_refuses_is_a_mistake() {
    let descriptors = |count| vec!["{ entries: { user: a } }"; count].join(", ");
    let entries = |count: usize| {
        let entries: Vec<_> = (0..count).map(|one| format!("n{one}: x")).collect();
        entries.join(", ")
    };
    let long = "x".repeat(9_000);
    for (step, expected) in [
        (
            format!("descriptors: [{}]", descriptors(129)),
            "a query has more than 128 descriptors: write fewer",
        ),
        (
            format!("entries: {{ {} }}", entries(65)),
            "a descriptor has more than 64 entries: write fewer",
        ),
        (
            format!("entries: {{ user: {long} }}"),
            "the value of entry \"user\" is longer than 8192 bytes: write a shorter one",
        ),
        (
            format!("entries: {{ {}: a }}", &long[..256]),
            "the name of an entry is longer than 255 bytes: write a shorter one",
        ),
        (
            "max_wait: 2h".to_owned(),
            "a wait of more than an hour: write at most an hour (3600000 ms)",
        ),
        (
            "op: reserve, hold: 25h".to_owned(),
            "a hold must be longer than 0 and at most a day: write its length",
        ),
        (
            format!("op: settle, id: a, actual: [{}]", vec!["1"; 129].join(", ")),
            "a query has more than 128 descriptors: write fewer",
        ),
    ] {
        let told = mistake(&step);
        assert!(told.contains(expected), "{told}");
    }
}

/// At the bounds, a test passes; each descriptor is settled with its own number.
#[test]
fn what_a_server_takes_is_tested() {
    let descriptors = vec!["{ entries: { user: a } }"; 127].join(", ");
    let actual = vec!["0"; 127].join(", ");
    let text = format!(
        "rules: {{ domain: d, rules: [{{ name: r, per: [user], rate: 1000/min }}] }}\n\
         tests:\n\
         \x20 - name: t\n\
         \x20   steps:\n\
         \x20     - at: 0s\n\
         \x20       op: reserve\n\
         \x20       id: a\n\
         \x20       descriptors: [{descriptors}, {{ entries: {{ user: b }}, cost: 100 }}]\n\
         \x20     - {{ at: 0s, op: peek, entries: {{ user: a }}, expect: {{ remaining: 873 }} }}\n\
         \x20     - {{ at: 0s, op: settle, id: a, actual: [{actual}, 30] }}\n\
         \x20     - {{ at: 0s, op: peek, entries: {{ user: a }}, expect: {{ remaining: 1000 }} }}\n\
         \x20     - {{ at: 0s, op: peek, entries: {{ user: b }}, expect: {{ remaining: 970 }} }}\n"
    );
    let scenarios = parse_str("f.test.yaml", &text, "").unwrap_or_else(|told| panic!("{told:#?}"));
    let report = run(&scenarios, &mut Plain::default());
    assert!(report.is_ok(), "{report}");
}
