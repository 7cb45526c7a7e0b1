//! Permits counted by hand, while the number that applies to their key changes.

use std::sync::Arc;
use std::time::Duration;

use quell::rule::{DomainRules, Effect, Plans, Rule, StoredEffect};
use quell::store::{HoldStatus, HoldStore, StoreResult};
use quell::{KeyOverride, Limit, Limiter, OverrideRank, Span};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::{Monotonic, Now, Wall};

use crate::rules::{Random, rule_per};
use crate::{later, limit_set, limiter, start};

const KEYS: [&str; 2] = ["ann", "ben"];
const PLANS: [&str; 2] = ["small", "large"];

/// So many permits; 0 is no limit.
fn effect(max: u64) -> Effect {
    let limit = Limit::concurrency(max).lease(lease(max)).build();
    limit.map_or(Effect::Unlimited, Effect::Limit)
}

/// Permits under other numbers last for another time.
const fn lease(max: u64) -> Duration {
    Duration::from_secs(2 + max)
}

/// The numbers of the rule and of its plans, and the permits of each call.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    rule: u64,
    plans: [u64; 2],
    units: u64,
}

impl Numbers {
    fn rules(self) -> Vec<DomainRules> {
        let names = PLANS.map(Arc::from);
        let effects = names.clone().into_iter().zip(self.plans.map(effect));
        let plans = Plans {
            entry: Some(Arc::from("plan")),
            effects: effects.collect(),
            names: Arc::new(names.into()),
        };
        let limit = Limit::concurrency(self.rule).lease(lease(self.rule));
        let rule = Rule {
            plans: Some(Arc::new(plans)),
            cost: Cost::new(self.units),
            ..rule_per("jobs", &["user"], limit.build())
        };
        vec![DomainRules::new("d", vec![rule])]
    }
}

fn read(_: &str, _: &str, text: &str) -> Option<StoredEffect> {
    text.parse().ok().map(effect).map(StoredEffect::Effect)
}

/// The overrides of a key: one without an end, and one with a beginning and an end.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    standing: Option<u64>,
    boost: Option<(Wall, Wall, u64)>,
}

impl Stored {
    fn random(random: &mut Random, now: Now) -> Self {
        let instant = |random: &mut Random| {
            let ahead = Duration::from_millis(random.below(4_000));
            later(now, ahead).wall
        };
        let boost = (instant(random), instant(random), random.below(9));
        Self {
            standing: random.one_in(2).then(|| random.below(7)),
            boost: random.one_in(2).then_some(boost),
        }
    }

    /// The number that applies, if none of these does `otherwise`.
    fn number(self, wall: Wall, otherwise: u64) -> u64 {
        let boost = self
            .boost
            .filter(|(from, until, _)| *from <= wall && wall < *until);
        let boost = boost.map(|(.., number)| number);
        boost.or(self.standing).unwrap_or(otherwise)
    }

    fn put<S: HoldStore>(self, limiter: &Limiter<S>, user: &str) {
        let span = |from, until, number: u64| Span {
            from,
            until,
            numbers: Arc::from(number.to_string()),
        };
        let standing = self.standing.map(|number| span(None, None, number));
        let boost = (self.boost).map(|(from, until, number)| span(Some(from), Some(until), number));
        let ranks = [
            (OverrideRank::Rule, standing),
            (OverrideRank::RuleBoost, boost),
        ];
        let both = ranks.map(|(rank, span)| KeyOverride {
            domain: "d",
            rule: "jobs",
            entries: vec![("user", user)],
            rank,
            spans: span.into_iter().collect(),
        });
        limiter.change_overrides(&both, &read);
    }
}

/// Permits that a claim got.
struct Held {
    id: HoldId,
    key: usize,
    units: u64,
    lease: Duration,
    until: Monotonic,
}

/// Runs `steps` random steps from `seed`: a claim passes if the units that are held and not over, and its own, are at
/// most the number of permits that applies to its key then. No change of that number takes or gives any.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn permits_are_counted<S: HoldStore>(store: S, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let (limiter, clock) = limiter(store, start());
    let mut numbers = Numbers {
        rule: 3,
        plans: [1, 6],
        units: 1,
    };
    assert_eq!(limiter.set_rules(numbers.rules()), Ok(()));
    let mut stored = [Stored::default(); KEYS.len()];
    let mut held: Vec<Held> = Vec::new();
    for step in 0..steps {
        let now = later(limiter.now(), Duration::from_millis(random.below(900)));
        clock.set(now);
        let told = format!("seed {seed} step {step} at {now:?}");
        let key = random.index(KEYS.len());
        match random.below(12) {
            0 => {
                numbers = Numbers {
                    rule: 1 + random.below(6),
                    plans: [random.below(7), random.below(7)],
                    units: 1 + random.below(2),
                };
                let changed = limiter.set_rules_and_read(numbers.rules(), &read);
                assert_eq!(changed, Ok(()), "{told}");
            }
            1 | 2 => {
                stored[key] = Stored::random(&mut random, now);
                stored[key].put(&limiter, KEYS[key]);
            }
            3..=8 => {
                let plan = random.index(3);
                let number = numbers.plans.get(plan).copied().unwrap_or(numbers.rule);
                let number = stored[key].number(now.wall, number);
                let on_key = held.iter().filter(|one| one.key == key);
                let stands = on_key.filter(|one| one.until > now.monotonic);
                let taken: u64 = stands.map(|one| one.units).sum();
                let Some(id) = HoldId::new("d", &format!("id-{step}")) else {
                    continue;
                };
                let passes = number > 0 && taken + numbers.units <= number;
                let told = format!("{told}: {taken} and {} of {number}", numbers.units);
                assert_eq!(claim(&limiter, key, plan, &id).await, Ok(passes), "{told}");
                if passes {
                    held.push(Held {
                        id,
                        key,
                        units: numbers.units,
                        lease: lease(number),
                        until: now.monotonic.saturating_add(lease(number)),
                    });
                }
            }
            kind if !held.is_empty() => {
                let index = random.index(held.len());
                let ending = if kind == 9 {
                    Ending::Renew
                } else {
                    Ending::Release
                };
                if !end(&limiter, &mut held[index], ending, &told).await {
                    held.remove(index);
                }
            }
            _ => {}
        }
    }
}

/// Claims permits of a key, under a plan if there is one of this number; returns whether it got any.
async fn claim<S: HoldStore>(
    limiter: &Limiter<S>,
    key: usize,
    plan: usize,
    id: &HoldId,
) -> StoreResult<bool> {
    let (query, now) = (Query::new("d").entry("user", KEYS[key]), limiter.now());
    let query = match PLANS.get(plan) {
        Some(plan) => query.entry("plan", *plan),
        None => query,
    };
    let in_force = limiter.rules();
    let set = limit_set(&in_force, &query, now);
    let placed = limiter.store().hold(&set, &Claim::plain(id), now).await?;
    Ok(placed.held)
}

/// Renews or releases permits; returns whether they are held still.
async fn end<S: HoldStore>(
    limiter: &Limiter<S>,
    held: &mut Held,
    ending: Ending,
    told: &str,
) -> bool {
    let now = limiter.now();
    let told = format!("{told}: {ending:?} {:?}", held.id);
    let is_renewed = ending == Ending::Renew;
    let ended = limiter.store().end(&held.id, ending, now).await;
    let status = ended.map(|ended| ended.map(|ended| ended.status));
    if held.until <= now.monotonic {
        let is_over = matches!(status, Ok(None | Some(HoldStatus::Expired)));
        assert!(is_over, "{told}: {status:?}");
        return false;
    }
    let expected = match is_renewed {
        true => HoldStatus::Stands,
        false => HoldStatus::Released,
    };
    assert_eq!(status, Ok(Some(expected)), "{told}");
    held.until = now.monotonic.saturating_add(held.lease);
    is_renewed
}
