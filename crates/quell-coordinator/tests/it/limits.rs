//! Rules of a file that are limits of a fleet.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use quell_coordinator::limits::{FleetLimits, LimitsError, fleet_limits};
use quell_core::fleet_share::FleetSize;
use quell_shares::plan::Fallback;

const MICRO: u64 = 1_000_000;

fn limits(text: &str) -> Result<FleetLimits, LimitsError> {
    let rules = quell_rules::parse_str("rules.yaml", text);
    fleet_limits(&rules.expect("these are rules").domains)
}

#[test]
fn rules_with_rung_shares_are_limits_of_the_fleet() {
    let found = limits(
        "
domain: shop
defaults: { rung: shares, cluster_size: auto }
rules:
  - { name: all, rate: 1200/min, burst: 500, on_failure: deny }
  - { name: pay, match: { path: /pay }, rate: 1000/s, cost: 5 }
  - { name: tenants, per: [tenant], keys: [acme, globex], rate: 100/s, on_failure: floor,
      overrides: [{ when: { tenant: acme }, rate: 300/s }] }
  - { name: mine, rate: 5/s, rung: local }
",
    );
    let found = found.unwrap();
    let numbers: Vec<_> = found
        .limits
        .iter()
        .map(|limit| (&*limit.name, limit.quota))
        .collect();
    let [
        ("all", all),
        ("pay", pay),
        ("tenants/acme", acme),
        ("tenants/globex", globex),
    ] = numbers[..]
    else {
        panic!("{numbers:?}");
    };
    assert_eq!((all.rate, all.burst), (20 * MICRO, 500 * MICRO));
    assert_eq!((all.least_burst, all.fallback), (MICRO, Fallback::Deny));
    assert_eq!((pay.rate, pay.burst), (1_000 * MICRO, 1_000 * MICRO));
    assert_eq!(
        (pay.least_burst, pay.fallback),
        (5 * MICRO, Fallback::Share)
    );
    assert_eq!((acme.rate, globex.rate), (300 * MICRO, 100 * MICRO));
    assert_eq!(acme.fallback, Fallback::Floor);
    assert_eq!(found.sizes, BTreeMap::from([(None, FleetSize::Auto)]));
    let left_out: Vec<_> = found
        .left_out
        .iter()
        .map(|one| (&*one.rule, one.why))
        .collect();
    assert_eq!(left_out, [("mine", "it does not say `rung: shares`")]);
}

#[test]
fn rules_without_shares_are_no_plan() {
    let found = limits("domain: shop\nrules: [{ name: all, rate: 10/s }]").unwrap();
    assert_eq!((found.limits.len(), found.left_out.len()), (0, 1));
    assert!(found.sizes.is_empty());
}

#[test]
fn limits_belong_to_groups_and_each_group_has_a_size() {
    let found = limits(
        "
domain: shop
defaults: { rung: shares, cluster_size: auto, group: eu }
rules:
  - { name: api, rate: 100/s }
  - { name: search, rate: 100/s, group: gpu, cluster_size: 2 }
  - { name: tenants, per: [tenant], keys: [acme], rate: 100/s, group: gpu, cluster_size: 2 }
  - { name: mine, rate: 5/s, rung: local }
",
    );
    let found = found.unwrap();
    let groups = found.limits.iter();
    let groups = groups.map(|limit| (&*limit.name, limit.group.as_deref()));
    let expected = [
        ("api", Some("eu")),
        ("search", Some("gpu")),
        ("tenants/acme", Some("gpu")),
    ];
    assert_eq!(groups.collect::<Vec<_>>(), expected);
    let two = FleetSize::Nodes(NonZeroU32::new(2).unwrap());
    let sizes = [
        (Some("eu".into()), FleetSize::Auto),
        (Some("gpu".into()), two),
    ];
    assert_eq!(found.sizes, BTreeMap::from(sizes));
}

#[test]
fn a_group_has_one_size_and_no_more_nodes_than_the_fleet() {
    let told = |rules: &str| {
        let text =
            format!("domain: shop\ndefaults: {{ rung: shares, cluster_size: 4 }}\nrules:\n{rules}");
        limits(&text).map_err(|error| error.to_string())
    };
    let two = told(
        "  - { name: a, rate: 100/s, group: eu, cluster_size: 2 }\n  - { name: b, rate: 100/s, group: eu }",
    );
    let text = two.unwrap_err();
    assert!(text.contains("the same `group`"), "{text}");
    let rules =
        "  - { name: a, rate: 100/s }\n  - { name: b, rate: 100/s, group: eu, cluster_size: N }";
    let large = told(&rules.replace('N', "5"));
    assert_eq!(
        large.unwrap_err(),
        "the group `eu` is `cluster_size: 5`, and rules without `group` say that all nodes are 4: write at \
         least 5 there, or less here"
    );
    told(&rules.replace('N', "4")).unwrap();
}

#[test]
fn two_limits_of_one_name_or_two_sizes_are_refused() {
    let document = |domain: &str| {
        let text = format!(
            "domain: {domain}\ndefaults: {{ rung: shares, cluster_size: auto }}\nrules: [{{ name: all, rate: 100/s }}]"
        );
        quell_rules::parse_str("rules.yaml", &text).unwrap().domains
    };
    let same = fleet_limits(&[document("shop"), document("api")].concat());
    let text = same.unwrap_err().to_string();
    assert!(
        text.contains("`shop` and `api`") && text.contains("rename one"),
        "{text}"
    );
    let sizes = limits(
        "
domain: shop
defaults: { rung: shares, cluster_size: auto }
rules: [{ name: all, rate: 100/s }, { name: pay, rate: 100/s, cluster_size: 4 }]
",
    );
    let text = sizes.unwrap_err().to_string();
    assert!(
        text.contains("`cluster_size: auto` and `cluster_size: 4`"),
        "{text}"
    );
}
