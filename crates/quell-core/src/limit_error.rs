//! Limit error: why numbers make no limit.

use core::fmt;

/// Why numbers make no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A rate of 0.
    ZeroRate,
    /// A period or window of length 0.
    ZeroPeriod,
    /// A period or window above [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    LongPeriod,
    /// A rate above one unit per nanosecond.
    FastRate,
    /// A burst of 0.
    ZeroBurst,
    /// A limit of 0.
    ZeroLimit,
    /// `initial` above `burst`.
    InitialAboveBurst,
    /// `delay_after` above `burst`.
    DelayAfterAboveBurst,
    /// A refill of 0 units.
    ZeroRefill,
    /// Both `rate` and `refill` were said, and differ.
    RefillDisagrees,
    /// Segments outside 2..=3600.
    Segments,
    /// A window shorter than one nanosecond per segment.
    ShortSegments,
    /// `max_entries` of 0 or above [`MAX_ENTRIES`](crate::algorithm::sliding_log::MAX_ENTRIES).
    MaxEntries,
    /// A time zone that is not in the database. The core has none: this is for whoever has.
    UnknownTimeZone,
    /// A bucket on credit whose tokens come in batches.
    DebtInBatches,
    /// A warm-up of zero or above a day.
    WarmUp,
    /// A cold factor outside 2..=1000.
    ColdFactor,
    /// A cold factor without a warm-up.
    ColdFactorAlone,
    /// A warm-up beside a burst, an `initial` or a refill.
    WarmUpWithBurst,
    /// A ceiling to be learned whose `min` is 0.
    ZeroMin,
    /// A ceiling to be learned whose `min` is above its `max`.
    MinAboveMax,
    /// A ceiling to be learned beside a queue.
    AdaptiveWithQueue,
    /// A ceiling to be learned on a store that follows none. The core has none: this is for whoever has.
    LearnsNothing,
    /// Permits on a store without holds. The core has none: this is for whoever has.
    HoldsNothing,
    /// More permits than a key may have holds.
    ManyPermits,
    /// More permits than a key may have holds on a shared store. The core has none: this is for
    /// whoever has.
    ManyPermitsShared,
    /// A ceiling to be learned on a shared store that may be larger than there. The core has none: this
    /// is for whoever has.
    LargeCeilingShared,
    /// A lease of 0 or above a day.
    Lease,
    /// A `unit_delay` above a day.
    UnitDelay,
    /// Permits where nobody could name them to give them back.
    PermitsNeedNames,
    /// A ban after 0 refusals or after more than [`MAX_AFTER`](crate::ban::MAX_AFTER).
    BanAfter,
    /// A ban after more than one refusal that says no `within`.
    BanWithin,
    /// A ban with no duration, more than [`MAX_STEPS`](crate::ban::MAX_STEPS), or one of zero.
    BanFor,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroRate => "a rate of 0 admits nothing: write a count of at least 1",
            Self::ZeroPeriod => "a period must be longer than 0: write a duration such as 1s",
            Self::LongPeriod => "a period of more than 36500 days: write a shorter one",
            Self::FastRate => {
                "a rate above one per nanosecond: write at most 1000000000/s or leave the limit out"
            }
            Self::ZeroBurst => "a burst of 0 admits nothing: write a burst of at least 1",
            Self::ZeroLimit => "a limit of 0 admits nothing: write a limit of at least 1",
            Self::InitialAboveBurst => "initial is above burst: write at most the burst",
            Self::DelayAfterAboveBurst => "delay_after is above burst: write at most the burst",
            Self::ZeroRefill => "a refill of 0 adds nothing: write an amount of at least 1",
            Self::RefillDisagrees => {
                "rate and refill say different rates: leave rate out, refill implies it"
            }
            Self::Segments => "segments must lie in 2..=3600",
            Self::ShortSegments => "a segment is shorter than 1ns: write fewer segments",
            Self::MaxEntries => "max_entries must lie in 1..=100000",
            Self::UnknownTimeZone => {
                "an unknown time zone: write a name of the IANA database, such as Europe/Berlin"
            }
            Self::DebtInBatches => "debt needs a steady rate: write rate in place of refill",
            Self::WarmUp => "warm_up must be longer than 0 and at most 1d",
            Self::ColdFactor => "cold_factor must lie in 2..=1000",
            Self::ColdFactorAlone => "cold_factor needs warm_up: write `warm_up: 10s` beside it",
            Self::WarmUpWithBurst => {
                "what warms up has no burst: leave burst, initial and refill out, or warm_up"
            }
            Self::ZeroMin => "a min of 0 admits nothing: write a min of at least 1",
            Self::MinAboveMax => "min is above max: write at most the max",
            Self::AdaptiveWithQueue => {
                "what learns its ceiling has no queue: leave queue out, callers can wait for a permit"
            }
            Self::LearnsNothing => "this store learns no ceiling: write max in place of adaptive",
            Self::HoldsNothing => "this store holds no permits: use the memory store or Redis",
            Self::ManyPermitsShared => {
                "max and queue together must be at most 1000 where servers share a store"
            }
            Self::LargeCeilingShared => {
                "the max of adaptive must be at most 500 where servers share a store"
            }
            Self::ManyPermits => "max and queue together must be at most 10000",
            Self::Lease => "a lease must be longer than 0 and at most 1d",
            Self::UnitDelay => "unit_delay must be at most 1d",
            Self::PermitsNeedNames => {
                "permits are given back by name: use a Limiter with a rule of concurrency"
            }
            Self::BanAfter => "a ban's after must lie in 1..=1000",
            Self::BanWithin => "a ban after several refusals needs within, such as 10m",
            Self::BanFor => "a ban's for must list 1 to 32 durations, each longer than 0",
        })
    }
}

impl core::error::Error for LimitError {}

impl LimitError {
    /// The fields of a rules file that can be to blame: the first of them that was said is. Fields of a
    /// map follow its name and a dot; none where it is the limit as a whole.
    #[must_use]
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::ZeroRate | Self::FastRate => &["rate", "refill.amount"],
            Self::ZeroPeriod | Self::LongPeriod => &["rate", "refill.every", "window", "limit"],
            Self::ZeroBurst => &["burst"],
            Self::ZeroLimit => &["limit", "max", "adaptive.max"],
            Self::InitialAboveBurst => &["initial"],
            Self::DelayAfterAboveBurst => &["delay_after"],
            Self::ZeroRefill => &["refill.amount"],
            Self::RefillDisagrees => &["rate"],
            Self::Segments => &["segments"],
            Self::ShortSegments => &["segments", "window", "limit"],
            Self::MaxEntries => &["max_entries"],
            Self::UnknownTimeZone => &["time_zone"],
            Self::DebtInBatches => &["debt"],
            Self::WarmUp => &["warm_up"],
            Self::ColdFactor | Self::ColdFactorAlone => &["cold_factor"],
            Self::WarmUpWithBurst => &["burst", "initial", "refill", "warm_up"],
            Self::ZeroMin | Self::MinAboveMax => &["adaptive.min"],
            Self::AdaptiveWithQueue => &["queue"],
            Self::ManyPermits | Self::ManyPermitsShared | Self::LargeCeilingShared => {
                &["queue", "max", "adaptive.max"]
            }
            Self::Lease => &["lease"],
            Self::UnitDelay => &["unit_delay"],
            Self::BanAfter => &["ban.after"],
            Self::BanWithin => &["ban.within"],
            Self::BanFor => &["ban.for"],
            Self::LearnsNothing | Self::HoldsNothing | Self::PermitsNeedNames => &[],
        }
    }
}
