//! Which rules of a file are limits of a fleet.

use quell_coordinator::limits::{FleetLimits, SameName, fleet_limits};
use quell_shares::plan::Fallback;

const MICRO: u64 = 1_000_000;

fn limits(text: &str) -> Result<FleetLimits, SameName> {
    let rules = quell_rules::parse_str("rules.yaml", text);
    fleet_limits(&rules.expect("these are rules").domains)
}

#[test]
fn a_plain_token_bucket_is_a_limit_of_the_fleet() {
    let found = limits(
        "
domain: shop
rules:
  - { name: all, rate: 1200/min, burst: 500, on_failure: deny }
  - { name: pay, match: { path: /pay }, rate: 1000/s, cost: 5 }
",
    );
    let limits = found.unwrap().limits;
    let numbers: Vec<_> = limits
        .iter()
        .map(|limit| (&*limit.name, limit.quota))
        .collect();
    let [("all", all), ("pay", pay)] = numbers[..] else {
        panic!("{numbers:?}");
    };
    assert_eq!((all.rate, all.burst), (20 * MICRO, 500 * MICRO));
    assert_eq!((all.least_burst, all.fallback), (MICRO, Fallback::Deny));
    assert_eq!((pay.rate, pay.burst), (1_000 * MICRO, 1_000 * MICRO));
    assert_eq!(
        (pay.least_burst, pay.fallback),
        (5 * MICRO, Fallback::Share)
    );
}

#[test]
fn what_shares_cannot_serve_is_left_out_with_the_reason() {
    for (rule, why) in [
        ("per: [tenant], rate: 5/s", "`per`: use `leased`"),
        ("rate: 5/s, shadow: true", "in shadow"),
        ("rate: 5/s, rung: local", "rung: local"),
        ("limit: 5/s, algorithm: sliding_window", "not token_bucket"),
        ("rate: 5/s, debt: true", "debt"),
    ] {
        let text = format!("domain: shop\nrules:\n  - {{ name: x, {rule} }}\n");
        let found = limits(&text).unwrap();
        assert_eq!(found.limits, [], "{rule}");
        let [left_out] = &found.left_out[..] else {
            panic!("{rule}: {found:?}");
        };
        assert!(left_out.why.contains(why), "{rule}: {}", left_out.why);
    }
}

#[test]
fn two_limits_of_one_name_are_refused() {
    let error = limits(
        "
domain: shop
rules: [{ name: all, rate: 10/s }]
---
domain: api
rules: [{ name: all, rate: 20/s }]
",
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("`shop` and `api`") && text.contains("rename one"),
        "{text}"
    );
}
