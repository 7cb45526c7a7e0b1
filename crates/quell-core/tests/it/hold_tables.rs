//! Holds in tables: worked examples of reservations, debts, waiting and permits.

use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::ban::Ban;
use quell_core::charge::{Charge, Entry};
use quell_core::claim::{self, Claim, WaitLimits};
use quell_core::cost::Cost;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::hold::OnExpiry;
use quell_core::limit::Limit;
use quell_core::rate::Rate;
use quell_core::time::Now;

use crate::bench::Bench;
use crate::holds::{START, id};
use crate::kind::SECOND;
use crate::truths::NANO;

#[test]
fn a_unit_that_was_refilled_is_not_given_back() {
    let limit = Limit::per_second(10).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.reserve(1, 10);
    bench.now += SECOND;
    assert!(bench.acquire(10).outcome.is_allow());
    assert!(bench.end(1, Ending::Cancel).found);
    assert_eq!(bench.peek(1).remaining, 0, "20 at one instant else");
}

/// Units that are given back move later charges forward: those drain sooner, and units that have
/// drained already are not given back.
#[test]
fn what_comes_back_brings_those_after_it_forward() {
    let limit = Limit::per_second(10).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.reserve(1, 5);
    bench.reserve(2, 5);
    assert!(bench.end(1, Ending::Cancel).found);
    bench.now += SECOND / 2;
    assert!(bench.acquire(10).outcome.is_allow());
    assert!(bench.end(2, Ending::Cancel).found);
    assert_eq!(bench.peek(1).remaining, 0, "15 at one instant else");
}

/// A cost above the estimate counts in the window in which the call began, and not in the one in which it
/// becomes known.
#[test]
fn what_costs_more_is_no_use_of_the_next_window() {
    let minute = Duration::from_secs(60);
    let limits = [
        Limit::fixed_window(100, minute).build(),
        Limit::calendar_window(100, CalendarUnit::Day, "Europe/Berlin").build(),
        Limit::sliding_window(100, minute).segments(6).build(),
        Limit::sliding_log(100, minute).build(),
    ];
    for limit in limits {
        let limit = limit.unwrap();
        let length = u64::try_from(limit.full_refill().as_nanos()).unwrap();
        let mut bench = Bench::from_limit(limit.clone(), false, START, START);
        bench.reserve(1, 10);
        bench.acquire(1);
        let ended = bench.end(1, Ending::Settle(50.into()));
        assert_eq!((bench.peek(1).remaining, ended.more), (49, 40), "{limit}");
        bench.reserve(2, 10);
        bench.now += 2 * length;
        bench.acquire(5);
        let ended = bench.end(2, Ending::Settle(50.into()));
        assert!(ended.found);
        assert_eq!((bench.peek(1).remaining, ended.more), (95, 0), "{limit}");
    }
    // A sliding window counts it as long as the call.
    let limit = Limit::sliding_log(100, minute).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.reserve(1, 10);
    bench.now += 30 * SECOND;
    bench.acquire(3);
    bench.end(1, Ending::Settle(50.into()));
    assert_eq!(bench.peek(1).remaining, 47);
    bench.now += 30 * SECOND;
    assert_eq!(bench.peek(1).remaining, 97);
}

/// All of a debt is repaid, not only what the next call lacks.
#[test]
fn a_debt_is_as_long_as_it_is_large() {
    let limit = Limit::per_second(10).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.reserve(1, 10);
    bench.end(1, Ending::Settle(35.into()));
    for (later, left) in [(0, 2_600), (600, 2_000), (1_999, 1)] {
        bench.now += later * SECOND / 1_000;
        let wait = RetryAfter::After(Duration::from_millis(left));
        assert_eq!(bench.acquire(1).outcome, Outcome::Deny(wait));
    }
    bench.now += SECOND / 1_000;
    assert!(bench.acquire(1).outcome.is_allow());
    assert!(!bench.acquire(1).outcome.is_allow());
}

/// The ban of a rule stops those who wait as one by hand does.
#[test]
fn a_ban_by_the_rule_moves_those_who_wait() {
    let minute = Duration::from_secs(60);
    let ban = Ban::new(2, Some(minute), vec![minute]).unwrap();
    let limit = Limit::per_second(1).burst(1).build().unwrap().with_ban(ban);
    let mut bench = Bench::from_limit(limit, false, START, START);
    assert!(bench.acquire(1).outcome.is_allow());
    let claimed = bench.claim(1, 1, None, Some(3 * minute));
    assert_eq!(claimed.wait, Some(Duration::from_secs(1)));
    assert!(!bench.acquire(1).banned);
    assert!(bench.acquire(1).banned);
    bench.now += 2 * SECOND;
    assert_eq!(
        bench.end(1, Ending::Arrive).wait,
        Some(Duration::from_secs(58))
    );
    bench.now += 58 * SECOND;
    assert_eq!(bench.end(1, Ending::Arrive).wait, None);
}

#[test]
fn guava_waits_for_the_debts_of_those_before() {
    let limit = Limit::per_second(1).debt(true).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    let mut waits = Vec::new();
    for (name, cost) in [1, 1, 2, 4, 8, 1].into_iter().enumerate() {
        let claimed = bench.claim(name as u64, cost, None, Some(Duration::MAX));
        let wait = claimed.wait.unwrap_or_default();
        waits.push(wait.as_secs());
        bench.now += u64::try_from(wait.as_nanos()).unwrap();
        bench.end(name as u64, Ending::Arrive);
    }
    assert_eq!(waits, [0, 1, 1, 2, 4, 8]);
}

/// A caller may be delayed without waiting in a queue, and leaves no trace if it goes away during
/// the delay.
#[test]
fn a_delay_is_waited_for_without_a_line() {
    let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
    let limit = Limit::leaky_bucket(rate).burst(3).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    let patience = |in_all: u64| WaitLimits {
        turn: Duration::ZERO,
        in_all: Duration::from_millis(in_all),
    };
    let mut claim = |name, in_all| {
        let claimed = bench.claim_patiently(name, 1, None, Some(patience(in_all)));
        let decision = claimed.decisions[0];
        (
            decision.retry_after(),
            decision.delay.as_millis(),
            claimed.held[0],
        )
    };
    let wait = |milliseconds| Some(RetryAfter::After(Duration::from_millis(milliseconds)));
    assert_eq!(claim(1, 200), (None, 0, false), "at once, for good");
    assert_eq!(claim(2, 99), (wait(1), 0, false), "held back for too long");
    assert_eq!(claim(3, 100), (None, 100, true));
    assert_eq!(claim(4, 200), (None, 200, true));
    assert_eq!(
        claim(5, 1_000),
        (wait(100), 0, false),
        "there is no line for it"
    );
    assert!(bench.end(3, Ending::Cancel).found);
    assert_eq!(bench.peek(1).delay.as_millis(), 200, "one less before it");
}

/// The delay of a rule in shadow has no effect: it refuses no call, and lets none pass for free.
#[test]
fn the_delay_of_a_shadow_is_nobody_s_business() {
    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let leaky = Limit::leaky_bucket(rate).burst(9).build().unwrap();
    let mut slow = Bench::from_limit(leaky, false, START, START);
    let mut other = Bench::from_limit(Limit::per_hour(10).build().unwrap(), false, START, START);
    slow.acquire(5);
    let mut shadow = Charge::alone(&slow.active, Cost::ONE);
    shadow.shadow = true;
    let charge = Charge::alone(&other.active, Cost::ONE);
    let entries = &mut [
        Entry {
            charge: &shadow,
            state: &mut slow.state,
        },
        Entry {
            charge: &charge,
            state: &mut other.state,
        },
    ];
    let claim = Claim {
        id: &id(1),
        hold: None,
        wait: Some(WaitLimits::new(Duration::from_secs(1))),
        is_named: true,
        pending: None,
    };
    let claimed = claim::claim(Now::from_nanos(START), &claim, entries).unwrap();
    assert!(claimed.decisions.iter().all(|one| one.outcome.is_allow()));
    assert_eq!(other.peek(1).remaining, 9, "and it is charged");
}

#[test]
fn a_reservation_ends_as_the_rule_says() {
    for (on_expiry, left) in [(OnExpiry::Charge, 0), (OnExpiry::Release, 10)] {
        let limit = Limit::per_hour(10).build().unwrap().on_expiry(on_expiry);
        let mut bench = Bench::from_limit(limit, false, START, START);
        let minute = Duration::from_secs(60);
        let claimed = bench.claim(1, 10, Some(minute), None);
        assert!(claimed.decisions[0].outcome.is_allow() && claimed.held[0]);
        let early = bench.after(minute - NANO).unwrap();
        assert_eq!(early.peek(1).remaining, 0, "{on_expiry:?}");
        let late = bench.after(minute).unwrap();
        assert_eq!(late.peek(1).remaining, left, "{on_expiry:?}");
        if on_expiry == OnExpiry::Release {
            let refused = bench.peek(1).retry_after();
            assert_eq!(
                refused,
                Some(RetryAfter::After(minute)),
                "a refusal knows the end"
            );
        }
    }
}

#[test]
fn permits_come_back_with_their_holders_or_their_lease() {
    let lease = Duration::from_secs(30);
    let limit = Limit::concurrency(2).lease(lease).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    for (name, left) in [(1, 1), (2, 0)] {
        let claimed = bench.claim(name, 1, None, None);
        assert!(claimed.held[0]);
        assert_eq!(claimed.decisions[0].remaining, left);
        bench.now += SECOND;
    }
    let refused = bench.claim(3, 1, None, None).decisions[0];
    let wait = lease - Duration::from_secs(2);
    assert_eq!(refused.outcome, Outcome::Deny(RetryAfter::After(wait)));
    let early = bench.after(wait - NANO).unwrap().claim(3, 1, None, None);
    assert!(!early.decisions[0].outcome.is_allow(), "not before");
    let late = bench.after(wait).unwrap().claim(3, 1, None, None);
    assert!(late.decisions[0].outcome.is_allow(), "the first is over");
    assert!(bench.end(1, Ending::Renew).stands);
    let renewed = bench.peek(1).retry_after();
    let wait = lease - SECOND_OF_TIME;
    assert_eq!(renewed, Some(RetryAfter::After(wait)), "now the second");
    assert!(bench.end(2, Ending::Release).found);
    assert!(!bench.end(2, Ending::Release).found, "once");
    assert_eq!(bench.peek(1).remaining, 1);
    assert_eq!(
        bench.claim(4, 3, None, None).decisions[0].outcome,
        Outcome::Deny(RetryAfter::Never)
    );
}

const SECOND_OF_TIME: Duration = Duration::from_secs(1);

#[test]
fn a_queue_learns_how_long_a_call_takes() {
    let limit = Limit::concurrency(2)
        .queue(2)
        .unit_delay(Duration::from_millis(100));
    let mut bench = Bench::from_limit(limit.build().unwrap(), false, START, START);
    let delays = [0, 0, 100, 100];
    for (name, delay) in delays.into_iter().enumerate() {
        let decision = bench.claim(name as u64, 1, None, None).decisions[0];
        assert_eq!(decision.delay, Duration::from_millis(delay));
    }
    assert!(
        !bench.claim(9, 1, None, None).decisions[0]
            .outcome
            .is_allow()
    );
    bench.now += 300_000_000;
    bench.end(0, Ending::Release);
    // (100 + 300) / 2, for the third caller.
    let decision = bench.claim(4, 1, None, None).decisions[0];
    assert_eq!(decision.delay, Duration::from_millis(200));
}

#[test]
fn who_leaves_the_line_moves_up_those_behind() {
    let limit = Limit::per_second(1).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.acquire(1);
    for name in 1..=3 {
        let claimed = bench.claim(name, 1, None, Some(Duration::from_secs(10)));
        assert_eq!(claimed.wait, Some(Duration::from_secs(name)));
    }
    assert!(!bench.acquire(1).outcome.is_allow());
    let ended = bench.end(1, Ending::Cancel);
    assert_eq!(ended.next, Some(id(2)));
    assert_eq!(bench.advance(2, 1), Some((SECOND_OF_TIME, vec![id(3)])));
    assert_eq!(bench.advance(3, 1), Some((2 * SECOND_OF_TIME, vec![])));
    assert_eq!(bench.advance(7, 1), None);
    bench.now += SECOND;
    assert_eq!(bench.end(3, Ending::Arrive).wait, Some(SECOND_OF_TIME));
    assert!(!bench.end(2, Ending::Arrive).stands, "it goes on");
    let refused = bench.peek(1).retry_after();
    assert_eq!(refused, Some(RetryAfter::After(2 * SECOND_OF_TIME)));
}

#[test]
fn time_goes_backwards() {
    let limit = Limit::per_second(1).burst(5).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, START, START);
    bench.acquire(5);
    bench.claim(1, 1, None, Some(Duration::from_secs(10)));
    bench.reserve(2, 1);
    // The clock goes back by an hour: the turn stays a second away.
    bench.now -= 3_600 * SECOND;
    let refused = bench.acquire(1).retry_after();
    assert_eq!(refused, Some(RetryAfter::After(2 * SECOND_OF_TIME)));
    let debt = Limit::per_second(1).burst(5).debt(true).build().unwrap();
    let mut bench = Bench::from_limit(debt, false, START, START);
    bench.acquire(8);
    bench.now -= 3_600 * SECOND;
    let refused = bench.acquire(1).retry_after();
    assert_eq!(refused, Some(RetryAfter::After(4 * SECOND_OF_TIME)));
}

/// Reservations, debts and waiting callers stay when the limit's numbers change.
#[test]
fn a_change_of_the_limit_keeps_what_is_held() {
    let limit = |burst: u64| Limit::per_second(10).burst(burst).build().unwrap();
    let mut bench = Bench::from_limit(limit(10), false, START, START);
    bench.reserve(1, 4);
    bench.reserve(2, 6);
    bench.claim(3, 5, None, Some(Duration::from_secs(1)));
    bench.change(limit(20), false);
    assert_eq!(bench.peek(1).remaining, 0, "somebody waits");
    assert!(bench.end(3, Ending::Cancel).found);
    assert_eq!(bench.peek(1).remaining, 10);
    assert!(bench.end(1, Ending::Cancel).found);
    assert_eq!(bench.peek(1).remaining, 14, "only what the first one holds");
    assert!(bench.end(2, Ending::Settle(50.into())).found);
    let refused = bench.peek(1).retry_after();
    let expected = Duration::from_millis(3_100);
    assert_eq!(
        refused,
        Some(RetryAfter::After(expected)),
        "50 used, 20 at once"
    );
    bench.change(limit(40), false);
    let carried = bench.peek(1).retry_after();
    let expected = Duration::from_millis(1_100);
    assert_eq!(
        carried,
        Some(RetryAfter::After(expected)),
        "a debt stays one"
    );
    let mut permits =
        Bench::from_limit(Limit::concurrency(3).build().unwrap(), false, START, START);
    for name in 1..=3 {
        permits.claim(name, 1, None, None);
    }
    permits.change(Limit::concurrency(2).build().unwrap(), false);
    assert_eq!(permits.peek(1).remaining, 0);
    permits.end(1, Ending::Release);
    assert_eq!(permits.peek(1).remaining, 0, "two are held of two");
    permits.end(2, Ending::Release);
    assert_eq!(permits.peek(1).remaining, 1);
}
