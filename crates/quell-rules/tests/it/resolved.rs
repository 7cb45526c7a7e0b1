//! The meaning of valid files, as types of the core.

use std::num::NonZeroU64;
use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::policy::Policy;
use quell_core::rate::Rate;
use quell_core::rule::{
    DescriptorReader, DomainRules, Effect, EmptyValue, Matcher, OnMissing, Override, Pattern, Per,
    Prefix, Rule,
};
use quell_rules::parse_str;

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
        let expected = DomainRules {
            domain: "d".into(),
            rules: vec![],
        };
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

/// Fields of a rule, and the warning about them; none if it is empty.
type Surprise = (&'static str, &'static str);

/// Names and values that are close to known ones, or are read differently.
const NEARLY_KNOWN: &[Surprise] = &[
    (
        "per: [remote_adress]",
        "no gateway sends an entry `remote_adress`, did you mean `remote_address`?",
    ),
    (
        "match: { Path: /a }",
        "no gateway sends an entry `Path`, did you mean `path`?",
    ),
    ("match: { methods: GET }", "did you mean `method`?"),
    ("per: [remote_addr]", "did you mean `remote_address`?"),
    ("per: [user, post, bath, userId]", ""),
    (
        "per: [ip]",
        "no gateway sends an entry `ip`, did you mean `remote_address`?",
    ),
    ("per: [client_ip]", "did you mean `remote_address`?"),
    ("match: { uri: /a }", "did you mean `path`?"),
    ("match: { url: /a }", "did you mean `path`?"),
    ("match: { route: /a }", "did you mean `path`?"),
    ("match: { pth: /a }", "did you mean `path`?"),
    ("match: { verb: GET }", "did you mean `method`?"),
    ("match: { http_method: GET }", "did you mean `method`?"),
    (
        "per: [X-Api-Key]",
        "gateways send names in small letters, so none of their calls has an entry `X-Api-Key`: write `x-api-key`",
    ),
    (
        "per: [tenant], overrides: [{ when: { tennant: acme }, rate: 2/s }]",
        "`tennant` is another entry than `tenant`",
    ),
    (
        "match: { tennant: acme }, per: [tenant]",
        "`tennant` is another entry than `tenant`",
    ),
    (
        "per: [tenant], overrides: [{ when: { plan: gold }, rate: 2/s }]",
        "",
    ),
    ("match: { group-1: a }, per: [group-2]", ""),
    (
        "match: { tenant: \"!acme\" }",
        "`!acme` is read as it stands, and nothing negates a value: to leave `acme` out",
    ),
    ("match: { agent: \"~*bot\" }", "did you mean `\"*bot*\"`?"),
    ("match: { agent: ^curl/ }", "did you mean `\"curl/*\"`?"),
    ("match: { agent: \"bot$\" }", "did you mean `\"*bot\"`?"),
    ("match: { agent: \".*bot.*\" }", "did you mean `\"*bot*\"`?"),
    ("match: { agent: \"v1.*\" }, per: [host]", ""),
    (
        "match: { size: \">100\" }",
        "values are not compared as numbers",
    ),
    (
        "match: { tenant: [\"*bot\", \"a-b\", \"$\", \"=x\", \"a.b\"] }",
        "",
    ),
    (
        "match: { path: /login/ }",
        "the paths of calls are read as `/login`, and so is `/login/`: write `/login`",
    ),
    (
        "match: { host: Shop.example:80 }",
        "without a port, and so is `Shop.example:80`: write `shop.example`",
    ),
    (
        "match: { remote_address: localhost }",
        "`localhost` is not an address: write one such as `10.0.0.1`",
    ),
];

/// Notations that have a meaning in other programs.
const OTHER_NOTATIONS: &[Surprise] = &[
    (
        "match: { method: PSOT }",
        "clients send no method `PSOT`, did you mean `POST`?",
    ),
    (
        "match: { host: [caf\u{e9}.example, shop.example] }",
        "browsers send such a name in ASCII",
    ),
    (
        "match: { host: .shop.example }",
        "no host begins with a dot: for all below it write `\"*.shop.example\"`",
    ),
    (
        "per: ['user, tenant']",
        "`user, tenant` is the name of one entry as it stands: did you mean `[user, tenant]`?",
    ),
    ("per: [$user, '{tenant}']", "did you mean `tenant`?"),
    ("match: { method: [PROPFIND, \"P*\", GET, SEARCH] }", ""),
    (
        "match: { method: purge }",
        "are read in capitals, so `purge` is none of them: write `PURGE`",
    ),
    (
        "match: { path: /users/:id/files }",
        "`/users/:id/files` is read as it stands, only `*` is any run of characters: did you \
         mean `/users/*/files`?",
    ),
    ("match: { path: /api/.* }", "did you mean `/api/*`?"),
    ("match: { path: /login$ }", "did you mean `/login`?"),
    (
        "match: { path: [\"/.*\", \"/index.*\", \"/v1/items:batch\", \"/api/**\"] }",
        "",
    ),
    (
        "match: { remote_address: \"10.1.*\" }",
        "`10.1.*` is compared as text, and an address has many spellings: write a network such as `10.1.0.0/16`",
    ),
    ("match: { remote_address: \"*\" }", ""),
];

/// Limits that always refuse, never apply, or shut everyone out.
const HARDLY_MEANT: &[Surprise] = &[
    (
        "burst: 5, cost: 6",
        "every call costs 6 here and the limit holds 5 at most",
    ),
    ("burst: 5, cost: 5", ""),
    ("debt: true, cost: 6", ""),
    (
        "burst: 9, cost: 6, overrides: [{ when: { t: x }, burst: 2 }]",
        "the limit holds 2 at most",
    ),
    (
        "on_missing: shared_key",
        "it says what a missing entry of `per` means, and the rule has none",
    ),
    (
        "match: { path: \"/api/*\" }, overrides: [{ when: { path: /login }, rate: 2/s }]",
        "the rule matches no call with such a `path`, so the override never wins",
    ),
    (
        "match: { path: \"/api/*\" }, overrides: [{ when: { path: [/login, /api/a] }, rate: 2/s }]",
        "",
    ),
    (
        "overrides: [{ when: { t: \"a*\" }, rate: 2/s }, { when: { t: acme, u: x }, rate: 3/s }]",
        "overrides[0] matches all of these as well and comes first: write this one before it",
    ),
    (
        "overrides: [{ when: { t: acme }, rate: 3/s }, { when: { t: \"a*\" }, rate: 2/s }]",
        "",
    ),
    (
        "ban: { after: 1, for: 1m }",
        "its ban refuses everybody because of one: write `per`",
    ),
    (
        "per: [user], on_missing: shared_key, ban: { after: 1, for: 1m }",
        "share one key, and a ban refuses all of them",
    ),
    ("per: [user], ban: { after: 1, for: 1m }", ""),
    (
        "per: [user], ban: { after: 1, for: [1h, 10m] }",
        "a ban is shorter than the one before it, for a caller who goes on: write `for: [10m, 1h]`",
    ),
    ("per: [user], ban: { after: 1, for: [1m, 1m, 1h] }", ""),
];

/// A matcher that can match, but hardly as intended, gives a warning.
#[test]
fn what_may_surprise_is_told() {
    let tables = [NEARLY_KNOWN, OTHER_NOTATIONS, HARDLY_MEANT];
    for (fields, expected) in tables.into_iter().flatten() {
        let text = format!("domain: d\nrules: [{{ name: r, rate: 1/s, {fields} }}]");
        let told: Vec<String> = parse_str("f", &text)
            .unwrap()
            .warnings
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(told.is_empty(), expected.is_empty(), "{fields}: {told:?}");
        assert!(told.concat().contains(expected), "{fields}: {told:?}");
    }
}

/// A usual setting that may leave people unlimited is a note; and a note on many places is written once.
#[test]
fn calls_that_may_pass_unlimited_are_noted() {
    let notes = |rules: &str| -> Vec<String> {
        let loaded = parse_str("f", &format!("domain: d\nrules: [{rules}]")).unwrap();
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        loaded.notes.iter().map(ToString::to_string).collect()
    };
    let expected = "f:2:9: rules[0]: no limit applies here to a call without `user`: write `on_missing: shared_key` to \
                    have all of them share one key, or `on_missing: skip` if that is meant";
    let rule = "{ name: a, per: [remote_address, user], rate: 1/s }";
    assert_eq!(notes(rule), [expected]);
    let many: Vec<String> = (0..40)
        .map(|n| {
            rule.replace("1/s", "1/h")
                .replace("name: a", &format!("name: r{n}, match: {{ n: \"{n}\" }}"))
        })
        .collect();
    assert_eq!(
        notes(&many.join(", ")),
        [format!("{expected} (and at 39 more places of this file)")]
    );
    for silent in [
        "{ name: a, per: [remote_address], rate: 1/s }",
        "{ name: a, per: [user], on_missing: skip, rate: 1/s }",
        "{ name: a, per: [user], on_missing: shared_key, rate: 1/s }",
        "{ name: a, match: { user: \"*\" }, per: [user], rate: 1/s }",
        "{ name: a, rate: 1/s }",
    ] {
        assert_eq!(notes(silent), [""; 0], "{silent}");
    }
}

#[test]
fn equal_warnings_are_one() {
    let rules: Vec<String> = (0..40)
        .map(|n| format!("{{ name: r{n}, match: {{ ip: \"{n}\" }}, rate: 1/s }}"))
        .collect();
    let text = format!("domain: d\nrules: [{}]", rules.join(", "));
    let warnings = parse_str("f", &text).unwrap().warnings;
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].ends_with("(and at 39 more places of this file)"),
        "{told:?}"
    );
}

/// Rules beside a budget of 100,000 tokens a minute for each team, and what is told of the two.
const BESIDE_TOKENS: &[(&str, &str)] = &[
    (
        "per: [team], algorithm: sliding_log, limit: 60/min",
        "`tokens` (token_bucket 100000/min, burst 100000) can never refuse beside `calls` (sliding_log 60/min)",
    ),
    (
        "per: [team], rate: 60/min",
        "write `cost: 1` in the one that counts calls, or leave `tokens` out",
    ),
    (
        "per: [team], algorithm: fixed_window, limit: 1000/day, align: calendar",
        "`tokens` (token",
    ),
    (
        "match: { kind: batch }, per: [team], rate: 200000/min",
        "`calls` (token_bucket 200000/min, burst 200000) can never refuse beside `tokens`",
    ),
    (
        "rate: 60/min",
        "`tokens` (token_bucket 100000/min, burst 100000) can never refuse beside `calls` (token",
    ),
    (
        "per: [team, user], rate: 200000/min",
        "`calls` (token_bucket 200000/min, burst 200000) can never refuse beside `tokens`",
    ),
    ("per: [team], rate: 100000/min", "leave one of them out"),
    ("rate: 1000000/min", ""),
    ("per: [team, user], rate: 60/min", ""),
    (
        "per: [team, user], on_missing: shared_key, rate: 200000/min",
        "",
    ),
    (
        "per: [team], rate: 100000/min, ban: { after: 1, for: 1m }",
        "",
    ),
    ("per: [team], rate: 60/min, cost: 1", ""),
    ("per: [team], algorithm: concurrency, max: 4", ""),
    ("per: [team], rate: 60/min, shadow: true", ""),
    ("per: [user], rate: 60/min", ""),
    ("match: { kind: batch }, per: [team], rate: 60/min", ""),
    ("per: [team], rate: 5000/s", ""),
    ("per: [team], rate: 60/min, burst: 200000", ""),
    ("per: [team], rate: 60/min, debt: true", ""),
    (
        "per: [team], algorithm: sliding_window, limit: 1000000/h",
        "",
    ),
    (
        "per: [team], rate: 60/min, overrides: [{ when: { team: red }, rate: 1000000/min }]",
        "",
    ),
];

/// Of two rules that are charged what a call costs, one may make the other superfluous. Then they were
/// probably meant to count different things.
#[test]
fn rules_that_count_different_things_are_told() {
    let tokens = "{ name: tokens, per: [team], rate: 100000/min }";
    for (other, expected) in BESIDE_TOKENS {
        for second in [false, true] {
            let calls = format!("{{ name: calls, {other} }}");
            let rules = if second {
                [tokens, &calls]
            } else {
                [&calls, tokens]
            };
            let text = format!("domain: d\nrules:\n  - {}\n  - {}\n", rules[0], rules[1]);
            let warnings = parse_str("f", &text).unwrap().warnings;
            let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            // Only a rule that comes later is known to be covered by one for all calls.
            if other.starts_with("match") && !second {
                continue;
            }
            assert_eq!(
                told.len(),
                usize::from(!expected.is_empty()),
                "{text}{told:?}"
            );
            assert!(told.concat().contains(*expected), "{text}{told:?}");
        }
    }
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

/// Fields of a rule, those of its override, and the limit that they make.
type OverCase = (&'static str, &'static str, Result<Limit, LimitError>);

fn check_overrides(cases: Vec<OverCase>) {
    let when = matchers("t", Pattern::Exact("x".into()));
    for (base, over, limit) in cases {
        let said = rule(&format!(
            "{base}, overrides: [{{ when: {{ t: x }}, {over} }}]"
        ));
        let expected = Override {
            when: when.clone().into(),
            effect: Effect::Limit(limit.unwrap()),
        };
        assert_eq!(said.overrides, [expected], "{base} | {over}");
    }
}

#[test]
fn overrides_of_buckets_take_over_what_they_do_not_say() {
    let bucket = |count| bucket(count, seconds(1));
    let ban = Ban::new(1, None, vec![seconds(60)]).unwrap();
    check_overrides(vec![
        ("rate: 10/s", "rate: 20/s", bucket(20).build()),
        (
            "rate: 10/s, burst: 15",
            "rate: 20/s",
            bucket(20).burst(15).build(),
        ),
        ("rate: 10/s", "burst: 20", bucket(10).burst(20).build()),
        (
            "rate: 10/s, burst: 15, initial: 3",
            "burst: 20",
            bucket(10).burst(20).initial(3).build(),
        ),
        (
            "rate: 10/s",
            "refill: { amount: 7, every: 1s }",
            TokenBucket::refill(7, seconds(1)).build(),
        ),
        (
            "refill: { amount: 7, every: 1s }",
            "rate: 20/s",
            bucket(20).build(),
        ),
        (
            "rate: 10/s",
            "algorithm: sliding_log, limit: 5/min",
            Limit::sliding_log(5, seconds(60)).build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 10/s, delay_after: burst",
            "burst: 20",
            Limit::leaky_bucket(rate(10, seconds(1)))
                .burst(20)
                .delay_after(20)
                .build(),
        ),
        (
            "rate: 10/s, ban: { after: 1, for: 1m }",
            "burst: 20",
            bucket(10)
                .burst(20)
                .build()
                .map(|limit| limit.with_ban(ban)),
        ),
    ]);
}

#[test]
fn overrides_of_windows_take_over_what_they_do_not_say() {
    check_overrides(vec![
        (
            "algorithm: fixed_window, limit: 5/min",
            "limit: 7",
            Limit::fixed_window(7, seconds(60)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/min",
            "window: 1h",
            Limit::fixed_window(5, seconds(3600)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: Asia/Tokyo",
            "limit: 7",
            Limit::calendar_window(7, CalendarUnit::Day, "Asia/Tokyo").build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: Asia/Tokyo",
            "align: first_request",
            Limit::fixed_window(5, seconds(86_400)).build(),
        ),
        (
            "algorithm: sliding_window, limit: 5/min, segments: 6",
            "limit: 7",
            Limit::sliding_window(7, seconds(60)).segments(6).build(),
        ),
    ]);
}

/// `max`, with its queue, and `adaptive` replace each other.
#[test]
fn overrides_of_permits_take_over_what_they_do_not_say() {
    let fixed = "algorithm: concurrency, max: 4, queue: 2, unit_delay: 1s, lease: 9s";
    let learned = "algorithm: concurrency, adaptive: { min: 2, max: 50 }, lease: 9s";
    let permits = |max| Limit::concurrency(max).lease(seconds(9));
    check_overrides(vec![
        (
            fixed,
            "max: 7",
            permits(7).queue(2).unit_delay(seconds(1)).build(),
        ),
        (
            fixed,
            "adaptive: { min: 1, max: 8 }",
            permits(8).adaptive(1).build(),
        ),
        (
            learned,
            "lease: 3s",
            permits(50).adaptive(2).lease(seconds(3)).build(),
        ),
        (
            learned,
            "adaptive: { min: 3, max: 8 }",
            permits(8).adaptive(3).build(),
        ),
        (learned, "max: 7", permits(7).build()),
        (learned, "max: 7, queue: 1", permits(7).queue(1).build()),
    ]);
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
