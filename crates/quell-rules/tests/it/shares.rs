//! Rules that a fleet shares: what they mean, and what is refused with the advice what to write.

use quell_core::fleet_share::{CutOff, FleetSize};
use quell_core::policy::Rung;
use quell_core::rule::Rule;

fn rules(text: &str) -> Vec<Rule> {
    let mut loaded = quell_rules::parse_str("shop.yaml", text).unwrap();
    assert!(loaded.undeclared.is_empty(), "{:?}", loaded.undeclared);
    loaded.domains.remove(0).rules
}

fn names(rule: &Rule) -> Vec<String> {
    let limits = rule.shared_limits("shop");
    limits.into_iter().map(|limit| limit.name).collect()
}

#[test]
fn rules_and_defaults_say_how_a_fleet_shares() {
    let rules = rules(
        "
domain: shop
defaults: { rung: shares, cluster_size: auto, on_failure: floor }
rules:
  - { name: all, rate: 1000/s }
  - { name: pay, match: { path: /pay }, rate: 100/s, cluster_size: 4, on_failure: deny }
  - { name: tenants, per: [tenant], keys: [acme, globex], rate: 100/s, on_failure: share,
      overrides: [{ when: { tenant: acme }, rate: 500/s }] }
  - { name: mine, rate: 5/s, rung: local }
",
    );
    let policy = |rule: &Rule| match rule.policy.rung {
        Rung::Shares(policy) => Some((policy.size.to_string(), policy.cut_off)),
        _ => None,
    };
    let all: Vec<_> = rules
        .iter()
        .map(|rule| (policy(rule), names(rule)))
        .collect();
    let auto = FleetSize::Auto.to_string();
    let tenants = vec!["tenants/acme".to_owned(), "tenants/globex".to_owned()];
    let expected = [
        (Some((auto.clone(), CutOff::Floor)), vec!["all".to_owned()]),
        (Some(("4".to_owned(), CutOff::Deny)), vec!["pay".to_owned()]),
        (Some((auto, CutOff::Share)), tenants),
        (None, Vec::new()),
    ];
    assert_eq!(all, expected);
    assert!(rules.iter().all(|rule| rule.policy.on_failure.is_none()));
}

#[test]
fn a_group_of_nodes_shares_a_limit() {
    let rules = rules(
        "
domain: shop
defaults: { cluster_size: auto, group: eu, nodes: 2, on_failure: floor }
rules:
  - { name: all, rate: 1000/s }
  - { name: gpu, rate: 1000/s, group: gpu }
  - { name: each, per: [tenant], rate: 1000/s, on_failure: deny }
",
    );
    let groups = rules.iter();
    let groups = groups.map(|rule| (rule.policy.rung.name(), rule.group.as_deref()));
    let expected = [
        ("shares", Some("eu")),
        ("shares", Some("gpu")),
        // What no fleet can share is decided by each server alike.
        ("strict", None),
    ];
    assert_eq!(groups.collect::<Vec<_>>(), expected);
}

/// In a fleet the rung follows from what each limit allows.
#[test]
fn without_a_rung_a_fleet_shares_what_it_can() {
    let rules = rules(
        "
domain: shop
defaults: { cluster_size: 2, nodes: 2, max_over_admission: 1%, on_failure: floor }
rules:
  - { name: all, rate: 1000/s }
  - { name: listed, per: [tenant], keys: [acme, globex], rate: 100/s }
  - { name: each, per: [tenant], rate: 1000/s, on_failure: deny }
  - { name: window, algorithm: sliding_window, limit: 1000/s, on_failure: share }
  - { name: allowed, rate: 1000/s, on_failure: allow }
  - { name: exact, on_failure: deny, max_over_admission: 0, algorithm: sliding_log, limit: 5/s }
  - { name: pinned, rate: 5/s, on_failure: deny, rung: strict }
",
    );
    let rungs = rules
        .iter()
        .map(|rule| (&*rule.name, rule.policy.rung.name()));
    let expected = [
        ("all", "shares"),
        ("listed", "shares"),
        ("each", "leased"),
        ("window", "leased"),
        ("allowed", "leased"),
        ("exact", "strict"),
        ("pinned", "strict"),
    ];
    assert_eq!(rungs.collect::<Vec<_>>(), expected);
}

/// A cut reaches the nodes however far it goes: the numbers of a limit never decide who decides.
#[test]
fn without_a_rung_a_limit_that_is_cut_stays_with_the_fleet() {
    for numbers in [
        "rate: 1000/s",
        "rate: 5/s",
        "rate: 1/h",
        "rate: 1000/s, burst: 1",
    ] {
        for others in ["", ", nodes: 4, max_over_admission: 50%, on_failure: deny"] {
            let text = format!(
                "domain: shop\ndefaults: {{ cluster_size: 4{others} }}\nrules: [{{ name: all, {numbers} }}]\n"
            );
            let rules = rules(&text);
            assert_eq!(rules[0].policy.rung.name(), "shares", "{text}");
        }
    }
}

/// Without a rung, what may be exceeded is synced if calls must not wait for the store, and leased otherwise. In
/// `defaults` it is a wish; what cannot keep it is decided more strictly.
#[test]
fn without_a_rung_calls_that_must_not_wait_are_synced() {
    let rules = rules(
        "
domain: shop
defaults: { nodes: 2, max_over_admission: 5%, on_failure: deny, latency_budget: 999us }
rules:
  - { name: all, rate: 1000/s }
  - { name: small, algorithm: sliding_log, limit: 40/s, max_over_admission: 4 }
  - { name: patient, rate: 1000/s, latency_budget: 1ms }
  - { name: exact, rate: 1000/s, max_over_admission: 0 }
  - { name: pinned, rate: 1000/s, rung: leased }
  - { name: local, rate: 1000/s, rung: local }
",
    );
    let rungs = rules
        .iter()
        .map(|rule| (&*rule.name, rule.policy.rung.name()));
    let expected = [
        ("all", "synced"),
        ("small", "synced"),
        ("patient", "leased"),
        ("exact", "strict"),
        ("pinned", "leased"),
        ("local", "local"),
    ];
    assert_eq!(rungs.collect::<Vec<_>>(), expected);
}

/// A wish that a rule does not follow is a warning, unless the rule says itself how long its calls may wait.
#[test]
fn a_wish_that_a_rule_does_not_follow_is_a_warning() {
    let granted = "nodes: 2, max_over_admission: 5%, latency_budget: 500us";
    let exact = "`api` is strict: write `max_over_admission: 1%` with `nodes`, and no `rung: strict`, or, if \
                 they may wait, `latency_budget: 1ms` in the rule";
    let leased = "`api` is leased: write `rung: synced`, or, if they may wait, `latency_budget: 1ms` in the rule";
    let more = exact.replace("is strict", "and 1 more are strict");
    for (defaults, rules, told) in [
        (granted, "{ name: api, rate: 1000/s }", None),
        (granted, "{ name: api, rate: 1000/s, rung: local }", None),
        (
            granted,
            "{ name: api, rate: 1000/s, rung: strict, latency_budget: 1ms }",
            None,
        ),
        ("latency_budget: 1ms", "{ name: api, rate: 1000/s }", None),
        (
            "latency_budget: 500us",
            "{ name: api, rate: 1000/s }",
            Some(exact),
        ),
        (
            granted,
            "{ name: api, rate: 1000/s, rung: strict }",
            Some(exact),
        ),
        (
            granted,
            "{ name: api, rate: 1000/s, rung: leased }",
            Some(leased),
        ),
        (
            "nodes: 2, max_over_admission: 5%, rung: leased, latency_budget: 500us",
            "{ name: api, rate: 1000/s }",
            Some(leased),
        ),
        (
            "latency_budget: 500us",
            "{ name: api, rate: 1000/s }, { name: b, match: { path: /b }, rate: 5/s }",
            Some(&*more),
        ),
    ] {
        let text = format!("{{domain: shop, defaults: {{{defaults}}}, rules: [{rules}]}}");
        let loaded = quell_rules::parse_str("shop.yaml", &text).unwrap();
        let warnings = loaded.warnings.iter().map(ToString::to_string);
        let warnings = warnings.collect::<Vec<_>>();
        let expected = told.map(|told| {
            let at = text.find("latency_budget").unwrap() + "latency_budget: ".len() + 1;
            format!(
                "shop.yaml:1:{at}: defaults.latency_budget: calls wait for the store all the same, a round trip, \
                 which is 1ms or more, where {told}"
            )
        });
        assert_eq!(warnings, expected.into_iter().collect::<Vec<_>>(), "{text}");
    }
}

/// Fields of a rule, and what is told.
const MISTAKES: &[(&str, &str)] = &[
    (
        "rate: 1000/s, rung: shares",
        "write `cluster_size: 4` beside it, or `cluster_size: auto`",
    ),
    (
        "rate: 1000/s, rung: shares, cluster_size: 0",
        "write how many nodes it has, 1 to 10000, or auto",
    ),
    (
        "rate: 1000/s, rung: shares, cluster_size: some",
        "`some` is not the size of a fleet",
    ),
    (
        "limit: 100/s, algorithm: sliding_window, rung: shares, cluster_size: 2",
        "a fleet shares token buckets only",
    ),
    (
        "rate: 100/s, per: [tenant], rung: shares, cluster_size: 2",
        "write `keys: [..]` with the values of the one entry of `per`, or `rung: leased`",
    ),
    (
        "rate: 100/s, per: [tenant], keys: [a, a], rung: shares, cluster_size: 2",
        "in the list already",
    ),
    (
        "rate: 100/s, per: [tenant], keys: [\"a*\"], rung: shares, cluster_size: 2",
        "write each value in full",
    ),
    (
        "rate: 100/s, per: [tenant, user], keys: [a], rung: shares, cluster_size: 2",
        "the one entry of `per`",
    ),
    (
        "rate: 100/s, per: [remote_address], keys: [10.0.0.1], rung: shares, cluster_size: 2",
        "cut to a prefix",
    ),
    (
        "rate: 100/s, per: [tenant], keys: [a], match: { tenant: b }, rung: shares, cluster_size: 2",
        "leave it out there",
    ),
    (
        "rate: 100/s, per: [tenant], keys: [a], rung: shares, cluster_size: 2, overrides: [{ when: { path: /a }, rate: 50/s }]",
        "overrides may depend on that entry alone",
    ),
    (
        "rate: 100/s, per: [tenant], keys: [a]",
        "write `rung: shares` beside it",
    ),
    (
        "rate: 100/s, rung: strict, cluster_size: 4",
        "write `rung: shares` beside it",
    ),
    (
        "rate: 100/s, group: eu",
        "a group of a fleet's nodes: write `rung: shares` beside it",
    ),
    (
        "rate: 100/s, rung: shares, cluster_size: 4, group: ''",
        "a group has a name of 1 to 200 bytes",
    ),
    (
        "rate: 100/s, per: [tenant], cluster_size: 4",
        "write `keys: [..]` with the values of the one entry of `per`, or `rung: leased`",
    ),
    (
        "rate: 100/s, max_over_admission: 1%",
        "the number of servers that exceed the limit together is missing",
    ),
    (
        "rate: 100/s, nodes: 2, rung: shares, cluster_size: 2",
        "leave `nodes` out",
    ),
    (
        "rate: 100/s, on_failure: allow, rung: shares, cluster_size: 2",
        "write `on_failure: share`, `floor` or `deny` in the rule",
    ),
    (
        "rate: 100/s, max_over_admission: 1%, rung: shares, cluster_size: 2",
        "`shares` or `local` never exceeds its limit",
    ),
];

#[test]
fn mistakes_say_what_to_write() {
    for (fields, expected) in MISTAKES {
        let text = format!("domain: d\nrules:\n  - {{ name: a, {fields} }}\n");
        let problems = quell_rules::parse_str("shop.yaml", &text).unwrap_err();
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            told.iter().any(|told| told.contains(expected)),
            "{fields}: {told:#?}"
        );
    }
}

/// A limit that is in force may have to be cut to parts that no new limit may have.
#[test]
fn small_parts_are_a_warning() {
    for (fields, expected) in [
        (
            "rate: 19/s, cluster_size: 2",
            "shares of so many nodes need a rate of at least 20/s; or write `rung: leased`",
        ),
        (
            "rate: 100/s, burst: 3, cluster_size: 4",
            "need a burst of at least 4",
        ),
        (
            "rate: 100/s, cost: 30, cluster_size: 4",
            "need a burst of at least 120",
        ),
    ] {
        let text = format!("domain: d\nrules:\n  - {{ name: a, rung: shares, {fields} }}\n");
        let loaded = quell_rules::parse_str("shop.yaml", &text).unwrap();
        let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert!(
            told.len() == 1
                && told[0].contains("only as a cut of a limit that it has")
                && told[0].contains(expected),
            "{fields}: {told:#?}"
        );
    }
}

#[test]
fn names_in_the_fleet_are_short() {
    let value = "v".repeat(199);
    let text = format!(
        "domain: d\nrules:\n  - {{ name: ab, rate: 100/s, per: [t], keys: [{value}], rung: shares, cluster_size: 2 }}\n"
    );
    let problems = quell_rules::parse_str("shop.yaml", &text).unwrap_err();
    assert!(
        problems[0].to_string().contains("a name of 202 bytes"),
        "{problems:?}"
    );
}

/// A fleet knows limits by the names of their rules, whatever their domain.
#[test]
fn two_limits_with_one_name_in_a_fleet_are_refused() {
    let document = |domain: &str, rules: &str| {
        format!(
            "domain: {domain}\ndefaults: {{ rung: shares, cluster_size: 2 }}\nrules:\n  - {{ {rules} }}\n"
        )
    };
    let all = "name: api, rate: 1000/s";
    let listed = "name: api, rate: 1000/s, per: [tenant], keys: [a]";
    for (one, other, line) in [
        (
            all,
            all,
            Some("a limit `api` already, that of the domain `shop` at rules.yaml:4:5"),
        ),
        (listed, listed, Some("a limit `api/a` already")),
        (all, listed, None),
        (
            all,
            "name: api, rate: 1000/s, rung: strict, cluster_size: null",
            None,
        ),
    ] {
        let other = other.replace(", cluster_size: null", "");
        let other = match other.contains("strict") {
            true => document("bank", &other).replace("{ rung: shares, cluster_size: 2 }", "{}"),
            false => document("bank", &other),
        };
        let text = format!("{}---\n{other}", document("shop", one));
        match (quell_rules::parse_str("rules.yaml", &text), line) {
            (Ok(_), None) => {}
            (Err(problems), Some(line)) => {
                let told = problems[0].to_string();
                assert!(
                    told.starts_with("rules.yaml:9:5: rules[0]: a fleet has"),
                    "{told}"
                );
                assert!(told.contains(line), "{told}");
            }
            (other, _) => panic!("{other:?}\n{text}"),
        }
    }
}
