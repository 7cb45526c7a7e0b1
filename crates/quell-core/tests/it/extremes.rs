//! Tables of the largest, the slowest and the fastest limits, and of those that cannot be.

use std::time::Duration;

use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::decision::{Outcome, RetryAfter};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::rate::{MAX_PERIOD, Rate};

use crate::bench::Bench;
use crate::kind::{Kind, MINUTE, SECOND, Speed, YEAR};
use crate::table::{Row, acquire, peek, run};

const MAX: u64 = u64::MAX;

fn rate(count: u64, period: u64) -> Rate {
    Rate::new(count, Duration::from_nanos(period)).unwrap()
}

fn token(count: u64, period: u64, burst: u64) -> Limit {
    let bucket = Limit::token_bucket(rate(count, period));
    bucket.burst(burst).build().unwrap()
}

fn check(limit: Limit, rows: &[Row]) {
    run(&mut Bench::from_limit(limit, false, 0, 0), rows);
}

#[test]
fn one_per_year_with_a_burst_of_a_thousand() {
    let years = |years: u64| u128::from(years) * u128::from(YEAR);
    check(
        token(1, YEAR, 1_000),
        &[
            acquire(0, 1).allows(999, YEAR),
            acquire(0, 999).allows(0, years(1_000)),
            acquire(0, 1).denies(YEAR, 0, years(1_000)),
            acquire(0, 1_000).denies(years(1_000), 0, years(1_000)),
            acquire(0, 1_001).never(0, years(1_000)),
            peek(YEAR - 1, 1).denies(1_u64, 0, years(999) + 1),
            acquire(YEAR, 1).allows(0, years(1_000)),
            peek(500 * YEAR, 499).allows(499, years(501)),
            peek(500 * YEAR, 500).denies(YEAR, 499, years(501)),
        ],
    );
}

#[test]
fn a_thousandth_per_second() {
    check(
        token(1, 1_000 * SECOND, 1),
        &[
            acquire(7, 1).allows(0, 1_000 * SECOND),
            acquire(8, 1).denies(1_000 * SECOND - 1, 0, 1_000 * SECOND - 1),
            acquire(1_000 * SECOND + 6, 1).denies(1_u64, 0, 1_u64),
            acquire(1_000 * SECOND + 7, 1).allows(0, 1_000 * SECOND),
        ],
    );
}

/// One unit takes 3.333333256 ns.
#[test]
fn three_hundred_million_and_seven_per_second() {
    check(
        token(300_000_007, SECOND, 1),
        &[
            acquire(0, 1).allows(0, 4_u64),
            acquire(0, 1).denies(4_u64, 0, 4_u64),
            acquire(3, 1).denies(1_u64, 0, 1_u64),
            acquire(4, 1).allows(0, 4_u64),
            acquire(8, 1).allows(0, 4_u64),
        ],
    );
    check(
        token(300_000_007, SECOND, 300_000_007),
        &[
            acquire(0, 300_000_007).allows(0, SECOND),
            peek(3, 1).denies(1_u64, 0, SECOND - 3),
            peek(4, 1).allows(1, SECOND - 4),
            acquire(10, 3).allows(0, SECOND),
            acquire(20, 4).denies(4_u64, 3, SECOND - 10),
            acquire(2 * SECOND, 300_000_008).never(300_000_007, 0_u64),
        ],
    );
}

#[test]
fn a_billion_per_second() {
    check(
        token(1_000_000_000, SECOND, 1_000_000_000),
        &[
            acquire(0, 1_000_000_000).allows(0, SECOND),
            acquire(0, 1).denies(1_u64, 0, SECOND),
            acquire(1, 1).allows(0, SECOND),
            acquire(1, 2).denies(2_u64, 0, SECOND),
            acquire(SECOND, 1_000_000_000).denies(1_u64, 999_999_999, 1_u64),
        ],
    );
    check(
        token(1, 1, 1),
        &[
            acquire(0, 1).allows(0, 1_u64),
            acquire(0, 1).denies(1_u64, 0, 1_u64),
            acquire(1, 1).allows(0, 1_u64),
        ],
    );
}

#[test]
fn counts_and_bursts_around_32_bits() {
    for count in [(1 << 32) - 1, 1 << 32, (1 << 32) + 1] {
        let seconds = u128::from(count) * u128::from(SECOND);
        check(
            token(count, 5 * SECOND, count),
            &[
                acquire(0, count).allows(0, 5 * SECOND),
                acquire(0, 1).denies(2_u64, 0, 5 * SECOND),
                peek(5 * SECOND - 1, 1).allows(count - 1, 1_u64),
                peek(5 * SECOND, count).allows(count, 0_u64),
                peek(5 * SECOND, count + 1).never(count, 0_u64),
            ],
        );
        check(
            token(1, SECOND, count),
            &[
                acquire(0, count).allows(0, seconds),
                acquire(0, 1).denies(SECOND, 0, seconds),
                acquire(SECOND, 1).allows(0, seconds),
            ],
        );
    }
}

#[test]
fn bursts_around_63_and_64_bits() {
    for burst in [(1 << 63) - 1, 1 << 63, (1 << 63) + 1, MAX] {
        check(
            token(1, 1, burst),
            &[
                acquire(0, burst).allows(0, burst),
                acquire(0, 1).denies(1_u64, 0, burst),
                acquire(0, burst).denies(burst, 0, burst),
                acquire(5, 5).allows(0, burst),
                peek(MAX - 5, MAX - 10).allows(MAX - 10, burst.saturating_sub(MAX - 10)),
            ][..if burst == MAX { 5 } else { 4 }],
        );
        let seconds = u128::from(burst) * u128::from(SECOND);
        check(
            token(1, SECOND, burst),
            &[
                acquire(0, burst).allows(0, seconds),
                acquire(0, burst).denies(seconds, 0, seconds),
            ],
        );
        // Longer than any duration: the longest possible one is reported instead.
        check(
            token(1, 100 * YEAR, burst),
            &[
                acquire(0, burst).allows(0, u128::MAX),
                acquire(0, 1).denies(100 * YEAR, 0, u128::MAX),
                acquire(100 * YEAR, 1).allows(0, u128::MAX),
            ],
        );
    }
}

#[test]
fn windows_of_64_bits() {
    let minute = Duration::from_secs(60);
    check(
        Limit::fixed_window(MAX, minute).build().unwrap(),
        &[
            acquire(0, MAX - 1).allows(1, MINUTE),
            acquire(0, MAX).denies(MINUTE, 1, MINUTE),
            acquire(0, 1).allows(0, MINUTE),
            acquire(MINUTE, MAX).allows(0, MINUTE),
        ],
    );
    check(
        Limit::sliding_window(MAX, minute).build().unwrap(),
        &[
            acquire(0, MAX - 1).allows(1, 66 * SECOND),
            acquire(0, MAX).denies(66 * SECOND, 1, 66 * SECOND),
            acquire(0, 1).allows(0, 66 * SECOND),
            acquire(66 * SECOND, MAX).allows(0, 66 * SECOND),
        ],
    );
    check(
        TokenBucket::refill(1 << 61, Duration::from_nanos(1 << 61))
            .burst(MAX)
            .build()
            .unwrap(),
        &[
            acquire(0, MAX).allows(0, 8_u128 << 61),
            acquire(0, 1).denies(1_u64 << 61, 0, 8_u128 << 61),
            acquire(1 << 61, 1 << 61).allows(0, 8_u128 << 61),
        ],
    );
}

/// Past the year 2554 the clock stands still; no call gets past a limit because of that.
#[test]
fn at_the_end_of_time_limits_hold() {
    let speed = Speed {
        count: 3,
        period: SECOND,
    };
    let (burst, limit, window) = (5, 5, SECOND);
    let kinds = [
        Kind::Token {
            speed,
            burst,
            initial: None,
        },
        Kind::Refill {
            amount: 2,
            every: SECOND,
            burst,
            initial: None,
        },
        Kind::Leaky {
            speed,
            burst,
            delay_after: 0,
        },
        Kind::Fixed { limit, window },
        Kind::Segments {
            limit,
            window,
            segments: 4,
        },
        Kind::Log { limit, window },
    ];
    for kind in kinds {
        for now in [MAX, MAX - 1, MAX - SECOND / 2] {
            let mut bench = Bench::new(&kind, 0, now);
            assert_eq!(bench.acquire(5).outcome, Outcome::Allow);
            let refused = bench.acquire(1);
            let is_wait = |wait| wait > RetryAfter::After(Duration::ZERO);
            assert!(refused.retry_after().is_some_and(is_wait), "{kind:?}");
            assert_eq!(refused.remaining, 0);
            bench.now = MAX;
            assert!(!bench.acquire(5).outcome.is_allow(), "{kind:?}");
        }
    }
}

#[test]
fn costs_above_the_limit_never_fit_and_cost_nothing() {
    let speed = Speed {
        count: 1,
        period: SECOND,
    };
    let limit = 3;
    let kinds = [
        Kind::Token {
            speed,
            burst: 3,
            initial: Some(1),
        },
        Kind::Leaky {
            speed,
            burst: 3,
            delay_after: 1,
        },
        Kind::Calendar { limit },
        Kind::Segments {
            limit,
            window: SECOND,
            segments: 2,
        },
    ];
    for kind in kinds {
        let mut bench = Bench::new(&kind, 0, 0);
        bench.acquire(1);
        let before = bench.peek(1).remaining;
        for cost in [4, 5, 1 << 32, 1 << 63, MAX] {
            let refused = bench.acquire(cost);
            assert_eq!(refused.outcome, Outcome::Deny(RetryAfter::Never));
            assert_eq!(refused.remaining, before);
        }
    }
}

#[test]
fn full_refills() {
    let seconds = Duration::from_secs;
    let minute = seconds(60);
    let log = Limit::sliding_log(5, minute).build().unwrap();
    let table = [
        (token(10, SECOND, 5), Duration::from_millis(500)),
        (token(3, SECOND, 1), Duration::from_nanos(333_333_334)),
        (token(1, YEAR, 1_000), seconds(1_000 * 365 * 86_400)),
        (
            Limit::leaky_bucket(rate(2, SECOND)).build().unwrap(),
            seconds(1),
        ),
        (
            TokenBucket::refill(3, minute).burst(10).build().unwrap(),
            4 * minute,
        ),
        (Limit::fixed_window(5, minute).build().unwrap(), minute),
        (
            Limit::sliding_window(5, minute).build().unwrap(),
            seconds(66),
        ),
        (log, minute),
    ];
    for (limit, full) in table {
        assert_eq!(limit.full_refill(), full, "{limit}");
    }
}

#[test]
fn impossible_buckets_and_windows_are_refused() {
    let second = Duration::from_secs(1);
    let nanos = Duration::from_nanos;
    let long = MAX_PERIOD + nanos(1);
    let bucket = || Limit::leaky_bucket(rate(5, SECOND));
    let window = |limit, length| Limit::fixed_window(limit, length).build();
    let table = [
        (Limit::per_second(0).build(), LimitError::ZeroRate),
        (Limit::per_second(1).burst(0).build(), LimitError::ZeroBurst),
        (
            Limit::per_second(1_000_000_000_001).build(),
            LimitError::FastRate,
        ),
        (
            Limit::per_second(1).initial(2).build(),
            LimitError::InitialAboveBurst,
        ),
        (
            TokenBucket::refill(0, second).build(),
            LimitError::ZeroRefill,
        ),
        (
            TokenBucket::refill(1, Duration::ZERO).build(),
            LimitError::ZeroPeriod,
        ),
        (TokenBucket::refill(1, long).build(), LimitError::LongPeriod),
        (
            TokenBucket::refill(1_001, nanos(1)).build(),
            LimitError::FastRate,
        ),
        (
            TokenBucket::refill(1, second).burst(0).build(),
            LimitError::ZeroBurst,
        ),
        (bucket().burst(0).build(), LimitError::ZeroBurst),
        (
            bucket().delay_after(6).build(),
            LimitError::DelayAfterAboveBurst,
        ),
        (window(0, second), LimitError::ZeroLimit),
        (window(1, Duration::ZERO), LimitError::ZeroPeriod),
        (window(1, Duration::MAX), LimitError::LongPeriod),
    ];
    all_refused(table);
}

#[test]
fn impossible_sliding_windows_are_refused() {
    let second = Duration::from_secs(1);
    let nanos = Duration::from_nanos;
    let long = MAX_PERIOD + nanos(1);
    let table = [
        (
            Limit::sliding_window(0, second).build(),
            LimitError::ZeroLimit,
        ),
        (
            Limit::sliding_window(1, second).segments(1).build(),
            LimitError::Segments,
        ),
        (
            Limit::sliding_window(1, second).segments(3_601).build(),
            LimitError::Segments,
        ),
        (
            Limit::sliding_window(1, nanos(9)).build(),
            LimitError::ShortSegments,
        ),
        (Limit::sliding_log(0, second).build(), LimitError::ZeroLimit),
        (Limit::sliding_log(1, long).build(), LimitError::LongPeriod),
        (
            Limit::sliding_log(1, second).max_entries(0).build(),
            LimitError::MaxEntries,
        ),
        (
            Limit::sliding_log(1, second).max_entries(100_001).build(),
            LimitError::MaxEntries,
        ),
    ];
    all_refused(table);
}

fn all_refused<const N: usize>(table: [(Result<Limit, LimitError>, LimitError); N]) {
    for (index, (built, error)) in table.into_iter().enumerate() {
        assert_eq!(built.unwrap_err(), error, "row {index}");
        assert!(!error.to_string().is_empty());
    }
}
