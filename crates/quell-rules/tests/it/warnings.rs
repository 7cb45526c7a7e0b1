//! Notes on rules that are valid, and hardly meant.

use quell_rules::parse_str;

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

/// Notations of other programs, of which hardly a call has a value.
const OTHER_NOTATIONS: &[Surprise] = &[
    (
        "match: { host: [caf\u{e9}.example, shop.example] }",
        "browsers send such a name in ASCII",
    ),
    (
        "match: { host: .shop.example }",
        "no host begins with a dot: for all below it write `\"*.shop.example\"`",
    ),
    ("match: { method: [PROPFIND, \"P*\", GET, SEARCH] }", ""),
    (
        "match: { method: purge }",
        "are read in capitals, so `purge` is none of them: write `PURGE`",
    ),
    (
        "match: { path: [\"/.*\", \"/index.*\", \"/v1/items:batch\", \"/api/**\"] }",
        "",
    ),
    (
        "match: { remote_address: \"10.1.*\" }",
        "`10.1.*` is compared as text, and an address has many spellings: write a network such as `10.0.0.0/8`",
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
