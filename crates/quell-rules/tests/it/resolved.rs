//! The meaning of valid files, as types of the core.

use std::num::NonZeroU64;
use std::time::Duration;

use quell_core::algorithm::fixed_window::{Anchor, CalendarUnit, Weekday};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::policy::Policy;
use quell_core::rate::Rate;
use quell_core::rule::{
    DescriptorReader, DomainRules, Effect, EmptyValue, Matcher, OnMissing, Pattern, Per, Prefix,
    Rule,
};
use quell_rules::parse_str;

mod overrides;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rate(count: u64, period: Duration) -> Rate {
    Rate::new(count, period).unwrap()
}

fn matchers(entry: &str, pattern: Pattern) -> Vec<Matcher> {
    vec![Matcher {
        entry: entry.into(),
        patterns: vec![pattern].into(),
    }]
}

/// A rule with nothing but a limit.
fn bare(name: &str, limit: Limit) -> Rule {
    Rule::new(name, limit).unwrap()
}

/// The only rule of a file, whose fields are these.
fn rule(fields: &str) -> Rule {
    let text = format!("domain: d\nrules: [{{ name: r, {fields} }}]");
    let loaded = parse_str("f", &text).unwrap_or_else(|problems| panic!("{fields}: {problems:?}"));
    let others = loaded
        .warnings
        .iter()
        .filter(|warning| !warning.path.ends_with(".ban"));
    assert_eq!(others.count(), 0, "{fields}: {:?}", loaded.warnings);
    loaded.domains[0].rules[0].clone()
}

#[test]
fn a_reservation_lasts_at_most_an_hour_unless_its_rule_says_otherwise() {
    assert_eq!(rule("rate: 1/s").max_hold, seconds(3_600));
    assert_eq!(rule("rate: 1/s, max_hold: 10m").max_hold, seconds(600));
    assert_eq!(rule("rate: 1/s, max_hold: 1d").max_hold, seconds(86_400));
}

#[test]
fn a_text_that_says_nothing_is_a_mistake() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "---\n",
        "---\n...\n---\n",
        "null\n",
        "~",
        "\u{feff}",
        "domain: d",
        "domain: d\nrules:",
        "domain: d\nrules: # - name: a",
    ] {
        let problems = parse_str("f", text).unwrap_err();
        assert_eq!(problems.len(), 1, "{text:?}");
        let told = problems[0].to_string();
        assert!(told.contains("`rules: []`"), "{text:?}: {told}");
    }
    let none: [&str; 0] = [];
    assert_eq!(quell_rules::load(&none).unwrap().domains, []);
}

#[test]
fn a_domain_without_rules_is_known() {
    for text in ["domain: d\nrules: []", "rules: []\ndomain: d # none"] {
        let loaded = parse_str("f", text).unwrap();
        let expected = DomainRules::new("d", vec![]);
        assert_eq!(loaded.domains, [expected], "{text:?}");
    }
}

/// Fields, and the limit that they make.
type Case = (&'static str, Result<Limit, LimitError>);

fn bucket(count: u64, period: Duration) -> TokenBucket {
    Limit::token_bucket(rate(count, period))
}

fn check(cases: Vec<Case>) {
    for (fields, limit) in cases {
        assert_eq!(rule(fields), bare("r", limit.unwrap()), "{fields}");
    }
}

#[test]
fn buckets_mean_what_they_say() {
    check(vec![
        ("rate: 100/s", bucket(100, seconds(1)).build()),
        (
            "algorithm: token_bucket, rate: '100/s'",
            bucket(100, seconds(1)).build(),
        ),
        (
            "rate: 100/s, burst: 200",
            bucket(100, seconds(1)).burst(200).build(),
        ),
        (
            "rate: 100/s, burst: 200, initial: 0",
            bucket(100, seconds(1)).burst(200).initial(0).build(),
        ),
        (
            "rate: 1/year, burst: 1000",
            bucket(1, seconds(365 * 86_400)).burst(1000).build(),
        ),
        (
            "rate: 1000000000000/s",
            bucket(1_000_000_000_000, seconds(1)).build(),
        ),
        ("rate: 5/90ms", bucket(5, Duration::from_millis(90)).build()),
        ("rate: 0.001/s", bucket(1, seconds(1000)).burst(1).build()),
        ("rate: 1.5/s", bucket(3, seconds(2)).burst(1).build()),
        ("rate: 2.50/s", bucket(5, seconds(2)).burst(2).build()),
        ("rate: 7/week", bucket(7, seconds(7 * 86_400)).build()),
        ("rate: 30/month", bucket(30, seconds(30 * 86_400)).build()),
        (
            "refill: { amount: 100, every: 1s }, burst: 1000",
            TokenBucket::refill(100, seconds(1)).burst(1000).build(),
        ),
        (
            "refill: { amount: 100, every: 1s }",
            TokenBucket::refill(100, seconds(1)).build(),
        ),
        (
            "rate: 1000/s, refill: { amount: 100, every: 100ms }",
            TokenBucket::refill(100, Duration::from_millis(100))
                .burst(1000)
                .build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 2/s",
            Limit::leaky_bucket(rate(2, seconds(1))).build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 0.5/s, burst: 5, delay_after: 5",
            Limit::leaky_bucket(rate(1, seconds(2)))
                .burst(5)
                .delay_after(5)
                .build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 2/s, burst: 5, delay_after: burst",
            Limit::leaky_bucket(rate(2, seconds(1)))
                .burst(5)
                .delay_after(5)
                .build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 2/s, delay_after: burst",
            Limit::leaky_bucket(rate(2, seconds(1)))
                .delay_after(2)
                .build(),
        ),
    ]);
}

#[test]
fn windows_mean_what_they_say() {
    check(vec![
        (
            "algorithm: fixed_window, limit: 5/min",
            Limit::fixed_window(5, seconds(60)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5, window: 1m, align: first_request",
            Limit::fixed_window(5, seconds(60)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/day, align: calendar",
            Limit::calendar_window(5, CalendarUnit::Day, "UTC").build(),
        ),
        (
            "algorithm: fixed_window, limit: 5, window: month, align: calendar, time_zone: europe/berlin",
            Limit::calendar_window(5, CalendarUnit::Month, "Europe/Berlin").build(),
        ),
        (
            "algorithm: fixed_window, limit: 5, window: 7d, align: calendar",
            Limit::calendar_window(5, CalendarUnit::Week, "UTC").build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/60s, align: calendar",
            Limit::calendar_window(5, CalendarUnit::Minute, "UTC").build(),
        ),
        (
            "algorithm: sliding_window, limit: 30/10s, segments: 20",
            Limit::sliding_window(30, seconds(10)).segments(20).build(),
        ),
        (
            "algorithm: sliding_log, limit: 5/min",
            Limit::sliding_log(5, seconds(60)).build(),
        ),
        (
            "algorithm: sliding_log, limit: 20000/min, max_entries: 20000",
            Limit::sliding_log(20_000, seconds(60))
                .max_entries(20_000)
                .build(),
        ),
    ]);
}

#[test]
fn anchors_mean_what_they_say() {
    let (day, week) = (CalendarUnit::Day, CalendarUnit::Week);
    let (month, year) = (CalendarUnit::Month, CalendarUnit::Year);
    let date = |month, day| Anchor::DayOfYear { month, day };
    let thursday = Anchor::Weekday(Weekday::Thursday);
    for (window, written, unit, anchor) in [
        ("month", "17", month, Anchor::DayOfMonth(17)),
        ("month", "\"17\"", month, Anchor::DayOfMonth(17)),
        ("month", "2026-01-31", month, Anchor::DayOfMonth(31)),
        ("year", "2026-01-31", year, date(1, 31)),
        ("year", "2024-02-29", year, date(2, 29)),
        ("year", "04-06", year, date(4, 6)),
        ("week", "thursday", week, thursday),
        ("week", "2026-11-26", week, thursday),
        ("day", "\"20:00\"", day, Anchor::TimeOfDay(1_200)),
        ("day", "20:00", day, Anchor::TimeOfDay(1_200)),
        ("day", "8:05", day, Anchor::TimeOfDay(485)),
        // Where the unit begins.
        ("month", "1", month, Anchor::UnitStart),
        ("year", "2026-01-01", year, Anchor::UnitStart),
        ("week", "monday", week, Anchor::UnitStart),
        ("day", "\"00:00\"", day, Anchor::UnitStart),
    ] {
        let said = rule(&format!(
            "algorithm: fixed_window, align: calendar, limit: 5/{window}, anchor: {written}"
        ));
        let limit = Limit::calendar_window(5, unit, "UTC").anchor(anchor);
        assert_eq!(
            said.effect,
            Effect::Limit(limit.build().unwrap()),
            "{written}"
        );
    }
}

#[test]
fn bans_stand_on_top() {
    let limit = Limit::sliding_log(5, seconds(60)).build().unwrap();
    let ban = |after, within, lengths: &[u64]| {
        let lengths = lengths.iter().copied().map(seconds).collect();
        Ban::new(after, within, lengths).unwrap()
    };
    for (said, ban) in [
        ("{ after: 1, for: 1m }", ban(1, None, &[60])),
        (
            "{ after: 3, within: 10m, for: [1m, 10m, 1h] }",
            ban(3, Some(seconds(600)), &[60, 600, 3600]),
        ),
    ] {
        let fields = format!("algorithm: sliding_log, limit: 5/min, ban: {said}");
        assert_eq!(
            rule(&fields),
            bare("r", limit.clone().with_ban(ban)),
            "{said}"
        );
    }
}

#[test]
fn the_rest_of_a_rule() {
    let limit = Limit::per_second(2).build().unwrap();
    let expected = Rule {
        matchers: vec![
            Matcher {
                entry: "path".into(),
                patterns: vec![
                    Pattern::Exact("/a".into()),
                    Pattern::Glob("/b/*".into()),
                    Pattern::Exact("/b".into()),
                ]
                .into(),
            },
            matchers("ok", Pattern::Exact("true".into())).remove(0),
            matchers("status", Pattern::Exact("200".into())).remove(0),
            matchers("peer", Pattern::Network("10.0.0.0/8".parse().unwrap())).remove(0),
        ],
        per: vec![
            Per {
                entry: "tenant".into(),
                prefix: None,
                colocate: false,
            },
            Per {
                entry: "a".into(),
                prefix: Prefix::new(24, 64),
                colocate: false,
            },
            Per {
                entry: "b".into(),
                prefix: Prefix::new(32, 64),
                colocate: false,
            },
        ],
        on_missing: OnMissing::SharedKey,
        empty: EmptyValue::Keep,
        cost: Some(Cost::from(NonZeroU64::new(2).unwrap())),
        shadow: true,
        policy: Policy::STRICT,
        ..bare("r", limit)
    };
    let said = rule(
        "rate: 2/s, match: { path: [/a, /b/*], ok: true, status: 200, peer: 10.0.0.0/8 }, \
         per: [tenant, { a: { v4: 24 } }, { b: { v6: 64 } }], on_missing: shared_key, empty: keep, \
         cost: 2, shadow: true",
    );
    assert_eq!(said, expected);
}

/// The defaults are the same, wherever rules come from.
#[test]
fn addresses_of_callers_are_cut_unless_said() {
    let prefix = |per: &str| rule(&format!("rate: 1/s, per: [{per}]")).per[0].prefix;
    assert_eq!(prefix("remote_address"), Prefix::new(32, 64));
    assert_eq!(prefix("remote_address"), Some(Prefix::DEFAULT));
    assert_eq!(
        prefix("{ remote_address: { v4: 24 } }"),
        Prefix::new(24, 64)
    );
    assert_eq!(
        prefix("{ remote_address: { v6: 128 } }"),
        Prefix::new(32, 128)
    );
    assert_eq!(prefix("client"), None);
}

/// Calls carry values in their normal spelling, and so do rules.
#[test]
fn known_entries_match_as_they_are_read() {
    let applies = |said: &str, entry: &str, value: &str| {
        let text =
            format!("domain: d\nrules: [{{ name: r, rate: 1/s, match: {{ {entry}: {said} }} }}]");
        let loaded =
            parse_str("f", &text).unwrap_or_else(|problems| panic!("{said}: {problems:?}"));
        let query = Query::new("d").entry(entry, value);
        let rule = &loaded.domains[0].rules[0];
        rule.applies(&DescriptorReader::new(&query.descriptors()[0]))
            .is_ok()
    };
    for (said, entry, value, expected) in [
        ("/login/", "path", "/login", true),
        ("//login", "path", "/login", true),
        ("/login;a", "path", "/login", true),
        ("/%6cogin", "path", "/login", true),
        ("/caf\u{e9}", "path", "/caf%C3%A9", true),
        ("\"/api/*\"", "path", "/api", true),
        ("\"/api/*\"", "path", "/api/a", true),
        ("\"/api/*\"", "path", "/apis", false),
        ("\"/api/**\"", "path", "/api", true),
        ("\"/api/**\"", "path", "/api/a/b", true),
        ("\"/users/*/files/*\"", "path", "/users/7/files", true),
        ("\"*.png\"", "path", "/a/b.png", true),
        ("\"*\"", "path", "/", true),
        ("\"/*\"", "path", "/", true),
        ("/Login", "path", "/login", false),
        ("Shop.example:80", "host", "shop.example", true),
        ("10.0.0.1", "remote_address", "10.0.0.1", true),
        ("10.0.0.1", "remote_address", "::ffff:10.0.0.1", true),
        ("10.0.0.1", "remote_address", "10.0.0.1:443", true),
        ("10.0.0.1", "remote_address", "10.0.0.2:443", false),
        ("2001:DB8::1", "remote_address", "2001:db8:0::1", true),
        ("2001:DB8::1", "remote_address", "2001:db8::2", false),
        ("unknown", "remote_address", "unknown", true),
    ] {
        assert_eq!(applies(said, entry, value), expected, "{said} {value}");
    }
}

#[test]
fn unlimited_adds_no_limit() {
    let said = rule("rate: 10/s, overrides: [{ when: { t: x }, unlimited: true }]");
    assert_eq!(said.overrides[0].effect, Effect::Unlimited);
    let said = rule("unlimited: true, overrides: [{ when: { t: x }, rate: 1/s }]");
    assert_eq!(said.effect, Effect::Unlimited);
    assert!(matches!(said.overrides[0].effect, Effect::Limit(_)));
}

#[test]
fn defaults_hold_for_their_own_document() {
    let text = "\
domain: a
defaults: { shadow: true }
rules: [{ name: one, rate: 1/s }, { name: two, rate: 1/s, shadow: false }]
---
domain: b
rules: [{ name: one, rate: 1/s }]
---
domain: a
rules: [{ name: three, rate: 1/s }]
";
    let loaded = parse_str("f", text).unwrap();
    let said: Vec<(&str, &str, bool)> = loaded
        .domains
        .iter()
        .flat_map(|domain| {
            domain
                .rules
                .iter()
                .map(|rule| (&*domain.domain, &*rule.name, rule.shadow))
        })
        .collect();
    assert_eq!(
        said,
        [
            ("a", "one", true),
            ("a", "two", false),
            ("a", "three", false),
            ("b", "one", false)
        ]
    );
    let mut domains = loaded.domains;
    quell_rules::force_shadow(&mut domains);
    assert!(
        domains
            .iter()
            .flat_map(|domain| &domain.rules)
            .all(|rule| rule.shadow)
    );
}

#[test]
fn aliases_repeat_values() {
    let text = "\
domain: d
rules:
  - { name: a, match: &api { path: '/api/*' }, rate: &rate 5/s }
  - { name: b, match: *api, rate: *rate }
";
    let rules = &parse_str("f", text).unwrap().domains[0].rules;
    assert_eq!(rules[0].matchers, rules[1].matchers);
    assert_eq!(rules[0].effect, rules[1].effect);
}

#[test]
fn a_long_log_becomes_a_sliding_window_with_a_warning() {
    let text = "domain: d\nrules:\n  - name: r\n    algorithm: sliding_log\n    limit: 20000/min\n";
    let loaded = parse_str("f", text).unwrap();
    let window = Limit::sliding_window(20_000, seconds(60)).build().unwrap();
    assert_eq!(loaded.domains[0].rules, [bare("r", window)]);
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "f:5:12: rules[0].limit: a limit of 20000 is above max_entries (10000), so it is loaded as \
          sliding_window: write `algorithm: sliding_window`, or a larger `max_entries`"
        ]
    );
}
