//! The suites that every store of limits, every store of rules ([`rule_store`]) and every store of overrides
//! ([`override_store`]) must pass.
//!
//! The core of the first is a differential test: random traces of queries, peeks, reloads, bans and clock steps run
//! against the store and against a model that keeps every state in one map and carries use over at once.
//! Their answers must be equal to the nanosecond, or to the store's own unit. Other tests check the
//! promises that need more than one thread.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quell::calendar::SystemCalendar;
use quell::clock::{Clock, ManualClock};
use quell::store::{Action, AdminStore, Charges, HoldStore, Placed, Store, StoreError};
use quell::{AskError, Limiter};
use quell_core::adjustment::{Adjustment, IssuedReservation};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::descriptor::{Descriptor, Query};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, RuleSet};
use quell_core::time::Now;
use quell_core::verdict::{RuleDecision, Verdict};

mod anchors;
mod holds;
mod in_micros;
mod learning;
mod model;
mod model_holds;
mod model_ids;
pub mod override_store;
mod overrides;
mod permits;
pub mod rule_store;
mod rules;
mod rungs;
mod scripted;
mod warming;

pub use anchors::{
    a_carried_key_needs_no_call, anchors_as_model, anchors_as_model_in_micros,
    new_anchors_give_no_second_budget, random_anchors_give_no_second_budget,
    reservations_follow_a_new_anchor,
};
pub use holds::{
    Lines, holds_and_remembers_as_model, holds_as_model, holds_as_model_in_micros, lists_holds,
    names_stand_for_whole_sets,
};
pub use in_micros::InMicros;
pub use learning::learns_as_model_in_micros;
pub use model::{Carries, ModelStore};
pub use overrides::{
    Restart, held_overrides_as_model, held_overrides_as_model_in_micros, overrides_as_model,
    overrides_as_model_in_micros, restarts_as_model,
};
pub use permits::permits_are_counted;
use rules::{Random, random_budgets, random_rules, steady_rules};
pub use rungs::{Rungs, rungs_as_model, rungs_hold_as_model, rungs_reserve_as_model};
pub use scripted::ScriptedStore;
pub use warming::warms_as_model_in_micros;

/// The seeds of a test's random histories, `usual` of them from 1 on. `QUELL_HISTORIES` in the environment is another
/// number, and `QUELL_SEED` another begin.
pub fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("QUELL_SEED").unwrap_or(1);
    first..first.saturating_add(number("QUELL_HISTORIES").unwrap_or(usual))
}

/// A limiter on `store` whose clock stands still until it is moved, and that clock.
fn limiter<S: Store>(store: S, now: Now) -> (Limiter<S>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(now));
    (limiter_by(store, &clock), clock)
}

fn limiter_by<S: Store>(store: S, clock: &Arc<ManualClock>) -> Limiter<S> {
    let limiter = Limiter::builder(store).clock(Arc::clone(clock) as _);
    limiter.build()
}

/// An hour before clocks in Berlin go forward, so that calendar windows meet an unusual day.
fn start() -> Now {
    Now::from_nanos(1_774_742_400_000_000_000)
}

/// The instant `by` later.
fn later(now: Now, by: Duration) -> Now {
    Now {
        monotonic: now.monotonic.saturating_add(by),
        wall: now.wall.saturating_add(by),
    }
}

/// Runs `steps` random steps from `seed` against `store` and the model.
///
/// Time only goes forward here: if the clock goes back, it depends on the store whether a state at rest
/// was already dropped. The core's tests prove what must hold then.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn same_as_model<S: AdminStore>(store: S, seed: u64, steps: usize) {
    let subject = limiter(store, start());
    let model = ModelStore::default();
    same_as(
        subject,
        model,
        seed,
        steps,
        (random_rules, 40),
        VerdictResult::eq,
    )
    .await;
}

/// [`same_as_model`] for a store that remembers refusals, made by `build` with the clock of its limiter: a
/// refusal may leave out limits other than the one that refuses, report less remaining, and round its wait
/// up to a microsecond.
///
/// # Panics
/// As [`same_as_model`].
pub async fn remembers_as_model<S: AdminStore>(
    build: impl FnOnce(Arc<dyn Clock>) -> S,
    seed: u64,
    steps: usize,
) {
    let clock = Arc::new(ManualClock::new(start()));
    let subject = (limiter_by(build(Arc::clone(&clock) as _), &clock), clock);
    let model = ModelStore::default();
    same_as(
        subject,
        model,
        seed,
        steps,
        (steady_rules, 40),
        is_remembered,
    )
    .await;
}

/// As [`same_as_model`], under fixed windows, which estimates are settled in, and most with an overdraft, which
/// refusals change.
///
/// # Panics
/// As [`same_as_model`].
pub async fn overdraws_as_model<S: AdminStore>(store: S, seed: u64, steps: usize) {
    let (subject, model) = (limiter(store, start()), ModelStore::default());
    same_as(
        subject,
        model,
        seed,
        steps,
        (random_budgets, 8),
        VerdictResult::eq,
    )
    .await;
}

/// As [`same_as_model_in_micros`], under the rules of [`overdraws_as_model`].
///
/// # Panics
/// As [`same_as_model`].
pub async fn overdraws_as_model_in_micros<S: AdminStore>(
    store: S,
    carries: Carries,
    seed: u64,
    steps: usize,
) {
    let model = InMicros(ModelStore::new(carries));
    let subject = limiter(store, start());
    same_as(
        subject,
        model,
        seed,
        steps,
        (random_budgets, 8),
        VerdictResult::eq,
    )
    .await;
}

type VerdictResult = Result<Verdict, AskError>;

/// Returns true if `got` equals `expected`, or the part of it that follows from a refusal.
fn is_remembered(got: &VerdictResult, expected: &VerdictResult) -> bool {
    let (Ok(told), Ok(known)) = (got, expected) else {
        return got == expected;
    };
    let is_part = |one: &RuleDecision| {
        let mut decisions = known.decisions.iter();
        decisions.any(|other| one.rule == other.rule && follows(&one.decision, &other.decision))
    };
    let is_refusal = !told.is_allow() && !known.is_allow();
    told == known || (is_refusal && told.decisions.iter().all(is_part))
}

/// [`same_as_model`] for a store that counts time in microseconds: the model's answers are rounded up to
/// them. With [`Carries::AtNextCall`] the model behaves like a store that many processes share.
///
/// # Panics
/// As [`same_as_model`].
pub async fn same_as_model_in_micros<S: AdminStore>(
    store: S,
    carries: Carries,
    seed: u64,
    steps: usize,
) {
    let model = InMicros(ModelStore::new(carries));
    let subject = limiter(store, start());
    same_as(
        subject,
        model,
        seed,
        steps,
        (random_rules, 40),
        VerdictResult::eq,
    )
    .await;
}

/// [`same_as_model_in_micros`] for a store that decides a set in several places, and gives back where another place
/// refuses: a key has the same numbers for all of its calls. What is given back stays counted under other numbers
/// that the key had lately.
///
/// # Panics
/// As [`same_as_model`].
pub async fn same_as_model_over_places<S: AdminStore>(store: S, seed: u64, steps: usize) {
    let model = InMicros(ModelStore::new(Carries::AtOnce));
    let subject = limiter(store, start());
    same_as(
        subject,
        model,
        seed,
        steps,
        (steady_rules, 40),
        VerdictResult::eq,
    )
    .await;
}

/// Returns true if `told` follows from an earlier refusal if the correct answer is now `known`: its wait
/// may be rounded up to a microsecond.
fn follows(told: &Decision, known: &Decision) -> bool {
    let is_near = match (told.retry_after(), known.retry_after()) {
        (Some(RetryAfter::After(told)), Some(RetryAfter::After(known))) => {
            told >= known && told - known <= Duration::from_micros(1)
        }
        (told, known) => told == known,
    };
    let rest = Decision {
        outcome: known.outcome,
        remaining: known.remaining,
        ..*told
    };
    is_near && told.remaining <= known.remaining && rest == *known
}

async fn same_as<S: AdminStore, M: AdminStore>(
    (subject, clock): (Limiter<S>, Arc<ManualClock>),
    model: M,
    seed: u64,
    steps: usize,
    (rules, one_action_in): (impl Fn(&mut Random) -> Vec<DomainRules>, u64),
    is_same: impl Fn(&VerdictResult, &VerdictResult) -> bool,
) {
    let mut random = Random::new(seed);
    let (model, model_clock) = limiter(model, start());
    reload(&subject, &model, &rules(&mut random));
    for step in 0..steps {
        if random.one_in(50) {
            reload(&subject, &model, &rules(&mut random));
        }
        let now = random.step_clock(subject.now());
        clock.set(now);
        model_clock.set(now);
        let query = random_query(&mut random);
        if random.one_in(one_action_in) {
            let action = random_action(&mut random, now);
            let got = subject.administer(&query, action).await;
            let expected = model.administer(&query, action).await;
            assert_eq!(
                got, expected,
                "seed {seed} step {step}: {action:?} {query:?}"
            );
            let (got, expected) = (banned(&subject).await, banned(&model).await);
            assert_eq!(
                got, expected,
                "seed {seed} step {step}: {action:?} {query:?}"
            );
            continue;
        }
        let operation = if random.one_in(5) {
            Operation::Peek
        } else {
            Operation::Acquire
        };
        let got = subject.ask(operation, &query, now).await;
        let expected = model.ask(operation, &query, now).await;
        assert!(
            is_same(&got, &expected),
            "seed {seed} step {step}: {operation:?} {query:?} at {now:?}: {got:?} is not {expected:?}"
        );
    }
    let expected = banned(&model).await;
    assert_eq!(banned(&subject).await, expected, "seed {seed}");
    let count = subject.ban_count().await;
    assert_eq!(count, expected.map(|bans| bans.len()), "seed {seed}");
}

/// The keys that are banned, and why.
async fn banned<S: AdminStore>(
    limiter: &Limiter<S>,
) -> Result<Vec<(String, Option<Box<str>>)>, AskError> {
    let bans = limiter.bans(usize::MAX).await?.into_iter();
    let bans = bans.map(|ban| (format!("{} {}", ban.key.rule, ban.key), ban.reason));
    let mut bans: Vec<_> = bans.collect();
    bans.sort_unstable();
    Ok(bans)
}

/// Puts the same rules into force on both.
fn reload<S: Store, M: Store>(subject: &Limiter<S>, model: &Limiter<M>, rules: &[DomainRules]) {
    assert_eq!(subject.set_rules(rules.to_vec()), Ok(()));
    assert_eq!(model.set_rules(rules.to_vec()), Ok(()));
}

/// The limits of a query, as a limiter under these rules finds them.
fn limit_set<'r>(rules: &'r RuleSet, query: &Query<'_>, now: Now) -> LimitSet<'r> {
    static CALENDAR: LazyLock<SystemCalendar> = LazyLock::new(SystemCalendar::default);
    rules.resolve(query, now, &*CALENDAR)
}

/// Makes a claim on both at `now`. Returns the answer, if there is one.
async fn claim<S: HoldStore, M: HoldStore + AdminStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    query: &Query<'_>,
    claim: &Claim<'_>,
    now: Now,
    told: &str,
) -> Option<Placed> {
    let (ours, theirs) = (subject.rules(), model.rules());
    let set = limit_set(&ours, query, now);
    let model_set = limit_set(&theirs, query, now);
    let got = subject.store().hold(&set, claim, now).await;
    let expected = model.store().hold(&model_set, claim, now).await;
    match (&got, &expected) {
        // One part of a name is over before the other if its limit is gone. Then a refusal by the local part,
        // which does not ask the strict store what it knows of the name, is the one under a new name.
        (Ok(placed), Err(StoreError::HoldTaken)) if placed.places.is_some() => {
            let mut part = model_set.clone();
            part.keep(placed.places.as_deref().unwrap_or_default());
            let asked = Charges::Set(&part);
            let expected = model.store().decide(asked, Operation::Peek, now).await;
            let decisions = expected.map(|answer| answer.decisions.into_vec());
            let is_refusal = !placed.held && !part.passes(&placed.decisions);
            assert!(is_refusal, "{told} {claim:?}: {got:?}");
            assert_eq!(
                Ok(&placed.decisions),
                decisions.as_ref(),
                "{told} {claim:?}"
            );
        }
        // The store of the other part does not know that the name stands.
        (Err(StoreError::HoldTaken), Ok(placed))
            if placed.repeated && is_over_on_one_rung(model, &model_set, claim.id, now).await => {}
        _ => assert_eq!(got, expected, "{told} {claim:?}"),
    }
    got.ok()
}

/// Returns true if a set is on two rungs, and its name holds nothing any more on one of them.
async fn is_over_on_one_rung<M: HoldStore + AdminStore>(
    model: &Limiter<M>,
    set: &LimitSet<'_>,
    id: &HoldId,
    now: Now,
) -> bool {
    let views = model.store().view(set, now).await.unwrap_or_default();
    let rungs = set.charges().iter().map(|charge| charge.policy.rung);
    let holds = views.iter().map(|view| {
        let mut names = view.holds.iter().map(|hold| hold.name.as_bytes());
        names.any(|name| name == id.name().as_bytes())
    });
    let each: Vec<_> = rungs.zip(holds).collect();
    let is_on = |rung| each.iter().any(|(on, _)| *on == rung);
    let holds_on = |rung| each.iter().any(|(on, holds)| *on == rung && *holds);
    is_on(Rung::Local) && is_on(Rung::Strict) && !(holds_on(Rung::Local) && holds_on(Rung::Strict))
}

/// Ends a hold on both.
async fn end<S: HoldStore, M: HoldStore>(
    subject: &Limiter<S>,
    model: &Limiter<M>,
    id: &HoldId,
    ending: Ending,
    now: Now,
    told: &str,
) {
    let got = subject.store().end(id, ending.clone(), now).await;
    let expected = model.store().end(id, ending.clone(), now).await;
    assert_eq!(got, expected, "{told} {id:?} {ending:?}");
}

fn random_query(random: &mut Random) -> Query<'static> {
    let count = if random.one_in(3) {
        2 + random.below(2)
    } else {
        1
    };
    let descriptors = (0..count).map(|_| {
        let mut descriptor = Descriptor::new();
        let cost = if random.one_in(4) {
            1 + random.below(6)
        } else {
            1
        };
        descriptor.cost = Cost::new(cost).unwrap_or_default();
        descriptor.is_check = random.one_in(8);
        for name in ["a", "b", "c"] {
            if !random.one_in(6) {
                // Some values are not text, some contain the separators of joined values.
                let values: [&[u8]; 6] =
                    [b"x", b"y", b"x\0", b"\xff\xfe", b"10.1.2.3", b"10.1.9.9"];
                let value = values.get(random.index(values.len())).copied();
                descriptor.push(name, value.unwrap_or_default());
            }
        }
        descriptor
    });
    Query::with_descriptors("d", descriptors.collect())
}

fn random_action(random: &mut Random, now: Now) -> Action<'static> {
    match random.below(4) {
        0 => Action::Forgive,
        1 => Action::Lift,
        2 => {
            // A generator of its own, so that traces go on as they are.
            let mut random = Random::new(now.wall.as_nanos());
            match random.below(4) {
                0 => Action::Refund,
                1 => Action::Carry,
                _ => Action::Adjust(random_adjustment(&mut random, now)),
            }
        }
        _ => {
            let reasons = [None, Some("tries passwords"), Some("1 \u{e9}")];
            let length = Duration::from_millis(1 + random.below(5_000));
            Action::Ban(length, reasons[random.index(reasons.len())])
        }
    }
}

fn random_adjustment(random: &mut Random, now: Now) -> Adjustment {
    let units = i64::try_from(random.below(8)).unwrap_or(0);
    let ago = match random.below(3) {
        0 => Duration::ZERO,
        1 => Duration::from_millis(random.below(3_000)),
        _ => Duration::from_secs(random.below(7_200)),
    };
    // Few ids, so that some of them come again.
    let reservation = IssuedReservation {
        id: u128::from(random.below(12)),
        charged: now.wall.saturating_sub(ago),
        ttl: Duration::from_secs(1 + random.below(300)),
    };
    Adjustment {
        difference: if random.one_in(2) { units } else { -units },
        reservation: (!random.one_in(4)).then_some(reservation),
    }
}

/// Many parallel callers on few keys: exactly as many calls are admitted as the limit allows.
///
/// `run` drives one caller's future to its end on the calling thread: a store in this process is only
/// tested if calls really run in parallel, so every caller has a thread of its own.
///
/// # Panics
/// When more or fewer are admitted.
pub fn exact_in_parallel<S: Store>(
    store: S,
    callers: usize,
    calls: usize,
    run: impl Fn(Pin<&mut dyn Future<Output = ()>>) + Sync,
) {
    const LIMIT: u64 = 1_000;
    let (limiter, _clock) = limiter(store, start());
    assert_eq!(
        limiter.set_rules(rules::two_limits(LIMIT, LIMIT * 3 / 2)),
        Ok(())
    );
    let admitted = [AtomicU64::new(0), AtomicU64::new(0)];
    let call_all = async |caller: usize| {
        for call in 0..calls {
            let user = (caller + call) % 2;
            let name = if user == 0 { "even" } else { "odd" };
            let verdict = limiter
                .try_acquire(&Query::new("d").entry("user", name))
                .await;
            if verdict.is_ok_and(|verdict| verdict.is_allow())
                && let Some(count) = admitted.get(user)
            {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (call_all, run) = (&call_all, &run);
            scope.spawn(move || run(pin!(call_all(caller))));
        }
    });
    let total: u64 = admitted
        .iter()
        .map(|count| count.load(Ordering::SeqCst))
        .sum();
    assert_eq!(
        total,
        LIMIT * 3 / 2,
        "the limit that both users share is used up exactly"
    );
    for count in admitted.iter() {
        assert!(
            count.load(Ordering::SeqCst) <= LIMIT,
            "no user is above the limit per user"
        );
    }
}

/// The example of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
