//! GCRA: the arithmetic that token and leaky buckets share (ITU-T I.371, virtual scheduling).
//!
//! The simplest idea, a counter of tokens and a timer that adds some, loses fractions and needs a
//! timer. It is enough to keep one instant: the theoretical arrival time TAT, at which the bucket
//! is full again. With T the emission interval of one unit and cost n:
//!
//! ```text
//! new = max(tat, now) + n*T
//! allow iff new - now <= burst*T,   and then tat = new
//! remaining = floor((burst*T - (max(tat, now) - now)) / T)
//! ```
//!
//! Everything is an integer because each rate has its own tick: at `count` per `period` nanoseconds
//! a tick is `1/count` ns (both reduced), so T is a whole number of ticks at 7/min as at
//! 300000007/s, and N periods refill exactly N x count. In 128 bits the largest product is below
//! 2^127, since periods are at most 100 years and clocks 64 bits.
//!
//! Example, 100/s with burst 2: T = 10 ms. At 0 ms tat = 0, new = 10 <= 20: allow, one remains. The
//! next call makes 20: allow, none. The third would make 30 > 20: deny, retry in 10 ms.
//!
//! A TAT further ahead than a full bucket can only come from a clock that went back, or from a damaged
//! store. Then the bucket counts as fully used from now on.

use core::time::Duration;

use super::{DEBT_REFILLS, LONGEST_DEBT_AT_LEAST};
use crate::decision::{Outcome, RetryAfter};
use crate::rate::Rate;
use crate::time::{Monotonic, duration_from_nanos};

/// A rate and a burst in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gcra {
    pub(super) interval: u64,
    pub(super) per_nano: u64,
    pub(super) burst: u64,
    pub(super) full: u128,
}

impl Gcra {
    pub(crate) fn new(rate: Rate, burst: u64) -> Self {
        let ticks = rate.ticks();
        Self {
            interval: ticks.interval,
            per_nano: ticks.per_nano,
            burst,
            full: u128::from(burst) * u128::from(ticks.interval),
        }
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    pub(crate) fn full_refill(&self) -> Duration {
        self.duration(self.full)
    }

    #[inline]
    pub(crate) fn ticks(&self, instant: Monotonic) -> u128 {
        u128::from(instant.as_nanos()) * u128::from(self.per_nano)
    }

    /// The ticks of `units`.
    pub(super) fn cost(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.interval)
    }

    /// Nanoseconds since `tat`, rounded down.
    pub(super) fn idle(&self, tat: u128, now: Monotonic) -> u64 {
        let ticks = self.ticks(now).saturating_sub(tat);
        u64::try_from(div_floor(ticks, self.per_nano)).unwrap_or(u64::MAX)
    }

    /// Ticks by which `tat` is ahead of `now`: the usage.
    #[inline]
    fn ahead(&self, tat: u128, now: Monotonic) -> u128 {
        tat.saturating_sub(self.ticks(now))
    }

    /// The duration of `ticks`, rounded up to a nanosecond.
    #[inline]
    fn duration(&self, ticks: u128) -> Duration {
        duration_from_nanos(div_ceil(ticks, self.per_nano))
    }

    /// `tat` as read at `now`: at most a full bucket ahead, and 0 once it is past.
    #[inline]
    pub(crate) fn settle(&self, tat: u128, now: Monotonic) -> u128 {
        let now = self.ticks(now);
        if tat <= now {
            0
        } else {
            tat.min(now + self.full)
        }
    }

    #[inline]
    pub(crate) fn check(&self, tat: u128, now: Monotonic, cost: u64) -> Outcome {
        if cost > self.burst {
            return Outcome::Deny(RetryAfter::Never);
        }
        let cost = u128::from(cost) * u128::from(self.interval);
        let new = self.ahead(tat, now).saturating_add(cost);
        match new.checked_sub(self.full) {
            None | Some(0) => Outcome::Allow,
            Some(excess) => Outcome::Deny(RetryAfter::After(self.duration(excess))),
        }
    }

    #[inline]
    pub(crate) fn take(&self, tat: u128, now: Monotonic, cost: u64) -> u128 {
        let start = tat.max(self.ticks(now));
        start.saturating_add(u128::from(cost) * u128::from(self.interval))
    }

    #[inline]
    pub(crate) fn remaining(&self, tat: u128, now: Monotonic) -> u64 {
        let free = self.full.saturating_sub(self.ahead(tat, now));
        u64::try_from(div_floor(free, self.interval)).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(crate) fn reset_after(&self, tat: u128, now: Monotonic) -> Duration {
        self.duration(self.ahead(tat, now))
    }

    /// Delay of a call until all but `after` units before it have drained.
    #[inline]
    pub(crate) fn delay(&self, tat: u128, now: Monotonic, after: u64) -> Duration {
        let free = u128::from(after) * u128::from(self.interval);
        self.duration(self.ahead(tat, now).saturating_sub(free))
    }

    /// Units used, rounded up.
    pub(crate) fn used(&self, tat: u128, now: Monotonic) -> u64 {
        let used = div_ceil(self.ahead(tat, now), self.interval);
        u64::try_from(used).unwrap_or(u64::MAX).min(self.burst)
    }

    /// The TAT of a bucket with `used` units used, at most all.
    pub(crate) fn with_used(&self, used: u64, now: Monotonic) -> u128 {
        self.ticks(now) + u128::from(used.min(self.burst)) * u128::from(self.interval)
    }

    /// The most ticks that may be owed beyond a full bucket.
    fn owable(&self) -> u128 {
        let hour = u128::from(self.per_nano).saturating_mul(LONGEST_DEBT_AT_LEAST.as_nanos());
        self.full.saturating_mul(u128::from(DEBT_REFILLS)).max(hour)
    }

    /// Returns true if `cost` units can be charged to a full bucket on credit.
    pub(crate) fn can_owe(&self, cost: u64) -> bool {
        let ticks = u128::from(cost) * u128::from(self.interval);
        ticks <= self.full.saturating_add(self.owable())
    }

    /// The TAT after charging `units` whether they fit or not, and whether there is a debt then.
    pub(crate) fn owe(&self, tat: u128, now: Monotonic, units: u64) -> (u128, bool) {
        self.owed(self.take(tat, now, units), now)
    }

    /// A TAT that may be a debt, read at `now` and last seen at `as_of`. If the clock went back, the TAT
    /// goes back as much.
    pub(crate) fn settle_owing(&self, tat: u128, as_of: Monotonic, now: Monotonic) -> (u128, bool) {
        let back = self.ticks(as_of).saturating_sub(self.ticks(now));
        self.owed(tat.saturating_sub(back), now)
    }

    pub(super) fn owed(&self, tat: u128, now: Monotonic) -> (u128, bool) {
        let full = self.ticks(now).saturating_add(self.full);
        (tat.min(full.saturating_add(self.owable())), tat > full)
    }

    /// Units owed beyond a full bucket, rounded up.
    pub(crate) fn units_owed(&self, tat: u128, now: Monotonic) -> u64 {
        let owed = self.ahead(tat, now).saturating_sub(self.full);
        u64::try_from(div_ceil(owed, self.interval)).unwrap_or(u64::MAX)
    }

    /// The TAT without `units` of a charge that ended at `mark`, as far as they have not drained. Units
    /// that have drained were refilled, so giving them back would admit them twice.
    pub(crate) fn give_back(&self, tat: u128, now: Monotonic, units: u64, mark: u128) -> u128 {
        let left = self.ahead(mark.min(tat), now);
        tat - left.min(u128::from(units) * u128::from(self.interval))
    }

    /// The mark under other numbers of a charge that ended at `mark` under these.
    pub(crate) fn moved_mark(&self, mark: u128, to: &Self, now: Monotonic) -> u128 {
        let units = div_floor(self.ahead(mark, now), self.interval);
        to.with_used(u64::try_from(units).unwrap_or(u64::MAX), now)
    }

    pub(crate) fn shift(&self, tat: u128, nanos: i64) -> u128 {
        let ticks = u128::from(nanos.unsigned_abs()) * u128::from(self.per_nano);
        if nanos < 0 {
            tat.saturating_sub(ticks)
        } else {
            tat.saturating_add(ticks)
        }
    }
}

/// Rounds down; the usual case stays in 64 bits, where a division is several times cheaper.
#[inline]
fn div_floor(value: u128, divisor: u64) -> u128 {
    match u64::try_from(value) {
        Ok(value) => u128::from(value / divisor),
        Err(_) => value / u128::from(divisor),
    }
}

/// Rounds up.
#[inline]
fn div_ceil(value: u128, divisor: u64) -> u128 {
    if divisor == 1 {
        return value;
    }
    match u64::try_from(value) {
        Ok(value) => u128::from(value.div_ceil(divisor)),
        Err(_) => value.div_ceil(u128::from(divisor)),
    }
}
