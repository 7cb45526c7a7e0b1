//! Limit error: why numbers are not a valid limit.

use core::fmt;

/// Declares [`LimitError`]: of each variant its message, and the fields of a rules file that can be to
/// blame.
macro_rules! limit_errors {
    ($($(#[doc = $doc:literal])* $name:ident: $message:literal, $fields:expr;)*) => {
        /// Reason why numbers are not a valid limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum LimitError {
            $($(#[doc = $doc])* $name,)*
        }

        impl fmt::Display for LimitError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $message,)*
                })
            }
        }

        impl LimitError {
            /// The fields of a rules file that can be to blame: the first of them that is set is.
            /// Fields of a map follow its name and a dot; none if it is the limit as a whole.
            #[must_use]
            pub const fn fields(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &$fields,)*
                }
            }
        }
    };
}

limit_errors! {
    /// A rate of 0.
    ZeroRate: "a rate of 0 admits nothing: write a count of at least 1", ["rate", "refill.amount"];
    /// A period or window of length 0.
    ZeroPeriod: "a period must be longer than 0: write a duration such as 1s",
        ["rate", "refill.every", "window", "limit"];
    /// A period or window above [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    LongPeriod: "a period of more than 36500 days: write a shorter one",
        ["rate", "refill.every", "window", "limit"];
    /// A rate above [`MAX_PER_NANO`](crate::rate::MAX_PER_NANO).
    FastRate: "a rate above 10^12 a second: write at most 1000000000000/s or leave the limit out",
        ["rate", "refill.amount"];
    /// A count above [`MAX_COUNT`](crate::rate::MAX_COUNT).
    LargeCount: "a rate of more than 2^62 units per period: write the same rate per second",
        ["rate", "refill.amount"];
    /// A burst of 0.
    ZeroBurst: "a burst of 0 admits nothing: write a burst of at least 1", ["burst"];
    /// A limit of 0.
    ZeroLimit: "a limit of 0 admits nothing: write a limit of at least 1",
        ["limit", "max", "adaptive.max"];
    /// `initial` above `burst`.
    InitialAboveBurst: "initial is above burst: write at most the burst", ["initial"];
    /// `delay_after` above `burst`.
    DelayAfterAboveBurst: "delay_after is above burst: write at most the burst", ["delay_after"];
    /// A refill of 0 units.
    ZeroRefill: "a refill of 0 adds nothing: write an amount of at least 1", ["refill.amount"];
    /// Both `rate` and `refill` were given, and differ.
    RefillDisagrees: "rate and refill say different rates: leave rate out, refill implies it",
        ["rate"];
    /// Segments outside 2..=3600.
    Segments: "segments must lie in 2..=3600", ["segments"];
    /// A window shorter than one nanosecond per segment.
    ShortSegments: "a segment is shorter than 1ns: write fewer segments",
        ["segments", "window", "limit"];
    /// `max_entries` of 0 or above [`MAX_ENTRIES`](crate::algorithm::sliding_log::MAX_ENTRIES).
    MaxEntries: "max_entries must lie in 1..=100000", ["max_entries"];
    /// An unknown time zone. The core has no database of zones: this is for code that has one.
    UnknownTimeZone: "an unknown time zone: write a name of the IANA database, such as Europe/Berlin",
        ["time_zone"];
    /// An anchor of another unit than that of the window, or one that does not exist.
    Anchor:
        "this window has no such anchor: write a time for days, a weekday for weeks, a day from 1 to 31 for \
         months, a date for years",
        ["anchor"];
    /// A bucket on credit whose tokens come in batches.
    DebtInBatches: "debt needs a steady rate: write rate in place of refill", ["debt"];
    /// A warm-up of zero or above a day.
    WarmUp: "warm_up must be longer than 0 and at most 1d", ["warm_up"];
    /// A cold factor outside 2..=1000.
    ColdFactor: "cold_factor must lie in 2..=1000", ["cold_factor"];
    /// A cold factor without a warm-up.
    ColdFactorAlone: "cold_factor needs warm_up: write `warm_up: 10s` beside it", ["cold_factor"];
    /// A warm-up together with a burst, an `initial` or a refill.
    WarmUpWithBurst: "what warms up has no burst: leave burst, initial and refill out, or warm_up",
        ["burst", "initial", "refill", "warm_up"];
    /// A learned ceiling whose `min` is 0.
    ZeroMin: "a min of 0 admits nothing: write a min of at least 1", ["adaptive.min"];
    /// A learned ceiling whose `min` is above its `max`.
    MinAboveMax: "min is above max: write at most the max", ["adaptive.min"];
    /// A learned ceiling together with a queue.
    AdaptiveWithQueue: "what learns its ceiling has no queue: leave queue out, callers can wait for a permit",
        ["queue"];
    /// Two limits of a fleet have one name.
    SameFleetName:
        "a limit of the fleet in another domain has this name, by which the fleet knows it: rename one", [];
    /// A limit of a fleet where nothing has shares.
    NoFleet:
        "nothing here has shares of a fleet's limits: start the server with --fleet, or write another rung", [];
    /// A learned ceiling on a store that does not support it. The core has no store: this is for code
    /// that has one.
    LearnsNothing: "this store learns no ceiling: write max in place of adaptive", [];
    /// Permits on a store without holds. The core has no store: this is for code that has one.
    HoldsNothing: "this store holds no permits: use the memory store or Redis", [];
    /// More permits than a key may have holds.
    ManyPermits: "max and queue together must be at most 10000", ["queue", "max", "adaptive.max"];
    /// More permits than a key may have holds on a shared store. The core has no store: this is for code
    /// that has one.
    ManyPermitsShared: "max and queue together must be at most 1000 where servers share a store",
        ["queue", "max", "adaptive.max"];
    /// A learned ceiling that may exceed the maximum of a shared store. The core has no store: this is
    /// for code that has one.
    LargeCeilingShared: "the max of adaptive must be at most 500 where servers share a store",
        ["queue", "max", "adaptive.max"];
    /// A burst, limit or count that a shared store cannot count exactly. The core has no store: this is
    /// for code that has one.
    ManyUnitsShared:
        "where servers share a store, it counts up to 2^50 units (1125899906842624) exactly: count in a \
         larger unit, such as kB in place of bytes, and write the limit and the costs in that",
        ["burst", "limit", "rate", "refill.amount"];
    /// A lease of 0 or above a day.
    Lease: "a lease must be longer than 0 and at most 1d", ["lease"];
    /// A `unit_delay` above a day.
    UnitDelay: "unit_delay must be at most 1d", ["unit_delay"];
    /// Permits for calls that cannot name them to give them back.
    PermitsNeedNames: "permits are given back by name: use a Limiter with a rule of concurrency",
        [];
    /// A ban after 0 refusals or after more than [`MAX_AFTER`](crate::ban::MAX_AFTER).
    BanAfter: "a ban's after must lie in 1..=1000", ["ban.after"];
    /// A ban after more than one refusal without a `within`.
    BanWithin: "a ban after several refusals needs within, such as 10m", ["ban.within"];
    /// A ban with no duration, more than [`MAX_STEPS`](crate::ban::MAX_STEPS), or one of zero.
    BanFor: "a ban's for must list 1 to 32 durations, each longer than 0", ["ban.for"];
}

impl core::error::Error for LimitError {}
