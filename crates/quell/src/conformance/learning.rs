//! Ceilings that are learned: the same on a store as in the model, window by window.
//!
//! The traces of [`holds`](super::holds) are too short for a window. Here callers hold permits of one
//! key before a simulated service that gets slower above its knee, call after call.

use std::sync::Arc;
use std::time::Duration;

use quell_core::descriptor::Query;
use quell_core::hold::{Claim, Ending, HoldId};
use quell_core::limit::Limit;
use quell_core::rule::{DomainRules, Effect, OnMissing, Rule};
use quell_core::time::Now;

use super::model::{Carries, InMicros, ModelStore};
use super::model_in_micros::HeldInMicros;
use super::rules::Random;
use super::{limiter, start};
use crate::limiter::Limiter;
use crate::store::{Placed, Store};

/// Runs `calls` calls from `seed` against `store` and the model, in microseconds, under a ceiling that
/// both learn; returns how many ceilings it saw.
///
/// # Panics
/// When an answer differs; the message names the seed and the call.
pub async fn learns_as_model_in_micros<S: Store>(store: S, seed: u64, calls: usize) -> usize {
    let model = HeldInMicros(InMicros(ModelStore::new(Carries::AtNextCall)));
    let mut random = Random::new(seed);
    let (subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    super::reload(&subject, &model, &rules(&mut random));
    let knee = 1 + random.below(30);
    let usual = 1 + random.below(100_000);
    let mut now = start();
    let mut held: Vec<(Now, HoldId)> = Vec::new();
    let mut seen = Vec::new();
    for call in 0..calls {
        if random.one_in(2_000) {
            super::reload(&subject, &model, &rules(&mut random));
        }
        clock.set(now);
        model_clock.set(now);
        let told = format!("seed {seed} call {call} from {now:?}");
        let name = format!("call-{call}");
        let Some(id) = HoldId::new("d", &name) else {
            continue;
        };
        let Some(placed) = claim_both(&subject, &model, &id, now, &told).await else {
            continue;
        };
        let ceiling = placed.decisions.first().map(|decision| decision.limit);
        if !seen.contains(&ceiling) {
            seen.push(ceiling);
        }
        if placed.held && !random.one_in(500) {
            let queue = (held.len() as u64 + 1).div_ceil(knee);
            let needs = usual * queue + random.below(usual / 4 + 1);
            held.push((later(now, needs), id));
            if !random.one_in(20) {
                continue;
            }
        }
        // Nobody else is let in: time goes on until somebody is served.
        held.sort_by_key(|(at, _)| std::cmp::Reverse(at.monotonic));
        let Some((at, id)) = held.pop() else {
            now = later(now, usual * random.below(20));
            continue;
        };
        if at.monotonic > now.monotonic {
            now = at;
        }
        let ending = match random.below(400) {
            0 => Ending::Fail,
            1 => Ending::Cancel,
            _ => Ending::Release,
        };
        let got = subject.store().end(&id, ending, now).await;
        let expected = model.store().end(&id, ending, now).await;
        assert_eq!(got, expected, "{} {ending:?}", told);
    }
    seen.len()
}

/// Claims a permit of both; their answer.
async fn claim_both<S: Store, M: Store>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    id: &HoldId,
    now: Now,
    told: &str,
) -> Option<Placed> {
    let claim = Claim {
        id,
        hold: None,
        wait: None,
        is_named: true,
    };
    let query = Query::new("d");
    let (ours, theirs) = (subject.rules(), model.rules());
    let set = subject.resolve(&ours, &query, now).ok()?;
    let model_set = model.resolve(&theirs, &query, now).ok()?;
    let got = subject.store().hold(&set, &claim, now).await;
    let expected = model.store().hold(&model_set, &claim, now).await;
    assert_eq!(got, expected, "{told}");
    got.ok()
}

fn later(now: Now, micros: u64) -> Now {
    let micros = Duration::from_micros(micros);
    Now {
        monotonic: now.monotonic.saturating_add(micros),
        wall: now.wall.saturating_add(micros),
    }
}

/// One rule for one key, whose number of permits is learned.
fn rules(random: &mut Random) -> Vec<DomainRules> {
    let min = 1 + random.below(8);
    let limit = Limit::concurrency(min + random.below(60))
        .adaptive(min)
        .lease(Duration::from_secs(1 + random.below(40)));
    let rule = limit.build().map(|limit| Rule {
        name: Arc::from("learned"),
        matchers: Vec::new(),
        per: Vec::new(),
        on_missing: OnMissing::Skip,
        effect: Effect::Limit(limit),
        overrides: Vec::new(),
        cost: None,
        shadow: false,
        on_failure: None,
    });
    vec![DomainRules {
        domain: Arc::from("d"),
        rules: rule.into_iter().collect(),
    }]
}
