//! `on_failure` and `nodes`: given once or for each rule, and what is missing if servers share.

use std::num::NonZeroU32;

use quell_core::on_failure::OnFailure;

fn declared(text: &str) -> Vec<Option<OnFailure>> {
    let loaded = quell_rules::parse_str("shop.yaml", text).unwrap();
    let rules = loaded.domains.iter().flat_map(|domain| &domain.rules);
    rules.map(|rule| rule.policy.on_failure).collect()
}

fn problems(text: &str) -> Vec<String> {
    let problems = quell_rules::parse_str("shop.yaml", text).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

fn share(nodes: u32) -> Option<OnFailure> {
    let nodes = NonZeroU32::new(nodes).unwrap();
    Some(OnFailure::Share { nodes })
}

#[test]
fn a_rule_says_it_or_the_document_does() {
    let text = "
domain: shop
rules:
  - { name: a, rate: 10/s }
  - { name: b, rate: 10/s, on_failure: deny }
  - { name: c, rate: 10/s, on_failure: allow }
  - { name: d, rate: 10/s, nodes: 5 }
defaults: { on_failure: share, nodes: 2 }
";
    let expected = [
        share(2),
        Some(OnFailure::Deny),
        Some(OnFailure::Allow),
        share(5),
    ];
    assert_eq!(declared(text), expected);
    assert_eq!(
        declared("domain: d\nrules: [{ name: a, rate: 1/s }]"),
        [None]
    );
}

#[test]
fn the_first_rule_of_a_document_that_declares_nothing_is_told() {
    let text = "domain: a\nrules:\n  - { name: x, rate: 1/s, on_failure: deny }\n  - { name: y, rate: 1/s }\n  - { name: z, rate: 1/s }\n---\ndomain: b\nrules: [{ name: x, rate: 1/s }]\n---\ndomain: c\nrules: [{ name: x, rate: 1/s }]\ndefaults: { on_failure: allow }\n";
    let loaded = quell_rules::parse_str("shop.yaml", text).unwrap();
    let told: Vec<String> = loaded.undeclared.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("shop.yaml:4:5: rules[1]: the answer while the store does not answer")
    );
    assert!(told[0].ends_with("`defaults: {on_failure: share, nodes: 2}`"));
    // The advice is told once.
    assert_eq!(told[1], "shop.yaml:8:9: rules[0]: the same as at 4:5");
}

#[test]
fn mistakes_say_what_to_write() {
    let rule = |fields: &str| format!("domain: d\nrules:\n  - {{ name: a, {fields} }}\n");
    for (fields, expected) in [
        (
            "rate: 10/s, on_failure: maybe",
            "3:40: rules[0].on_failure: unknown value `maybe`: write one of share, deny, allow, floor",
        ),
        (
            "rate: 10/s, on_failure: floor",
            "3:40: rules[0].on_failure: only nodes of a fleet (`rung: shares`) have a floor: write share, deny or allow",
        ),
        (
            "rate: 10/s, on_failure: share",
            "3:40: rules[0].on_failure: the number of servers that share the limit is missing: write \
            `nodes` beside it, such as `nodes: 2`",
        ),
        (
            "rate: 10/s, nodes: 0, on_failure: share",
            "3:35: rules[0].nodes: 0 nodes: write how many servers share the limits, 1 to 100000",
        ),
        (
            "rate: 1/s, nodes: 2, on_failure: share",
            "3:5: rules[0]: `token_bucket 1/s, burst 1` on 2 nodes leaves each a share of 0: write a burst, limit or refill of at least 2, fewer nodes, or `on_failure: deny` or `allow`",
        ),
        (
            "rate: 9/s, nodes: 2, on_failure: share, overrides: [{ when: { t: x }, burst: 1 }]",
            "3:68: rules[0].overrides[0]: `token_bucket 9/s, burst 1` on 2 nodes leaves each a share of 0: write a burst, limit or refill of at least 2, fewer nodes, or `on_failure: deny` or `allow`",
        ),
    ] {
        let told = problems(&rule(fields));
        let expected = format!("shop.yaml:{expected}");
        assert!(told.contains(&expected), "{fields}: {told:#?}\n{expected}");
    }
}
