//! Overrides: numbers of single keys that come, change, begin and end while the keys are used.

use std::sync::Arc;
use std::time::Duration;

use quell::rule::{DomainRules, Effect, Per, Plans, Rule, StoredEffect};
use quell::store::{AdminStore, HoldStore, Store};
use quell::{KeyOverride, Limit, LimitError, Limiter, Operation, OverrideRank, Span};
use quell_core::time::{Now, Wall};

use crate::anchors::anchored;
use crate::holds::{Lines, holds_as};
use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::rules::{Random, effect, permits, random_rules, rule_per};
use crate::{VerdictResult, later, limiter, random_query, start};

/// The rule of permits.
const PERMITS: &str = "permits";

/// Its plans, which calls name with the values of an entry.
const PLANS: [&str; 2] = ["x", "y"];

/// Numbers that a text names in a history, for a rule: few, so that a key comes back to some.
fn read(history: &Random, rule: &str, text: &str) -> Option<StoredEffect> {
    let number: u64 = text.parse().ok()?;
    let mut random = history.reseeded(number);
    Some(StoredEffect::Effect(match (number, rule) {
        (0, _) => Effect::Unlimited,
        (1, _) => Effect::Refuse,
        (2 | 3, PERMITS) => return Some(StoredEffect::Plan(PLANS[random.index(2)].into())),
        (_, PERMITS) => limited(permits(&mut random)),
        (2..=5, _) => limited(anchored(&mut random).build()),
        _ => effect(&mut random),
    }))
}

fn limited(limit: Result<Limit, LimitError>) -> Effect {
    limit.map_or(Effect::Unlimited, Effect::Limit)
}

/// Some rules, whose keys stay what they are: other captured values start fresh.
fn rules(random: &mut Random) -> Vec<DomainRules> {
    let mut rules = random_rules(random);
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        let entries: &[&str] = match &*rule.name {
            "rule-0" => &["a"],
            "rule-1" => &["b"],
            "rule-2" => &["a", "b"],
            _ => &[],
        };
        rule.per = entries.iter().map(|entry| Per::value(entry)).collect();
    }
    rules
}

/// Spans of one override, mostly one.
fn random_spans(random: &mut Random, now: Now) -> Vec<Span> {
    let count = match random.below(6) {
        0 => 0,
        1 => 2,
        _ => 1,
    };
    let instant = |random: &mut Random| -> Option<Wall> {
        let ahead = Duration::from_millis(random.below(5_000));
        random.one_in(3).then(|| later(now, ahead).wall)
    };
    let spans = (0..count).map(|_| Span {
        from: instant(random),
        until: instant(random),
        numbers: Arc::from(random.below(14).to_string()),
    });
    spans.collect()
}

/// Runs `steps` random steps from `seed` against `store` and the model, while overrides of the keys change. Each
/// charge is answered by the numbers of its instant, and no change of them frees what was used.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn overrides_as_model<S: AdminStore>(store: S, seed: u64, steps: usize) {
    run(store, ModelStore::default(), Random::new(seed), steps).await;
}

/// [`overrides_as_model`] for a store that counts time in microseconds.
///
/// # Panics
/// As [`overrides_as_model`].
pub async fn overrides_as_model_in_micros<S: AdminStore>(
    store: S,
    carries: Carries,
    seed: u64,
    steps: usize,
) {
    let model = InMicros(ModelStore::new(carries));
    run(store, model, Random::from_full(seed), steps).await;
}

/// As [`overrides_as_model`], under permits that are held, waited for, renewed, given back and expire while their numbers
/// change: with the plan that a call names, with overrides, and with rules.
///
/// # Panics
/// As [`overrides_as_model`].
pub async fn held_overrides_as_model<S: HoldStore + AdminStore>(store: S, seed: u64, steps: usize) {
    let model = ModelStore::default();
    run_held(store, model, Random::new(seed), steps).await;
}

/// [`held_overrides_as_model`] for a store that counts time in microseconds.
///
/// # Panics
/// As [`overrides_as_model`].
pub async fn held_overrides_as_model_in_micros<S: HoldStore + AdminStore>(
    store: S,
    carries: Carries,
    seed: u64,
    steps: usize,
) {
    let model = InMicros(ModelStore::new(carries));
    run_held(store, model, Random::in_micros(seed), steps).await;
}

async fn run_held<S: HoldStore + AdminStore, M: HoldStore + AdminStore>(
    store: S,
    model: M,
    random: Random,
    steps: usize,
) {
    holds_as(
        limiter(store, start()),
        model,
        random.with_overrides(),
        steps,
        Lines::Stood,
        held_rules,
        VerdictResult::eq,
    )
    .await;
}

/// One rule of permits, with plans.
fn held_rules(random: &mut Random, _can_learn: bool) -> Vec<DomainRules> {
    let names = PLANS.map(Arc::from);
    let effects = names.clone().map(|name| (name, limited(permits(random))));
    let plans = Plans {
        entry: Some(Arc::from("c")),
        effects: effects.into(),
        names: Arc::new(names.into()),
    };
    let rule = Rule {
        plans: Some(Arc::new(plans)),
        ..rule_per(PERMITS, &["a"], permits(random))
    };
    vec![DomainRules::new("d", vec![rule])]
}

async fn run<S: AdminStore, M: AdminStore>(store: S, model: M, random: Random, steps: usize) {
    let (seed, history, mut random) = (random.seed(), random.reseeded(0), random);
    let (subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    reload_and_read(&subject, &model, &rules(&mut random), &history);
    for step in 0..steps {
        let now = random.step_clock(subject.now());
        clock.set(now);
        model_clock.set(now);
        if random.one_in(100) {
            reload_and_read(&subject, &model, &rules(&mut random), &history);
        }
        let query = random_query(&mut random);
        if random.one_in(6) {
            change_overrides(&subject, &model, &history, &mut random, now);
        }
        let operation = match random.one_in(5) {
            true => Operation::Peek,
            false => Operation::Acquire,
        };
        let got = subject.ask(operation, &query, now).await;
        let expected = model.ask(operation, &query, now).await;
        assert_eq!(
            got, expected,
            "seed {seed} step {step}: {operation:?} {query:?} at {now:?}"
        );
    }
}

/// Puts the same rules into force on both, and keeps the overrides.
pub(crate) fn reload_and_read<S: Store, M: Store>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    rules: &[DomainRules],
    history: &Random,
) {
    let read = |_: &str, rule: &str, text: &str| read(history, rule, text);
    assert_eq!(subject.set_rules_and_read(rules.to_vec(), &read), Ok(()));
    assert_eq!(model.set_rules_and_read(rules.to_vec(), &read), Ok(()));
}

/// Changes the overrides of all keys with one value on both.
pub(crate) fn change_overrides<S: Store, M: Store>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    history: &Random,
    random: &mut Random,
    now: Now,
) {
    let change = random_change(random, now);
    let rules = subject.rules();
    let rules = rules.domain("d").iter().map(|active| active.rule());
    let all = rules.map(|rule| KeyOverride {
        domain: "d",
        rule: &rule.name,
        entries: { rule.per.iter() }
            .map(|per| (&*per.entry, change.value))
            .collect(),
        rank: change.rank,
        spans: change.spans.clone(),
    });
    let all: Vec<_> = all.collect();
    let read = |_: &str, rule: &str, text: &str| read(history, rule, text);
    subject.change_overrides(&all, &read);
    model.change_overrides(&all, &read);
    assert_eq!(subject.override_count(), model.override_count());
}

/// A change of the overrides of all keys with one value.
struct RandomChange {
    value: &'static str,
    rank: OverrideRank,
    spans: Vec<Span>,
}

fn random_change(random: &mut Random, now: Now) -> RandomChange {
    let values = ["x", "y", "10.1.2.3", "10.1.9.9"];
    RandomChange {
        value: values[random.index(values.len())],
        rank: OverrideRank::new(random.one_in(2), random.one_in(2)),
        spans: random_spans(random, now),
    }
}
