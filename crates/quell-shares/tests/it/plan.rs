//! Plans: what is refused, and bursts that never sum to more than the limit's.

use proptest::collection::vec;
use proptest::prelude::*;
use quell_shares::plan::{
    Drift, Fallback, MICRO, MemberId, Plan, PlanError, Quota, Record, Seat, Sizing, Timing,
};

fn plan() -> Plan {
    let quota = Quota {
        rate: 1_000 * MICRO,
        burst: 1_000 * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    };
    Plan {
        revision: 1,
        limits: vec![quota],
        total_weight: 4,
        seats: 4,
        timing: Timing::DEFAULT,
        sizing: Sizing::Fixed,
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let drift = Drift::DEFAULT;
    assert_eq!(plan().check(drift), Ok(()));
    let mut small = plan();
    small.limits[0].burst = 3 * MICRO;
    assert_eq!(small.check(drift), Err(PlanError::SmallBurst));
    let mut slow = plan();
    slow.limits[0].rate = 39 * MICRO;
    assert_eq!(slow.check(drift), Err(PlanError::SmallRate));
    let mut hasty = plan();
    hasty.timing.promise = hasty.timing.lease;
    assert_eq!(hasty.check(drift), Err(PlanError::Timing));
    let mut nobody = plan();
    nobody.seats = 0;
    assert_eq!(nobody.check(drift), Err(PlanError::Size));
}

#[test]
fn a_plan_takes_neither_seats_nor_limits_from_those_who_follow() {
    let seat = |id| Seat {
        member: MemberId(id),
        incarnation: 1,
        nonce: 1,
        weight: 1,
        based: true,
    };
    let mut record = Record::new(plan());
    record.seats = vec![seat(1), seat(2)];
    let mut few = plan();
    few.seats = 1;
    assert_eq!(record.replace_plan(few.clone()), Err(PlanError::Seated));
    let mut none = plan();
    none.limits.clear();
    assert_eq!(record.replace_plan(none), Err(PlanError::Shorter));
    assert_eq!((record.plan.revision, record.older.len()), (1, 0));
    few.seats = 2;
    assert_eq!(record.replace_plan(few), Ok(()));
    assert_eq!((record.plan.revision, record.older.len()), (2, 1));
}

#[test]
fn drift_rounds_against_whoever_lends() {
    let drift = Drift::new(1_000);
    assert_eq!(drift.longest(999), 1_001);
    assert_eq!(drift.shortest(1_001), 999);
    assert_eq!(Drift::new(0).longest(77), 77);
    assert_eq!(drift.longest(u64::MAX), u64::MAX);
}

proptest! {
    #![proptest_config(crate::config(1_000))]

    #[test]
    fn bursts_sum_to_at_most_the_limits(rates in vec(0_u64..2_000 * MICRO, 4), burst in 4 * MICRO..5_000 * MICRO) {
        let mut plan = plan();
        plan.limits[0].burst = burst;
        let sum: u64 = rates.iter().sum();
        let part = |rate: &u64| u128::from(*rate) * u128::from(1_000 * MICRO) / u128::from(sum.max(1));
        let rates = rates.iter().map(|rate| u64::try_from(part(rate)).unwrap());
        let bursts: u64 = rates.map(|rate| plan.right(0, rate).burst).sum();
        prop_assert!(bursts <= burst);
    }

    #[test]
    fn drift_there_and_back_is_never_less(nanos in 0_u64..1 << 50, ppm in 0_u64..30_000) {
        let drift = Drift::new(ppm);
        prop_assert!(drift.longest(drift.shortest(nanos)) <= nanos + 1);
        prop_assert!(drift.longest(nanos) >= nanos && drift.shortest(nanos) <= nanos);
    }
}
