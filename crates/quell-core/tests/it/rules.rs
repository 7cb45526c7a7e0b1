//! Rules: which queries they match, which of them share a key, and the resulting verdict.

use std::sync::Arc;

use quell_core::cost::Cost;
use quell_core::decision::RetryAfter;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::key::KeyName;
use quell_core::limit::Limit;
use quell_core::rule::{
    DescriptorReader, Effect, EmptyValue, Mismatch, OnMissing, Per, Plans, Prefix, Rule, RuleSet,
};
use quell_core::time::Now;

use crate::calendar::FourDays;
use crate::kind::MINUTE;
use crate::shop::{Shop, With, matcher, minutely, query, rule, said, wait};

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn matches(patterns: &[&str], value: &[u8]) -> bool {
    let mut descriptor = Descriptor::new();
    descriptor.push("e", value);
    rule("r", 1)
        .matching("e", patterns)
        .applies(&DescriptorReader::new(&descriptor))
        .is_ok()
}

#[test]
fn patterns_match() {
    let table: &[(&[&str], &str, bool)] = &[
        (&["POST"], "POST", true),
        (&["POST"], "post", false),
        (&["POST"], "POST ", false),
        (&["/api/*"], "/api/", true),
        (&["/api/*"], "/api/a/b/c", true),
        (&["/api/*"], "/api", false),
        (&["/*/b"], "/a/a/b", true),
        (&["*.png"], "a.png.gif", false),
        (&["a*a"], "a", false),
        (&["*"], "", false),
        (&[""], "", false),
        (&["10.0.0.0/8"], "10.255.0.1", true),
        (&["10.0.0.0/8"], "11.0.0.1", false),
        (&["10.0.0.0/8"], "::ffff:10.0.0.1", true),
        (&["10.9.9.9/8"], "10.0.0.1", true),
        (&["10.0.0.0/8"], "not an address", false),
        (&["2001:db8::/32"], "2001:db8:1::", true),
        (&["2001:db8::/32"], "2001:db9::", false),
        (&["0.0.0.0/0"], "2001:db8::1", false),
        (&["GET", "HEAD"], "HEAD", true),
        (&["GET", "HEAD"], "POST", false),
        (&["10.0.0.0/8", "fe80::*", "localhost"], "localhost", true),
        (&["10.0.0.0/8", "fe80::*", "localhost"], "fe80::1", true),
        (&["10.0.0.0/8", "fe80::*", "localhost"], "10.1.1.1", true),
        (&[], "anything", false),
    ];
    for (patterns, value, expected) in table {
        assert_eq!(
            matches(patterns, value.as_bytes()),
            *expected,
            "{patterns:?} {value}"
        );
    }
    assert!(matches(&["a*"], b"a\xff\x00"), "any bytes are a value");
    assert!(!matches(&["10.0.0.0/8"], b"\xff"));
}

#[test]
fn a_hostile_value_costs_a_glob_no_more_than_the_product() {
    let value = "a".repeat(20_000);
    assert!(!matches(&["*a*a*a*a*a*b"], value.as_bytes()));
}

#[test]
fn all_matchers_must_hold_and_say_which_does_not() {
    let rule = rule("r", 1)
        .matching("method", &["POST"])
        .matching("path", &["/login"])
        .per("user");
    let reason = |entries: &[(&str, &str)]| {
        let query = query(entries);
        match rule.applies(&DescriptorReader::new(&query.descriptors()[0])) {
            Ok(()) => "applies".to_owned(),
            Err(Mismatch::Lacks(matcher)) => format!("lacks {}", matcher.entry),
            Err(Mismatch::Differs(matcher)) => format!("differs {}", matcher.entry),
            Err(Mismatch::LacksKey(entry)) => format!("lacks key {entry}"),
        }
    };
    assert_eq!(reason(&[]), "lacks method");
    assert_eq!(
        reason(&[("method", "GET"), ("path", "/login")]),
        "differs method"
    );
    assert_eq!(reason(&[("method", "POST"), ("path", "/")]), "differs path");
    let login = [("method", "POST"), ("path", "/login")];
    assert_eq!(reason(&login), "lacks key user");
    assert_eq!(reason(&[login[0], login[1], ("user", "u")]), "applies");
}

/// Number of bits that count of an IPv4 and of an IPv6 address.
type Bits = Option<(u8, u8)>;

/// The number of different keys that these values of `remote_address` make.
fn keys(prefix: Bits, values: &[&str]) -> usize {
    let prefix = prefix.and_then(|(v4, v6)| Prefix::new(v4, v6));
    let per = Per {
        entry: Arc::from("remote_address"),
        prefix,
        colocate: false,
    };
    let mut shop = Shop::new(vec![Rule {
        per: vec![per],
        ..rule("r", 100)
    }]);
    for value in values {
        shop.acquire(&query(&[("remote_address", value)]));
    }
    shop.states.len()
}

#[test]
fn addresses_are_cut_to_their_prefix() {
    let (cut, whole) = (Some((24, 64)), Some((32, 128)));
    let table: &[(Bits, &[&str], usize)] = &[
        (cut, &["10.0.0.1", "10.0.0.255", "10.0.0.0"], 1),
        (cut, &["10.0.0.1", "10.0.1.1"], 2),
        (cut, &["2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff"], 1),
        (cut, &["2001:db8::1", "2001:db8:0:1::1"], 2),
        (cut, &["10.0.0.1", "::ffff:10.0.0.7"], 1),
        (cut, &["::10.0.0.1", "10.0.0.1"], 2),
        (cut, &["nonsense", "nonsense2", "10.0.0.1"], 3),
        (Some((0, 0)), &["10.0.0.1", "192.168.0.1"], 1),
        (Some((0, 0)), &["10.0.0.1", "2001:db8::1"], 2),
        (
            whole,
            &["2001:db8::1", "2001:0db8:0:0::1", "2001:DB8::1"],
            1,
        ),
        (whole, &["10.0.0.1", "::ffff:10.0.0.1"], 1),
        (None, &["10.0.0.1", "::ffff:10.0.0.1"], 2),
        // A caller can use any number of ports.
        (
            whole,
            &["10.0.0.1", "10.0.0.1:443", "[::ffff:10.0.0.1]:80"],
            1,
        ),
        (
            whole,
            &["fe80::1", "[fe80::1]", "[fe80::1]:80", "[fe80::1%eth0]:1"],
            1,
        ),
        (whole, &["fe80::1", "fe80::1%eth0", "FE80::1%1"], 1),
        (cut, &["fe80::1%eth0", "[fe80::2%eth0]:443"], 1),
        // NAT64: the IPv4 addresses inside, and where they may be anywhere each address.
        (
            whole,
            &["64:ff9b::10.0.0.1", "10.0.0.1", "64:ff9b::a00:2"],
            2,
        ),
        (cut, &["64:ff9b:1::10.0.0.1", "64:ff9b:1::10.0.0.2"], 2),
        (
            whole,
            &["10.0.0.1", "10.0.0.1:", "10.0.0.1:http", "10.0.0.1%1"],
            3,
        ),
        (
            whole,
            &["fe80::1", "[fe80::1", "[fe80::1]x", "[10.0.0.1]"],
            4,
        ),
    ];
    for (prefix, values, expected) in table {
        assert_eq!(keys(*prefix, values), *expected, "{prefix:?} {values:?}");
    }
    assert!(Prefix::new(33, 64).is_none() && Prefix::new(24, 129).is_none());
}

#[test]
fn a_missing_entry_skips_the_rule_or_shares_a_key() {
    let skip = rule("skip", 5).per("user");
    let shared = Rule {
        on_missing: OnMissing::SharedKey,
        ..rule("shared", 5).per("user")
    };
    let mut shop = Shop::new(vec![skip, shared]);
    let (none, empty) = (query(&[]), query(&[("user", "")]));
    assert_eq!(said(&shop.acquire(&none)), [("shared", true, 4)]);
    assert_eq!(said(&shop.acquire(&none)), [("shared", true, 3)]);
    assert_eq!(said(&shop.acquire(&empty)), [("shared", true, 2)]);
}

/// A gateway sends an empty value where it has none: it must not be a key of its own, nor one of the
/// values of `*`.
#[test]
fn an_empty_value_is_missing_unless_the_rule_keeps_it() {
    let rules = |empty: EmptyValue| {
        let with = |rule: Rule| Rule { empty, ..rule };
        let unlimited = Rule {
            on_missing: OnMissing::SharedKey,
            ..rule("anonymous", 5)
                .per("user")
                .when("user", "*", Effect::Unlimited)
        };
        let matched = rule("matched", 5).matching("user", &["*"]);
        let named = rule("named", 5).matching("user", &[""]);
        let network = rule("network", 5).per(Per::address("user"));
        Shop::new([unlimited, matched, named, network].map(with).into())
    };
    let (none, empty) = (query(&[]), query(&[("user", "")]));
    let mut missing = rules(EmptyValue::Missing);
    assert_eq!(said(&missing.acquire(&none)), [("anonymous", true, 4)]);
    assert_eq!(said(&missing.acquire(&empty)), [("anonymous", true, 3)]);
    let mut kept = rules(EmptyValue::Keep);
    assert_eq!(said(&kept.acquire(&none)), [("anonymous", true, 4)]);
    let expected = ["matched", "named", "network"].map(|name| (name, true, 4));
    assert_eq!(said(&kept.acquire(&empty)), expected);
    let either = query(&[("user", ""), ("user", "ann")]);
    let expected = ["matched", "network"].map(|name| (name, true, 4));
    assert_eq!(
        said(&missing.acquire(&either)),
        expected,
        "a value was found"
    );
}

#[test]
fn the_first_override_that_matches_wins() {
    let limit = |limit| Effect::Limit(minutely(limit));
    let rule = rule("r", 5)
        .per("tenant")
        .when("tenant", "acme", limit(50))
        .when("tenant", "a*", limit(20))
        .when("tenant", "internal", Effect::Unlimited)
        .when("tenant", "*", limit(7));
    let mut shop = Shop::new(vec![rule]);
    let mut limit_of = |tenant| {
        let verdict = shop.peek(&query(&[("tenant", tenant)]));
        verdict.decisions.first().map(|rule| rule.decision.limit)
    };
    assert_eq!(limit_of("acme"), Some(50));
    assert_eq!(limit_of("abc"), Some(20));
    assert_eq!(limit_of("internal"), None);
    assert_eq!(limit_of("other"), Some(7));
}

#[test]
fn unlimited_adds_no_decision() {
    let unlimited = Rule {
        effect: Effect::Unlimited,
        ..rule("unlimited", 1)
    };
    let but_for_one = rule("but", 3).per("user");
    let but_for_one = Rule {
        effect: Effect::Unlimited,
        ..but_for_one.when("user", "mallory", Effect::Limit(minutely(1)))
    };
    let mut shop = Shop::new(vec![unlimited, but_for_one]);
    let verdict = shop.acquire(&query(&[("user", "alice")]));
    assert!(verdict.is_allow() && verdict.is_unmatched());
    assert_eq!(verdict.remaining, None);
    let verdict = shop.acquire(&query(&[("user", "mallory")]));
    assert_eq!(said(&verdict), [("but", true, 0)]);
}

#[test]
fn every_rule_that_matches_applies_and_all_are_charged_or_none() {
    let mut shop = Shop::new(vec![rule("wide", 3), rule("narrow", 2).per("user")]);
    let alice = query(&[("user", "alice")]);
    let bob = query(&[("user", "bob")]);
    assert_eq!(
        said(&shop.acquire(&alice)),
        [("wide", true, 2), ("narrow", true, 1)]
    );
    assert_eq!(
        said(&shop.acquire(&alice)),
        [("wide", true, 1), ("narrow", true, 0)]
    );
    let refused = shop.acquire(&alice);
    assert_eq!(said(&refused), [("wide", true, 1), ("narrow", false, 0)]);
    assert_eq!(
        refused.binding_rule().map(|rule| &*rule.rule),
        Some("narrow")
    );
    assert_eq!(wait(&refused), Some(60_000_000_000));
    assert_eq!(
        said(&shop.acquire(&bob)),
        [("wide", true, 0), ("narrow", true, 1)]
    );
    assert_eq!(
        said(&shop.acquire(&bob)),
        [("wide", false, 0), ("narrow", true, 1)]
    );
}

#[test]
fn shadow_rules_are_reported_and_refuse_nobody() {
    let shadow = Rule {
        shadow: true,
        ..rule("shadow", 1)
    };
    let mut shop = Shop::new(vec![shadow, rule("real", 3)]);
    let any = query(&[]);
    assert_eq!(
        said(&shop.acquire(&any)),
        [("shadow", true, 0), ("real", true, 2)]
    );
    let second = shop.acquire(&any);
    assert_eq!(said(&second), [("shadow", false, 0), ("real", true, 1)]);
    assert!(second.is_allow());
    assert_eq!((second.remaining, second.binding), (Some(1), Some(1)));
    assert!(second.decisions[0].shadow && !second.decisions[1].shadow);
}

#[test]
fn a_shadow_rule_is_not_charged_by_a_query_that_fails() {
    let shadow = Rule {
        shadow: true,
        ..rule("shadow", 9)
    };
    let mut shop = Shop::new(vec![shadow, rule("real", 1)]);
    let any = query(&[]);
    assert_eq!(
        said(&shop.acquire(&any)),
        [("shadow", true, 8), ("real", true, 0)]
    );
    assert_eq!(
        said(&shop.acquire(&any)),
        [("shadow", true, 8), ("real", false, 0)]
    );
}

#[test]
fn descriptors_have_costs_and_rules_may_overrule_them() {
    let calls = Rule {
        cost: Some(Cost::ONE),
        ..rule("calls", 10)
    };
    let mut shop = Shop::new(vec![rule("units", 10), calls]);
    let verdict = shop.acquire(&query(&[]).cost(cost(4)));
    assert_eq!(said(&verdict), [("units", true, 6), ("calls", true, 9)]);
    let verdict = shop.acquire(&query(&[]).cost(cost(11)));
    assert!(verdict.is_permanent());
    assert_eq!(said(&verdict), [("units", false, 6), ("calls", true, 9)]);
}

fn descriptor<'a>(user: &'a str, units: u64) -> Descriptor<'a> {
    let mut descriptor = Descriptor::new();
    descriptor.push("user", user);
    descriptor.cost = cost(units);
    descriptor
}

#[test]
fn a_key_matched_twice_is_charged_once_with_the_sum() {
    let mut shop = Shop::new(vec![rule("all", 20), rule("each", 10).per("user")]);
    let descriptors = vec![descriptor("a", 2), descriptor("b", 3), descriptor("a", 4)];
    let query = Query::with_descriptors("shop", descriptors);
    let verdict = shop.acquire(&query);
    assert_eq!(
        said(&verdict),
        [("all", true, 11), ("each", true, 4), ("each", true, 7)]
    );
    let verdict = shop.acquire(&query);
    assert_eq!(
        said(&verdict),
        [("all", true, 11), ("each", false, 4), ("each", true, 7)]
    );
    assert_eq!(shop.states.len(), 3);
}

#[test]
fn sums_of_costs_saturate() {
    let mut shop = Shop::new(vec![rule("all", u64::MAX)]);
    let descriptors = vec![descriptor("a", u64::MAX), descriptor("b", u64::MAX)];
    let verdict = shop.acquire(&Query::with_descriptors("shop", descriptors));
    assert_eq!(said(&verdict), [("all", true, 0)]);
}

#[test]
fn charges_stand_in_file_order() {
    let rules = vec![rule("b", 9).per("user"), rule("a", 9)];
    let mut shop = Shop::new(rules);
    let descriptors = vec![descriptor("x", 1), descriptor("y", 1)];
    let verdict = shop.acquire(&Query::with_descriptors("shop", descriptors));
    let names: Vec<&str> = verdict.decisions.iter().map(|rule| &*rule.rule).collect();
    assert_eq!(names, ["b", "b", "a"]);
    assert_eq!(verdict.binding, Some(2), "two units of the same key");
}

#[test]
fn domains_and_names_keep_keys_apart() {
    let mut shop = Shop::new(vec![rule("a", 5).per("user"), rule("b", 5).per("user")]);
    shop.acquire(&query(&[("user", "u")]));
    assert_eq!(shop.states.len(), 2);
    let elsewhere = Query::new("other").entry("user", "u");
    assert!(shop.acquire(&elsewhere).is_unmatched());
    assert!(shop.rules.has_domain("shop") && !shop.rules.has_domain("other"));
    assert!(shop.rules.domain("other").is_empty());
}

#[test]
fn of_several_entries_with_one_name_the_first_counts() {
    let mut shop = Shop::new(vec![rule("r", 5).matching("user", &["a"]).per("user")]);
    assert!(
        !shop
            .acquire(&query(&[("user", "a"), ("user", "b")]))
            .is_unmatched()
    );
    assert!(
        shop.acquire(&query(&[("user", "b"), ("user", "a")]))
            .is_unmatched()
    );
}

#[test]
fn no_rules_and_no_descriptors_are_unmatched() {
    let mut shop = Shop::new(vec![]);
    assert!(shop.acquire(&query(&[("user", "a")])).is_unmatched());
    let mut shop = Shop::new(vec![rule("r", 5)]);
    let empty = Query::with_descriptors("shop", vec![]);
    assert!(shop.acquire(&empty).is_unmatched());
    let none = RuleSet::default();
    assert!(
        none.resolve(&query(&[]), Now::from_nanos(0), &FourDays)
            .charges()
            .is_empty()
    );
}

/// A key can be named for administration without a query that matches.
#[test]
fn a_rule_names_a_key_whatever_its_matchers_say() {
    let rules = vec![rule("r", 5).matching("path", &["/a"]).per("user")];
    let mut shop = Shop::new(rules);
    let asked = query(&[("path", "/a"), ("user", "u")]);
    shop.acquire(&asked);
    let named = query(&[("user", "u")]);
    let now = Now::from_nanos(0);
    let descriptor = &named.descriptors()[0];
    let set = shop
        .rules
        .select("shop", "r", descriptor, now, &FourDays)
        .unwrap();
    let key = set.key(&set.charges()[0]).as_bytes().to_vec();
    assert!(shop.states.contains_key(&key));
    assert!(
        shop.rules
            .select("shop", "other", descriptor, now, &FourDays)
            .is_none()
    );
    assert!(
        shop.rules
            .select("other", "r", descriptor, now, &FourDays)
            .is_none()
    );
}

/// Limits of 100 and 2 for one user; which one applies depends on an entry that is not part of the
/// key.
fn two_plans() -> Shop {
    let small = Effect::Limit(minutely(2));
    Shop::new(vec![
        rule("r", 100).per("user").when("plan", "small", small),
    ])
}

/// A caller that asks under two limits in turn has one key, and is let off by neither.
#[test]
fn a_key_is_one_whatever_numbers_apply() {
    let mut shop = two_plans();
    let large = query(&[("user", "u"), ("plan", "large")]);
    let small = query(&[("user", "u"), ("plan", "small")]);
    assert_eq!(shop.acquire(&small).remaining, Some(1));
    assert_eq!(
        shop.acquire(&large.clone().cost(cost(90))).remaining,
        Some(9),
        "what was used under the other limit is used"
    );
    assert!(!shop.acquire(&small).is_allow());
    assert_eq!(shop.acquire(&large).remaining, Some(8));
    assert_eq!(
        shop.acquire(&large.clone().cost(cost(8))).remaining,
        Some(0)
    );
    assert!(!shop.acquire(&large).is_allow());
    assert_eq!(shop.states.len(), 1);
    let key = shop.states.keys().next().unwrap();
    assert_eq!(KeyName::parse(key).unwrap().to_string(), "user=u");
    shop.now = MINUTE;
    assert_eq!(shop.acquire(&small).remaining, Some(1));
}

/// Both descriptors of one query are on one key: it is charged once, under the smaller limit.
#[test]
fn descriptors_under_two_limits_are_charged_under_the_smaller() {
    let plan = |plan| {
        let mut descriptor = descriptor("u", 1);
        descriptor.push("plan", plan);
        descriptor
    };
    for plans in [["large", "small"], ["small", "large"]] {
        let mut shop = two_plans();
        let both = Query::with_descriptors("shop", plans.map(plan).to_vec());
        assert_eq!(said(&shop.acquire(&both)), [("r", true, 0)]);
        assert_eq!(said(&shop.acquire(&both)), [("r", false, 0)]);
        let large = query(&[("user", "u"), ("plan", "large")]);
        assert_eq!(said(&shop.acquire(&large)), [("r", true, 97)]);
    }
}

/// The key of an override is that of its rule, whether the captured values tell which applies or not.
#[test]
fn an_override_has_the_keys_of_its_rule() {
    let limit = || Effect::Limit(minutely(9));
    let per = |bits: Bits| Rule {
        per: vec![Per {
            entry: Arc::from("address"),
            prefix: bits.and_then(|(v4, v6)| Prefix::new(v4, v6)),
            colocate: false,
        }],
        ..rule("r", 5)
    };
    let key_of = |rule: Rule| {
        let mut shop = Shop::new(vec![rule]);
        let verdict = shop.acquire(&query(&[("address", "10.1.2.3"), ("plan", "x")]));
        (
            verdict.decisions[0].decision.limit,
            shop.states.keys().next().cloned(),
        )
    };
    for (bits, pattern) in [
        (None, "10.1.2.3"),
        (None, "10.0.0.0/8"),
        (Some((24, 64)), "10.1.2.0/25"),
        (Some((24, 64)), "10.*"),
    ] {
        let (base, own) = key_of(per(bits));
        let (over, other) = key_of(per(bits).when("address", pattern, limit()));
        assert_eq!((base, over), (5, 9), "{pattern}");
        assert_eq!(own, other, "{bits:?} {pattern}");
        let mut both = per(bits).when("address", pattern, limit());
        both.overrides[0].when.push(matcher("plan", &["x"]));
        assert_eq!(own, key_of(both).1, "{bits:?} {pattern}");
    }
}

/// A plan that the call names chooses the numbers before overrides do; an unknown one leaves the rule as it is, and
/// is told.
#[test]
fn a_plan_chooses_the_numbers() {
    let limits = [("free", Some(2)), ("gold", Some(50)), ("staff", None)];
    let effects = limits.map(|(name, limit)| {
        let effect = limit.map_or(Effect::Unlimited, |limit| Effect::Limit(minutely(limit)));
        (Arc::from(name), effect)
    });
    let names = ["elsewhere", "free", "gold", "staff"].map(Arc::from);
    let plans = Plans {
        entry: Some(Arc::from("plan")),
        effects: effects.into(),
        names: Arc::new(names.into()),
    };
    let over = rule("r", 10)
        .per("user")
        .when("user", "vip", Effect::Limit(minutely(99)));
    let shop = Shop::new(vec![Rule {
        plans: Some(Arc::new(plans)),
        ..over
    }]);
    let chosen = |user, plan: Option<&'static str>| {
        let asked = query(&[("user", user)]);
        let asked = plan.map_or(asked.clone(), |plan| asked.entry("plan", plan));
        let set = shop.rules.resolve(&asked, Now::from_nanos(0), &FourDays);
        let limit = set
            .charges()
            .first()
            .map(|charge| charge.active.limit.max());
        (limit, set.unknown_plan().is_some())
    };
    assert_eq!(chosen("u", None), (Some(10), false));
    assert_eq!(chosen("u", Some("")), (Some(10), false));
    assert_eq!(chosen("u", Some("free")), (Some(2), false));
    assert_eq!(chosen("vip", Some("free")), (Some(2), false));
    assert_eq!(chosen("u", Some("gold")), (Some(50), false));
    assert_eq!(chosen("u", Some("staff")), (None, false));
    assert_eq!(chosen("vip", Some("elsewhere")), (Some(99), false));
    assert_eq!(chosen("u", Some("Gold")), (Some(10), true));
    assert_eq!(chosen("vip", Some("x")), (Some(99), true));
}

/// A call that is refused for good changes nothing, and what was used stays.
#[test]
fn a_key_that_is_refused_keeps_its_use() {
    let refused = || rule("r", 5).per("user").when("user", "u", Effect::Refuse);
    let mut shop = Shop::new(vec![rule("r", 5).per("user")]);
    let call = query(&[("user", "u")]);
    shop.acquire(&call.clone().cost(cost(3)));
    shop.reload(vec![refused()]);
    let verdict = shop.acquire(&call);
    assert_eq!(said(&verdict), [("r", false, 0)]);
    assert_eq!(verdict.decisions[0].decision.limit, 0);
    assert_eq!(verdict.retry_after, Some(RetryAfter::Never));
    assert!(shop.acquire(&query(&[("user", "other")])).is_allow());
    shop.reload(vec![rule("r", 5).per("user")]);
    assert_eq!(said(&shop.acquire(&call)), [("r", true, 1)]);
}

/// However much it costs, and however many descriptors it has, a call takes one permit of each key, or as
/// many as the rule says.
#[test]
fn a_call_takes_one_permit_whatever_it_costs() {
    let permits = |cost: Option<u64>| Rule {
        cost: cost.and_then(Cost::new),
        ..Rule::new("at-a-time", Limit::concurrency(4))
            .unwrap()
            .per("team")
    };
    let descriptor = |team: &'static str, cost| {
        let mut descriptor = Descriptor::new();
        descriptor.push("team", team);
        descriptor.cost = Cost::new(cost).unwrap();
        descriptor
    };
    for (cost, expected) in [(None, 1), (Some(2), 2)] {
        let shop = Shop::new(vec![permits(cost), rule("tokens", 100_000)]);
        for descriptors in [
            vec![descriptor("red", 2_006)],
            vec![descriptor("red", 2_000), descriptor("red", 6)],
        ] {
            let query = Query::with_descriptors("shop", descriptors);
            let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
            let costs: Vec<u64> = set
                .charges()
                .iter()
                .map(|charge| charge.cost.get())
                .collect();
            assert_eq!(costs, [expected, 2_006]);
            assert!(set.charges()[0].counts_calls);
            assert_eq!(set.cost_origins()[0].fixed, expected);
        }
    }
}
