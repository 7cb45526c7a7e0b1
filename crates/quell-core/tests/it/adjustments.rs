//! Adjustments: estimates that are settled with true costs, in the window in which they were charged.

use std::time::Duration;

use quell_core::adjustment::{Adjustment, IssuedReservation, adjust};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::charge::{Charge, Entry, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::limit::{ActiveLimit, Limit};
use quell_core::state::State;
use quell_core::time::{Now, Wall};

use crate::bench::install;
use crate::calendar::{day, edges};

const SECOND: u64 = 1_000_000_000;

/// The first instant of a day.
fn midnight() -> u64 {
    day(1_790_000_000 * SECOND).0
}

/// A key of 1,000 units, in windows of an hour or on the calendar.
struct Budget {
    active: ActiveLimit,
    state: State,
}

impl Budget {
    fn new(limit: Limit) -> Self {
        let active = install(1, limit, 0);
        let state = State::rest(active.id);
        Self { active, state }
    }

    fn with_entry<R>(
        &mut self,
        now: u64,
        cost: u64,
        work: impl FnOnce(&mut Entry<'_, '_>) -> R,
    ) -> R {
        let mut charge = Charge::alone(&self.active, Cost::new(cost).unwrap_or(Cost::ONE));
        charge.edges = Some(edges(now));
        let (charge, state) = (&charge, &mut self.state);
        work(&mut Entry { charge, state })
    }

    /// Units that are left now.
    fn left(&mut self, now: u64) -> u64 {
        let mut state = self.state.clone();
        self.with_entry(now, 1, |entry| {
            let entry = &mut Entry {
                charge: entry.charge,
                state: &mut state,
            };
            decide_one(Now::from_nanos(now), Operation::Peek, entry).remaining
        })
    }

    fn reserve(&mut self, now: u64, units: u64) {
        let decide =
            |entry: &mut Entry<'_, '_>| decide_one(Now::from_nanos(now), Operation::Acquire, entry);
        assert!(self.with_entry(now, units, decide).outcome.is_allow());
    }

    /// Settles what was charged at an instant.
    fn settle(&mut self, now: u64, charged: Option<u64>, difference: i64) {
        let reservation = charged.map(|nanos| IssuedReservation {
            id: 1,
            charged: Wall::from_nanos(nanos),
            ttl: Duration::from_secs(120),
        });
        let adjustment = Adjustment {
            difference,
            reservation,
        };
        assert!(self.with_entry(now, 1, |entry| adjust(
            Now::from_nanos(now),
            &adjustment,
            entry
        )));
    }
}

fn budgets() -> [Budget; 2] {
    [
        Limit::fixed_window(1_000, Duration::from_secs(3_600)).build(),
        Limit::calendar_window(1_000, CalendarUnit::Day, "UTC").build(),
    ]
    .map(|limit| Budget::new(limit.unwrap()))
}

#[test]
fn the_difference_is_given_back_or_owed_whether_it_fits_or_not() {
    let start = midnight() + 500 * SECOND;
    for mut budget in budgets() {
        budget.reserve(start, 600);
        budget.reserve(start + SECOND, 400);
        budget.settle(start + 2 * SECOND, Some(start), -450);
        assert_eq!(budget.left(start + 2 * SECOND), 450);
        budget.settle(start + 2 * SECOND, Some(start + SECOND), 700);
        assert_eq!(budget.left(start + 2 * SECOND), 0);
        // 1,250 are used.
        budget.settle(start + 3 * SECOND, Some(start), -300);
        assert_eq!(budget.left(start + 3 * SECOND), 50);
        budget.settle(start + 3 * SECOND, Some(start), -5_000);
        assert_eq!(
            budget.left(start + 3 * SECOND),
            1_000,
            "no more than was used"
        );
    }
}

#[test]
fn what_was_not_charged_is_charged_now() {
    let start = midnight() + 500 * SECOND;
    for mut budget in budgets() {
        budget.settle(start, None, 1_200);
        assert_eq!(budget.left(start), 0);
        budget.settle(start, Some(start), -300);
        assert_eq!(budget.left(start), 100);
        budget.settle(start, None, -1_000);
        assert_eq!(
            budget.left(start),
            100,
            "nothing is given back without a charge"
        );
    }
}

#[test]
fn a_late_settlement_gives_nothing_back() {
    let start = midnight() + 500 * SECOND;
    for mut budget in budgets() {
        budget.reserve(start, 500);
        let late = start + 120 * SECOND + 1;
        budget.settle(late, Some(start), -200);
        assert_eq!(budget.left(late), 500);
        budget.settle(late, Some(start), 200);
        assert_eq!(budget.left(late), 300);
    }
}

/// A window's edge lies between the charge and its settlement.
#[test]
fn a_window_that_is_over_counts_nothing_more() {
    let start = midnight() + 500 * SECOND;
    let ends = [start + 3_600 * SECOND, day(start).1];
    for (mut budget, end) in budgets().into_iter().zip(ends) {
        budget.reserve(start, 100);
        let charged = end - 60 * SECOND;
        budget.reserve(charged, 500);
        for difference in [-500, 500] {
            budget.settle(end, Some(charged), difference);
            assert_eq!(budget.left(end), 1_000);
        }
        budget.reserve(end, 300);
        for difference in [-500, 500] {
            budget.settle(end + SECOND, Some(charged), difference);
            assert_eq!(budget.left(end + SECOND), 700, "those of others stay");
        }
        budget.settle(end + SECOND, Some(end), -300);
        assert_eq!(budget.left(end + SECOND), 1_000);
    }
}

#[test]
fn other_limits_are_not_adjusted() {
    let start = midnight();
    let mut budget = Budget::new(Limit::per_second(10).build().unwrap());
    let adjustment = Adjustment {
        difference: 5,
        reservation: None,
    };
    let adjusted = budget.with_entry(start, 1, |entry| {
        adjust(Now::from_nanos(start), &adjustment, entry)
    });
    assert!(!adjusted);
    assert_eq!(budget.left(start), 10);
}
