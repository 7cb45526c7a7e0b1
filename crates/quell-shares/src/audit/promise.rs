//! Promise: what a limit admits, for a judge who learns once a period how much was admitted.
//!
//! A call may have been anywhere in its period, and the period's end may be late by another one. Clocks drift by
//! a thousandth. Each promise is judged by what is certain all the same:
//!
//! | limit | judged by |
//! |---|---|
//! | a bucket | a bucket of its own, larger by what two periods produce, and with `refill` by a batch |
//! | `sliding_window`, `sliding_log` | the sum of slots that lie in one window for certain |
//! | `fixed_window`, also of the calendar | the sum of periods between two edges of windows, as the store tells them |

use alloc::boxed::Box;
use core::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::limit::Limit;
use quell_core::time::{Monotonic, saturating_nanos};

use super::{Auditor, BILLION};
use crate::plan::Drift;

/// Slots in which the admissions of a sliding window are counted.
const SLOTS: u8 = 16;

/// The part of a time by which clocks may have drifted apart at its end.
pub(super) const DRIFT: u32 = 1_000;

/// Promise that the audit judges by.
#[derive(Clone, Debug)]
pub(super) enum Promise {
    Bucket(Auditor),
    Sliding(Box<Sliding>),
    Fixed(Fixed),
    /// Windows that are hardly longer than a period, and permits.
    Unjudged,
}

/// A limit in any window.
#[derive(Clone, Debug)]
pub(super) struct Sliding {
    limit: u64,
    slot: u64,
    /// Number of slots in one window, wherever a call was in its period.
    within: usize,
    /// Units admitted in each slot, and the number of the newest.
    slots: [u64; SLOTS as usize],
    newest: u64,
}

/// A limit in each window between two edges.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    limit: u64,
    drift: Duration,
    used: u64,
    /// Earliest and latest end of the window; `None` if that is not known.
    end: Option<(Monotonic, Monotonic)>,
}

impl Promise {
    pub(super) fn new(limit: &Limit, period: Duration, now: Monotonic) -> Self {
        let max = limit.max();
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => {
                let batch = if bucket.in_batches { bucket.count } else { 0 };
                let burst = max.saturating_add(batch);
                Self::bucket((bucket.count, bucket.period), burst, period, now)
            }
            Algorithm::LeakyBucket(bucket) => {
                let rate = (bucket.rate.count(), bucket.rate.period());
                Self::bucket(rate, max, period, now)
            }
            Algorithm::SlidingWindow(window) => Self::sliding(max, window.window, period),
            Algorithm::SlidingLog(log) => Self::sliding(max, log.window, period),
            Algorithm::FixedWindow(_) => Self::Fixed(Fixed {
                limit: max,
                drift: limit.full_refill() / DRIFT,
                used: 0,
                end: None,
            }),
            Algorithm::Concurrency(_) => Self::Unjudged,
        }
    }

    fn bucket(
        (units, time): (u64, Duration),
        burst: u64,
        period: Duration,
        now: Monotonic,
    ) -> Self {
        let micros =
            |units: u128| u64::try_from(units.saturating_mul(1_000_000)).unwrap_or(u64::MAX);
        let time = time.as_nanos().max(1);
        let rate = (u128::from(units) * 1_000_000)
            .saturating_mul(BILLION)
            .div_ceil(time);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let more = (u128::from(rate) * period.as_nanos() * 2).div_ceil(BILLION);
        let burst = micros(burst.into()).saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        Self::Bucket(Auditor::new(rate, burst, Drift::DEFAULT, now))
    }

    fn sliding(limit: u64, window: Duration, period: Duration) -> Self {
        let slot = (window / u32::from(SLOTS)).max(period);
        let certain = window.saturating_sub(window / DRIFT + period * 2);
        let within = certain.as_nanos() / slot.as_nanos().max(1);
        let within = usize::try_from(within)
            .unwrap_or(usize::MAX)
            .min(SLOTS.into());
        if within == 0 {
            return Self::Unjudged;
        }
        Self::Sliding(Box::new(Sliding {
            limit,
            slot: saturating_nanos(slot),
            within,
            slots: [0; SLOTS as usize],
            newest: 0,
        }))
    }

    /// A call that was sent at `sent` and answered at `landed` found the key at rest after `reset_after`.
    /// Returns whether a window has begun.
    pub(super) fn observe(
        &mut self,
        sent: Monotonic,
        landed: Monotonic,
        reset_after: Duration,
    ) -> bool {
        let Self::Fixed(fixed) = self else {
            return false;
        };
        let is_over = fixed.end.is_none_or(|(_, latest)| landed > latest);
        if !is_over || reset_after.is_zero() {
            return false;
        }
        let drift = fixed.drift;
        let earliest = sent.saturating_add(reset_after.saturating_sub(drift));
        let latest = landed.saturating_add(reset_after.saturating_add(drift));
        (fixed.end, fixed.used) = (Some((earliest, latest)), 0);
        true
    }

    /// Counts what was admitted between two instants. Returns by how much the promise is broken.
    pub(super) fn admit(&mut self, since: Monotonic, now: Monotonic, units: u64) -> u64 {
        match self {
            Self::Bucket(auditor) => {
                let excess = auditor.admit(now, units.saturating_mul(1_000_000));
                excess.unwrap_or(0).div_ceil(1_000_000)
            }
            Self::Sliding(sliding) => sliding.admit(now, units),
            Self::Fixed(fixed) => fixed.admit(since, now, units),
            Self::Unjudged => 0,
        }
    }

    /// Drops what was admitted until now, because it cannot be dated.
    pub(super) fn miss(&mut self, now: Monotonic) -> u64 {
        self.admit(now, now, 0)
    }
}

impl Sliding {
    fn admit(&mut self, now: Monotonic, units: u64) -> u64 {
        let number = (now.as_nanos() / self.slot).max(self.newest);
        let passed = number - self.newest;
        let passed = usize::try_from(passed)
            .unwrap_or(usize::MAX)
            .min(SLOTS.into());
        self.slots.rotate_right(passed);
        self.slots[..passed].fill(0);
        self.newest = number;
        self.slots[0] = self.slots[0].saturating_add(units);
        let sum: u64 = self.slots[..self.within]
            .iter()
            .fold(0, |sum, units| sum.saturating_add(*units));
        sum.saturating_sub(self.limit)
    }
}

impl Fixed {
    fn admit(&mut self, since: Monotonic, now: Monotonic, units: u64) -> u64 {
        let Some((earliest, latest)) = self.end else {
            return 0;
        };
        if since > latest {
            // The next answer of the store tells when the next window ends.
            self.end = None;
        } else if now < earliest {
            self.used = self.used.saturating_add(units);
        }
        self.used.saturating_sub(self.limit)
    }
}
