//! Buckets with warm-up: the same on a store as in the model, to its unit.
//!
//! Any rate, window and factor, charged at once, reserved and settled, under limits that change. No
//! call waits, so rates need not be whole microseconds.

use std::time::Duration;

use quell::Limiter;
use quell::store::{AdminStore, HoldStore};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, OnExpiry};
use quell_core::limit::Limit;
use quell_core::rate::Rate;
use quell_core::time::Now;

use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::rules::{Random, one_limit};
use crate::{end, later, limiter, start};

/// Runs `steps` steps from `seed` against `store` and the model, in microseconds, under a limit that
/// warms up most of the time.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn warms_as_model_in_micros<S: HoldStore>(store: S, seed: u64, steps: usize) {
    let model = InMicros(ModelStore::new(Carries::AtNextCall));
    let mut random = Random::new(seed);
    let (subject, clock) = limiter(store, start());
    let (model, model_clock) = limiter(model, start());
    let mut now = start();
    let mut pace = reload(&subject, &model, &mut random);
    for step in 0..steps {
        if random.one_in(60) {
            pace = reload(&subject, &model, &mut random);
        }
        now = later(now, idle(&mut random, pace));
        clock.set(now);
        model_clock.set(now);
        let most = 1 + random.below(9);
        let cost = Cost::new(1 + random.below(most)).unwrap_or_default();
        let query = Query::new("d").cost(cost);
        let told = format!("seed {seed} step {step} at {now:?}: {cost:?}");
        let Some(id) = HoldId::new("d", &format!("id-{}", random.below(6))) else {
            continue;
        };
        match random.below(6) {
            0 => reserve(&subject, &model, &query, &id, now, &told).await,
            1 => {
                let ending = match random.below(4) {
                    0 => Ending::Cancel,
                    1 => Ending::Release,
                    _ => Ending::Settle(random.below(12).into()),
                };
                end(&subject, &model, &id, ending, now, &told).await;
            }
            _ => {
                let got = subject.try_acquire(&query).await;
                let expected = model.try_acquire(&query).await;
                assert_eq!(got, expected, "{told}");
            }
        }
        let got = subject.peek(&query).await;
        let expected = model.peek(&query).await;
        assert_eq!(got, expected, "{told} peek");
    }
}

async fn reserve<S: HoldStore, M: HoldStore + AdminStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    query: &Query<'_>,
    id: &HoldId,
    now: Now,
    told: &str,
) {
    let claim = Claim {
        id,
        hold: Some(Duration::from_millis(700)),
        wait: None,
        is_named: true,
        pending: None,
    };
    crate::claim(subject, model, query, &claim, now, told).await;
}

/// The interesting times are those of a call and of a warm-up, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    call: u64,
    window: u64,
}

fn idle(random: &mut Random, pace: Pace) -> Duration {
    Duration::from_micros(match random.below(10) {
        0 => random.below(pace.window * 2 + 2),
        1 => random.below(pace.window / 8 + 2),
        2 => 0,
        _ => random.below(pace.call * 4 + 2),
    })
}

/// Puts another limit into force on both.
fn reload<S: HoldStore, M: HoldStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    random: &mut Random,
) -> Pace {
    let pick = |random: &mut Random, of: &[u64]| of.get(random.index(of.len())).copied();
    let count = pick(random, &[1, 2, 3, 7, 59, 1_000, 1_000_003]).unwrap_or(1);
    let seconds = pick(random, &[1, 1, 3, 60, 3_600]).unwrap_or(1);
    let unit = pick(random, &[1, 1_000, 1_000_000, 60_000_000_000]).unwrap_or(1);
    let window = Duration::from_nanos((1 + random.below(1_440_000)) * unit);
    let window = window.min(Duration::from_secs(86_400));
    let factor = pick(random, &[2, 3, 3, 10, 47, 1_000]).unwrap_or(3);
    let factor = u32::try_from(factor).unwrap_or(3);
    let rate = Rate::new(count, Duration::from_secs(seconds));
    let limit = rate.and_then(|rate| match random.below(8) {
        0 => Limit::token_bucket(rate).burst(3).build(),
        1 => Limit::token_bucket(rate).burst(2).debt(true).build(),
        2 => TokenBucket::refill(count, Duration::from_secs(seconds)).build(),
        _ => Limit::token_bucket(rate)
            .warm_up(window)
            .cold_factor(factor)
            .build(),
    });
    let on_expiry = match random.one_in(2) {
        true => OnExpiry::Release,
        false => OnExpiry::Charge,
    };
    let limit = limit.map(|limit| limit.on_expiry(on_expiry));
    crate::reload(subject, model, &one_limit("warm", limit));
    Pace {
        call: seconds * 1_000_000 / count,
        window: u64::try_from(window.as_micros()).unwrap_or(u64::MAX),
    }
}
