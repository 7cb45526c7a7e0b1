//! The judge of one key in one process: it sees each broken promise, and none that was kept.

use core::num::NonZeroU32;
use std::time::Duration;

use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::decision::{Decision, Outcome};
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission};
use quell_core::time::Monotonic;
use quell_shares::audit::{Excess, KeyAudit};
use quell_shares::synced::SyncRequest;

const PERIOD: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3_600);

fn millis(count: u64) -> Monotonic {
    Monotonic::from_nanos(count * 1_000_000)
}

/// Two nodes that may exceed the limit by 20 each.
fn terms(limit: &Limit) -> LeaseTerms {
    let policy = LeasePolicy {
        over: OverAdmission::Units(40),
        nodes: NonZeroU32::new(2).unwrap(),
    };
    policy.synced_terms(limit, None).unwrap()
}

fn audit(limit: &Limit) -> KeyAudit {
    KeyAudit::new(limit, &terms(limit), PERIOD, millis(0))
}

/// The store's decision, of which only this is read.
fn said(remaining: u64, reset_after: Duration) -> Decision {
    Decision {
        outcome: Outcome::Allow,
        limit: 1_000,
        remaining,
        reset_after,
        delay: Duration::ZERO,
        banned: false,
    }
}

fn bucket() -> Limit {
    Limit::per_second(1_000).burst(100).build().unwrap()
}

fn calls(audit: &mut KeyAudit, at: u64, units: u64) -> u64 {
    audit.count_strict(millis(at), units);
    audit.judge(millis(at)).calls
}

#[test]
fn a_bucket_is_judged_by_the_limit_and_two_periods() {
    let mut one = audit(&bucket());
    for tick in 1..=50 {
        assert_eq!(calls(&mut one, tick * 100, 100), 0, "tick {tick}");
    }
    one.count(10);
    one.uncount(10);
    // 300 pass at once.
    assert_eq!(calls(&mut one, 5_100, 450), 150);
    let mut late = audit(&bucket());
    assert_eq!(
        calls(&mut late, 201, 1_000),
        0,
        "what took longer is left out"
    );
}

/// Calls that the store decided over some time, whose answers come at once.
#[test]
fn late_answers_are_left_out() {
    let mut one = audit(&bucket());
    assert_eq!(calls(&mut one, 100, 100), 0);
    for sent in [60, 80, 99] {
        one.count_strict(millis(sent), 400);
    }
    assert_eq!(calls(&mut one, 200, 100), 0);
}

/// A clock that is slower than the store's by a thousandth never shows an excess.
#[test]
fn clocks_may_drift() {
    let mut one = audit(&bucket());
    for tick in 1..=36_000 {
        let units = 100 + u64::from(tick % 10 == 0);
        assert_eq!(calls(&mut one, tick * 100, units), 0, "tick {tick}");
    }
}

#[test]
fn batches_may_come_at_either_end() {
    let limit = TokenBucket::refill(50, Duration::from_secs(1));
    let limit = limit.burst(100).build().unwrap();
    let mut one = audit(&limit);
    // The burst, and a batch just afterwards; then a batch each second.
    assert_eq!(calls(&mut one, 100, 150), 0);
    for second in 1..=20 {
        assert_eq!(calls(&mut one, second * 1_000, 0), 0, "late");
        assert_eq!(calls(&mut one, second * 1_000 + 100, 50), 0);
    }
    assert!(calls(&mut one, 20_200, 50) > 0);
}

#[test]
fn sliding_windows_are_judged_by_what_is_in_one_for_certain() {
    for limit in [
        Limit::sliding_window(1_000, HOUR).build().unwrap(),
        Limit::sliding_log(1_000, HOUR).build().unwrap(),
    ] {
        let mut one = audit(&limit);
        assert_eq!(calls(&mut one, 100, 1_000), 0);
        assert_eq!(calls(&mut one, 200, 30), 30, "{limit}");
        let mut one = audit(&limit);
        assert_eq!(calls(&mut one, 100, 1_000), 0);
        one.judge(millis(3_000_000));
        assert_eq!(calls(&mut one, 3_000_100, 30), 30, "50 minutes later");
        one.judge(millis(3_600_200));
        assert_eq!(calls(&mut one, 3_600_300, 970), 0, "an hour later");
    }
    let short = Limit::sliding_window(1_000, PERIOD * 2).build().unwrap();
    let mut one = audit(&short);
    assert_eq!(calls(&mut one, 100, 5_000), 0, "it cannot be judged");
}

#[test]
fn a_fixed_window_is_judged_between_its_edges() {
    let limit = Limit::fixed_window(1_000, Duration::from_secs(10));
    let limit = limit.build().unwrap();
    let mut one = audit(&limit);
    assert_eq!(calls(&mut one, 100, 5_000), 0, "its edges are not known");
    one.observe(millis(150), millis(160), &said(900, Duration::from_secs(8)));
    assert_eq!(calls(&mut one, 200, 1_000), 0);
    // A store that says now that the window ends later has lost its state.
    one.observe(
        millis(250),
        millis(260),
        &said(900, Duration::from_secs(10)),
    );
    assert_eq!(calls(&mut one, 300, 30), 30);
    // Near the edge, at 8,150 to 8,160 and a hundredth of a second either way, nothing is counted.
    one.judge(millis(8_100));
    assert_eq!(calls(&mut one, 8_200, 900), 30);
    let window = Duration::from_secs(10);
    one.observe(millis(8_201), millis(8_202), &said(999, window));
    assert_eq!(calls(&mut one, 8_300, 1_000), 0, "another window");
    assert_eq!(calls(&mut one, 8_400, 7), 7);
}

#[test]
fn what_is_used_was_charged_before_but_for_its_part() {
    let mut one = audit(&bucket());
    one.count(20);
    one.charged(20);
    one.count(20);
    assert_eq!(one.judge(millis(100)).overdraft, 0);
    one.given_back(3);
    assert_eq!(one.judge(millis(200)).overdraft, 3);
    // What was given before, and used up then, covers nothing now.
    one.charged(500);
    one.count(27);
    one.uncount(2);
    assert_eq!(one.judge(millis(300)).overdraft, 5);
    assert_eq!(one.judge(millis(400)).overdraft, 5, "it still lacks");
    let mut synced = audit(&bucket());
    for total in (20..200).step_by(20) {
        synced.count(20);
        synced.paid(&told(total - 20), total);
        synced.paid(&told(total - 20), total - 20);
    }
    synced.count(20);
    assert_eq!(synced.judge(millis(100)).overdraft, 0);
    synced.change(&bucket(), &terms(&bucket()), millis(150));
    synced.count(1);
    assert_eq!(
        synced.judge(millis(200)).overdraft,
        1,
        "a reload pays nothing"
    );
    // The store believes a process that says that it has paid.
    synced.paid(&told(201), 201);
    synced.judge(millis(300));
    assert_eq!(synced.judge(millis(400)).overdraft, 1, "it paid nothing");
    synced.paid(&told(201), 202);
    synced.judge(millis(500));
    assert_eq!(synced.judge(millis(600)).overdraft, 0);
}

/// Request that tells the store of units that are paid.
fn told(base: u64) -> SyncRequest {
    SyncRequest {
        number: 1,
        total: base + 100,
        base,
    }
}

/// 1,000/s, 100 at most, of which two nodes may have taken 40 and give them back.
#[test]
fn units_come_back_as_the_limit_produces_them() {
    let limit = bucket();
    let second = Duration::from_secs(1);
    let regained = |first: u64, then: u64, after: u64| {
        let mut one = audit(&limit);
        one.observe(millis(0), millis(1), &said(first, second));
        one.observe(millis(after), millis(after + 1), &said(then, second));
        one.judge(millis(after + 100)).regained
    };
    // 20 ms and a thousandth of it later, rounded up.
    assert_eq!(regained(10, 10 + 20 + 40 + 1, 19), 0);
    assert_eq!(regained(0, 90, 19), 90 - (20 + 40 + 1));
    assert_eq!(regained(0, 100, 1_000), 0);
    assert_eq!(regained(100, 0, 10), 0);
    let mut one = audit(&limit);
    for (at, left) in [(0, 0), (10, 40), (20, 0), (30, 70)] {
        one.observe(millis(at), millis(at), &said(left, second));
    }
    assert_eq!(one.judge(millis(100)).regained, 70 - (10 + 40 + 1));
    // Two calls that overlap.
    one.observe(millis(200), millis(300), &said(0, second));
    one.observe(millis(250), millis(301), &said(100, second));
    assert_eq!(one.judge(millis(400)), Excess::default());
}

#[test]
fn a_window_gets_nothing_back_before_its_end() {
    let limit = Limit::fixed_window(1_000, HOUR).build().unwrap();
    let mut one = audit(&limit);
    one.observe(millis(0), millis(1), &said(100, HOUR));
    one.observe(millis(10), millis(11), &said(141, HOUR));
    assert_eq!(one.judge(millis(100)).regained, 0);
    one.observe(millis(110), millis(111), &said(200, HOUR));
    assert_eq!(one.judge(millis(200)).regained, 200 - 141);
    one.observe(millis(3_600_300), millis(3_600_301), &said(999, HOUR));
    assert_eq!(one.judge(millis(3_600_400)).regained, 0);
}
