//! Random holds on a store and on the model: reserved, waited for, ended and moved up.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock, ManualClock};
use quell::store::{Action, AdminStore, HoldStore, KeyName, KeyView, StoreError, StoreResult};
use quell::{Limiter, Verdict};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::DomainRules;
use quell_core::time::Now;

use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::overrides::{change_overrides, reload_and_read};
use crate::rules::{Random, permits_and_budgets, steady_rules, two_limits, with_permits};
use crate::{
    VerdictResult, end, is_remembered, later, limit_set, limiter, limiter_by, random_action,
    random_query, start,
};

/// Setting that lets claims wait in a queue, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Some claims wait.
    Stood,
    /// No claim queues; callers wait at most for a delay. This is what a store promises that spreads
    /// the limits of one claim.
    None,
    /// No claim waits for anything, and ids are for one rung or for several.
    Reservations,
    /// No claim waits for anything, and no name is claimed twice.
    Once,
}

/// The number of ids in a trace: few, so that they are repeated.
const IDS: u64 = 12;

/// Runs `steps` random steps with holds from `seed` against `store` and the model.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn holds_as_model<S: HoldStore + AdminStore>(store: S, seed: u64, steps: usize) {
    let (random, subject) = (Random::new(seed), limiter(store, start()));
    let model = ModelStore::default();
    holds_as(
        subject,
        model,
        random,
        steps,
        Lines::Stood,
        rules,
        VerdictResult::eq,
    )
    .await;
}

/// [`holds_as_model`] for a store that remembers refusals, made by `build` with the clock of its
/// limiter (see [`remembers_as_model`](crate::remembers_as_model)).
///
/// # Panics
/// As [`holds_as_model`].
pub async fn holds_and_remembers_as_model<S: HoldStore + AdminStore>(
    build: impl FnOnce(Arc<dyn Clock>) -> S,
    seed: u64,
    steps: usize,
) {
    let clock = Arc::new(ManualClock::new(start()));
    let subject = (limiter_by(build(Arc::clone(&clock) as _), &clock), clock);
    let (random, model) = (Random::new(seed), ModelStore::default());
    holds_as(
        subject,
        model,
        random,
        steps,
        Lines::Stood,
        rules,
        is_remembered,
    )
    .await;
}

/// [`holds_as_model`] for a store that counts time in microseconds, under rules whose turns come at
/// whole ones: otherwise a waiting caller would have its turn at different instants in the store and
/// in the model.
///
/// # Panics
/// As [`holds_as_model`].
pub async fn holds_as_model_in_micros<S: HoldStore + AdminStore>(
    store: S,
    carries: Carries,
    lines: Lines,
    seed: u64,
    steps: usize,
) {
    let model = InMicros(ModelStore::new(carries));
    let (random, subject) = (Random::in_micros(seed), limiter(store, start()));
    holds_as(
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

/// A name stands for the whole set that it was first claimed for: a part of that is another set.
///
/// # Panics
/// When a claim is answered otherwise.
pub async fn names_stand_for_whole_sets<S: HoldStore>(store: S) {
    let (limiter, _clock) = limiter(store, start());
    assert_eq!(limiter.set_rules(two_limits(5, 5)), Ok(()));
    let (both, one) = (Query::new("d").entry("user", "a"), Query::new("d"));
    let rules = limiter.rules();
    let claim = async |query: &Query<'_>, id: &HoldId| {
        let set = limit_set(&rules, query, start());
        let claim = Claim {
            hold: Some(Duration::from_secs(9)),
            is_named: true,
            ..Claim::plain(id)
        };
        let placed = limiter.store().hold(&set, &claim, start()).await;
        placed.map(|placed| (placed.held, placed.repeated))
    };
    for (first, second, name) in [(&both, &one, "more"), (&one, &both, "less")] {
        if let Some(id) = HoldId::new("d", name) {
            assert_eq!(claim(first, &id).await, Ok((true, false)));
            assert_eq!(claim(first, &id).await, Ok((true, true)));
            assert_eq!(claim(second, &id).await, Err(StoreError::HoldTaken));
        }
    }
}

/// Everything that is held or waits on a key is listed, in order of time, and nothing that is over.
///
/// # Panics
/// When a list is another one.
pub async fn lists_holds<S: HoldStore + AdminStore>(store: S) {
    let (limiter, _clock) = limiter(store, start());
    assert_eq!(limiter.set_rules(permits_and_budgets()), Ok(()));
    let after = |seconds| later(start(), Duration::from_secs(seconds));
    let ann = Query::new("d").entry("user", "ann");
    let list = async |query: &Query<'_>, rule: Option<&str>, at| {
        let entries = query.descriptors().first().cloned().unwrap_or_default();
        let listed = limiter.view_at("d", rule, &entries, after(at)).await;
        let listed = listed.unwrap_or_default().into_iter();
        listed.flat_map(shown).collect::<Vec<_>>()
    };
    let claim = async |name: &str, query: Query<'_>, at| {
        let (id, rules) = (HoldId::new("d", name)?, limiter.rules());
        let claim = Claim {
            hold: Some(Duration::from_secs(10)),
            wait: Some(WaitLimits {
                turn: Duration::from_secs(60),
                in_all: Duration::from_secs(60),
            }),
            is_named: true,
            ..Claim::plain(&id)
        };
        let set = limit_set(&rules, &query, after(at));
        let placed = limiter.store().hold(&set, &claim, after(at)).await;
        placed.ok().map(|placed| placed.held)
    };
    let end = async |name: &str, ending, at| {
        let id = HoldId::new("d", name)?;
        let ended = limiter.store().end(&id, ending, after(at)).await;
        ended.ok().flatten().map(|ended| ended.repeated)
    };
    assert_eq!(list(&ann, None, 0).await, [""; 0]);
    assert_eq!(claim("first", ann.clone(), 0).await, Some(true));
    assert_eq!(claim("second", ann.clone(), 1).await, Some(true));
    assert_eq!(end("first", Ending::Renew, 5).await, Some(false));
    assert_eq!(claim("a-waiter", ann.clone(), 6).await, Some(true));
    let all = [
        "jobs user=ann: second 1 taken 25",
        "jobs user=ann: a-waiter 1 waits 25",
        "jobs user=ann: first 1 taken 29",
    ];
    assert_eq!(list(&ann, None, 6).await, all);
    assert_eq!(list(&ann, Some("jobs"), 6).await, all, "again");
    let ben = Query::new("d").entry("user", "ben");
    assert_eq!(list(&ben, None, 6).await, [""; 0]);
    assert_eq!(
        list(&ann, None, 32).await,
        [
            "jobs user=ann: first 1 taken 3",
            "jobs user=ann: a-waiter 1 taken 29"
        ]
    );
    assert_eq!(
        list(&ann, None, 36).await,
        ["jobs user=ann: a-waiter 1 taken 25"]
    );
    assert_eq!(end("a-waiter", Ending::Release, 36).await, Some(false));
    assert_eq!(list(&ann, None, 36).await, [""; 0]);
    let blue = Query::new("d").entry("team", "blue");
    let forty = Cost::new(40).unwrap_or_default();
    assert_eq!(
        claim("estimate", blue.clone().cost(forty), 40).await,
        Some(true)
    );
    assert_eq!(
        list(&blue, None, 42).await,
        ["budget team=blue: estimate 40 taken 8"]
    );
    assert_eq!(list(&blue, None, 50).await, [""; 0]);
}

/// Holds of a key, one per line.
fn shown((key, view): (KeyName, KeyView)) -> impl Iterator<Item = String> {
    let values = key.values.into_iter();
    let values = values.map(|(name, value)| format!("{name}={}", value.unwrap_or_default()));
    let key = format!("{} {}", key.rule, values.collect::<String>());
    view.holds.into_iter().map(move |hold| {
        let state = if hold.is_waiting { "waits" } else { "taken" };
        let (name, units, left) = (&hold.name, hold.units, hold.left.as_secs());
        format!("{key}: {name} {units} {state} {left}")
    })
}

pub(crate) async fn holds_as<S: HoldStore + AdminStore, M: HoldStore + AdminStore>(
    (subject, clock): (Limiter<S>, Arc<ManualClock>),
    model: M,
    random: Random,
    steps: usize,
    lines: Lines,
    rules: impl Fn(&mut Random, bool) -> Vec<DomainRules>,
    is_same: impl Fn(&VerdictResult, &VerdictResult) -> bool,
) {
    let (seed, mut random) = (random.seed(), random);
    let (model, model_clock) = limiter(model, start());
    let can_learn = subject.store().most_learned(Rung::Strict) > 0;
    let history = random.reseeded(seed);
    reload_and_read(&subject, &model, &rules(&mut random, can_learn), &history);
    for step in 0..steps {
        if random.changes_rules(60) {
            reload_and_read(&subject, &model, &rules(&mut random, can_learn), &history);
        }
        let now = random.step_clock(subject.now());
        clock.set(now);
        model_clock.set(now);
        if random.changes_overrides() {
            change_overrides(&subject, &model, &history, &mut random, now);
        }
        let query = random_query(&mut random);
        let told = format!("seed {seed} step {step} at {now:?}: {query:?}");
        let mut name = format!("id-{}", random.below(IDS));
        if lines == Lines::Reservations {
            // Stores for several rungs do not know each other's ids, and each repeats its own part.
            name.push_str(&rungs_of(&subject, &query, now));
        }
        let Some(mut id) = HoldId::new("d", &name) else {
            continue;
        };
        if random.one_in(12) {
            let action = random_action(&mut random, now);
            by_hand(&subject, &model, &query, action, &told).await;
            continue;
        }
        let kind = random.below(8);
        if lines == Lines::Once {
            let earlier = random.index(step.min(12));
            let claimed = if kind < 4 { step } else { step - earlier };
            id = HoldId::new("d", &format!("id-{claimed}")).unwrap_or(id);
        }
        match kind {
            0..=3 => {
                let claim = random_claim(&mut random, &id, lines);
                crate::claim(&subject, &model, &query, &claim, now, &told).await;
            }
            4 | 5 => {
                let ending = random_ending(&mut random);
                end(&subject, &model, &id, ending, now, &told).await;
            }
            6 => {
                let got = subject.store().advance(&id, now).await;
                let expected = model.store().advance(&id, now).await;
                assert_eq!(got, expected, "{told} {id:?} advances");
            }
            _ => {
                let got = subject.try_acquire(&query).await;
                let expected = model.try_acquire(&query).await;
                let (got, expected) = (without_id(got), without_id(expected));
                let is_same = is_same(&got, &expected);
                assert!(is_same, "{told}: {got:?} is not {expected:?}");
            }
        }
        let got = subject.peek(&query).await;
        let expected = model.peek(&query).await;
        assert_eq!(got, expected, "{told} peek");
        same_holds(&subject, &model, &query, now, &told).await;
    }
}

/// An answer without the id that its permits got.
fn without_id(asked: VerdictResult) -> VerdictResult {
    asked.map(|verdict| Verdict {
        id: None,
        ..verdict
    })
}

/// The same is held on the keys of a query.
async fn same_holds<S: HoldStore + AdminStore, M: HoldStore + AdminStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    query: &Query<'_>,
    now: Now,
    told: &str,
) {
    let (rules, of_model) = (subject.rules(), model.rules());
    let set = limit_set(&rules, query, now);
    let got = subject.store().view(&set, now).await;
    let set = limit_set(&of_model, query, now);
    let expected = model.store().view(&set, now).await;
    let (got, expected) = (without_made_ids(got), without_made_ids(expected));
    assert_eq!(got, expected, "{told} holds");
}

/// A list without the ids that calls for permits got.
fn without_made_ids(listed: StoreResult<Vec<KeyView>>) -> StoreResult<Vec<KeyView>> {
    let mut listed = listed?;
    for KeyView { holds, .. } in &mut listed {
        let made = holds
            .iter_mut()
            .filter(|hold| !hold.name.starts_with("id-"));
        made.for_each(|hold| hold.name.clear());
        holds.sort_unstable();
    }
    Ok(listed)
}

async fn by_hand<S: HoldStore + AdminStore, M: HoldStore + AdminStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    query: &Query<'_>,
    action: Action<'_>,
    told: &str,
) {
    let got = subject.administer(query, action).await;
    let expected = model.administer(query, action).await;
    // Forgiving counts a bucket that still fills from `initial` where its state happens to be kept.
    match action {
        Action::Forgive => assert_eq!(got.is_ok(), expected.is_ok(), "{told} {action:?}"),
        _ => assert_eq!(got, expected, "{told} {action:?}"),
    }
}

fn random_claim<'a>(random: &mut Random, id: &'a HoldId, lines: Lines) -> Claim<'a> {
    let wait = Duration::from_millis(random.below(20_000));
    let hold = Duration::from_millis(1 + random.below(30_000));
    if matches!(lines, Lines::Reservations | Lines::Once) {
        return Claim {
            hold: Some(hold),
            ..Claim::plain(id)
        };
    }
    Claim {
        id,
        hold: random.one_in(2).then_some(hold),
        wait: random.one_in(2).then_some(WaitLimits {
            turn: if random.one_in(4) || lines == Lines::None {
                Duration::ZERO
            } else {
                wait
            },
            in_all: wait,
        }),
        is_named: true,
        pending: None,
    }
}

fn random_ending(random: &mut Random) -> Ending {
    match random.below(6) {
        0 => {
            let count = 1 + random.index(3);
            let units: Vec<_> = (0..count).map(|_| random.below(20)).collect();
            Ending::Settle(units.into())
        }
        1 => Ending::Cancel,
        2 => Ending::Release,
        3 => Ending::Renew,
        4 => Ending::Fail,
        _ => Ending::Arrive,
    }
}

/// Number of strict and of local charges of a query.
fn rungs_of<S: HoldStore>(limiter: &Limiter<S>, query: &Query<'_>, now: Now) -> String {
    let rules = limiter.rules();
    let set = limit_set(&rules, query, now);
    let rungs = set.charges().iter().map(|charge| charge.policy.rung);
    let (strict, local): (Vec<_>, Vec<_>) = rungs.partition(|rung| *rung == Rung::Strict);
    format!("-{}-{}", strict.len(), local.len())
}

pub(crate) fn rules(random: &mut Random, can_learn: bool) -> Vec<DomainRules> {
    let rules = steady_rules(random);
    with_permits(random, rules, can_learn)
}
