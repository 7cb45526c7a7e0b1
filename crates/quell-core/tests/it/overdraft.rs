//! Overdraft: calendar windows against the counter of Envoy's own service, which every call raises, and sets of them.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::charge::{Charge, Entry, Operation, decide, take_back};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{ActiveLimit, Limit};
use quell_core::state::State;
use quell_core::time::Now;
use quell_core::usage::Usage;

use crate::bench::install;
use crate::calendar::{day, edges};
use crate::config;

const START: u64 = 1_790_000_000_000_000_000;

const LIMIT: u64 = 20;

/// A key under a limit with an overdraft.
struct Budget {
    active: ActiveLimit,
    state: State,
}

impl Budget {
    fn new(id: u32, limit: u64) -> Self {
        let limit = Limit::calendar_window(limit, CalendarUnit::Day, "UTC").overdraft();
        let active = install(id, limit.build().unwrap(), START);
        let state = State::rest(active.id);
        Self { active, state }
    }

    fn charge(&self, now: u64, units: u64) -> Charge<'_> {
        let mut charge = Charge::alone(&self.active, Cost::new(units).unwrap_or(Cost::ONE));
        charge.is_check = units == 0;
        charge.edges = Some(edges(now));
        charge
    }

    /// Units that were used in this window, and those that were refused.
    fn used(&self) -> (u64, u64) {
        match self.state.usage {
            Usage::CalendarWindow { used, refused, .. } => (used, refused),
            _ => (0, 0),
        }
    }

    fn refund(&mut self, now: u64, units: u64) {
        let mut state = std::mem::replace(&mut self.state, State::rest(self.active.id));
        let charge = self.charge(now, units);
        let mut entry = Entry {
            charge: &charge,
            state: &mut state,
        };
        take_back(Now::from_nanos(now), Now::from_nanos(now), &mut entry);
        self.state = state;
    }
}

/// Asks all budgets in one call.
fn ask(budgets: &mut [Budget], now: u64, operation: Operation, units: u64) -> Vec<Decision> {
    let (charges, mut states): (Vec<_>, Vec<_>) = budgets
        .iter()
        .map(|one| (one.charge(now, units), one.state.clone()))
        .unzip();
    let mut entries: Vec<_> = charges
        .iter()
        .zip(&mut states)
        .map(|(charge, state)| Entry { charge, state })
        .collect();
    let decisions = decide(Now::from_nanos(now), operation, &mut entries);
    for (budget, state) in budgets.iter_mut().zip(states) {
        budget.state = state;
    }
    decisions
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u64),
    Look(u64),
    Refund(u64),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let units = 0..=LIMIT + 3;
    let step = prop_oneof![
        4 => units.clone().prop_map(Step::Ask),
        1 => units.clone().prop_map(Step::Look),
        2 => (1..=LIMIT).prop_map(Step::Refund),
        1 => (0..40_000_u64).prop_map(Step::Wait),
    ];
    vec(step, 1..60)
}

proptest! {
    #![proptest_config(config(512))]

    /// Measured by the counter of the reference, which every call raises and a refund lowers.
    #[test]
    fn one_key_answers_as_a_counter_that_every_call_raises(
        steps in steps(),
        skipped in any::<u32>(),
    ) {
        let mut now = START + u64::from(skipped) * 1_000_000;
        let (mut budgets, mut counter, mut end) = ([Budget::new(1, LIMIT)], 0_u64, 0);
        for step in steps {
            let (_, ends) = day(now);
            if ends != end {
                (counter, end) = (0, ends);
            }
            match step {
                Step::Wait(seconds) => now += seconds * 1_000_000_000,
                Step::Refund(units) => {
                    budgets[0].refund(now, units);
                    counter = counter.saturating_sub(units);
                }
                Step::Ask(units) | Step::Look(units) => {
                    let operation = match step {
                        Step::Ask(_) => Operation::Acquire,
                        _ => Operation::Peek,
                    };
                    let allows = counter + units <= LIMIT;
                    let decided = ask(&mut budgets, now, operation, units);
                    prop_assert_eq!(decided[0].outcome.is_allow(), allows, "{:?}", decided);
                    let before = LIMIT.saturating_sub(counter);
                    if operation == Operation::Acquire {
                        counter += units;
                    }
                    let after = LIMIT.saturating_sub(counter);
                    let left = if allows { after } else { before };
                    prop_assert_eq!(decided[0].remaining, left);
                }
            }
            let (used, refused) = budgets[0].used();
            if !matches!(step, Step::Wait(_)) {
                prop_assert_eq!(used + refused, counter);
                prop_assert!(refused == 0 || used > LIMIT, "{} {}", used, refused);
            }
        }
    }
}

#[test]
fn a_call_that_begins_within_all_limits_is_charged_whole_and_others_are_remembered() {
    let mut budgets = [Budget::new(1, 10), Budget::new(2, 100)];
    let allows = |decisions: &[Decision]| {
        let each = decisions.iter().map(|one| one.outcome.is_allow());
        each.collect::<Vec<_>>()
    };
    let decided = ask(&mut budgets, START, Operation::Acquire, 8);
    assert_eq!(allows(&decided), [true, true]);
    // It crosses the first limit: refused, and charged whole.
    let decided = ask(&mut budgets, START, Operation::Acquire, 8);
    assert_eq!(allows(&decided), [false, true]);
    assert_eq!(budgets.each_ref().map(Budget::used), [(16, 0), (16, 0)]);
    // It begins above the first limit: not charged under any.
    let decided = ask(&mut budgets, START, Operation::Acquire, 5);
    assert_eq!(allows(&decided), [false, true]);
    assert_eq!(budgets.each_ref().map(Budget::used), [(16, 5), (16, 5)]);
    // Its refund creates no budget.
    for budget in &mut budgets {
        budget.refund(START, 5);
    }
    assert_eq!(budgets.each_ref().map(Budget::used), [(16, 0), (16, 0)]);
    for budget in &mut budgets {
        budget.refund(START, 6);
    }
    assert_eq!(budgets.each_ref().map(Budget::used), [(10, 0), (10, 0)]);
    let decided = ask(&mut budgets, START, Operation::Acquire, 0);
    assert_eq!(allows(&decided), [true, true], "a check at the limit");
}
