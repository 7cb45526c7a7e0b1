//! Narrow: a bucket's numbers in 64 bits, for [`packed`](crate::packed) use; and the numbers of a limit apart
//! from its shape.
//!
//! A hundred thousand tenants may each have their own rate and burst, or their own number of calls a window.
//! Everything else about their limits is the same, takes ten times the room, and is kept once
//! ([`LimitShape`](crate::limit::LimitShape)).

use core::num::NonZeroU64;
use core::time::Duration;

use super::gcra::Gcra;
use super::{Algorithm, Engine, Mechanics};
use crate::time::saturating_nanos;

/// The numbers in which limits of one shape differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NarrowNumbers {
    /// Limit that is a bucket with continuous refill, no initial deficit and no debts, which takes less
    /// than 2^63 ticks to fill.
    Bucket(NarrowGcra),
    /// Any other limit: the largest cost admitted from rest.
    Max(u64),
}

impl NarrowNumbers {
    pub(crate) fn new(engine: &Engine) -> Self {
        let gcra = match engine {
            Engine::Token(engine) if engine.is_plain() => Some(engine.gcra()),
            Engine::Leaky(engine) => Some(engine.gcra()),
            _ => None,
        };
        let numbers = gcra.and_then(NarrowGcra::new);
        numbers.map_or_else(|| Self::Max(engine.limit()), Self::Bucket)
    }

    #[inline]
    pub(crate) const fn max(&self) -> u64 {
        match self {
            Self::Bucket(numbers) => numbers.burst(),
            Self::Max(max) => *max,
        }
    }

    /// Leaves the shape: with numbers that no limit has, in place of these.
    pub(crate) fn take_out_of(&self, algorithm: &mut Algorithm) {
        match (self, algorithm) {
            // What else there is then depends on the burst.
            (Self::Bucket(_), Algorithm::TokenBucket(spec)) if spec.initial.is_none() => {
                (spec.count, spec.burst) = (0, None);
            }
            (Self::Bucket(_), Algorithm::LeakyBucket(spec)) => {
                (spec.rate, spec.burst) = (spec.rate.with_count(0), 0);
            }
            (Self::Max(_), Algorithm::FixedWindow(spec)) => spec.limit = 0,
            (Self::Max(_), Algorithm::SlidingWindow(spec)) => spec.limit = 0,
            (Self::Max(_), Algorithm::SlidingLog(spec)) => spec.limit = 0,
            (Self::Max(_), Algorithm::Concurrency(spec)) if spec.min.is_none() => spec.max = 0,
            _ => {}
        }
    }

    /// Puts these numbers back where they belong.
    pub(crate) fn put_into(&self, algorithm: &mut Algorithm) {
        match (self, algorithm) {
            (Self::Bucket(numbers), Algorithm::TokenBucket(spec)) => {
                spec.count = numbers.count(spec.period);
                spec.burst = Some(numbers.burst());
            }
            (Self::Bucket(numbers), Algorithm::LeakyBucket(spec)) => {
                spec.rate = spec.rate.with_count(numbers.count(spec.rate.period()));
                spec.burst = numbers.burst();
            }
            (Self::Max(max), Algorithm::FixedWindow(spec)) => spec.limit = *max,
            (Self::Max(max), Algorithm::SlidingWindow(spec)) => spec.limit = *max,
            (Self::Max(max), Algorithm::SlidingLog(spec)) => spec.limit = *max,
            (Self::Max(max), Algorithm::Concurrency(spec)) => {
                spec.max = max.saturating_sub(spec.queue);
            }
            _ => {}
        }
    }
}

/// A rate in ticks and a burst. Filling the bucket takes less than 2^63 ticks, so its use can be kept in one
/// word, as how far the TAT is ahead of instants that are counted from the caller's own origin, and twice that
/// does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NarrowGcra {
    interval: NonZeroU64,
    per_nano: NonZeroU64,
    burst: u64,
}

impl NarrowGcra {
    /// `None` if filling the bucket takes 2^63 ticks.
    fn new(gcra: &Gcra) -> Option<Self> {
        let is_narrow = gcra.full < 1 << 63;
        is_narrow.then_some(Self {
            interval: NonZeroU64::new(gcra.interval)?,
            per_nano: NonZeroU64::new(gcra.per_nano)?,
            burst: gcra.burst,
        })
    }

    /// The same numbers for instants of any size.
    pub(crate) const fn wide(&self) -> Gcra {
        Gcra {
            interval: self.interval.get(),
            per_nano: self.per_nano.get(),
            burst: self.burst,
            full: self.burst as u128 * self.interval.get() as u128,
        }
    }

    /// Number of units in `period`, from which the rate's ticks were made: its interval is the period
    /// divided by what both had in common.
    fn count(&self, period: Duration) -> u64 {
        self.per_nano.get() * (saturating_nanos(period) / self.interval)
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    /// The size of the bucket, in ticks.
    #[inline]
    pub(crate) const fn full(&self) -> u64 {
        self.burst * self.interval.get()
    }

    /// `nanos` in ticks; `None` if they do not fit into 64 bits.
    #[inline]
    pub(crate) const fn ticks(&self, nanos: u64) -> Option<u64> {
        nanos.checked_mul(self.per_nano.get())
    }

    /// The ticks of `units`, if the bucket can hold that many.
    #[inline]
    pub(crate) const fn cost(&self, units: u64) -> Option<u64> {
        if units > self.burst {
            return None;
        }
        Some(units * self.interval.get())
    }

    /// Units that are left if this many ticks are used.
    #[inline]
    pub(crate) const fn remaining(&self, used: u64) -> u64 {
        self.full().saturating_sub(used) / self.interval.get()
    }

    /// The duration of `ticks`, rounded up to a nanosecond.
    #[inline]
    pub(crate) const fn duration(&self, ticks: u64) -> Duration {
        let per_nano = self.per_nano.get();
        let nanos = if per_nano == 1 {
            ticks
        } else {
            ticks.div_ceil(per_nano)
        };
        Duration::from_nanos(nanos)
    }
}
