//! A bucket that follows schedules: piecewise, and never with more tokens than were minted.

use proptest::collection::vec;
use proptest::prelude::*;
use quell_core::time::Monotonic;
use quell_shares::schedule::{Bucket, Right, Schedule, Step};

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

fn right(rate: u64, burst: u64) -> Right {
    Right { rate, burst }
}

fn step(until: u64, rate: u64, burst: u64) -> Step {
    Step {
        until: at(until),
        right: right(rate, burst),
    }
}

#[test]
fn steps_end_by_themselves() {
    let steps = [step(10, 925, 900), step(12, 250, 250), step(30, 300, 300)];
    let schedule = Schedule::new(&steps, right(25, 25));
    for (now, rate) in [
        (0, 925),
        (9, 925),
        (10, 250),
        (12, 300),
        (29, 300),
        (30, 25),
    ] {
        assert_eq!(schedule.at(at(now)).rate, rate, "at {now}");
    }
}

#[test]
fn tokens_are_settled_piece_by_piece() {
    let steps = [step(SECOND, 100, 1_000), step(2 * SECOND, 10, 50)];
    let mut bucket = Bucket::new(Schedule::new(&steps, right(1, 1_000)), at(0));
    bucket.settle(at(SECOND - 1));
    assert_eq!(bucket.tokens(), 99);
    // The second step cuts to its burst at once, and the third begins from there.
    bucket.settle(at(SECOND));
    assert_eq!(bucket.tokens(), 50);
    bucket.settle(at(5 * SECOND));
    assert_eq!(bucket.tokens(), 53);
}

#[test]
fn time_goes_backwards_and_mints_nothing() {
    let mut bucket = Bucket::new(Schedule::constant(right(100, 1_000)), at(5 * SECOND));
    bucket.settle(at(6 * SECOND));
    bucket.settle(at(0));
    bucket.settle(at(6 * SECOND));
    assert_eq!(bucket.tokens(), 100);
}

#[test]
fn time_jumps_forward_and_fills_one_burst() {
    let mut bucket = Bucket::new(Schedule::constant(right(u64::MAX, 7)), at(0));
    bucket.settle(at(u64::MAX));
    assert_eq!(bucket.tokens(), 7);
}

#[test]
fn a_lease_creates_no_tokens() {
    let mut bucket = Bucket::new(Schedule::constant(right(10, 100)), at(0));
    bucket.settle(at(2 * SECOND));
    bucket.follow(at(2 * SECOND), Schedule::constant(right(1_000, 5_000)));
    assert_eq!(bucket.tokens(), 20);
    bucket.follow(at(2 * SECOND), Schedule::constant(right(1, 5)));
    bucket.follow(at(2 * SECOND), Schedule::constant(right(1_000, 5_000)));
    assert_eq!(bucket.tokens(), 5);
}

proptest! {
    #![proptest_config(crate::config(1_000))]

    #[test]
    fn looking_more_often_changes_nothing(
        rates in vec((1_u64..5_000, 0_u64..10_000), 1..4), looks in vec(0_u64..9_000_000_000, 0..20),
    ) {
        let steps: Vec<Step> = rates.iter().enumerate()
            .map(|(index, (rate, burst))| step((u64::try_from(index).unwrap() + 1) * 2 * SECOND, *rate, *burst))
            .collect();
        let schedule = Schedule::new(&steps, right(7, 70));
        let mut once = Bucket::new(schedule, at(0));
        let mut often = once;
        let mut looks = looks;
        looks.sort_unstable();
        for look in looks {
            often.settle(at(look));
        }
        once.settle(at(9 * SECOND));
        often.settle(at(9 * SECOND));
        prop_assert_eq!(once.tokens(), often.tokens());
    }

    #[test]
    fn nothing_above_the_burst(rate in 0_u64..u64::MAX, burst in 0_u64..1_000_000, now in 0_u64..u64::MAX) {
        let mut bucket = Bucket::new(Schedule::constant(right(rate, burst)), at(0));
        bucket.settle(at(now));
        prop_assert!(bucket.tokens() <= burst);
    }
}
