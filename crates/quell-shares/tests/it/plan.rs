//! Plans: what is refused, and bursts that never sum to more than the limit's.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quell_shares::ledger::BaseShortage;
use quell_shares::plan::{
    Drift, Fallback, Group, Limit, LimitId, MICRO, MemberId, Plan, PlanError, Quota, Record, Seat,
    Sizing,
};

use crate::support;

fn plan() -> Plan {
    support::plan(1_000, 4, Sizing::Fixed)
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let drift = Drift::DEFAULT;
    assert_eq!(plan().check(drift), Ok(()));
    for wrong in [
        |quota: &mut Quota| quota.rate = 0,
        |quota: &mut Quota| quota.burst = 3,
        |quota: &mut Quota| quota.least_burst = 0,
    ] {
        let mut none = plan();
        wrong(&mut none.limits[0].quota);
        let error = none.check(drift).unwrap_err();
        assert!(matches!(error, PlanError::Rate { .. }), "{error:?}");
    }
    let mut hasty = plan();
    hasty.timing.promise = hasty.timing.lease;
    assert_eq!(hasty.check(drift), Err(PlanError::Timing));
    let mut nobody = plan();
    nobody.size.seats = 0;
    assert_eq!(nobody.check(drift), Err(PlanError::Size));
}

#[test]
fn parts_of_a_new_limit_are_worth_having() {
    let drift = Drift::DEFAULT;
    let with = |rate: u64, burst: u64| {
        let mut plan = plan();
        (plan.limits[0].quota.rate, plan.limits[0].quota.burst) = (rate * MICRO, burst * MICRO);
        plan
    };
    let told = |plan: &Plan| {
        plan.check_after(None, drift)
            .map_err(|error| error.to_string())
    };
    for fine in [with(40, 4), with(1_000, 4), with(40, 1_000)] {
        assert_eq!(told(&fine), Ok(()));
    }
    for (small, expected) in [
        (
            with(39, 1_000),
            "limit `api`: 39/s are less than 5 units for each of 4 seats between two reports: write at \
             least 40/s, or fewer seats, or deregister dead nodes, or write `rung: leased`",
        ),
        (
            with(1_000, 3),
            "limit `api`: a burst of 3 has no call of the largest cost for each of 4 seats: write at \
             least 4, or fewer seats, or deregister dead nodes, or write `rung: leased`",
        ),
    ] {
        assert_eq!(told(&small), Err(expected.to_owned()));
        // The same limit may be cut, whatever its parts are then.
        assert_eq!(small.check_after(Some(&plan()), drift), Ok(()));
        let mut moved = plan();
        moved.limits[0].name = "other".into();
        assert!(small.check_after(Some(&moved), drift).is_err());
    }
}

#[test]
fn bursts_never_sum_to_more_than_that_of_a_limit() {
    let mut small = plan();
    small.limits[0].quota.burst = 3 * MICRO;
    let mut record = Record::new(plan());
    record.replace_plan(small.clone()).unwrap();
    let limit = &record.plan.limits[0];
    assert_eq!(limit.quota.least_burst, 3 * MICRO / 4);
    let part = record.plan.right(limit, limit.quota.rate / 4).burst;
    assert!(part > 0 && 4 * part <= 3 * MICRO, "{part}");
    // That is what was wanted.
    assert!(small.is_like(&record.plan) && record.plan.is_like(&small));
    assert!(!plan().is_like(&record.plan));
}

#[test]
fn a_plan_takes_no_seats_from_those_who_follow() {
    let seat = |id| Seat::new(MemberId(id), 1, 1, 1);
    let mut record = Record::new(plan());
    record.seats = vec![seat(1), seat(2)];
    let mut few = plan();
    few.size.seats = 1;
    assert_eq!(
        record.replace_plan(few.clone()),
        Err(PlanError::Seated(None))
    );
    assert_eq!((record.plan.revision, record.older.len()), (1, 0));
    few.size.seats = 2;
    assert_eq!(record.replace_plan(few), Ok(()));
    assert_eq!((record.plan.revision, record.older.len()), (2, 1));
}

#[test]
fn a_limit_has_a_number_of_its_own_for_ever() {
    let quota = plan().limits[0].quota;
    let with = |names: &[&str]| Plan {
        limits: names.iter().map(|name| Limit::new(*name, quota)).collect(),
        ..plan()
    };
    let ids = |record: &Record| -> Vec<(u64, String)> {
        let limits = record.plan.limits.iter();
        limits
            .map(|limit| (limit.id.0, limit.name.to_string()))
            .collect()
    };
    let named = |ids: &[(u64, &str)]| -> Vec<(u64, String)> {
        ids.iter()
            .map(|(id, name)| (*id, (*name).to_owned()))
            .collect()
    };
    let mut record = Record::new(with(&["a", "b"]));
    record.seats = vec![Seat::new(MemberId(1), 1, 1, 1)];
    assert_eq!(ids(&record), named(&[(1, "a"), (2, "b")]));
    record.replace_plan(with(&["c", "b"])).unwrap();
    assert_eq!(ids(&record), named(&[(2, "b"), (3, "c")]));
    record.replace_plan(with(&["a", "b", "c"])).unwrap();
    assert_eq!(ids(&record), named(&[(2, "b"), (3, "c"), (4, "a")]));
    // A limit that moves to another group is another limit.
    let mut moved = with(&["a", "b", "c"]);
    moved.limits[1] = moved.limits[1].clone().of_group("eu");
    assert_eq!(
        moved.check(Drift::DEFAULT),
        Err(PlanError::Group("b".into()))
    );
    moved.groups = vec![Group {
        name: "eu".into(),
        size: moved.size,
    }];
    assert_eq!(moved.check(Drift::DEFAULT), Ok(()));
    record.replace_plan(moved).unwrap();
    assert_eq!(ids(&record), named(&[(3, "c"), (4, "a"), (5, "b")]));
    assert_eq!(
        record.plan.named("b").map(|limit| limit.id),
        Some(LimitId(5))
    );
    assert_eq!(record.plan.limit(LimitId(2)), None);
    assert_eq!(
        with(&["a", "a"]).check(Drift::DEFAULT),
        Err(PlanError::Name)
    );
    assert_eq!(with(&[""]).check(Drift::DEFAULT), Err(PlanError::Name));
}

#[test]
fn drift_rounds_against_whoever_lends() {
    let drift = Drift::new(1_000);
    assert_eq!(drift.longest(999), 1_001);
    assert_eq!(drift.shortest(1_001), 999);
    assert_eq!(Drift::new(0).longest(77), 77);
    assert_eq!(drift.longest(u64::MAX), u64::MAX);
}

#[test]
fn a_shortage_says_why_and_what_to_do() {
    let ids = |ids: &[u32]| ids.iter().copied().map(MemberId).collect();
    let text = |held_by: &[u32], waits_for: &[u32], overweight| {
        let shortage = BaseShortage {
            members: ids(&[5, 6]),
            held_by: ids(held_by),
            waits_for: ids(waits_for),
            overweight,
        };
        shortage.to_string()
    };
    assert_eq!(
        text(&[0, 2], &[3], true),
        "without their whole static share: 5, 6; silent members still hold it: 0, 2; wait for the end \
         of their hold, or fence or deregister those that are dead"
    );
    assert!(text(&[], &[], true).ends_with(
        "; the nodes weigh more than `cluster_size`: raise it in the rules, or lower weights (`quell fleet \
         weight`)"
    ));
    assert!(text(&[], &[3], false).ends_with("have acknowledged the plan: 3"));
    assert!(text(&[], &[], false).ends_with("with their next grant"));
}

/// A plan for the property below: rate, burst, least burst, total weight, seats, fallback, seconds.
type Numbers = (u64, u64, u64, u64, u32, u8, u64);

fn numbers() -> impl Strategy<Value = Numbers> {
    let rates = 1_000 * MICRO..1_000_000 * MICRO;
    let bursts = 1_000 * MICRO..1_000_000 * MICRO;
    (
        rates,
        bursts,
        1..100 * MICRO,
        5_u64..50,
        1_u32..9,
        0_u8..3,
        20_u64..600,
    )
}

fn of(numbers: Numbers) -> Plan {
    let (rate, burst, least_burst, total_weight, seats, fallback, hold) = numbers;
    let mut plan = plan();
    plan.limits[0].quota = Quota {
        rate,
        burst,
        least_burst,
        fallback: [Fallback::Share, Fallback::Floor, Fallback::Deny][usize::from(fallback)],
    };
    (plan.size.total_weight, plan.size.seats) = (total_weight, seats);
    plan.timing.hold = Duration::from_secs(hold);
    plan
}

/// The parts of a limit of 10^12 that a plan gives a seat, rounded up: base and floor, as rates and
/// as bursts.
fn parts(plan: &Plan, seat: &Seat) -> [u128; 4] {
    let limit = &plan.limits[0];
    let whole = limit.whole();
    let part = |amount: u64, whole: u64| {
        (u128::from(amount) * 1_000_000_000_000).div_ceil(u128::from(whole))
    };
    let base = plan.right(limit, plan.base(limit, seat));
    let floor = plan.right(limit, plan.floor(limit, seat));
    [
        part(base.rate, whole.rate),
        part(base.burst, whole.burst),
        part(floor.rate, whole.rate),
        part(floor.burst, whole.burst),
    ]
}

proptest! {
    #![proptest_config(crate::config(1_000))]

    /// However many plans a silent member may follow, no change is refused, and the record still
    /// knows the most and the least that any of them gives it.
    #[test]
    fn merged_plans_allow_what_any_of_them_does(all in vec(numbers(), 2..25), weight in 1_u32..5) {
        let seat = Seat::new(MemberId(1), 1, 1, weight);
        let mut record = Record::new(of(all[0]));
        record.seats = vec![seat.clone()];
        for numbers in &all[1..] {
            prop_assert_eq!(record.replace_plan(of(*numbers)), Ok(()));
        }
        prop_assert!(record.older.len() <= 8);
        let largest = all.iter().map(|numbers| numbers.0).max();
        prop_assert_eq!(Some(record.largest_rate(LimitId(1))), largest);
        for plan in all.iter().copied().map(of) {
            let wanted = parts(&plan, &seat);
            for (index, part) in wanted.into_iter().enumerate() {
                let most = record.plans().map(|plan| parts(plan, &seat)[index]).max();
                prop_assert!(most >= Some(part), "{index}: {most:?} {part} {plan:?}");
            }
            prop_assert!(record.plans().any(|other| other.timing.hold >= plan.timing.hold));
            prop_assert!(record.room(None) <= usize::try_from(plan.size.seats).unwrap());
        }
    }

    #[test]
    fn bursts_sum_to_at_most_the_limits(rates in vec(0_u64..2_000 * MICRO, 4), burst in 4 * MICRO..5_000 * MICRO) {
        let mut plan = plan();
        plan.limits[0].quota.burst = burst;
        let sum: u64 = rates.iter().sum();
        let part = |rate: &u64| u128::from(*rate) * u128::from(1_000 * MICRO) / u128::from(sum.max(1));
        let rates = rates.iter().map(|rate| u64::try_from(part(rate)).unwrap());
        let bursts: u64 = rates.map(|rate| plan.right(&plan.limits[0], rate).burst).sum();
        prop_assert!(bursts <= burst);
    }

    #[test]
    fn drift_there_and_back_is_never_less(nanos in 0_u64..1 << 50, ppm in 0_u64..30_000) {
        let drift = Drift::new(ppm);
        prop_assert!(drift.longest(drift.shortest(nanos)) <= nanos + 1);
        prop_assert!(drift.longest(nanos) >= nanos && drift.shortest(nanos) <= nanos);
    }
}
