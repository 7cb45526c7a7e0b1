//! The index finds what a scan of all rules finds, in the same order, and nothing else.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Strategy, proptest};
use proptest::sample::select;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::limit::Limit;
use quell_core::rule::{DescriptorReader, Effect, EmptyValue, Matcher, Override, Patterns, Rule};
use quell_core::time::Now;

use crate::calendar::FourDays;
use crate::shop::{Shop, With, matcher, minutely, query, rule};

const HOUR: Duration = Duration::from_secs(3_600);

const ENTRIES: [&str; 3] = ["method", "path", "p"];
const PATTERNS: [&str; 19] = [
    "a",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "",
    "*",
    "a*",
    "ab*",
    "abcdefgh*",
    "*b",
    "a*b*",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3/32",
    "0.0.0.0/0",
    "::/0",
    "2001:db8::/32",
    "2001:db8::1/128",
    "10*",
];
const VALUES: [&str; 14] = [
    "a",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "abcdefghij",
    "",
    "b",
    "10.1.2.3",
    "10.2.2.3",
    "::ffff:10.1.2.3",
    "2001:DB8::1",
    "2001:db8:0::1",
    "2001:db9::1",
    "ba",
];

/// Entries with the patterns that one rule asks for.
type Asked = Vec<(&'static str, Vec<&'static str>)>;

fn rules() -> impl Strategy<Value = Vec<Asked>> {
    let matcher = (select(&ENTRIES[..]), vec(select(&PATTERNS[..]), 0..4));
    vec(vec(matcher, 0..4), 0..40)
}

fn descriptors() -> impl Strategy<Value = Vec<Vec<(&'static str, &'static str)>>> {
    // An entry may occur several times: the first one counts.
    let entry = (select(&ENTRIES[..]), select(&VALUES[..]));
    vec(vec(entry, 0..5), 1..4)
}

fn named(place: usize, asked: &Asked) -> Rule {
    let matching = |rule: Rule, (entry, patterns): &(&str, Vec<&str>)| {
        let mut rule = rule.matching(entry, patterns);
        // A file cannot contain this, but a program can build it.
        if patterns.is_empty() {
            rule.matchers.last_mut().unwrap().patterns = Patterns::default();
        }
        rule
    };
    asked
        .iter()
        .fold(rule(&format!("rule-{place}"), 1), matching)
}

proptest! {
    #![proptest_config(crate::config(2_000))]

    #[test]
    fn finds_what_a_look_at_every_rule_finds(asked in rules(), said in descriptors()) {
        let rules: Vec<Rule> = asked.iter().enumerate().map(|(place, asked)| named(place, asked)).collect();
        let shop = Shop::new(rules.clone());
        for entries in said {
            let mut descriptor = Descriptor::new();
            for (name, value) in entries {
                descriptor.push(name, value);
            }
            let reader = DescriptorReader::new(&descriptor);
            let applies = rules.iter().enumerate().filter(|(_, rule)| rule.applies(&reader).is_ok());
            let expected: Vec<u32> = applies.map(|(place, _)| u32::try_from(place).unwrap()).collect();
            let query = Query::with_descriptors("shop", vec![descriptor]);
            let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
            let found: Vec<u32> = set.charges().iter().map(|charge| charge.tag).collect();
            assert_eq!(found, expected);
        }
    }
}

proptest! {
    #![proptest_config(crate::config(2_000))]

    /// Also among few, which have no index, and with lists that are long enough for one.
    #[test]
    fn the_override_that_wins_is_the_first_that_matches(
        asked in rules(),
        long in vec(select(&PATTERNS[..]), 0..40),
        said in descriptors(),
    ) {
        let mut rule = rule("one", 1);
        let mut whens: Vec<Asked> = asked.into_iter().filter(|when| !when.is_empty()).collect();
        let middle = whens.len() / 2;
        whens.insert(middle, vec![("path", long)]);
        for (place, when) in whens.iter().enumerate() {
            rule.overrides.push(Override {
                when: named(place, when).matchers.into(),
                effect: Effect::Limit(minutely(place as u64 + 2)),
            });
        }
        let shop = Shop::new(vec![rule.clone()]);
        for entries in said {
            let mut descriptor = Descriptor::new();
            for (name, value) in entries {
                descriptor.push(name, value);
            }
            let reader = DescriptorReader::new(&descriptor);
            let first = rule.overrides.iter().position(|entry| matches_all(&entry.when, &descriptor));
            assert_eq!(rule.override_for(&reader), first);
            let query = Query::with_descriptors("shop", vec![descriptor]);
            let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
            let expected = first.map_or(1, |place| place as u64 + 2);
            assert_eq!(set.charges()[0].active.limit.max(), expected);
        }
    }
}

/// Values of one entry, alone or in lists, short and longer than fits into a pattern.
const TENANTS: [&str; 8] = [
    "a",
    "b",
    "",
    "0123456789abcdef0123456",
    "0123456789abcdef01234567",
    "0123456789abcdef012345678901234567890123",
    "c",
    "d",
];

proptest! {
    #![proptest_config(crate::config(2_000))]

    /// The index of nothing but values is another one.
    #[test]
    fn of_values_of_one_entry_the_first_wins(
        asked in vec((select(&TENANTS[..]), vec(select(&TENANTS[..]), 0..3), select(&["", "*x", "*"][..])), 9..40),
        empty in select(&[EmptyValue::Missing, EmptyValue::Keep][..]),
        said in vec((select(&TENANTS[..]), select(&["x", "yx", "y"][..])), 1..6),
    ) {
        let mut rule = rule("one", 1).per("tenant");
        rule.empty = empty;
        for (place, (tenant, more, path)) in asked.iter().enumerate() {
            let mut all = vec![*tenant];
            all.extend(more);
            let mut when = vec![matcher("tenant", &all)];
            // A pattern without a beginning cannot be looked up: this one is checked.
            when.extend((!path.is_empty()).then(|| matcher("path", &[path])));
            rule.overrides.push(Override {
                when: when.into(),
                effect: match place % 5 {
                    4 => Effect::Unlimited,
                    3 => Effect::Limit(Limit::concurrency(place as u64 + 2).build().unwrap()),
                    2 => Effect::Limit(Limit::fixed_window(place as u64 + 2, HOUR).build().unwrap()),
                    _ => Effect::Limit(minutely(place as u64 + 2)),
                },
            });
        }
        let shop = Shop::new(vec![rule.clone()]);
        for (tenant, path) in said {
            let mut descriptor = Descriptor::new();
            descriptor.push("path", path);
            descriptor.push("tenant", tenant);
            let first = rule.override_for(&DescriptorReader::new(&descriptor));
            let query = Query::with_descriptors("shop", vec![descriptor]);
            let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
            let found = set.charges().first().map(|charge| charge.active.limit.clone());
            let expected = match first.map(|place| &rule.overrides[place].effect) {
                Some(Effect::Limit(limit)) => Some(limit.clone()),
                Some(Effect::Unlimited | Effect::Refuse) => None,
                None if tenant.is_empty() && empty == EmptyValue::Missing => None,
                None => Some(minutely(1)),
            };
            assert_eq!(found, expected, "{tenant} {path}");
        }
    }
}

/// Looks at each pattern by itself.
fn matches_all(when: &[Matcher], descriptor: &Descriptor<'_>) -> bool {
    when.iter().all(|matcher| {
        let value = descriptor
            .get(&matcher.entry)
            .filter(|value| !value.is_empty());
        let mut patterns = matcher.patterns.iter();
        value.is_some_and(|value| patterns.any(|pattern| pattern.matches(value)))
    })
}

#[test]
fn ten_thousand_overrides_are_told_apart() {
    let mut rule = rule("one", 1).per("tenant");
    for place in 0..10_000_u64 {
        rule = rule.when(
            "tenant",
            &format!("t-{place}"),
            Effect::Limit(minutely(place + 2)),
        );
    }
    let shop = Shop::new(vec![rule]);
    for place in (0..20_000_u64).step_by(7) {
        let tenant = format!("t-{place}");
        let query = query(&[("tenant", &tenant)]);
        let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
        let expected = if place < 10_000 { place + 2 } else { 1 };
        assert_eq!(set.charges()[0].active.limit.max(), expected);
    }
}

#[test]
fn ten_thousand_rules_are_told_apart() {
    let rules = (0..10_000).map(|place| {
        let rule = rule(&format!("rule-{place}"), 1).matching("method", &["GET"]);
        match place % 3 {
            0 => rule.matching("path", &[&format!("/tenants/{place}/")]),
            1 => rule.matching("path", &[&format!("/tenants/{place}/*")]),
            _ => rule.matching("path", &[&format!("/t/{place}"), &format!("/u/{place}/*")]),
        }
    });
    let mut shop = Shop::new(rules.collect());
    for place in (0..10_000).step_by(7) {
        let path = match place % 3 {
            0 | 1 => format!("/tenants/{place}/"),
            _ => format!("/u/{place}/orders"),
        };
        let verdict = shop.acquire(&query(&[("method", "GET"), ("path", &path)]));
        let names: Vec<_> = verdict.decisions.iter().map(|rule| &*rule.rule).collect();
        assert_eq!(names, [format!("rule-{place}")]);
        assert!(
            shop.acquire(&query(&[("method", "PUT"), ("path", &path)]))
                .is_unmatched()
        );
    }
}

/// More than a look-up compares in one go.
#[test]
fn many_overrides_of_one_value_are_tried_in_order() {
    let mut rule = rule("one", 1).per("tenant");
    for place in 0..50_u64 {
        rule.overrides.push(Override {
            when: vec![
                matcher("tenant", &["a"]),
                matcher("path", &[&format!("*-{place}")]),
            ]
            .into(),
            effect: Effect::Limit(minutely(place + 2)),
        });
    }
    let shop = Shop::new(vec![rule]);
    for path in 0..60_u64 {
        let name = format!("/-{path}");
        let query = query(&[("tenant", "a"), ("path", &name)]);
        let set = shop.rules.resolve(&query, Now::from_nanos(0), &FourDays);
        let expected = if path < 50 { path + 2 } else { 1 };
        assert_eq!(set.charges()[0].active.limit.max(), expected);
    }
}
