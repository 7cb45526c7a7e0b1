//! Overrides of single keys: which numbers apply, and that use is kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::limit::Ban;
use quell::rule::{DomainRules, Effect, Plans, Rule, StoredEffect};
use quell::store::memory::MemoryStore;
use quell::{KeyOverride, Limit, Limiter, OverrideRank, Query, ReadNumbers, Span, Verdict};
use quell_core::time::{Now, Wall};

const START: u64 = 1_800_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn wall(seconds: u64) -> Wall {
    Wall::from_nanos(START + seconds * SECOND)
}

/// `12` a window of an hour, `unlimited`, `refuse`, `hasty` to ban, or a plan such as `gold`.
fn read(_: &str, _: &str, text: &str) -> Option<StoredEffect> {
    Some(match text {
        "unlimited" => StoredEffect::Effect(Effect::Unlimited),
        "refuse" => StoredEffect::Effect(Effect::Refuse),
        "hasty" => StoredEffect::Effect(banning(7)),
        _ => match text.parse() {
            Ok(limit) => StoredEffect::Effect(hourly(limit)),
            Err(_) => StoredEffect::Plan(Arc::from(text)),
        },
    })
}

fn hourly(limit: u64) -> Effect {
    let hour = Duration::from_secs(3_600);
    Effect::Limit(Limit::fixed_window(limit, hour).build().unwrap())
}

/// One call an hour; two refusals within so long are a ban.
fn banning(within: u64) -> Effect {
    let hour = Duration::from_secs(3_600);
    let ban = Ban::new(2, Some(Duration::from_secs(within)), vec![hour]).unwrap();
    Effect::Limit(Limit::fixed_window(1, hour).build().unwrap().with_ban(ban))
}

struct Shop {
    limiter: Limiter<MemoryStore>,
    clock: Arc<ManualClock>,
}

fn rules(base: Effect) -> Vec<DomainRules> {
    rules_with(base, "gold")
}

/// Rules of which this plan has 50 calls an hour, and the other leaves the rule as it is.
fn rules_with(base: Effect, plan: &str) -> Vec<DomainRules> {
    let names = ["gold", "silver"].map(Arc::from);
    let plans = Plans {
        entry: Some(Arc::from("plan")),
        effects: [(Arc::from(plan), hourly(50))].into(),
        names: Arc::new(names.into()),
    };
    let api = Rule {
        effect: base,
        plans: Some(Arc::new(plans)),
        ..Rule::new("api", Limit::per_second(1))
            .unwrap()
            .per("tenant")
    };
    let other = Rule::new("other", Limit::per_hour(1_000)).unwrap();
    vec![DomainRules::new(
        "shop",
        vec![api, other.matching("path", &["/x"]).per("tenant")],
    )]
}

impl Shop {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(START)));
        let limiter = Limiter::builder(MemoryStore::new());
        let limiter = limiter.clock(Arc::clone(&clock) as Arc<_>).build();
        limiter.set_rules(rules(hourly(10))).unwrap();
        Self { limiter, clock }
    }

    fn at(&self, seconds: u64) {
        self.clock.set(Now::from_nanos(START + seconds * SECOND));
    }

    fn put(&self, tenant: &str, rank: OverrideRank, spans: &[(Option<u64>, Option<u64>, &str)]) {
        self.put_read(tenant, rank, spans, &read);
    }

    fn put_read(
        &self,
        tenant: &str,
        rank: OverrideRank,
        spans: &[(Option<u64>, Option<u64>, &str)],
        read: &ReadNumbers<'_>,
    ) {
        let spans = spans.iter().map(|(from, until, numbers)| Span {
            from: from.map(wall),
            until: until.map(wall),
            numbers: Arc::from(*numbers),
        });
        let one = KeyOverride {
            domain: "shop",
            rule: "api",
            entries: vec![("tenant", tenant)],
            rank,
            spans: spans.collect(),
        };
        self.limiter.change_overrides(&[one], read);
    }

    fn ask(&self, tenant: &'static str, plan: Option<&'static str>, cost: u64) -> Verdict {
        let query = Query::new("shop").entry("tenant", tenant);
        let query = plan.map_or(query.clone(), |plan| query.entry("plan", plan));
        let query = query.cost(quell::Cost::new(cost).unwrap());
        self.limiter.try_acquire_local(&query).unwrap()
    }

    /// The limit and what remains, after one call; `None` if there is no limit.
    fn left(&self, tenant: &'static str) -> Option<(u64, u64)> {
        let verdict = self.ask(tenant, None, 1);
        let decided = verdict.decisions.first()?;
        Some((decided.decision.limit, decided.decision.remaining))
    }
}

#[test]
fn a_boost_begins_and_ends_at_its_instants_and_use_is_kept() {
    let shop = Shop::new();
    for _ in 0..4 {
        shop.ask("acme", None, 1);
    }
    shop.put("acme", OverrideRank::Rule, &[(None, None, "20")]);
    assert_eq!(shop.left("acme"), Some((20, 15)));
    shop.put(
        "acme",
        OverrideRank::RuleBoost,
        &[(Some(60), Some(120), "100")],
    );
    assert_eq!(shop.left("acme"), Some((20, 14)));
    shop.clock.set(Now::from_nanos(START + 60 * SECOND - 1));
    assert_eq!(shop.left("acme"), Some((20, 13)));
    shop.at(60);
    assert_eq!(shop.left("acme"), Some((100, 92)));
    shop.ask("acme", None, 50);
    shop.clock.set(Now::from_nanos(START + 120 * SECOND - 1));
    assert_eq!(shop.left("acme"), Some((100, 41)));
    shop.at(120);
    assert_eq!(shop.left("acme"), Some((20, 0)));
    assert!(!shop.ask("acme", None, 1).is_allow(), "59 were used");
    assert_eq!(shop.left("globex"), Some((10, 9)), "nobody else");
    shop.put("acme", OverrideRank::Rule, &[]);
    shop.put("acme", OverrideRank::RuleBoost, &[]);
    assert_eq!(shop.limiter.override_count(), 0);
    assert!(!shop.ask("acme", None, 1).is_allow());
    shop.at(3_600);
    assert_eq!(shop.left("acme"), Some((10, 9)));
}

/// Whether the store has dropped the key in between, or not.
#[test]
fn a_refusal_counts_towards_a_ban_as_long_as_the_numbers_say_that_refused_it() {
    for sweeps in [false, true] {
        let shop = Shop::new();
        shop.limiter.set_rules(rules(banning(3_600))).unwrap();
        shop.put(
            "acme",
            OverrideRank::RuleBoost,
            &[(None, Some(6), "hasty"), (Some(9), None, "hasty")],
        );
        let banned = |seconds| {
            shop.at(seconds);
            let verdict = shop.ask("acme", None, 2);
            assert!(!verdict.is_allow());
            verdict.decisions[0].decision.banned
        };
        assert!(!banned(0), "counts until 7");
        shop.at(8);
        let store = shop.limiter.store();
        let parts = if sweeps { store.shard_count() } else { 0 };
        assert_eq!(store.sweep(parts, shop.limiter.now()), parts.min(1));
        assert!(!banned(8), "the first one, which counts for an hour");
        assert!(banned(1_000), "also under other numbers");
    }
}

#[test]
fn plans_unlimited_and_refused_are_numbers_too() {
    let shop = Shop::new();
    assert_eq!(shop.left("acme"), Some((10, 9)));
    shop.put("acme", OverrideRank::Domain, &[(None, None, "gold")]);
    assert_eq!(shop.left("acme"), Some((50, 48)));
    shop.put("acme", OverrideRank::Domain, &[(None, None, "silver")]);
    let verdict = shop.ask("acme", Some("gold"), 1);
    assert_eq!(
        verdict.decisions[0].decision.limit, 10,
        "silver leaves the rule as it is"
    );
    shop.put("acme", OverrideRank::Rule, &[(None, None, "unlimited")]);
    assert_eq!(shop.left("acme"), None);
    shop.put("acme", OverrideRank::Rule, &[(None, None, "refuse")]);
    assert_eq!(shop.left("acme"), Some((0, 0)));
    assert!(!shop.ask("acme", None, 1).is_allow());
    shop.put("acme", OverrideRank::Rule, &[]);
    shop.put("acme", OverrideRank::Domain, &[]);
    assert_eq!(
        shop.left("acme"),
        Some((10, 6)),
        "three were allowed under a limit"
    );
}

#[test]
fn the_numbers_are_read_again_when_rules_change() {
    let shop = Shop::new();
    shop.put("acme", OverrideRank::Rule, &[(None, None, "20")]);
    shop.put("gold", OverrideRank::Rule, &[(None, None, "gold")]);
    assert_eq!(shop.left("acme"), Some((20, 19)));
    let twice = |domain: &str, rule: &str, text: &str| match text.parse::<u64>() {
        Ok(limit) => Some(StoredEffect::Effect(hourly(2 * limit))),
        Err(_) => read(domain, rule, text),
    };
    let limiter = &shop.limiter;
    limiter
        .set_rules_and_read(rules(hourly(11)), &twice)
        .unwrap();
    assert_eq!(shop.left("acme"), Some((40, 38)));
    assert_eq!(shop.left("gold"), Some((50, 49)));
    assert_eq!(shop.left("globex"), Some((11, 10)));
    limiter
        .set_rules_and_read(rules(hourly(11)), &|_, _, _| None)
        .unwrap();
    assert_eq!(shop.left("acme"), Some((11, 8)));
}

#[test]
fn what_a_list_does_not_have_is_dropped() {
    let shop = Shop::new();
    for tenant in ["a", "b", "c"] {
        shop.put(tenant, OverrideRank::Rule, &[(None, None, "20")]);
        shop.put(tenant, OverrideRank::RuleBoost, &[(None, Some(60), "30")]);
    }
    let mut list = shop.limiter.list_overrides();
    let one = |tenant, rank| KeyOverride {
        domain: "shop",
        rule: "api",
        entries: vec![("tenant", tenant)],
        rank,
        spans: vec![Span {
            from: None,
            until: None,
            numbers: Arc::from("25"),
        }],
    };
    list.add(&[one("a", OverrideRank::Rule)], &read);
    list.add(&[one("d", OverrideRank::Rule)], &read);
    assert_eq!(
        shop.left("b"),
        Some((30, 29)),
        "in force until the end of the list"
    );
    list.end();
    assert_eq!(shop.left("a"), Some((25, 24)));
    assert_eq!(shop.left("b"), Some((10, 8)));
    assert_eq!(shop.left("d"), Some((25, 24)));
    assert_eq!(shop.limiter.override_count(), 2);
}

fn random(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// The limit of a text while others are multiplied by `factor`; `None` if there is none.
fn meaning(text: &str, factor: u64) -> Option<u64> {
    match (text, text.parse::<u64>()) {
        (_, Ok(limit)) if text.starts_with('0') => Some(limit),
        (_, Ok(limit)) => Some(limit * factor),
        (plan, _) if plan == plan_of(factor) => Some(50),
        ("unlimited", _) => None,
        ("refuse", _) => Some(0),
        _ => Some(10 * factor),
    }
}

/// The plan with numbers of its own.
const fn plan_of(factor: u64) -> &'static str {
    if factor == 2 { "silver" } else { "gold" }
}

fn read_times(factor: u64) -> impl Fn(&str, &str, &str) -> Option<StoredEffect> {
    move |domain, rule, text| match (meaning(text, factor), text.parse::<u64>()) {
        (Some(limit), Ok(_)) => Some(StoredEffect::Effect(hourly(limit))),
        _ => read(domain, rule, text),
    }
}

/// Keys that are called again and again, while what is stored for them changes, and what that means: texts that mean
/// the same under some rules, and not under others.
#[test]
fn a_key_that_is_called_often_has_the_numbers_of_now() {
    let tenants = ["a", "b", "c", "d", "e", "f"];
    let texts = [
        "10",
        "20",
        "030",
        "40",
        "gold",
        "silver",
        "unlimited",
        "refuse",
    ];
    for seed in 0..20 {
        let (shop, mut random) = (Shop::new(), random(seed));
        let mut model: BTreeMap<&str, (&str, Option<u64>)> = BTreeMap::new();
        let (mut factor, mut time) = (1, 0);
        for step in 0..2_000 {
            let tenant = tenants[usize::try_from(random(6)).unwrap()];
            match random(20) {
                0 => {
                    if random(2) == 0 {
                        // The rule goes, and comes back.
                        let read = read_times(factor);
                        let none = vec![DomainRules::new("shop", Vec::new())];
                        shop.limiter.set_rules_and_read(none, &read).unwrap();
                    }
                    factor = 1 + random(3);
                    let rules = rules_with(hourly(10 * factor), plan_of(factor));
                    shop.limiter
                        .set_rules_and_read(rules, &read_times(factor))
                        .unwrap();
                }
                1..4 => {
                    let text = texts[usize::try_from(random(8)).unwrap()];
                    let until = (random(4) == 0).then(|| time + random(9));
                    let span = [(None, until, text)];
                    shop.put_read(tenant, OverrideRank::Rule, &span, &read_times(factor));
                    model.insert(tenant, (text, until));
                }
                4 => {
                    shop.put(tenant, OverrideRank::Rule, &[]);
                    model.remove(tenant);
                }
                5 => {
                    time += random(3);
                    shop.at(time);
                }
                _ => {}
            }
            let tenant = tenants[usize::try_from(random(6)).unwrap()];
            let stored = model.get(tenant);
            let stored = stored.filter(|(_, until)| until.is_none_or(|until| time < until));
            let expected = stored.map_or(Some(10 * factor), |(text, _)| meaning(text, factor));
            let verdict = shop.ask(tenant, None, 1);
            let limit = verdict.decisions.first().map(|one| one.decision.limit);
            assert_eq!(
                limit, expected,
                "seed {seed}, step {step}: {tenant} {stored:?}"
            );
        }
    }
}

/// Ten thousand changes of a few keys, against a map.
#[test]
fn random_changes_have_the_numbers_of_a_map() {
    let tenants = ["a", "b", "c", "d", "e"];
    let ranks = [
        OverrideRank::RuleBoost,
        OverrideRank::DomainBoost,
        OverrideRank::Rule,
        OverrideRank::Domain,
    ];
    let shop = Shop::new();
    type Known = (Option<u64>, Option<u64>, String);
    let mut model: BTreeMap<(&str, OverrideRank), Vec<Known>> = BTreeMap::new();
    let mut random = random(7);
    let mut time = 0;
    for step in 0..10_000 {
        time += random(3);
        shop.at(time);
        let tenant = tenants[usize::try_from(random(5)).unwrap()];
        let rank = ranks[usize::try_from(random(4)).unwrap()];
        let spans = (0..random(3)).map(|_| {
            let from = (random(2) == 0).then(|| time + random(5));
            let until = (random(2) == 0).then(|| time + random(9));
            (from, until, (100 + random(8)).to_string())
        });
        let spans: Vec<_> = spans.collect();
        let told: Vec<_> = spans
            .iter()
            .map(|(from, until, numbers)| (*from, *until, &**numbers))
            .collect();
        shop.put(tenant, rank, &told);
        model.insert((tenant, rank), spans);
        let tenant = tenants[usize::try_from(random(5)).unwrap()];
        let all = ranks
            .iter()
            .filter_map(|rank| model.get(&(tenant, *rank)))
            .flatten();
        let mut all = all.filter(|(from, until, _)| {
            from.is_none_or(|from| from <= time) && until.is_none_or(|until| time < until)
        });
        let expected = all
            .next()
            .map_or(10, |(_, _, numbers)| numbers.parse().unwrap());
        let verdict = shop.ask(tenant, None, 1);
        assert_eq!(verdict.decisions[0].decision.limit, expected, "step {step}");
    }
    let keys = tenants.iter().filter(|tenant| {
        ranks.iter().any(|rank| {
            model
                .get(&(**tenant, *rank))
                .is_some_and(|spans| !spans.is_empty())
        })
    });
    assert_eq!(shop.limiter.override_count(), keys.count());
}
