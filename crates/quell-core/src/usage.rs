//! Usage: what was *used* on one key, as each algorithm counts it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::time::{Monotonic, Wall};

/// The use, per algorithm. Any value is safe: an impossible one counts as at most fully used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// No usage: the same as no state at all.
    #[default]
    Rest,
    /// `token_bucket` with continuous refill.
    TokenBucket {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
    },
    /// `token_bucket` with refill in batches.
    Refill {
        /// The last tick that was counted.
        anchor: Monotonic,
        /// Units used.
        used: u64,
    },
    /// A bucket with a debt: nothing fits until it is repaid.
    Owing {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
        /// Instant to which the usage was last settled: this shows whether the clock went back.
        as_of: Monotonic,
    },
    /// The same for a bucket with refill in batches.
    OwingBatches {
        /// The last tick that was counted.
        anchor: Monotonic,
        /// Units used.
        used: u64,
    },
    /// `token_bucket` that warms up.
    WarmingUp {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
        /// Warmth at that instant, in parts of a nanosecond (see `warm_up.rs`).
        heat: u64,
        /// Instant to which the usage was last settled: this shows whether the clock went back.
        as_of: Monotonic,
    },
    /// `leaky_bucket`.
    LeakyBucket {
        /// Theoretical arrival time in the limit's ticks since the clock's origin.
        tat: u128,
    },
    /// `fixed_window` from the first request.
    FixedWindow {
        /// The first charge.
        start: Monotonic,
        /// Units used since.
        used: u64,
    },
    /// `fixed_window` on the calendar.
    CalendarWindow {
        /// The end of the window in which it was used.
        end: Wall,
        /// Units used in it.
        used: u64,
        /// Units of calls that were refused in it, where a refund takes them first.
        refused: u64,
    },
    /// `sliding_window`.
    SlidingWindow {
        /// Segment number since the clock's origin and units used in it, oldest first.
        segments: VecDeque<(u64, u64)>,
    },
    /// `sliding_log`.
    SlidingLog {
        /// Instant and units of each charge, oldest first.
        entries: VecDeque<(Monotonic, u64)>,
    },
    /// `concurrency`: the permits held, and how long calls take.
    Concurrency {
        /// Permits held, as the holds on the key say.
        used: u64,
        /// Time that one call takes, in nanoseconds.
        unit: u64,
        /// Instant until which the time is remembered.
        until: Monotonic,
    },
    /// `concurrency` that learns its ceiling.
    Learning(Box<LearnedCeiling>),
}

impl Usage {
    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingWindow { segments } => segments.capacity() * size_of::<(u64, u64)>(),
            Self::SlidingLog { entries } => entries.capacity() * size_of::<(Monotonic, u64)>(),
            _ => 0,
        }
    }
}

/// Ceiling learned for one key, and the measurement under way. Any value is safe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedCeiling {
    /// Permits held, as the holds on the key say.
    pub used: u64,
    /// The ceiling in 1/256 of a permit.
    pub ceiling: u64,
    /// The highest ceiling since the unloaded latency was measured.
    pub top: u64,
    /// The unloaded latency in nanoseconds; 0 before it was measured.
    pub unloaded: u64,
    /// True while the service is measured, with a lower ceiling.
    pub measures: bool,
    /// True while no queue has been seen yet.
    pub grows: bool,
    /// Windows until the next measurement.
    pub windows: u32,
    /// Units that are skipped before the window begins.
    pub skip: u64,
    /// Units in the window.
    pub count: u64,
    /// The sum of their times, in nanoseconds.
    pub sum: u64,
    /// The most permits held when one of them was given back.
    pub peak: u64,
    /// Instant until which all this is remembered.
    pub until: Monotonic,
}
