//! The judge: as strict as the promise, and no stricter.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quell_core::time::Monotonic;
use quell_shares::audit::{Auditor, Intervals};
use quell_shares::plan::Drift;

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

fn auditor(rate: u64, burst: u64) -> Auditor {
    Auditor::new(rate, burst, Drift::new(0), at(0))
}

#[test]
fn one_micro_unit_too_many_is_seen() {
    let mut judge = auditor(1_000, 500);
    assert_eq!(judge.admit(at(0), 500), None);
    assert_eq!(judge.admit(at(SECOND / 10), 100), None);
    assert_eq!(judge.admit(at(SECOND / 10), 1), Some(1));
}

#[test]
fn a_larger_limit_gives_no_tokens_at_once() {
    let mut judge = auditor(1_000, 500);
    assert_eq!(judge.admit(at(0), 500), None);
    judge.change(at(0), 2_000, 5_000);
    assert_eq!(judge.admit(at(0), 1), Some(1));
}

#[test]
fn intervals_arrive_in_any_order() {
    let mut judge = Intervals::new(auditor(1_000, 1_000), Duration::from_millis(100));
    for interval in [3, 1, 2, 0] {
        assert_eq!(judge.count(at(interval * SECOND / 10), 300), None);
    }
    assert_eq!(judge.judge(at(SECOND)), None);
    assert_eq!(judge.count(at(2 * SECOND), 5_000), None);
    assert!(judge.judge(at(3 * SECOND)).is_some());
}

proptest! {
    #![proptest_config(crate::config(1_000))]

    /// Against the definition: over every interval, at most burst + rate * length.
    #[test]
    fn as_the_promise_says(calls in vec((0_u64..2_000_000_000, 1_u64..600), 1..20)) {
        let (rate, burst) = (500_u64, 1_000_u64);
        let mut calls = calls;
        calls.sort_unstable();
        let mut judge = auditor(rate, burst);
        let mut seen = false;
        for (now, cost) in &calls {
            seen |= judge.admit(at(*now), *cost).is_some();
        }
        let mut broken = false;
        for (first, (from, _)) in calls.iter().enumerate() {
            let mut sum = 0_u128;
            for (now, cost) in &calls[first..] {
                sum += u128::from(*cost) * u128::from(SECOND);
                let length = u128::from(now - from);
                broken |= sum > u128::from(burst) * u128::from(SECOND) + u128::from(rate) * length;
            }
        }
        prop_assert_eq!(seen, broken);
    }
}
