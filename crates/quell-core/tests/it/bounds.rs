//! Admissions stay below the bound over every interval, and nothing drifts.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::{prop_oneof, proptest};
use quell_core::charge::Operation;
use quell_core::decision::{Outcome, RetryAfter};

use crate::bench::Bench;
use crate::calendar;
use crate::config;
use crate::kind::{Kind, MINUTE, SECOND, Speed, kinds};
use crate::oracle::Admission;
use crate::trace::{Amount, Call, Gap, Step, begin, drive, starts, steps};

/// The admissions among all calls.
pub(crate) fn admissions(calls: &[Call]) -> Vec<Admission> {
    let charged = |call: &&Call| {
        call.operation == Operation::Acquire && call.decision.outcome == Outcome::Allow
    };
    let admission = |call: &Call| Admission {
        at: call.at,
        cost: call.cost,
    };
    calls.iter().filter(charged).map(admission).collect()
}

/// The most that may be admitted from `from` to `to`, both included; in units of `1/per`.
struct Bound {
    most: u128,
    per: u128,
}

/// The bound of an interval, as the guarantees state it for each algorithm.
fn bound(kind: &Kind, from: u64, to: u64) -> Bound {
    let max = u128::from(kind.max());
    let length = u128::from(to - from);
    let units = |most: u128| Bound { most, per: 1 };
    match *kind {
        Kind::Token { speed, .. } | Kind::Leaky { speed, .. } => {
            let per = u128::from(speed.period);
            let refilled = u128::from(speed.count) * length;
            let most = max * per + refilled;
            Bound { most, per }
        }
        Kind::Refill { amount, every, .. } => {
            let ticks = length / u128::from(every) + 1;
            units(max + u128::from(amount) * ticks)
        }
        Kind::Fixed { window, .. } => units(max * (length / u128::from(window) + 2)),
        Kind::Calendar { .. } => {
            let mut days = 1;
            let mut end = calendar::day(from).1;
            while end <= to {
                days += 1;
                end = calendar::day(end).1;
            }
            units(max * days)
        }
        Kind::Segments { window, .. } | Kind::Log { window, .. } => {
            units(max * (length / u128::from(window) + 1))
        }
    }
}

pub(crate) fn every_interval_is_bounded(kind: &Kind, admitted: &[Admission]) {
    for (index, first) in admitted.iter().enumerate() {
        let mut sum = 0;
        // No trace here crosses more days than this walk can count.
        for last in &admitted[index..] {
            sum += u128::from(last.cost);
            let Bound { most, per } = bound(kind, first.at, last.at);
            assert!(sum * per <= most, "{sum} from {first:?} to {last:?}");
        }
    }
}

/// Windows of a fixed window, found by walking from the first admission.
fn each_window_is_bounded(limit: u64, window: u64, admitted: &[Admission]) {
    let mut rest = admitted;
    while let Some(first) = rest.first() {
        let inside = |admission: &&Admission| admission.at - first.at < window;
        let (count, sum) = rest
            .iter()
            .take_while(inside)
            .fold((0, 0), |(count, sum), one| {
                (count + 1, sum + u128::from(one.cost))
            });
        assert!(
            sum <= u128::from(limit),
            "{sum} in the window from {first:?}"
        );
        rest = &rest[count..];
    }
}

/// A rule with `initial` tokens has admitted no more than those and what was refilled since.
fn the_start_is_bounded(kind: &Kind, since: u64, admitted: &[Admission]) {
    let mut sum = 0;
    for admission in admitted {
        sum += u128::from(admission.cost);
        let initial = u128::from(kind.max() - kind.missing());
        let age = u128::from(admission.at - since);
        match *kind {
            Kind::Token { speed, .. } => {
                let per = u128::from(speed.period);
                assert!(sum * per <= initial * per + u128::from(speed.count) * age);
            }
            Kind::Refill { amount, every, .. } if kind.missing() > 0 => {
                let ticks = age / u128::from(every) + 1;
                assert!(sum <= initial + u128::from(amount) * ticks);
            }
            _ => {}
        }
    }
}

/// A caller that takes all it can get, again and again.
fn greedy() -> impl Strategy<Value = Vec<Step>> {
    let gaps = prop_oneof![
        Just(Gap::Retry(0)),
        Just(Gap::Nanos(0)),
        (0..=8_u64).prop_map(|part| Gap::OfFull(part, 0)),
        (60..=68_u64).prop_map(|part| Gap::OfFull(part, -1)),
    ];
    let step = gaps.prop_map(|gap| Step {
        gap,
        amount: Amount::Remaining(0),
        operation: Operation::Acquire,
    });
    vec(step, 1..=60)
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn no_interval_admits_more_than_its_bound(
        kind in kinds(),
        start in starts(),
        steps in prop_oneof![steps(60), greedy()],
    ) {
        let (mut bench, since) = begin(&kind, start);
        let calls = drive(&mut bench, &steps, |_, _| {});
        let admitted = admissions(&calls);
        every_interval_is_bounded(&kind, &admitted);
        the_start_is_bounded(&kind, since, &admitted);
        if let Kind::Fixed { limit, window } = kind {
            each_window_is_bounded(limit, window, &admitted);
        }
    }
}

const SPEEDS: [(u64, u64); 9] = [
    (7, MINUTE),
    (59, MINUTE),
    (1_000_003, SECOND),
    (300_000_007, SECOND),
    (999_999_999, SECOND),
    (1_000_000_000, SECOND),
    (999_999_999_999, SECOND),
    (1_000_000_000_000, SECOND),
    (1, 1_000 * SECOND),
];

fn buckets(speed: Speed, burst: u64) -> [Kind; 2] {
    let initial = None;
    let delay_after = 0;
    [
        Kind::Token {
            speed,
            burst,
            initial,
        },
        Kind::Leaky {
            speed,
            burst,
            delay_after,
        },
    ]
}

#[test]
fn each_period_refills_exactly_its_count() {
    for (count, period) in SPEEDS {
        for kind in buckets(Speed { count, period }, count) {
            let mut bench = Bench::new(&kind, 0, 1);
            assert_eq!(bench.acquire(count).remaining, 0);
            for n in 1..=5_000 {
                bench.now = n * period;
                let early = count - count.div_ceil(period);
                assert_eq!(bench.peek(1).remaining, early, "{kind:?}, 1ns early");
                bench.now += 1;
                assert_eq!(bench.peek(1).remaining, count, "{kind:?}, period {n}");
                assert_eq!(bench.acquire(count).outcome, Outcome::Allow);
                assert!(!bench.acquire(1).outcome.is_allow(), "{kind:?}, period {n}");
            }
        }
    }
}

#[test]
fn many_periods_at_once_refill_exactly_their_count() {
    for (count, period) in SPEEDS {
        for periods in [2, 61, 86_400] {
            for kind in buckets(Speed { count, period }, count * periods) {
                let mut bench = Bench::new(&kind, 0, 0);
                assert_eq!(bench.acquire(count * periods).remaining, 0);
                bench.now = period * periods - 1;
                let early = count * periods - count.div_ceil(period);
                assert_eq!(bench.peek(1).remaining, early);
                assert_eq!(bench.peek(1).reset_after, Duration::from_nanos(1));
                bench.now += 1;
                assert_eq!(bench.peek(1).remaining, count * periods);
                assert_eq!(bench.time_to_rest(), Duration::ZERO);
            }
        }
    }
}

/// A caller that waits `retry_after` each time makes call n at `n*period/count`, rounded up once,
/// and not once per call. (With half the burst the bucket would be full, and the rest would be lost.)
#[test]
fn waiting_as_told_does_not_drift() {
    for (count, period) in SPEEDS {
        let burst = 2 * count.div_ceil(period);
        for kind in buckets(Speed { count, period }, burst) {
            let mut bench = Bench::new(&kind, 0, 0);
            bench.acquire(burst);
            for n in 1..=3_000_u64 {
                let refused = bench.acquire(1);
                if let Some(RetryAfter::After(wait)) = refused.retry_after() {
                    bench = bench.after(wait).unwrap();
                    assert!(bench.acquire(1).outcome.is_allow());
                }
                let due = (u128::from(n) * u128::from(period)).div_ceil(u128::from(count));
                assert_eq!(u128::from(bench.now), due, "{kind:?}, call {n}");
            }
        }
    }
}

#[test]
fn each_tick_refills_exactly_one_batch() {
    for (amount, every) in [(7, MINUTE), (1_000_003, SECOND), (1, 1), (3, 7)] {
        let kind = Kind::Refill {
            amount,
            every,
            burst: 4 * amount,
            initial: None,
        };
        let mut bench = Bench::new(&kind, 0, 5);
        bench.acquire(4 * amount);
        for n in 1..=5_000 {
            bench.now = 5 + n * every - 1;
            assert_eq!(bench.peek(1).remaining, 0, "{kind:?}, 1ns before tick {n}");
            bench.now += 1;
            assert_eq!(bench.peek(1).remaining, amount, "{kind:?}, tick {n}");
            assert_eq!(bench.acquire(amount).remaining, 0);
        }
        bench.now += 3 * every;
        assert_eq!(bench.peek(1).remaining, 3 * amount);
    }
}
