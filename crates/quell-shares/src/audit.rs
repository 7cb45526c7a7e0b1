//! Audit: one reference bucket over all admissions of the fleet.
//!
//! The promise is that over any interval of length t the whole fleet admits at most `B +
//! R*(1+rho)*t`. A bucket with exactly these numbers, fed with all admissions in the order of true
//! time, goes below zero if and only if the promise was broken; the amount below zero is the
//! excess. The simulator feeds it one admission at a time. In production nodes count per interval,
//! and all counts of an interval arrive together: then the burst is raised by what an interval can
//! hold.
//!
//! [`KeyAudit`] judges one process that decides from leases, or on synced keys.

use alloc::collections::BTreeMap;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use crate::plan::Drift;

mod key_audit;
mod level;
mod promise;

pub use key_audit::{Excess, KeyAudit};

/// The most intervals that may be open; if one more begins, the oldest is judged.
pub const MAX_INTERVALS: usize = 600;

/// A reference bucket. All numbers are micro-units.
#[derive(Clone, Debug)]
pub struct Auditor {
    rate: u64,
    burst: u64,
    drift: Drift,
    /// In billionths of a micro-unit.
    used: u128,
    settled: Monotonic,
}

impl Auditor {
    /// A bucket at rest.
    #[must_use]
    pub const fn new(rate: u64, burst: u64, drift: Drift, now: Monotonic) -> Self {
        Self {
            rate,
            burst,
            drift,
            used: 0,
            settled: now,
        }
    }

    /// Judges by another rate and burst from now on. The tokens stay, cut to the new burst: a
    /// change creates none.
    pub fn change(&mut self, now: Monotonic, rate: u64, burst: u64) {
        self.settle(now);
        let left = (u128::from(self.burst) * BILLION).saturating_sub(self.used);
        let full = u128::from(burst) * BILLION;
        self.used = full - left.min(full);
        (self.rate, self.burst) = (rate, burst);
    }

    /// Counts an admission. Returns by how many micro-units, rounded up, the promise is broken.
    pub fn admit(&mut self, now: Monotonic, cost: u64) -> Option<u64> {
        self.settle(now);
        self.used += u128::from(cost) * BILLION;
        let excess = self.used.checked_sub(u128::from(self.burst) * BILLION)?;
        let excess = u64::try_from(excess.div_ceil(BILLION)).unwrap_or(u64::MAX);
        (excess > 0).then_some(excess)
    }

    fn settle(&mut self, now: Monotonic) {
        let elapsed = saturating_nanos(now.since(self.settled));
        let rate = u128::from(self.rate);
        let rate = rate + (rate * u128::from(self.drift.ppm())).div_ceil(1_000_000);
        self.used = self.used.saturating_sub(rate * u128::from(elapsed));
        self.settled = self.settled.max(now);
    }
}

/// Billionths.
const BILLION: u128 = 1_000_000_000;

/// The counts of many nodes, per interval, until they are judged.
#[derive(Clone, Debug)]
pub struct Intervals {
    width: Duration,
    open: BTreeMap<u64, u64>,
    judged: u64,
    auditor: Auditor,
}

impl Intervals {
    /// Intervals of `width` (usually 100 ms). The auditor's burst is raised by what may pass in two
    /// of them, because an admission may be anywhere in its interval and clocks differ.
    #[must_use]
    pub fn new(auditor: Auditor, width: Duration) -> Self {
        let width = width.max(Duration::from_millis(1));
        let mut auditor = auditor;
        let nanos = u128::from(saturating_nanos(width));
        let more = (u128::from(auditor.rate) * nanos * 2).div_ceil(BILLION);
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        auditor.burst = auditor.burst.saturating_add(more);
        Self {
            width,
            open: BTreeMap::new(),
            judged: 0,
            auditor,
        }
    }

    /// Adds what one node admitted in the interval that contains `at`. A count for an interval that
    /// was already judged is added to the oldest open one.
    pub fn count(&mut self, at: Monotonic, cost: u64) -> Option<u64> {
        let index = (at.as_nanos() / saturating_nanos(self.width)).max(self.judged);
        let sum = self.open.entry(index).or_default();
        *sum = sum.saturating_add(cost);
        if self.open.len() > MAX_INTERVALS {
            return self.judge_oldest();
        }
        None
    }

    /// Judges every interval that ends before `until`. Returns the largest excess, if any.
    pub fn judge(&mut self, until: Monotonic) -> Option<u64> {
        let end = until.as_nanos() / saturating_nanos(self.width);
        let mut worst = None;
        while self
            .open
            .first_key_value()
            .is_some_and(|(index, _)| *index < end)
        {
            worst = worst.max(self.judge_oldest());
        }
        worst
    }

    fn judge_oldest(&mut self) -> Option<u64> {
        let (index, cost) = self.open.pop_first()?;
        self.judged = index + 1;
        let end = (index + 1).saturating_mul(saturating_nanos(self.width));
        self.auditor.admit(Monotonic::from_nanos(end), cost)
    }
}
