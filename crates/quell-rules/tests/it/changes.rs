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

/// Fields of a rule before and after, what of it is in force at once, and what waits for a rollout.
const STAGED: &str = "
 | , match: {p: q} | stays ONE; match changed |
 | , burst: 3, shadow: true | stays ONE; shadow changed | : ONE becomes 1/s, burst 3
 | , group: eu | | stays ONE; group changed
 | , burst: 2, cost: 2 | stays ONE; cost changed | : ONE becomes 1/s, burst 2
none | | | is new: ONE
 | none | is gone: it was ONE |
, rung: local | , rung: local, burst: 2 | : ONE becomes 1/s, burst 2 |
, rung: local | | stays ONE; rung changed; with a store it begins with nothing used | stays ONE; what the fleet shares of it changes
X5/s}] | X6/s}] | | stays ONE; overrides changed
X5/s}] | X5/s}], on_failure: deny | | stays ONE; rung changed; with a store it begins with nothing used";

/// A fleet whose changes are staged has some of them in force at once: these are told apart by name.
#[test]
fn what_waits_for_a_rollout_is_told_apart() {
    let of = |more: &str| {
        let listed = ", per: [t], keys: [x, y], overrides: [{when: {t: x}, rate: ";
        let more = more.replace('X', listed);
        let rule = format!("{{name: a, rate: 1/s{more}}}");
        let rules = if more == "none" { "" } else { &rule };
        format!("{{domain: d, defaults: {{rung: shares, cluster_size: auto}}, rules: [{rules}]}}")
    };
    let told = |changes: RuleChanges| {
        let sentences = changes.rules().iter().map(|change| change.sentence());
        sentences.collect::<Vec<_>>().join("; ")
    };
    for row in STAGED.trim_start_matches('\n').lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (at_once, waiting) = changes(&of(cells[0]), &of(cells[1])).in_stages();
        let expected = |cell: &str| match cell {
            "" => String::new(),
            cell => format!("d/a {cell}").replace("ONE", "token_bucket 1/s, burst 1"),
        };
        let expected = [2, 3].map(|at| expected(cells[at]).replace("a :", "a:"));
        assert_eq!([told(at_once), told(waiting)], expected, "{row}");
    }
    // What has no limit has no part that waits.
    let stays = "d/a stays token_bucket 1/s, burst 1; overrides changed";
    let waits = "d/a stays token_bucket 1/s, burst 1; what the fleet shares of it changes";
    for (keys, waits) in [("[x, y]", waits), ("[x]", "")] {
        let before = of("X5/s}]").replace("[x, y]", keys);
        let after = before.replace("rate: 5/s", "unlimited: true");
        let (at_once, waiting) = changes(&before, &after).in_stages();
        assert_eq!([told(at_once), told(waiting)], [stays, waits], "{keys}");
    }
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
