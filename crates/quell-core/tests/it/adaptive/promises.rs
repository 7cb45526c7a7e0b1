//! The promises on a learned ceiling: nothing is learned from refusals, waits are true, clocks may
//! jump, and a change of the bounds keeps what was learned.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::usage::Usage;

use super::learned;
use crate::bench::Bench;
use crate::config;
use crate::holds::START;
use crate::kind::SECOND;
use crate::truths::NANO;

const LEASE: Duration = Duration::from_secs(60);

/// A key that never saw a queue, so that its ceiling is `max`, and that has existed for a while.
fn grown(min: u64, max: u64) -> Bench {
    let mut bench = Bench::from_limit(learned(min, max), false, START, START);
    let mut name = 0;
    while bench.peek(1).limit < max {
        turn(&mut bench, &mut name, SECOND / 10, Ending::Release);
        assert!(name < 100_000, "it grows");
    }
    for _ in 0..3 {
        turn(&mut bench, &mut name, SECOND / 10, Ending::Release);
    }
    assert_eq!(bench.peek(1).limit, max);
    bench
}

/// As many calls as fit, each of which takes this long.
fn turn(bench: &mut Bench, name: &mut u64, nanos: u64, ending: Ending) {
    let first = *name;
    while bench.claim(*name, 1, None, None).held[0] {
        *name += 1;
    }
    bench.now += nanos;
    for name in first..*name {
        assert!(bench.end(name, ending.clone()).found);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let permits = |max| Limit::concurrency(max);
    for (limit, error) in [
        (permits(4).adaptive(0), LimitError::ZeroMin),
        (permits(0).adaptive(1), LimitError::ZeroLimit),
        (permits(4).adaptive(5), LimitError::MinAboveMax),
        (
            permits(4).adaptive(2).queue(1),
            LimitError::AdaptiveWithQueue,
        ),
        (permits(10_001).adaptive(2), LimitError::ManyPermits),
    ] {
        assert_eq!(limit.build(), Err(error));
    }
    let limit = learned(2, 9);
    assert_eq!(
        limit.to_string(),
        "concurrency 2 to 9 at a time, learned, lease 1m"
    );
    assert!(limit.is_learned());
    assert!(!limit.may_delay());
    assert_eq!(limit.max(), 9);
    let share = limit.share(2.try_into().unwrap()).unwrap();
    assert_eq!(share, learned(1, 4));
    assert_eq!(limit.share(3.try_into().unwrap()), None, "not below 1");
}

#[test]
fn an_answer_says_the_ceiling_of_now() {
    let mut bench = Bench::from_limit(learned(3, 100), false, START, START);
    let first = bench.claim(1, 1, None, None).decisions[0];
    assert_eq!((first.limit, first.remaining), (3, 2));
    bench.end(1, Ending::Release);
    let bench = grown(3, 100);
    let peek = bench.peek(1);
    assert_eq!((peek.limit, peek.remaining), (100, 100));
}

/// The ceiling falls by a tenth each time that calls fail together, not by a tenth per call.
#[test]
fn calls_that_fail_together_lower_it_once() {
    let mut bench = grown(10, 100);
    let mut name = 1_000_000;
    turn(&mut bench, &mut name, SECOND / 10, Ending::Fail);
    assert_eq!(bench.peek(1).limit, 90);
    // A call that was admitted before the ceiling came down brings no news.
    turn(&mut bench, &mut name, SECOND / 10, Ending::Fail);
    assert_eq!(bench.peek(1).limit, 90);
    turn(&mut bench, &mut name, SECOND / 10, Ending::Fail);
    assert_eq!(bench.peek(1).limit, 81);
    for _ in 0..100 {
        turn(&mut bench, &mut name, SECOND / 10, Ending::Fail);
    }
    assert_eq!(bench.peek(1).limit, 10, "and no lower");
}

#[test]
fn a_lease_that_ends_counts_as_a_failure_and_a_cancel_as_nothing() {
    let mut bench = grown(10, 100);
    assert!(bench.claim(1_000_000, 1, None, None).held[0]);
    let mut cancelled = bench.clone();
    cancelled.end(1_000_000, Ending::Cancel);
    // Some call has to end, or everything is forgotten.
    for bench in [&mut bench, &mut cancelled] {
        bench.now += SECOND * 59;
        bench.claim(1_000_001, 1, None, None);
        bench.end(1_000_001, Ending::Release);
        bench.now += SECOND * 2;
    }
    assert_eq!(cancelled.peek(1).limit, 100);
    assert_eq!(bench.peek(1).limit, 90);
}

#[test]
fn it_is_forgotten_when_nothing_ended_for_a_lease() {
    let mut bench = grown(10, 100);
    let rest = bench.peek(1).reset_after;
    assert_eq!(rest, LEASE);
    let early = bench.after(rest - NANO).unwrap();
    assert_eq!(early.peek(1).limit, 100);
    let late = bench.after(rest).unwrap();
    assert_eq!(late.peek(1).limit, 10);
    assert_eq!(late.time_to_rest(), Duration::ZERO);
    // A held permit does not prevent that, and does not count against a fresh ceiling.
    bench.claim(1_000_000, 1, None, None);
    bench.now += SECOND * 61;
    assert_eq!(bench.acquire(1).limit, 10);
    assert_eq!(bench.state.usage, Usage::Rest);
}

/// A change of the bounds keeps what was learned, as far as the new bounds allow.
#[test]
fn a_change_of_the_bounds_keeps_what_was_learned() {
    for (min, max, expected) in [(10, 200, 100), (10, 40, 40), (150, 200, 150), (1, 100, 100)] {
        let mut bench = grown(10, 100);
        bench.claim(1_000_000, 1, None, None);
        bench.change(learned(min, max), false);
        let peek = bench.peek(1);
        assert_eq!((peek.limit, peek.remaining), (expected, expected - 1));
        bench.end(1_000_000, Ending::Cancel);
        bench.change(learned(min, max + 1), false);
        assert_eq!(bench.peek(1).limit, expected, "with and without holds");
    }
    let mut bench = grown(10, 100);
    bench.claim(1_000_000, 1, None, None);
    bench.change(Limit::concurrency(30).build().unwrap(), false);
    assert_eq!((bench.peek(1).limit, bench.peek(1).remaining), (30, 29));
    bench.change(learned(10, 100), false);
    assert_eq!((bench.peek(1).limit, bench.peek(1).remaining), (10, 9));
}

#[test]
fn time_goes_backwards_and_jumps_forward() {
    let mut bench = grown(10, 100);
    let mut name = 1_000_000;
    bench.now -= 3_600 * SECOND;
    assert_eq!(bench.peek(1).limit, 100, "nothing is credited or taken");
    assert_eq!(bench.peek(1).reset_after, LEASE);
    turn(&mut bench, &mut name, SECOND / 10, Ending::Release);
    assert!(bench.peek(1).limit >= 75);
    bench.now += 3_600 * SECOND;
    assert_eq!(bench.peek(1).limit, 10);
}

/// An action on a key, after this many milliseconds.
#[derive(Clone, Debug)]
enum Deed {
    Claim(u64),
    /// The permit of this index.
    End(usize, Ending),
    /// A turn of calls, each of which takes this many milliseconds.
    Turn(u64),
}

fn deeds() -> impl Strategy<Value = Vec<(u64, Deed)>> {
    let endings = prop_oneof![
        4 => Just(Ending::Release),
        1 => Just(Ending::Fail),
        1 => Just(Ending::Cancel),
        1 => Just(Ending::Renew),
    ];
    let deed = prop_oneof![
        4 => (1..=4_u64).prop_map(Deed::Claim),
        3 => (any::<usize>(), endings).prop_map(|(index, ending)| Deed::End(index, ending)),
        2 => (1..=400_u64).prop_map(Deed::Turn),
    ];
    let gaps = prop_oneof![5 => 0..=200_u64, 1 => 0..=70_000_u64];
    vec((gaps, deed), 1..=60)
}

/// Performs an action. Returns whether it did more than get refused.
fn act(bench: &mut Bench, deed: Deed, name: u64, held: &mut Vec<u64>) -> bool {
    match deed {
        Deed::Claim(cost) => {
            let is_held = bench.claim(name, cost, None, None).held[0];
            held.extend(is_held.then_some(name));
            is_held
        }
        Deed::End(index, ending) if !held.is_empty() => {
            let index = index % held.len();
            let renews = ending == Ending::Renew;
            bench.end(held[index], ending);
            if !renews {
                held.remove(index);
            }
            true
        }
        Deed::End(..) => false,
        Deed::Turn(millis) => {
            let mut free = name;
            turn(bench, &mut free, millis * 1_000_000, Ending::Release);
            true
        }
    }
}

proptest! {
    #![proptest_config(config(400))]

    /// A refusal or a peek teaches nothing and keeps nothing. A wait is true, `remaining` fits and
    /// one more does not, and no more permits are held than allowed.
    #[test]
    fn answers_are_true_and_refusals_cost_nothing(
        (min, max) in (1..=6_u64, 0..=20_u64).prop_map(|(min, more)| (min, min + more)),
        deeds in deeds(),
    ) {
        let mut bench = Bench::from_limit(learned(min, max), false, START, START);
        let mut quiet = bench.clone();
        let (mut held, mut held_quietly) = (Vec::new(), Vec::new());
        for (index, (gap, deed)) in deeds.into_iter().enumerate() {
            let name = index as u64 * 1_000;
            bench.now += gap * 1_000_000;
            let now = bench.now;
            truths(&bench, min, max);
            let same = bench.clone();
            if act(&mut bench, deed.clone(), name, &mut held) {
                quiet.now = now;
                assert_eq!(quiet.peek(1), same.peek(1), "refusals cost nothing");
                act(&mut quiet, deed, name, &mut held_quietly);
            }
        }
    }
}

fn truths(bench: &Bench, min: u64, max: u64) {
    let now = bench.peek(1);
    assert!((min..=max).contains(&now.limit), "{now:?}");
    assert!(now.remaining <= now.limit);
    if now.remaining > 0 {
        assert!(bench.peek(now.remaining).outcome.is_allow());
    }
    let refused = bench.peek(now.remaining + 1);
    let Outcome::Deny(RetryAfter::After(wait)) = refused.outcome else {
        assert_eq!(refused.outcome, Outcome::Deny(RetryAfter::Never));
        return;
    };
    let cost = now.remaining + 1;
    let early = bench.after(wait - NANO).unwrap();
    assert_eq!(
        early.peek(cost).outcome,
        Outcome::Deny(RetryAfter::After(NANO))
    );
    let mut late = bench.after(wait).unwrap();
    assert!(late.acquire(cost).outcome.is_allow());
}
