//! Warm-up, compared with Guava's own arithmetic.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use quell_core::decision::RetryAfter;
use quell_core::end_hold::Ending;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::rate::Rate;
use quell_core::time::Now;
use quell_core::usage::Usage;

use crate::bench::Bench;
use crate::config;
use crate::holds::START;
use crate::kind::SECOND;

const MILLISECOND: u64 = SECOND / 1_000;

fn limit(count: u64, period: u64, window: u64, factor: u32) -> Limit {
    let rate = Rate::new(count, Duration::from_nanos(period)).unwrap();
    let bucket = Limit::token_bucket(rate).warm_up(Duration::from_nanos(window));
    bucket.cold_factor(factor).build().unwrap()
}

fn bench(limit: Limit) -> Bench {
    Bench::from_limit(limit, false, START, START)
}

/// Takes `cost` as soon as it is granted. Returns how long that took, in nanoseconds.
fn acquire(bench: &mut Bench, cost: u64) -> u64 {
    let wait = match bench.peek(cost).retry_after() {
        None => 0,
        Some(RetryAfter::After(wait)) => u64::try_from(wait.as_nanos()).unwrap(),
        Some(RetryAfter::Never) => panic!("a cost of {cost} is never granted"),
    };
    bench.now += wait;
    assert!(bench.acquire(cost).outcome.is_allow());
    wait
}

/// `SmoothRateLimiter.SmoothWarmingUp` of Guava 33, in its floats; times in nanoseconds.
struct Guava {
    stable: f64,
    cool_down: f64,
    most: f64,
    threshold: f64,
    slope: f64,
    stored: f64,
    next_free: f64,
}

impl Guava {
    fn new(stable: f64, window: f64, factor: f64) -> Self {
        let threshold = 0.5 * window / stable;
        let most = threshold + 2.0 * window / (stable + stable * factor);
        Self {
            stable,
            cool_down: window / most,
            most,
            threshold,
            slope: (stable * factor - stable) / (most - threshold),
            stored: most,
            next_free: 0.0,
        }
    }

    /// Reserves at `now`. Returns the wait.
    fn acquire(&mut self, now: f64, cost: f64) -> f64 {
        if now > self.next_free {
            let new = (now - self.next_free) / self.cool_down;
            self.stored = self.most.min(self.stored + new);
            self.next_free = now;
        }
        let wait = self.next_free - now;
        let spend = cost.min(self.stored);
        let above = self.stored - self.threshold;
        let mut left = spend;
        let mut time = 0.0;
        if above > 0.0 {
            let taken = above.min(left);
            let at = |permits: f64| self.stable + permits * self.slope;
            time = taken * (at(above) + at(above - taken)) / 2.0;
            left -= taken;
        }
        self.next_free += time + self.stable * (left + cost - spend);
        self.stored -= spend;
        wait
    }
}

/// The events that Guava's `RateLimiterTest` expects of `testWarmUp` and `testWarmUpWithColdFactor`.
#[test]
fn waits_are_those_of_guava_s_own_tests() {
    let cold = [0, 1_375, 1_125, 875, 625, 500, 500, 500];
    let hot = [0, 500, 500, 500, 500, 500, 500, 500];
    let mut two = bench(limit(2, SECOND, 4 * SECOND, 3));
    let mut round = |idle: u64| {
        let waits = cold.map(|_| acquire(&mut two, 1) / MILLISECOND);
        two.now += idle * MILLISECOND;
        waits
    };
    assert_eq!(round(500 + 4_000), cold);
    assert_eq!(round(500 + 2_000), cold, "cold again");
    assert_eq!(round(0), hot, "not cold yet");

    let cold = [0, 1_750, 1_260, 760, 300, 200, 200, 200];
    let mut five = bench(limit(5, SECOND, 4 * SECOND, 10));
    let rounded = |wait: u64| (wait + 5 * MILLISECOND) / (10 * MILLISECOND) * 10;
    let mut round = |idle: u64| {
        let waits = cold.map(|_| rounded(acquire(&mut five, 1)));
        five.now += idle * MILLISECOND;
        waits
    };
    assert_eq!(round(200 + 4_000), cold);
    assert_eq!(round(200 + 1_000), cold);
    assert_eq!(round(0), [0, 200, 200, 200, 200, 200, 200, 200]);
}

fn speeds() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        Just((2, SECOND)),
        Just((3, SECOND)),
        Just((7, 60 * SECOND)),
        Just((1_000_003, SECOND)),
        (1..=1_000_u64, 1..=100_u64).prop_map(|(count, period)| (count, period * SECOND)),
    ]
}

proptest! {
    #![proptest_config(config(400))]

    /// Whatever is asked and when, the waits equal Guava's to a microsecond or a millionth.
    #[test]
    fn random_waits_are_guava_s(
        (count, period) in speeds(),
        window in 1..=100_000_u64,
        factor in 2..=20_u32,
        calls in vec((0..=30_u64, 0..=1_500_u64, 1..=20_u64), 1..=40),
    ) {
        let window = window * MILLISECOND;
        let interval = period as f64 / count as f64;
        let mut guava = Guava::new(interval, window as f64, f64::from(factor));
        let mut bench = bench(limit(count, period, window, factor));
        for (sort, idle, cost) in calls {
            // As long as a few calls take, or as cooling takes.
            let whole = if sort < 15 { 4 * period / count } else { window };
            bench.now += idle * (whole / 1_000);
            // More could take longer to repay than is ever granted.
            let cost = cost.min(60 / u64::from(factor));
            let before = (bench.now - START) as f64;
            let wait = acquire(&mut bench, cost) as f64;
            let expected = guava.acquire(before, cost as f64);
            let tolerated = 1_000.0 + expected.max(wait) * 1e-6;
            prop_assert!((wait - expected).abs() <= tolerated, "{wait} {expected}");
            // What both call the same instant may differ by as much.
            guava.next_free += (bench.now - START) as f64 - (before + expected);
        }
    }

    /// A nanosecond before its time a call is refused, and then it passes.
    #[test]
    fn every_wait_is_true(
        (count, period) in speeds(),
        window in 1..=100_000_u64,
        calls in vec((0..=3_000_u64, 1..=20_u64), 1..=40),
    ) {
        let mut bench = bench(limit(count, period, window * MILLISECOND, 3));
        for (idle, cost) in calls {
            bench.now += idle * MILLISECOND;
            let Some(RetryAfter::After(wait)) = bench.peek(cost).retry_after() else {
                bench.acquire(cost);
                continue;
            };
            bench.now += u64::try_from(wait.as_nanos()).unwrap() - 1;
            let expected = Some(RetryAfter::After(Duration::from_nanos(1)));
            prop_assert_eq!(bench.acquire(cost).retry_after(), expected);
            bench.now += 1;
            prop_assert!(bench.acquire(cost).outcome.is_allow());
        }
    }

    /// At rest, and not before, a key equals one that was never seen.
    #[test]
    fn rest_is_cold(calls in vec((0..=900_u64, 1..=9_u64), 1..=20)) {
        let mut bench = bench(limit(2, SECOND, 4 * SECOND, 3));
        for (idle, cost) in calls {
            bench.now += idle * MILLISECOND;
            bench.acquire(cost);
        }
        let rest = bench.time_to_rest();
        bench.now += u64::try_from(rest.as_nanos()).unwrap() - 1;
        bench.ask_nothing();
        prop_assert!(bench.state.usage != Usage::Rest);
        bench.now += 1;
        bench.ask_nothing();
        prop_assert_eq!(&bench.state.usage, &Usage::Rest);
    }
}

impl Bench {
    /// Brings the state up to date, by ending a hold that does not exist.
    fn ask_nothing(&mut self) {
        assert!(!self.end(77, Ending::Cancel).found);
    }
}

/// If a day leaves no room for nanoseconds, it is counted in longer quanta.
#[test]
fn the_longest_warm_up_is_guava_s_too() {
    let day = 86_400 * SECOND;
    for factor in [2, 47, 1_000] {
        let mut guava = Guava::new(SECOND as f64, day as f64, f64::from(factor));
        let mut bench = bench(limit(1, SECOND, day, factor));
        for step in 0..200_u64 {
            bench.now += step % 7 * (step * 31 % 50) * SECOND;
            let before = (bench.now - START) as f64;
            let wait = acquire(&mut bench, 1) as f64;
            let expected = guava.acquire(before, 1.0);
            let tolerated = 1_000.0 + expected.max(wait) * 1e-6;
            assert!((wait - expected).abs() <= tolerated, "{wait} {expected}");
            guava.next_free += (bench.now - START) as f64 - (before + expected);
        }
    }
}

/// From cold, all charges together cost the area under the slope, however each was rounded.
#[test]
fn what_is_rounded_never_adds_up() {
    let mut bench = bench(limit(100_003, SECOND, SECOND, 3));
    let stored = 100_003 * 3 / 4;
    for _ in 0..stored {
        acquire(&mut bench, 1);
    }
    acquire(&mut bench, 1);
    // Half of the window for the slope below the rate, and all of it for what is on the slope.
    let took = bench.now - START;
    let expected = SECOND + SECOND / 4;
    assert!(took.abs_diff(expected) < 50_000, "{took}");
}

/// Once hot it is a bucket with a burst of one, to the tick.
#[test]
fn a_hot_key_keeps_its_rate_exactly() {
    for (count, period) in [(7, 60 * SECOND), (2, SECOND), (999_983, SECOND)] {
        let rate = Rate::new(count, Duration::from_nanos(period)).unwrap();
        let plain = Limit::token_bucket(rate).burst(1).build().unwrap();
        let took = [plain, limit(count, period, SECOND, 3)].map(|limit| {
            let mut bench = bench(limit);
            while bench.now < START + 3 * SECOND {
                acquire(&mut bench, 1);
            }
            let before = bench.now;
            for _ in 0..2_000 {
                acquire(&mut bench, 1);
            }
            bench.now - before
        });
        assert!(
            took[0].abs_diff(took[1]) <= 1,
            "{count} per {period}: {took:?}"
        );
    }
}

#[test]
fn a_clock_that_goes_back_owes_no_more_and_credits_nothing() {
    let mut bench = bench(limit(2, SECOND, 4 * SECOND, 3));
    for _ in 0..8 {
        acquire(&mut bench, 1);
    }
    let wait = bench.peek(1).retry_after();
    for back in [1, 5 * SECOND, 3_600 * SECOND] {
        bench.now -= back;
        assert_eq!(bench.peek(1).retry_after(), wait, "{back}");
        bench.ask_nothing();
    }
    acquire(&mut bench, 1);
    assert_eq!(
        acquire(&mut bench, 1),
        SECOND / 2,
        "and it is as warm as it was"
    );
    bench.now += 3_600 * SECOND;
    acquire(&mut bench, 1);
    assert_eq!(
        acquire(&mut bench, 1),
        1_375 * MILLISECOND,
        "an hour ahead it is cold"
    );
}

#[test]
fn what_is_owed_and_how_warm_it_is_outlive_a_change() {
    let mut bench = bench(limit(2, SECOND, 4 * SECOND, 3));
    for _ in 0..8 {
        acquire(&mut bench, 1);
    }
    acquire(&mut bench, 4);
    bench.change(limit(4, SECOND, 8 * SECOND, 3), false);
    assert_eq!(acquire(&mut bench, 1), SECOND, "four at 4/s");
    assert_eq!(acquire(&mut bench, 1), SECOND / 4, "hot");
    bench.change(Limit::per_second(4).burst(1).build().unwrap(), false);
    bench.state.versions = None;
    bench.change(limit(4, SECOND, 8 * SECOND, 3), false);
    acquire(&mut bench, 1);
    assert!(
        acquire(&mut bench, 1) > SECOND / 2,
        "another kind of bucket begins cold"
    );
}

#[test]
fn states_move_to_another_clock() {
    let mut bench = bench(limit(2, SECOND, 4 * SECOND, 3));
    for _ in 0..8 {
        acquire(&mut bench, 1);
    }
    let wait = bench.peek(1).retry_after();
    for nanos in [-86_400 * SECOND.cast_signed(), 3_600 * SECOND.cast_signed()] {
        let limit = bench.active.limit.clone();
        bench.state.shift(Some(&limit), nanos);
        bench.now = bench.now.checked_add_signed(nanos).unwrap();
        assert_eq!(bench.peek(1).retry_after(), wait, "{nanos}");
        let now = Now::from_nanos(bench.now);
        assert!(bench.state.time_to_rest(&limit, now) > Duration::from_secs(4));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let rate = Rate::new(2, Duration::from_secs(1)).unwrap();
    let bucket = || Limit::token_bucket(rate);
    let window = Duration::from_secs(4);
    let day = Duration::from_secs(86_400);
    for (bucket, expected) in [
        (bucket().warm_up(Duration::ZERO), Err(LimitError::WarmUp)),
        (
            bucket().warm_up(day + Duration::from_nanos(1)),
            Err(LimitError::WarmUp),
        ),
        (
            bucket().warm_up(window).cold_factor(1),
            Err(LimitError::ColdFactor),
        ),
        (
            bucket().warm_up(window).cold_factor(1_001),
            Err(LimitError::ColdFactor),
        ),
        (bucket().cold_factor(3), Err(LimitError::ColdFactorAlone)),
        (
            bucket().warm_up(window).burst(2),
            Err(LimitError::WarmUpWithBurst),
        ),
        (
            bucket().warm_up(window).initial(0),
            Err(LimitError::WarmUpWithBurst),
        ),
        (bucket().warm_up(day).cold_factor(1_000), Ok(())),
    ] {
        assert_eq!(bucket.build().map(|_| ()), expected);
    }
}
