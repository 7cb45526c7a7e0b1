//! Reloads of rule sets: which limits keep their ids, which replace others, and which are gone.

use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::At;
use quell_core::limit::{Limit, LimitId};
use quell_core::rule::{Changes, DomainRules, Effect, LimitIds, Per, Prefix, Rule, RuleSet};
use quell_core::time::{Monotonic, Now};

use crate::kind::{MINUTE, SECOND};
use crate::shop::{Shop, With, minutely, query, rule, said};

fn limit(limit: u64) -> Effect {
    Effect::Limit(minutely(limit))
}

/// The ids of all limits of the domain `shop`, overrides first, rule by rule.
fn ids(rules: &RuleSet) -> Vec<u32> {
    let all = rules.domain("shop").iter().flat_map(|rule| rule.limits());
    all.map(|active| active.id.0).collect()
}

/// New ids, replaced ids and removed ids.
fn summary(changes: &Changes) -> (Vec<u32>, Vec<(u32, u32)>, Vec<u32>) {
    let active = changes.added.iter().map(|active| active.id.0);
    let replaced = changes.replaced.iter().map(|one| (one.from.0, one.to.0));
    let removed = changes.removed.iter().map(|id| id.0);
    (active.collect(), replaced.collect(), removed.collect())
}

#[test]
fn what_did_not_change_keeps_its_name() {
    let rules = || {
        let overridden = rule("b", 5).per("tenant");
        vec![rule("a", 5), overridden.when("tenant", "acme", limit(9))]
    };
    let mut shop = Shop::default();
    assert_eq!(
        summary(&shop.reload(rules())),
        (vec![0, 1, 2], vec![], vec![])
    );
    assert_eq!(ids(&shop.rules), [0, 2, 1]);
    assert_eq!(summary(&shop.reload(rules())), (vec![], vec![], vec![]));
    assert_eq!(ids(&shop.rules), [0, 2, 1]);
    // The order of rules, matchers, shadow and costs do not belong to the limit.
    let mut turned = rules();
    turned.reverse();
    turned[0].shadow = true;
    turned[1] = turned[1].clone().matching("path", &["/x"]);
    assert_eq!(summary(&shop.reload(turned)), (vec![], vec![], vec![]));
    assert_eq!(ids(&shop.rules), [2, 1, 0]);
}

#[test]
fn a_changed_limit_takes_the_place_of_the_old() {
    let mut shop = Shop::new(vec![rule("a", 5), rule("b", 5)]);
    shop.now = 7;
    let changes = shop.reload(vec![rule("a", 6), rule("b", 5)]);
    assert_eq!(summary(&changes), (vec![2], vec![(0, 2)], vec![]));
    assert_eq!(changes.replaced[0].at, Some(Now::from_nanos(7)));
    assert_eq!(ids(&shop.rules), [2, 1]);
}

/// Ids of the limits that no rule has any more.
fn dropped(changes: &Changes) -> Vec<u32> {
    let mut dropped: Vec<_> = changes.dropped.iter().map(|one| one.id.0).collect();
    dropped.sort_unstable();
    dropped
}

const REMEMBERED: u64 = quell_core::rule::REMEMBERED.as_secs() * SECOND;

#[test]
fn rules_and_domains_that_come_back_find_their_state() {
    let mut shop = Shop::new(vec![rule("a", 5), rule("b", 5)]);
    shop.acquire(&query(&[]));
    let (empty, changes) = shop
        .rules
        .reload(vec![], Now::from_nanos(shop.now), &shop.ids);
    assert_eq!(dropped(&changes), [0, 1]);
    assert_eq!(summary(&changes), (vec![], vec![], vec![]));
    shop.rules = empty;
    shop.now = REMEMBERED;
    // One limit unchanged, one with other numbers; the windows of both began anew.
    let changes = shop.reload(vec![rule("a", 5), rule("b", 6)]);
    assert_eq!(summary(&changes), (vec![0, 2], vec![(1, 2)], vec![]));
    assert_eq!(ids(&shop.rules), [0, 2]);
    shop.acquire(&query(&[]));
    // Once more, and another that takes no part.
    shop.reload(vec![rule("c", 5)]);
    shop.now += SECOND;
    shop.reload(vec![rule("a", 5), rule("b", 6)]);
    assert_eq!(
        said(&shop.acquire(&query(&[]))),
        [("a", true, 3), ("b", true, 4)]
    );
}

#[test]
fn removed_rules_and_domains_forget_their_state_after_a_while() {
    let mut shop = Shop::new(vec![rule("a", 5), rule("b", 5)]);
    shop.acquire(&query(&[]));
    assert_eq!(shop.states.len(), 2);
    let changes = shop.reload(vec![rule("b", 5)]);
    assert_eq!(dropped(&changes), [0]);
    assert_eq!(summary(&changes), (vec![], vec![], vec![]));
    assert_eq!(shop.states.len(), 2);
    shop.now = REMEMBERED + 1;
    let changes = shop.reload(vec![rule("b", 5)]);
    assert_eq!(summary(&changes), (vec![], vec![], vec![0]));
    assert_eq!(shop.states.len(), 1);
    let changes = shop.reload(vec![rule("a", 5), rule("b", 5)]);
    assert_eq!(
        summary(&changes),
        (vec![2], vec![], vec![]),
        "a name is never used again"
    );
    assert_eq!(
        said(&shop.acquire(&query(&[]))),
        [("a", true, 4), ("b", true, 4)]
    );
    let names = LimitIds::starting_at(9);
    let now = Now::from_nanos(shop.now);
    let (empty, changes) = shop.rules.reload(vec![], now, &names);
    assert_eq!(dropped(&changes), [1, 2]);
    assert_eq!(empty.domains().count(), 0);
}

#[test]
fn a_renamed_rule_is_another() {
    let mut shop = Shop::new(vec![rule("a", 5)]);
    let changes = shop.reload(vec![rule("b", 5)]);
    assert_eq!(summary(&changes), (vec![1], vec![], vec![]));
    assert_eq!(dropped(&changes), [0]);
}

#[test]
fn overrides_are_known_by_their_when() {
    let base = || rule("r", 5).per("tenant");
    let mut shop = Shop::new(vec![base().when("tenant", "a", limit(10)).when(
        "tenant",
        "b",
        limit(20),
    )]);
    assert_eq!(ids(&shop.rules), [1, 2, 0]);
    // In another order, and one of them changed.
    let changes = shop.reload(vec![base().when("tenant", "b", limit(20)).when(
        "tenant",
        "a",
        limit(11),
    )]);
    assert_eq!(summary(&changes), (vec![3], vec![(1, 3)], vec![]));
    assert_eq!(ids(&shop.rules), [2, 3, 0]);
    // If an override is removed, its keys go to the rule's own limit.
    let changes = shop.reload(vec![base().when("tenant", "a", limit(11))]);
    assert_eq!(summary(&changes), (vec![], vec![(2, 0)], vec![]));
    // If the rule has no limit any more, they are idle.
    let unlimited = Rule {
        effect: Effect::Unlimited,
        ..base()
    };
    let changes = shop.reload(vec![unlimited]);
    assert_eq!(summary(&changes), (vec![], vec![], vec![]));
    let idle = changes.idle.iter().map(|limit| limit.id.0);
    assert_eq!(idle.collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn the_keys_of_an_override_that_becomes_unlimited_go_to_the_rule() {
    let base = || rule("r", 5).per("tenant");
    let mut shop = Shop::new(vec![base().when("tenant", "a", limit(10))]);
    let key = query(&[("tenant", "a")]);
    shop.acquire(&key);
    let unlimited = || vec![base().when("tenant", "a", Effect::Unlimited)];
    let limited = || vec![base().when("tenant", "a", limit(10))];
    let changes = shop.reload(unlimited());
    assert_eq!(summary(&changes), (vec![], vec![(1, 0)], vec![]));
    assert!(shop.acquire(&key).is_unmatched());
    assert_eq!(summary(&shop.reload(limited())), (vec![2], vec![], vec![]));
    assert_eq!(said(&shop.acquire(&key)), [("r", true, 8)]);
}

/// A rule that comes back without an override takes over the keys that the override had.
#[test]
fn the_keys_of_an_override_come_back_with_their_rule() {
    let base = || rule("r", 5).per("tenant");
    let mut shop = Shop::new(vec![base().when("tenant", "a", limit(10))]);
    let key = query(&[("tenant", "a")]);
    shop.acquire(&key);
    assert_eq!(dropped(&shop.reload(vec![])), [0, 1]);
    let changes = shop.reload(vec![base()]);
    assert_eq!(summary(&changes), (vec![0], vec![(1, 0)], vec![]));
    assert_eq!(said(&shop.acquire(&key)), [("r", true, 3)]);
}

/// A limit that is raised, lowered, overridden, and back to the rule's own limit.
#[test]
fn use_follows_a_key_from_limit_to_limit() {
    let base = |limit| rule("r", limit).per("tenant");
    let key = query(&[("tenant", "a")]);
    let mut shop = Shop::new(vec![base(5)]);
    for _ in 0..3 {
        shop.acquire(&key);
    }
    shop.now = 10 * SECOND;
    let remaining = |shop: &mut Shop| shop.peek(&key).remaining;
    shop.reload(vec![base(10)]);
    assert_eq!(remaining(&mut shop), Some(7));
    shop.reload(vec![base(10).when("tenant", "a", limit(4))]);
    assert_eq!(
        remaining(&mut shop),
        Some(1),
        "an override that is new takes the use along"
    );
    shop.reload(vec![base(2)]);
    assert_eq!(remaining(&mut shop), Some(0));
    shop.now = MINUTE - 1;
    assert_eq!(remaining(&mut shop), Some(0), "the window keeps its start");
    shop.now = MINUTE;
    assert_eq!(remaining(&mut shop), Some(2));
}

#[test]
fn other_captured_values_start_fresh() {
    let per = |prefix: Option<(u8, u8)>| Rule {
        per: vec![Per {
            entry: Arc::from("remote_address"),
            prefix: prefix.and_then(|(v4, v6)| Prefix::new(v4, v6)),
            colocate: false,
        }],
        ..rule("r", 5)
    };
    let key = query(&[("remote_address", "10.0.0.1"), ("user", "10.0.0.1")]);
    let mut shop = Shop::new(vec![per(None)]);
    for rule in [
        per(None),
        per(Some((32, 128))),
        per(Some((24, 128))),
        per(Some((24, 64))),
        rule("r", 5).per("user"),
        rule("r", 5),
        rule("r", 5).per("user").per("remote_address"),
        rule("r", 5).per("remote_address").per("user"),
    ] {
        let changes = shop.reload(vec![rule]);
        assert_eq!(changes.removed, []);
        assert_eq!(shop.acquire(&key).remaining, Some(4));
    }
}

#[test]
fn a_change_of_numbers_leaves_the_start_of_the_rule_alone() {
    let bucket = |count: u64| {
        let limit = Limit::per_second(count).burst(10).initial(0).build();
        Rule {
            effect: Effect::Limit(limit.unwrap()),
            ..rule("r", 1)
        }
    };
    let mut shop = Shop {
        now: 100 * SECOND,
        ..Shop::default()
    };
    shop.reload(vec![bucket(1)]);
    shop.now = 105 * SECOND;
    assert_eq!(shop.peek(&query(&[])).remaining, Some(5));
    shop.reload(vec![bucket(2)]);
    assert_eq!(
        shop.peek(&query(&[])).remaining,
        Some(10),
        "it has filled since 100 s"
    );
    let since = |shop: &Shop| {
        let rule = &shop.rules.domain("shop")[0];
        rule.limits().map(|active| active.since).next()
    };
    assert_eq!(since(&shop), Some(Monotonic::from_nanos(100 * SECOND)));
}

#[test]
fn the_same_numbers_said_otherwise_keep_what_was_used() {
    let effect = |bucket: Limit| Rule {
        effect: Effect::Limit(bucket),
        ..rule("r", 1)
    };
    let mut shop = Shop::new(vec![effect(Limit::per_minute(60).build().unwrap())]);
    shop.acquire(&query(&[]).cost(quell_core::cost::Cost::new(50).unwrap()));
    shop.reload(vec![effect(
        Limit::per_second(1).burst(60).build().unwrap(),
    )]);
    assert_eq!(shop.peek(&query(&[])).remaining, Some(10));
}

/// A domain may come in several documents; none of their rules is lost.
#[test]
fn the_rules_of_one_domain_add_up() {
    let document = |name, limit| DomainRules::new("shop", vec![rule(name, limit)]);
    let names = LimitIds::default();
    let none = RuleSet::default();
    let now = Now::from_nanos(0);
    let documents = || vec![document("a", 1), document("b", 2)];
    let (rules, _) = none.reload(documents(), now, &names);
    assert_eq!(ids(&rules), [0, 1]);
    let (rules, changes) = rules.reload(documents(), now, &names);
    assert_eq!(ids(&rules), [0, 1]);
    assert_eq!(summary(&changes), (vec![], vec![], vec![]));
}

/// A ban survives a reload, whatever happens to the limit.
#[test]
fn a_ban_by_hand_survives_a_reload() {
    let mut shop = Shop::new(vec![rule("r", 5)]);
    shop.acquire(&query(&[]));
    let state = shop.states.values_mut().next().unwrap();
    let minute = Duration::from_secs(60);
    let limit = &shop.limits[&state.limit];
    let at = At::plain(Now::from_nanos(0));
    quell_core::charge::ban(state, limit, &at, minute);
    assert_eq!(state.limit, LimitId(0));
    let bucket = Limit::per_second(1).build().unwrap();
    shop.reload(vec![Rule {
        effect: Effect::Limit(bucket),
        ..rule("r", 1)
    }]);
    let verdict = shop.acquire(&query(&[]));
    assert!(verdict.banned && !verdict.is_allow());
    shop.now = MINUTE;
    assert!(shop.acquire(&query(&[])).is_allow());
}

/// Overrides are told apart by their `when`, wherever they stand.
#[test]
fn a_thousand_overrides_keep_their_names_in_any_order() {
    let rules = |order: &[u64], changed: u64| {
        let mut all = rule("r", 1).per("tenant");
        for tenant in order {
            let limit = limit(tenant + if *tenant == changed { 5_000 } else { 2 });
            all = all.when("tenant", &format!("t-{tenant}"), limit);
        }
        vec![all]
    };
    let forwards: Vec<u64> = (0..1_000).collect();
    let mut shop = Shop::new(rules(&forwards, u64::MAX));
    let before = ids(&shop.rules);
    // One number changed: the names of all others stay.
    assert_eq!(
        summary(&shop.reload(rules(&forwards, 500))),
        (vec![1_001], vec![(before[500], 1_001)], vec![])
    );
    // Backwards, without the first, and with one more in the middle.
    let mut backwards: Vec<u64> = (1..1_000).rev().collect();
    backwards.insert(300, 7_000);
    let changes = shop.reload(rules(&backwards, 500));
    let base = *before.last().unwrap();
    assert_eq!(
        summary(&changes),
        (vec![1_002], vec![(before[0], base)], vec![])
    );
    let now = ids(&shop.rules);
    for (place, tenant) in backwards.iter().enumerate() {
        let expected = match tenant {
            7_000 => 1_002,
            500 => 1_001,
            tenant => before[usize::try_from(*tenant).unwrap()],
        };
        assert_eq!(now[place], expected, "t-{tenant}");
    }
}
