//! Rules on rungs: the same traces, decided by a store for each rung.

use quell_core::algorithm::Algorithm;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Effect, Rule};

use super::model::ModelStore;
use super::rules::{Random, random_rules};
use super::{Asked, Lines, holds, limiter, same_as, start};
use crate::store::{AdminStore, HoldStore};

/// The rungs of the rules in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rungs {
    /// All are on one.
    All(Rung),
    /// They take turns. A strict rule hears nothing of what a local rule refuses, so none has a ban or
    /// counts from its first call on.
    InTurn,
}

impl Rungs {
    /// `rules` on these rungs.
    fn put(self, mut rules: Vec<DomainRules>) -> Vec<DomainRules> {
        let all = rules.iter_mut().flat_map(|domain| &mut domain.rules);
        for rule in all {
            rule.policy.rung = match self {
                Self::All(rung) => rung,
                Self::InTurn if rule.name.ends_with(['0', '2']) => Rung::Local,
                Self::InTurn => {
                    make_plain(rule);
                    Rung::Strict
                }
            };
        }
        rules
    }
}

fn make_plain(rule: &mut Rule) {
    let overrides = rule.overrides.iter_mut().map(|entry| &mut entry.effect);
    for effect in overrides.chain([&mut rule.effect]) {
        if let Effect::Limit(limit) = effect
            && let Ok(limit) = plain(limit)
        {
            *effect = Effect::Limit(limit);
        }
    }
}

fn plain(limit: &Limit) -> Result<Limit, LimitError> {
    let mut spec = LimitSpec {
        ban: None,
        ..limit.spec().clone()
    };
    if let Algorithm::TokenBucket(bucket) = &mut spec.algorithm {
        bucket.initial = None;
    }
    spec.build()
}

/// [`same_as_model`](super::same_as_model) for a store that partitions sets by rung. A local refusal may
/// leave out strict limits.
///
/// # Panics
/// As [`same_as_model`](super::same_as_model).
pub async fn rungs_as_model<S: AdminStore>(store: S, rungs: Rungs, seed: u64, steps: usize) {
    let subject = limiter(store, start());
    let rules = |random: &mut Random| rungs.put(random_rules(random));
    let model = ModelStore::default();
    same_as(subject, model, seed, steps, rules, is_part).await;
}

/// [`holds_as_model`](super::holds_as_model) for a store that partitions sets by rung. On rungs in turn
/// nobody waits or has permits, and a local refusal may leave out strict limits.
///
/// # Panics
/// As [`holds_as_model`](super::holds_as_model).
pub async fn rungs_hold_as_model<S: HoldStore + AdminStore>(
    store: S,
    rungs: Rungs,
    seed: u64,
    steps: usize,
) {
    let (random, subject) = (Random::new(seed), limiter(store, start()));
    let model = ModelStore::default();
    let rules = |random: &mut Random, can_learn| match rungs {
        Rungs::All(_) => rungs.put(holds::rules(random, can_learn)),
        // Permits end at other times than reservations, on one rung and not on the other. A part whose
        // rules are all in shadow may hold nothing, and is charged when it is asked again.
        Rungs::InTurn => {
            let mut rules = rungs.put(random_rules(random));
            let all = rules.iter_mut().flat_map(|domain| &mut domain.rules);
            all.for_each(|rule| {
                make_plain(rule);
                rule.shadow = false;
            });
            rules
        }
    };
    let lines = match rungs {
        Rungs::All(_) => Lines::Stood,
        Rungs::InTurn => Lines::Reservations,
    };
    holds::holds_as(subject, model, random, steps, lines, rules, is_part).await;
}

/// Whether `got` is what was `expected`, or the refusing part of it.
fn is_part(got: &Asked, expected: &Asked) -> bool {
    let (Ok(told), Ok(known)) = (got, expected) else {
        return got == expected;
    };
    let is_refusal = !told.is_allow() && !known.is_allow();
    let mut each = told.decisions.iter();
    told == known || (is_refusal && each.all(|one| known.decisions.contains(one)))
}
