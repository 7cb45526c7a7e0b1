//! The differences between two sets of rules, in words.

use quell_rules::{RuleChanges, parse_str};

fn changes(before: &str, after: &str) -> RuleChanges {
    let domains = |text| parse_str("test", text).unwrap().domains;
    RuleChanges::between_domains(&domains(before), &domains(after))
}

#[test]
fn a_change_is_told_rule_by_rule() {
    let before = "domain: d
rules:
  - { name: a, rate: 1/s }
  - { name: b, algorithm: sliding_log, limit: 5/min, ban: { after: 3, within: 10m, for: 1m } }
  - { name: c, rate: 1/s }
  - { name: same, rate: 1/s }
---
domain: e
rules: [{ name: a, per: [x], unlimited: true, overrides: [{ when: { x: y }, rate: 1/s }] }]";
    let after = "domain: e
rules: [{ name: a, per: [x], rate: 3/s, overrides: [{ when: { x: y }, rate: 2/s }] }]
---
domain: d
rules:
  - { name: same, rate: 60/min, burst: 1 }
  - { name: b, algorithm: sliding_log, limit: 9/min }
  - { name: c, rate: 1/s, per: [user], on_missing: shared_key, cost: 1, shadow: true, on_failure: deny, match: { p: q } }
  - { name: z, rate: 2/s }";
    let changes = changes(before, after);
    let lines: Vec<String> = changes.rules().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "- d/a: token_bucket 1/s, burst 1",
            "~ d/b: sliding_log 5/min, ban after 3 refusals within 10m for 1m -> sliding_log 9/min",
            "~ d/c: token_bucket 1/s, burst 1; match, per, on_missing, cost, shadow, on_failure changed",
            "~ d/same: token_bucket 1/s, burst 1 -> token_bucket 60/min, burst 1",
            "+ d/z: token_bucket 2/s, burst 2",
            "~ e/a: unlimited -> token_bucket 3/s, burst 3; overrides changed, too",
        ]
    );
    assert_eq!(
        changes.to_string(),
        "1 added (d/z), 4 changed (d/b, d/c, d/same, e/a), 1 removed (d/a)"
    );
    let json = serde_json::to_value(&changes).unwrap();
    assert_eq!(json[0]["change"], "removed");
    assert_eq!(json[2]["fields"][0], "match");
}

/// A default is not mentioned; every difference is.
#[test]
fn a_change_of_any_field_shows_in_the_words() {
    for (field, words) in [
        (
            "rate: 1/s, on_expiry: release",
            "token_bucket 1/s, burst 1, on_expiry release",
        ),
        ("rate: 1/s, debt: true", "token_bucket 1/s, burst 1, debt"),
        (
            "algorithm: sliding_log, limit: 5/min, max_entries: 50",
            "sliding_log 5/min, max_entries 50",
        ),
        (
            "algorithm: concurrency, max: 2, queue: 1, unit_delay: 1s",
            "concurrency 2 at a time, queue 1, lease 1m, unit_delay 1s",
        ),
    ] {
        let of = |fields: &str| format!("domain: d\nrules: [{{ name: a, {fields} }}]");
        let (plain, _) = field.rsplit_once(", ").unwrap();
        let changes = changes(&of(plain), &of(field));
        assert_eq!(changes.rules().len(), 1, "{field}");
        assert_eq!(changes.rules()[0].after.as_deref(), Some(words));
        assert_ne!(changes.rules()[0].before.as_deref(), Some(words));
    }
}

#[test]
fn the_same_rules_are_no_change() {
    let text = "domain: d\nrules: [{ name: a, rate: 1/s }]";
    let other = "# other words\ndomain: d\nrules:\n  - name: a\n    rate: 1/s\n    burst: 1\n";
    let none = changes(text, other);
    assert!(none.is_none());
    assert_eq!(none.to_string(), "");
}
