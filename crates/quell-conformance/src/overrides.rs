//! Overrides: numbers of single keys that come, change, begin and end while the keys are used.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::rule::{DomainRules, Effect, Per, Plans, Rule, StoredEffect};
use quell::store::{AdminStore, HoldStore, Store};
use quell::{KeyOverride, Limit, LimitError, Limiter, Operation, OverrideRank, Span};
use quell_core::rule::RuleSet;
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
            _ => &["c"],
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
    let random = Random::new(seed);
    run(store, ModelStore::default(), random, steps, None).await;
}

/// Makes a limiter with these rules and the snapshot of another one, on the same clock.
pub type Restart<S> =
    dyn Fn(&Limiter<S>, &Arc<ManualClock>, Vec<DomainRules>) -> Limiter<S> + Send + Sync;

/// As [`overrides_as_model`], with restarts after which the overrides are listed again. All buckets are full at the start:
/// after a restart rules come into force once more.
///
/// # Panics
/// As [`overrides_as_model`].
pub async fn restarts_as_model<S: AdminStore>(
    store: S,
    seed: u64,
    steps: usize,
    restart: &Restart<S>,
) {
    let random = Random::from_full(seed);
    run(store, ModelStore::default(), random, steps, Some(restart)).await;
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
    run(store, model, Random::from_full(seed), steps, None).await;
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

async fn run<S: AdminStore, M: AdminStore>(
    store: S,
    model: M,
    random: Random,
    steps: usize,
    restart: Option<&Restart<S>>,
) {
    let (seed, history, mut random) = (random.seed(), random.reseeded(0), random);
    let (mut subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    let (mut in_force, mut stored) = (rules(&mut random), Vec::new());
    reload_and_read(&subject, &model, &in_force, &history);
    for step in 0..steps {
        let now = random.step_clock(subject.now());
        clock.set(now);
        model_clock.set(now);
        if random.one_in(100) {
            let before = replace(&mut in_force, rules(&mut random));
            if restart.is_some() {
                keep_rules(before, &mut in_force);
            }
            reload_and_read(&subject, &model, &in_force, &history);
            list_again(&subject, &stored, &history);
            list_again(&model, &stored, &history);
        }
        let query = random_query(&mut random);
        if random.one_in(6) {
            let change = change_overrides(&subject, &model, &history, &mut random, now);
            stored
                .retain(|one: &RandomChange| (one.value, one.rank) != (change.value, change.rank));
            stored.push(change);
        }
        if let Some(restart) = restart.filter(|_| step % 50 == 49) {
            subject = restart(&subject, &clock, in_force.clone());
            list_again(&subject, &stored, &history);
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

/// Keeps rules that a reload would remove: a restart prolongs the time for which their use is remembered.
fn keep_rules(before: Vec<DomainRules>, after: &mut [DomainRules]) {
    for (before, after) in before.into_iter().zip(after) {
        for rule in before.rules {
            if after.rules.iter().all(|other| other.name != rule.name) {
                after.rules.push(rule);
            }
        }
    }
}

/// Lists all overrides to a limiter, one by one.
fn list_again<S: Store>(subject: &Limiter<S>, stored: &[RandomChange], history: &Random) {
    let read = |_: &str, rule: &str, text: &str| read(history, rule, text);
    let mut list = subject.list_overrides();
    for change in stored {
        list.add(&change.of_keys(&subject.rules()), &read);
    }
    list.end();
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
) -> RandomChange {
    let change = random_change(random, now);
    let rules = subject.rules();
    let all = change.of_keys(&rules);
    let read = |_: &str, rule: &str, text: &str| read(history, rule, text);
    subject.change_overrides(&all, &read);
    model.change_overrides(&all, &read);
    assert_eq!(subject.override_count(), model.override_count());
    change
}

/// A change of the overrides of all keys with one value.
pub(crate) struct RandomChange {
    value: &'static str,
    rank: OverrideRank,
    spans: Vec<Span>,
}

impl RandomChange {
    fn of_keys<'r>(&self, rules: &'r RuleSet) -> Vec<KeyOverride<'r>> {
        let rules = rules.domain("d").iter().map(|active| active.rule());
        let all = rules.map(|rule| KeyOverride {
            domain: "d",
            rule: &rule.name,
            entries: { rule.per.iter() }
                .map(|per| (&*per.entry, self.value))
                .collect(),
            rank: self.rank,
            spans: self.spans.clone(),
        });
        all.collect()
    }
}

fn random_change(random: &mut Random, now: Now) -> RandomChange {
    let values = ["x", "y", "10.1.2.3", "10.1.9.9"];
    RandomChange {
        value: values[random.index(values.len())],
        rank: OverrideRank::new(random.one_in(2), random.one_in(2)),
        spans: random_spans(random, now),
    }
}
