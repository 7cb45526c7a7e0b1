//! The limits under test: every algorithm with random numbers, in one form for the core and the
//! oracle.

use std::ops::RangeInclusive;
use std::time::Duration;

use proptest::prelude::{BoxedStrategy, Just, Strategy};
use proptest::{option, prop_oneof};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::limit::Limit;
use quell_core::rate::Rate;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
pub(crate) const YEAR: u64 = 365 * DAY;

/// This many units in this many nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed {
    pub(crate) count: u64,
    pub(crate) period: u64,
}

/// An algorithm with its numbers; all times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Token {
        speed: Speed,
        burst: u64,
        initial: Option<u64>,
    },
    Refill {
        amount: u64,
        every: u64,
        burst: u64,
        initial: Option<u64>,
    },
    Leaky {
        speed: Speed,
        burst: u64,
        delay_after: u64,
    },
    Fixed {
        limit: u64,
        window: u64,
    },
    /// On the days of `calendar.rs`.
    Calendar {
        limit: u64,
    },
    Segments {
        limit: u64,
        window: u64,
        segments: u32,
    },
    Log {
        limit: u64,
        window: u64,
    },
}

impl Kind {
    /// The limit of these numbers.
    pub(crate) fn limit(&self) -> Limit {
        let nanos = Duration::from_nanos;
        let rate = |speed: Speed| Rate::new(speed.count, nanos(speed.period)).unwrap();
        match *self {
            Self::Token {
                speed,
                burst,
                initial,
            } => {
                let bucket = Limit::token_bucket(rate(speed)).burst(burst);
                initial.map_or(bucket.clone(), |initial| bucket.initial(initial))
            }
            .build(),
            Self::Refill {
                amount,
                every,
                burst,
                initial,
            } => {
                let bucket = TokenBucket::refill(amount, nanos(every)).burst(burst);
                initial.map_or(bucket.clone(), |initial| bucket.initial(initial))
            }
            .build(),
            Self::Leaky {
                speed,
                burst,
                delay_after,
            } => Limit::leaky_bucket(rate(speed))
                .burst(burst)
                .delay_after(delay_after)
                .build(),
            Self::Fixed { limit, window } => Limit::fixed_window(limit, nanos(window)).build(),
            Self::Calendar { limit } => {
                Limit::calendar_window(limit, CalendarUnit::Day, "Test/Days").build()
            }
            Self::Segments {
                limit,
                window,
                segments,
            } => Limit::sliding_window(limit, nanos(window))
                .segments(segments)
                .build(),
            Self::Log { limit, window } => Limit::sliding_log(limit, nanos(window)).build(),
        }
        .unwrap()
    }

    /// The largest cost from rest, according to the numbers.
    pub(crate) const fn max(&self) -> u64 {
        match *self {
            Self::Token { burst, .. } | Self::Refill { burst, .. } | Self::Leaky { burst, .. } => {
                burst
            }
            Self::Fixed { limit, .. }
            | Self::Calendar { limit }
            | Self::Segments { limit, .. }
            | Self::Log { limit, .. } => limit,
        }
    }

    /// Units that are already used when the rule comes into force.
    pub(crate) const fn missing(&self) -> u64 {
        match *self {
            Self::Token {
                burst,
                initial: Some(initial),
                ..
            }
            | Self::Refill {
                burst,
                initial: Some(initial),
                ..
            } => burst - initial,
            _ => 0,
        }
    }

    pub(crate) const fn is_calendar(&self) -> bool {
        matches!(self, Self::Calendar { .. })
    }
}

/// Rates: the edges of the promises, and random ones in between.
pub(crate) fn speeds() -> impl Strategy<Value = Speed> {
    let edges = [
        (7, MINUTE),
        (59, MINUTE),
        (1_000_003, SECOND),
        (300_000_007, SECOND),
        (999_999_999, SECOND),
        (1_000_000_000, SECOND),
        (1, 1_000 * SECOND),
        (1, YEAR),
        (1, 100 * YEAR),
        (100 * YEAR, 100 * YEAR),
    ];
    let edges = proptest::sample::select(edges.to_vec());
    let small = (1..=20_u64, 1..=50_u64);
    let any = (
        1..=2_000_000_u64,
        prop_oneof![1..=2 * SECOND, SECOND..=2 * YEAR],
    );
    prop_oneof![
        edges,
        small.prop_map(|(count, extra)| (count, count + extra - 1)),
        any.prop_map(|(count, period)| (count.min(period), period)),
    ]
    .prop_map(|(count, period)| Speed { count, period })
}

/// Bursts and limits: small ones, and those at the edges of 32 and 64 bits.
pub(crate) fn maxima() -> impl Strategy<Value = u64> {
    let edges = [
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        (1 << 63) - 1,
        1 << 63,
        (1 << 63) + 1,
        u64::MAX,
    ];
    prop_oneof![
        3 => 1..=12_u64,
        2 => 1..=2_000_u64,
        1 => proptest::sample::select(edges.to_vec()),
    ]
}

/// Lengths of windows.
fn windows() -> impl Strategy<Value = u64> {
    prop_oneof![
        4_000..=10_000_u64,
        1_000_000..=3 * SECOND,
        Just(SECOND),
        Just(MINUTE),
        Just(100 * YEAR),
    ]
}

/// Any part of `max`, both ends included.
fn part(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(max), 0..=max]
}

pub(crate) fn full_tokens() -> impl Strategy<Value = Kind> {
    (speeds(), maxima()).prop_map(|(speed, burst)| Kind::Token {
        speed,
        burst,
        initial: None,
    })
}

pub(crate) fn tokens() -> impl Strategy<Value = Kind> {
    let numbers = (speeds(), maxima());
    numbers.prop_flat_map(|(speed, burst)| {
        option::of(part(burst)).prop_map(move |initial| Kind::Token {
            speed,
            burst,
            initial,
        })
    })
}

/// Batches; a bucket is filled by at most 300, since the oracle counts them one by one.
pub(crate) fn refills() -> impl Strategy<Value = Kind> {
    const BATCHES: RangeInclusive<u64> = 1..=300;
    let amounts = prop_oneof![1..=5_u64, 1..=1_000_u64, Just(1 << 32), Just(1 << 61)];
    let numbers = (amounts, windows(), BATCHES, 0..=4_u64);
    let numbers = numbers.prop_map(|(amount, every, batches, odd)| {
        let every = every.max(amount);
        (
            amount,
            every,
            amount.saturating_mul(batches).max(odd + 1) - odd.min(amount - 1),
        )
    });
    numbers.prop_flat_map(|(amount, every, burst)| {
        option::of(part(burst)).prop_map(move |initial| Kind::Refill {
            amount,
            every,
            burst,
            initial,
        })
    })
}

pub(crate) fn leaks() -> impl Strategy<Value = Kind> {
    let numbers = (speeds(), maxima());
    numbers.prop_flat_map(|(speed, burst)| {
        part(burst).prop_map(move |delay_after| Kind::Leaky {
            speed,
            burst,
            delay_after,
        })
    })
}

pub(crate) fn fixed() -> impl Strategy<Value = Kind> {
    (maxima(), windows()).prop_map(|(limit, window)| Kind::Fixed { limit, window })
}

pub(crate) fn calendars() -> impl Strategy<Value = Kind> {
    maxima().prop_map(|limit| Kind::Calendar { limit })
}

pub(crate) fn segments() -> impl Strategy<Value = Kind> {
    let counts = prop_oneof![2..=12_u32, Just(7), Just(60), Just(3_600)];
    (maxima(), windows(), counts).prop_map(|(limit, window, segments)| Kind::Segments {
        limit,
        window,
        segments,
    })
}

pub(crate) fn logs() -> impl Strategy<Value = Kind> {
    let limits = prop_oneof![1..=12_u64, 1..=10_000_u64];
    (limits, windows()).prop_map(|(limit, window)| Kind::Log { limit, window })
}

/// All algorithms alike.
pub(crate) fn kinds() -> BoxedStrategy<Kind> {
    prop_oneof![
        tokens(),
        refills(),
        leaks(),
        fixed(),
        calendars(),
        segments(),
        logs(),
    ]
    .boxed()
}
