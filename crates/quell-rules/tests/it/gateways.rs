//! Rules for gateways: what their requests cannot be limited by.

use quell_core::rule::EmptyValue;
use quell_rules::parse_str;

/// The warnings for gateways of rules with these fields.
fn told(fields: &str) -> Vec<String> {
    let text = format!("domain: d\nrules:\n  - {{ name: a, {fields} }}\n");
    let loaded = parse_str("a.yaml", &text).unwrap();
    loaded.at_gateways.iter().map(ToString::to_string).collect()
}

#[test]
fn limits_that_a_gateway_cannot_obey_are_told_where_gateways_send_the_entries() {
    let permits = "algorithm: concurrency, max: 5";
    let delays = "algorithm: leaky_bucket, rate: 2/s, burst: 5";
    for (fields, expected) in [
        (
            format!("match: {{ path: /export }}, {permits}"),
            Some("/v1/release"),
        ),
        (
            format!("per: [remote_address], {delays}"),
            Some("`delay_after: burst`"),
        ),
        (
            format!("per: [host], {delays}, delay_after: 4"),
            Some("gateways send `host`"),
        ),
        (
            format!("unlimited: true, overrides: [{{ when: {{ method: PUT }}, {delays} }}]"),
            Some("gateways send `method`"),
        ),
        (
            format!("per: [remote_address], {delays}, delay_after: burst"),
            None,
        ),
        (format!("per: [user], {delays}"), None),
        (format!("match: {{ kind: batch }}, {permits}"), None),
        (
            format!("per: [remote_address], {permits}, shadow: true"),
            None,
        ),
        ("per: [remote_address], rate: 1/s".to_owned(), None),
    ] {
        let told = told(&fields);
        assert_eq!(
            told.len(),
            usize::from(expected.is_some()),
            "{fields} {told:?}"
        );
        if let (Some(expected), [told]) = (expected, &*told) {
            assert!(told.starts_with("a.yaml:3:5: rules[0]: "), "{told}");
            assert!(told.contains(expected), "{told}");
        }
    }
}

#[test]
fn a_pattern_that_only_an_empty_value_matches_is_told() {
    for (fields, is_told) in [
        ("match: { user: \"\" }, rate: 1/s", true),
        (
            "rate: 1/s, overrides: [{ when: { user: [x, \"\"] }, rate: 2/s }]",
            true,
        ),
        ("match: { user: \"\" }, empty: keep, rate: 1/s", false),
        ("match: { user: \"*\" }, empty: missing, rate: 1/s", false),
    ] {
        let text = format!("domain: d\nrules:\n  - {{ name: a, {fields} }}\n");
        let loaded = parse_str("a.yaml", &text).unwrap();
        let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), usize::from(is_told), "{fields} {told:?}");
        assert!(
            told.iter()
                .all(|told| told.ends_with("write `empty: keep` in the rule"))
        );
        let keeps = loaded.domains[0].rules[0].empty == EmptyValue::Keep;
        assert_eq!(keeps, fields.contains("keep"));
    }
}

#[test]
fn addresses_of_nat64_match_as_the_ipv4_addresses_in_them() {
    for (pattern, is_told) in [
        ("64:ff9b::10.0.0.1", false),
        ("64:ff9b::10.0.0.0/104", false),
        ("10.0.0.1", false),
        ("64:ff9b::/96", true),
    ] {
        let text = format!(
            "domain: d\nrules:\n  - {{ name: a, match: {{ remote_address: \"{pattern}\" }}, rate: 1/s }}\n"
        );
        let loaded = parse_str("a.yaml", &text).unwrap();
        assert_eq!(
            loaded.warnings.len(),
            usize::from(is_told),
            "{:?}",
            loaded.warnings
        );
        let patterns = &loaded.domains[0].rules[0].matchers[0].patterns;
        for address in ["10.0.0.1", "64:ff9b::a00:1", "::ffff:10.0.0.1"] {
            assert!(
                patterns[0].matches(address.as_bytes()),
                "{pattern} {address}"
            );
        }
    }
}
