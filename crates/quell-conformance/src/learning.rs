//! Learned ceilings: the same on a store as in the model, window by window.
//!
//! The traces of [`holds`](crate::holds) are too short for a window. Here callers hold permits of one
//! key in front of a simulated service that gets slower above its knee, call after call.

use std::time::Duration;

use quell::store::HoldStore;
use quell_core::claim::Claim;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::limit::Limit;
use quell_core::rule::DomainRules;
use quell_core::time::Now;

use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::rules::{Random, one_limit};
use crate::{claim, end, later, limiter, start};

/// Runs `calls` calls from `seed` against `store` and the model, in microseconds, under a learned
/// ceiling. Returns how many ceilings it saw.
///
/// # Panics
/// When an answer differs; the message names the seed and the call.
pub async fn learns_as_model_in_micros<S: HoldStore>(store: S, seed: u64, calls: usize) -> usize {
    let model = InMicros(ModelStore::new(Carries::AtNextCall));
    let mut random = Random::new(seed);
    let (subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    crate::reload(&subject, &model, &rules(&mut random));
    let knee = 1 + random.below(30);
    let usual = 1 + random.below(100_000);
    let mut now = start();
    let mut held: Vec<(Now, HoldId)> = Vec::new();
    let mut seen = Vec::new();
    for call in 0..calls {
        if random.one_in(2_000) {
            crate::reload(&subject, &model, &rules(&mut random));
        }
        clock.set(now);
        model_clock.set(now);
        let told = format!("seed {seed} call {call} from {now:?}");
        let name = format!("call-{call}");
        let Some(id) = HoldId::new("d", &name) else {
            continue;
        };
        let permit = Claim {
            id: &id,
            hold: None,
            wait: None,
            is_named: true,
            pending: None,
        };
        let query = Query::new("d");
        let placed = claim(&subject, &model, &query, &permit, now, &told).await;
        let Some(placed) = placed else {
            continue;
        };
        let ceiling = placed.decisions.first().map(|decision| decision.limit);
        if !seen.contains(&ceiling) {
            seen.push(ceiling);
        }
        if placed.held && !random.one_in(500) {
            let queue = (held.len() as u64 + 1).div_ceil(knee);
            let needs = usual * queue + random.below(usual / 4 + 1);
            held.push((later(now, Duration::from_micros(needs)), id));
            if !random.one_in(20) {
                continue;
            }
        }
        // No other call is admitted: time goes on until one is served.
        held.sort_by_key(|(at, _)| std::cmp::Reverse(at.monotonic));
        let Some((at, id)) = held.pop() else {
            now = later(now, Duration::from_micros(usual * random.below(20)));
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
        end(&subject, &model, &id, ending, now, &told).await;
    }
    seen.len()
}

/// One rule for one key, whose number of permits is learned.
fn rules(random: &mut Random) -> Vec<DomainRules> {
    let min = 1 + random.below(8);
    let limit = Limit::concurrency(min + random.below(60))
        .adaptive(min)
        .lease(Duration::from_secs(1 + random.below(40)));
    one_limit("learned", limit.build())
}
