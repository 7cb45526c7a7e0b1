//! Narrow: a bucket's numbers in 64 bits, for [`packed`](crate::packed) use.

use core::num::NonZeroU64;
use core::time::Duration;

use super::Engine;
use super::gcra::Gcra;

/// A bucket whose use can be kept in one word: with continuous refill, no initial deficit and no debts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) numbers: NarrowGcra,
    /// What may be used before a call without delaying it, in ticks.
    pub(crate) undelayed: u64,
}

impl Bucket {
    /// `None` if the engine is not such a bucket, or if filling it takes 2^63 ticks.
    pub(crate) fn of(engine: &Engine) -> Option<Self> {
        match engine {
            Engine::Token(engine) if engine.is_plain() => {
                let numbers = engine.gcra().narrow()?;
                let undelayed = numbers.full();
                Some(Self { numbers, undelayed })
            }
            Engine::Leaky(engine) => {
                let numbers = engine.gcra().narrow()?;
                let undelayed = numbers.cost(engine.delay_after())?;
                Some(Self { numbers, undelayed })
            }
            _ => None,
        }
    }
}

/// The same numbers in 64 bits, for instants that are counted from the caller's own origin. Use is
/// expressed as how far the TAT is ahead, and is at most a full bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NarrowGcra {
    interval: NonZeroU64,
    per_nano: NonZeroU64,
    burst: u64,
    /// Below 2^63, so that twice that does not overflow.
    full: u64,
}

impl Gcra {
    /// `None` if filling the bucket takes 2^63 ticks.
    pub(crate) fn narrow(&self) -> Option<NarrowGcra> {
        let full = u64::try_from(self.full).ok()?;
        Some(NarrowGcra {
            interval: NonZeroU64::new(self.interval)?,
            per_nano: NonZeroU64::new(self.per_nano)?,
            burst: self.burst,
            full: (full < 1 << 63).then_some(full)?,
        })
    }
}

impl NarrowGcra {
    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    /// The size of the bucket, in ticks.
    #[inline]
    pub(crate) const fn full(&self) -> u64 {
        self.full
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
        self.full.saturating_sub(used) / self.interval.get()
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
