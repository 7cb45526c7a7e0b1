//! Rules on rungs: the same traces, decided by a store for each rung.
//!
//! The model decides a set on both rungs by the rule of decision 157: the local part first, and if that
//! refuses nothing else. Traces in which every name is claimed once have permits, shadow and bans
//! ([`rungs_reserve_as_model`]). All traces with holds on rungs in turn leave out waiting, and those in
//! which names are claimed again leave out more, which a model with one state per key and one record per
//! id cannot tell:
//!
//! * **Waiting.** A caller waits in the line of the strict store and is charged on the local one at once;
//!   and rates that a strict store charged for good before a delay of a local rule stay charged.
//! * **Permits, delays, shadow and bans under names that are claimed again.** Each store knows its part of
//!   a name only. The time of permits on one rung is over before that of a reservation on the other, and
//!   the time of each part begins after its own delays. A part whose rules are all in shadow may hold
//!   nothing, and is charged when it is asked again. A local part that was forgiven may refuse, and count
//!   that towards a ban, while the strict part still stands.

use quell::store::{AdminStore, HoldStore};
use quell_core::algorithm::Algorithm;
use quell_core::limit_spec::LimitSpec;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Effect, Rule};

use crate::model::ModelStore;
use crate::rules::{Random, random_rules, steady_rules, with_permits};
use crate::{Lines, VerdictResult, holds, limiter, same_as, start};

/// The rungs of the rules in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rungs {
    /// All are on one.
    All(Rung),
    /// They take turns.
    InTurn,
}

impl Rungs {
    /// `rules` on these rungs.
    fn put(self, mut rules: Vec<DomainRules>) -> Vec<DomainRules> {
        let all = rules.iter_mut().flat_map(|domain| &mut domain.rules);
        for rule in all {
            rule.policy.rung = match self {
                Self::All(rung) => rung,
                _ if rule.name.ends_with(['0', '2']) => Rung::Local,
                Self::InTurn => Rung::Strict,
            };
        }
        rules
    }
}

fn without_bans_and_delays(rule: &mut Rule) {
    let overrides = rule.overrides.iter_mut().map(|entry| &mut entry.effect);
    for effect in overrides.chain([&mut rule.effect]) {
        if let Effect::Limit(limit) = effect {
            let mut spec = LimitSpec {
                ban: None,
                ..limit.spec()
            };
            if let Algorithm::LeakyBucket(bucket) = &mut spec.algorithm {
                bucket.delay_after = bucket.burst;
            }
            *effect = spec.build().map_or(Effect::Unlimited, Effect::Limit);
        }
    }
}

/// [`same_as_model`](crate::same_as_model) for a store that partitions sets by rung.
///
/// # Panics
/// As [`same_as_model`](crate::same_as_model).
pub async fn rungs_as_model<S: AdminStore>(store: S, rungs: Rungs, seed: u64, steps: usize) {
    let subject = limiter(store, start());
    let rules = |random: &mut Random| rungs.put(random_rules(random));
    let model = ModelStore::local_first();
    same_as(subject, model, seed, steps, (rules, 40), VerdictResult::eq).await;
}

/// [`holds_as_model`](crate::holds_as_model) for a store that partitions sets by rung.
///
/// # Panics
/// As [`holds_as_model`](crate::holds_as_model).
pub async fn rungs_hold_as_model<S: HoldStore + AdminStore>(
    store: S,
    rungs: Rungs,
    seed: u64,
    steps: usize,
) {
    let (random, subject) = (Random::new(seed), limiter(store, start()));
    let model = ModelStore::local_first();
    let rules = |random: &mut Random, can_learn| {
        if let Rungs::All(_) = rungs {
            return rungs.put(holds::rules(random, can_learn));
        }
        let mut rules = rungs.put(steady_rules(random));
        for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
            rule.shadow = false;
            without_bans_and_delays(rule);
        }
        rules
    };
    let lines = match rungs {
        Rungs::All(_) => Lines::Stood,
        Rungs::InTurn => Lines::Reservations,
    };
    holds::holds_as(
        subject,
        model,
        random,
        steps,
        lines,
        rules,
        VerdictResult::eq,
    )
    .await;
}

/// [`rungs_hold_as_model`] on rungs in turn, where no name is claimed twice: with permits, shadow and bans.
///
/// # Panics
/// As [`holds_as_model`](crate::holds_as_model).
pub async fn rungs_reserve_as_model<S: HoldStore + AdminStore>(store: S, seed: u64, steps: usize) {
    let (random, subject) = (Random::new(seed), limiter(store, start()));
    let rules = |random: &mut Random, can_learn| {
        let rules = random_rules(random);
        Rungs::InTurn.put(with_permits(random, rules, can_learn))
    };
    let (model, is_same) = (ModelStore::local_first(), VerdictResult::eq);
    holds::holds_as(subject, model, random, steps, Lines::Once, rules, is_same).await;
}
