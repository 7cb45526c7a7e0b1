//! Overrides: numbers of single keys that come, change, begin and end while the keys are used.

use std::sync::Arc;
use std::time::Duration;

use quell::rule::{DomainRules, Effect, Per, StoredEffect};
use quell::store::AdminStore;
use quell::{KeyOverride, Operation, OverrideRank, Span};
use quell_core::time::{Now, Wall};

use crate::anchors::anchored;
use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::rules::{Random, effect, random_rules};
use crate::{later, limiter, random_query, reload, start};

/// Numbers that a text names in a history: few, so that a key comes back to some.
fn read(history: &Random, text: &str) -> Option<StoredEffect> {
    let number: u64 = text.parse().ok()?;
    let mut random = history.reseeded(number);
    Some(StoredEffect::Effect(match number {
        0 => Effect::Unlimited,
        1 => Effect::Refuse,
        2..=5 => {
            let window = anchored(&mut random).build();
            window.map_or(Effect::Unlimited, Effect::Limit)
        }
        _ => effect(&mut random),
    }))
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

async fn run<S: AdminStore, M: AdminStore>(store: S, model: M, random: Random, steps: usize) {
    let (seed, history, mut random) = (random.seed(), random.reseeded(0), random);
    let read = |_: &str, _: &str, text: &str| read(&history, text);
    let (subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    reload(&subject, &model, &rules(&mut random));
    for step in 0..steps {
        let now = random.step_clock(subject.now());
        clock.set(now);
        model_clock.set(now);
        if random.one_in(100) {
            let rules = rules(&mut random);
            assert_eq!(subject.set_rules_and_read(rules.clone(), &read), Ok(()));
            assert_eq!(model.set_rules_and_read(rules, &read), Ok(()));
        }
        let query = random_query(&mut random);
        if random.one_in(6) {
            let change = random_change(&mut random, now);
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
            subject.change_overrides(&all, &read);
            model.change_overrides(&all, &read);
            assert_eq!(subject.override_count(), model.override_count());
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
