//! Anchors: calendar windows whose edges move while they are in use.

use std::time::Duration;

use quell::Limiter;
use quell::calendar::{CalendarEdges, SystemCalendar};
use quell::store::{Action, AdminStore, HoldStore, Store};
use quell_core::algorithm::fixed_window::{Anchor, Calendar, CalendarUnit, FixedWindow, Weekday};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::limit::Limit;
use quell_core::rule::DomainRules;
use quell_core::time::{Now, Wall};

use crate::holds::{Lines, holds_as};
use crate::in_micros::InMicros;
use crate::model::{Carries, ModelStore};
use crate::rules::{Random, one_limit};
use crate::{VerdictResult, later, limit_set, limiter, start};

const DAY: Duration = Duration::from_secs(86_400);

/// Calendars whose edges lie close together, most of them soon after [`start`].
const CALENDARS: [(CalendarUnit, &str, Anchor); 14] = [
    (CalendarUnit::Month, "UTC", Anchor::UnitStart),
    (CalendarUnit::Month, "UTC", Anchor::DayOfMonth(30)),
    (CalendarUnit::Month, "UTC", Anchor::DayOfMonth(31)),
    (CalendarUnit::Month, "Asia/Tokyo", Anchor::DayOfMonth(30)),
    (CalendarUnit::Month, "Europe/Berlin", Anchor::DayOfMonth(15)),
    (CalendarUnit::Week, "UTC", Anchor::UnitStart),
    (
        CalendarUnit::Week,
        "Europe/Berlin",
        Anchor::Weekday(Weekday::Thursday),
    ),
    (
        CalendarUnit::Week,
        "UTC",
        Anchor::Weekday(Weekday::Wednesday),
    ),
    (CalendarUnit::Day, "Europe/Berlin", Anchor::UnitStart),
    // A time that clocks skip an hour after the start.
    (
        CalendarUnit::Day,
        "Europe/Berlin",
        Anchor::TimeOfDay(2 * 60 + 30),
    ),
    (CalendarUnit::Day, "UTC", Anchor::TimeOfDay(20 * 60)),
    (
        CalendarUnit::Day,
        "America/Sao_Paulo",
        Anchor::TimeOfDay(22 * 60),
    ),
    (
        CalendarUnit::Year,
        "UTC",
        Anchor::DayOfYear { month: 4, day: 6 },
    ),
    (
        CalendarUnit::Year,
        "UTC",
        Anchor::DayOfYear { month: 7, day: 1 },
    ),
];

/// A random window on one of the calendars; in a trace mostly of one unit, always unless units are mixed.
fn window(random: &mut Random, is_mixed: bool) -> FixedWindow {
    let unit = CALENDARS.get(usize::try_from(random.seed()).unwrap_or(0) * 5 % CALENDARS.len());
    let is_mixed = is_mixed && random.one_in(10);
    let same = CALENDARS
        .into_iter()
        .filter(|(own, ..)| is_mixed || unit.is_some_and(|(unit, ..)| own == unit));
    let same: Vec<_> = same.collect();
    let index = random.index(same.len());
    let (unit, zone, anchor) = same.get(index).copied().unwrap_or(CALENDARS[0]);
    // The same limit most of the time, so that versions come back.
    let limit = match random.below(4) {
        0 => 5,
        _ => 12,
    };
    Limit::calendar_window(limit, unit, zone).anchor(anchor)
}

/// A random window on one of the calendars.
pub(crate) fn anchored(random: &mut Random) -> FixedWindow {
    window(random, true)
}

fn rules(random: &mut Random, _can_learn: bool) -> Vec<DomainRules> {
    one_limit("budget", window(random, true).build())
}

/// Runs `steps` random steps with holds from `seed` against `store` and the model, under calendar windows whose
/// anchor and time zone change every few steps. Days pass between some of them.
///
/// # Panics
/// When an answer differs; the message names the seed and the step.
pub async fn anchors_as_model<S: HoldStore + AdminStore>(store: S, seed: u64, steps: usize) {
    holds_as(
        limiter(store, start()),
        ModelStore::default(),
        Random::in_days(seed),
        steps,
        Lines::None,
        rules,
        VerdictResult::eq,
    )
    .await;
}

/// [`anchors_as_model`] for a store that counts time in microseconds.
///
/// # Panics
/// As [`anchors_as_model`].
pub async fn anchors_as_model_in_micros<S: HoldStore + AdminStore>(
    store: S,
    carries: Carries,
    seed: u64,
    steps: usize,
) {
    holds_as(
        limiter(store, start()),
        InMicros(ModelStore::new(carries)),
        Random::in_days(seed),
        steps,
        Lines::None,
        rules,
        VerdictResult::eq,
    )
    .await;
}

/// A day of 2026, an hour into it.
fn day(month: u8, day: u8) -> Now {
    let before = [0, 31, 59, 90, 120, 151];
    let days: u64 = before
        .get(usize::from(month - 1))
        .copied()
        .unwrap_or_default();
    let seconds = 1_767_225_600 + (days + u64::from(day) - 1) * 86_400 + 3_600;
    Now::from_nanos(seconds * 1_000_000_000)
}

fn monthly(limit: u64, day: u8) -> Vec<DomainRules> {
    let window = Limit::calendar_window(limit, CalendarUnit::Month, "UTC");
    one_limit("budget", window.anchor(Anchor::DayOfMonth(day)).build())
}

/// What was used under one anchor counts under the next until its first edge, also there and back.
///
/// # Panics
/// When more is left, or less.
pub async fn new_anchors_give_no_second_budget<S: Store>(store: S) {
    // The day; the anchor, if there is a new one; what is charged then; what is left; the days until more is left.
    let steps = [
        (day(1, 10), Some(1), 80, 20, 22),
        (day(1, 20), Some(15), 5, 15, 26),
        (day(1, 25), Some(1), 5, 10, 7),
        (day(1, 25), Some(15), 1, 9, 21),
        // The month of the first anchor is over, that of the second is not.
        (day(2, 2), None, 1, 8, 13),
        (day(2, 3), Some(1), 1, 7, 26),
        (day(2, 4), Some(15), 1, 6, 11),
        // The first edge since the change.
        (day(2, 15), None, 3, 97, 28),
        // The other month counts on until its own.
        (day(2, 16), Some(1), 1, 2, 13),
        (day(3, 1), None, 30, 70, 31),
        // That of the second began with 4 of these units more.
        (day(3, 2), Some(15), 1, 65, 13),
        (day(3, 15), None, 1, 99, 31),
        (day(3, 31), Some(31), 1, 98, 30),
        (day(4, 30), None, 10, 90, 31),
        (day(5, 30), None, 10, 80, 1),
        (day(5, 31), None, 10, 90, 30),
    ];
    let (limiter, clock) = limiter(store, day(1, 10));
    for (now, anchor, cost, left, days) in steps {
        clock.set(now);
        if let Some(anchor) = anchor {
            assert_eq!(limiter.set_rules(monthly(100, anchor)), Ok(()));
        }
        let told = format!("{anchor:?} at {now:?}");
        let (remaining, reset_after) = charge(&limiter, cost, now).await.unwrap_or_default();
        assert_eq!(remaining, left, "{told}");
        let expected = DAY * days - Duration::from_secs(3_600);
        assert_eq!(reset_after, expected, "{told}");
    }
}

/// A change that is carried out at once counts until the first edge after it, also if nobody calls meanwhile.
///
/// # Panics
/// When more is left, or less.
pub async fn a_carried_key_needs_no_call<S: AdminStore>(store: S) {
    let (limiter, clock) = limiter(store, day(1, 10));
    let query = Query::new("d");
    assert_eq!(limiter.set_rules(monthly(100, 1)), Ok(()));
    assert!(charge(&limiter, 80, day(1, 10)).await.is_some());
    for (now, anchor) in [(day(1, 20), 15), (day(1, 25), 20), (day(1, 26), 15)] {
        clock.set(now);
        assert_eq!(limiter.set_rules(monthly(100, anchor)), Ok(()));
        let carried = limiter.administer_at(&query, Action::Carry, now).await;
        assert_eq!(carried, Ok(0));
    }
    // The window of the first anchor is over.
    for (now, cost, left) in [(day(2, 3), 5, 15), (day(2, 14), 5, 10), (day(2, 15), 5, 95)] {
        clock.set(now);
        let charged = charge(&limiter, cost, now).await;
        assert_eq!(charged.map(|(left, _)| left), Some(left), "{now:?}");
    }
}

/// Charges `cost`; returns what is left then and the time to rest, or nothing if it is refused.
async fn charge<S: Store>(limiter: &Limiter<S>, cost: u64, now: Now) -> Option<(u64, Duration)> {
    let query = Query::new("d").cost(Cost::new(cost)?);
    let verdict = limiter.ask(quell::Operation::Acquire, &query, now).await;
    let verdict = verdict.ok().filter(|verdict| verdict.is_allow())?;
    let decision = &verdict.decisions.first()?.decision;
    Some((decision.remaining, decision.reset_after))
}

/// A reservation that is settled after the window of its anchor: the difference is given back, or charged, where the
/// estimate counts since the change.
///
/// # Panics
/// When another number is left.
pub async fn reservations_follow_a_new_anchor<S: HoldStore>(store: S) {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    // Half an hour before the end of January.
    let began = later(day(1, 31), minutes(22 * 60 + 30));
    let (limiter, clock) = limiter(store, began);
    let query = Query::new("d").cost(Cost::new(10).unwrap_or_default());
    // The rules of each case have a name of their own, and so another key.
    let cases = [
        ("less", &[15][..], 4, 96),
        ("more", &[15], 25, 75),
        ("there and back", &[15, 1, 15], 4, 96),
        ("to a window that ends with the old one", &[15, 1], 25, 100),
    ];
    for (name, anchors, actual, left) in cases {
        clock.set(began);
        let rules = |anchor| {
            let window = Limit::calendar_window(100, CalendarUnit::Month, "UTC");
            one_limit(name, window.anchor(Anchor::DayOfMonth(anchor)).build())
        };
        assert_eq!(limiter.set_rules(rules(1)), Ok(()));
        let Some(id) = HoldId::new("d", name) else {
            continue;
        };
        let claim = Claim {
            hold: Some(minutes(55)),
            is_named: true,
            ..Claim::plain(&id)
        };
        let placed = {
            let in_force = limiter.rules();
            let set = limit_set(&in_force, &query, began);
            limiter.store().hold(&set, &claim, began).await
        };
        assert_eq!(placed.map(|placed| placed.held), Ok(true), "{name}");
        for (anchor, after) in anchors.iter().zip([10, 12, 14]) {
            let now = later(began, minutes(after));
            clock.set(now);
            assert_eq!(limiter.set_rules(rules(*anchor)), Ok(()));
            // On a store that servers share, a change reaches a key at its next call.
            assert!(charge(&limiter, 1, now).await.is_some(), "{name}");
        }
        let now = later(began, minutes(40));
        clock.set(now);
        let ending = Ending::Settle(vec![actual].into());
        let ended = limiter.store().end(&id, ending, now).await;
        assert!(matches!(ended, Ok(Some(_))), "{name}: {ended:?}");
        let calls = u64::try_from(anchors.len()).unwrap_or_default();
        let calls = if left == 100 { 0 } else { calls };
        let (remaining, _) = charge(&limiter, 1, now).await.unwrap_or_default();
        assert_eq!(remaining, left - calls - 1, "{name}");
    }
}

/// Random changes of the anchor and the time zone, from `seed`: in no window more is admitted than the limit, where
/// what was used in the window before a change counts until the first edge after it.
///
/// # Panics
/// When more is admitted.
pub async fn random_anchors_give_no_second_budget<S: Store>(store: S, seed: u64, steps: usize) {
    const LIMIT: u64 = 12;
    let (mut random, edges) = (Random::in_days(seed), SystemCalendar::default());
    let (limiter, clock) = limiter(store, start());
    let mut current = None;
    let (mut used, mut end) = (0, start().wall);
    for step in 0..steps {
        let now = random.step_clock(limiter.now());
        clock.set(now);
        if now.wall >= end {
            used = 0;
        }
        if current.is_none() || random.one_in(4) {
            let next = FixedWindow {
                limit: LIMIT,
                ..window(&mut random, false)
            };
            let built = next.build();
            current = built.as_ref().ok().and_then(Limit::calendar).cloned();
            assert_eq!(limiter.set_rules(one_limit("budget", built)), Ok(()));
            end = end_of(&edges, current.as_ref(), now);
        }
        if used == 0 {
            end = end_of(&edges, current.as_ref(), now);
        }
        let cost = 1 + random.below(5);
        if charge(&limiter, cost, now).await.is_some() {
            used += cost;
        }
        assert!(
            used <= LIMIT,
            "seed {seed} step {step} at {now:?}: {current:?}"
        );
    }
}

fn end_of(edges: &SystemCalendar, calendar: Option<&Calendar>, now: Now) -> Wall {
    calendar.map_or(now.wall, |calendar| edges.edges(calendar, now.wall).end)
}
