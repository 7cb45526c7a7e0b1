//! Share: the part of one limit that this process has, and what it answers to a charge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_core::charge::Charge;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::time::Monotonic;
use quell_shares::cell::{self, Cell};
use quell_shares::plan::MICRO;

/// Retry time where no schedule says one: shares move within three reports of the nodes.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The part of one limit that this process has.
#[derive(Debug)]
pub struct Share {
    pub(super) cell: Arc<Cell>,
    /// Instant until which a coordinator has granted it, in nanoseconds.
    granted_until: AtomicU64,
    /// Micro-units since they were last read.
    pub(super) admitted: AtomicU64,
    pub(super) denied: AtomicU64,
    degraded: AtomicU64,
}

/// Micro-units that calls asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareCounts {
    /// Admitted.
    pub admitted: u64,
    /// Refused.
    pub denied: u64,
    /// Units of both that were answered while no coordinator granted the share.
    pub degraded: u64,
}

impl Share {
    /// The share that follows a cell's schedule.
    #[must_use]
    pub const fn new(cell: Arc<Cell>) -> Self {
        Self {
            cell,
            granted_until: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
        }
    }

    /// Says until when a coordinator has granted it. Answers after that are `degraded`.
    pub fn set_granted_until(&self, instant: Monotonic) {
        self.granted_until
            .store(instant.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the counts of calls since the last call of this function.
    #[must_use]
    pub fn take_counts(&self) -> ShareCounts {
        ShareCounts {
            admitted: self.admitted.swap(0, Ordering::Relaxed),
            denied: self.denied.swap(0, Ordering::Relaxed),
            degraded: self.degraded.swap(0, Ordering::Relaxed),
        }
    }

    /// Units that a call could take now.
    #[must_use]
    pub fn remaining(&self, now: Monotonic) -> u64 {
        self.cell.remaining(now) / MICRO
    }

    pub(super) fn is_granted(&self, now: Monotonic) -> bool {
        now.as_nanos() < self.granted_until.load(Ordering::Relaxed)
    }

    /// Decides on a charge. Returns whether the answer is degraded, too.
    #[inline]
    pub(super) fn take(&self, charge: &Charge<'_>, now: Monotonic) -> (Decision, bool) {
        let cost = micro(charge);
        let answer = self.cell.try_take(now, cost);
        let counter = match answer.outcome {
            Outcome::Allow => &self.admitted,
            Outcome::Deny(_) => &self.denied,
        };
        counter.fetch_add(cost, Ordering::Relaxed);
        let degraded = !self.is_granted(now);
        self.count_degraded(cost, degraded);
        (decision(&answer, charge), degraded)
    }

    #[inline]
    pub(super) fn count_degraded(&self, cost: u64, degraded: bool) {
        if degraded {
            self.degraded.fetch_add(cost, Ordering::Relaxed);
        }
    }
}

/// The cost of a charge in micro-units.
pub(super) const fn micro(charge: &Charge<'_>) -> u64 {
    charge.cost.get().saturating_mul(MICRO)
}

pub(super) fn decision(answer: &cell::CellAnswer, charge: &Charge<'_>) -> Decision {
    let limit = &charge.active.limit;
    let (most, cost) = (limit.max(), charge.cost.get());
    let remaining = (answer.remaining / MICRO).min(most);
    let (outcome, remaining) = match answer.outcome {
        Outcome::Allow => (Outcome::Allow, remaining),
        Outcome::Deny(wait) => {
            let wait = match wait {
                _ if cost > most => RetryAfter::Never,
                // The schedule allows it never, but another one will come.
                RetryAfter::Never => RetryAfter::After(ASK_AGAIN),
                RetryAfter::After(wait) => RetryAfter::After(wait.max(Duration::from_nanos(1))),
            };
            (Outcome::Deny(wait), remaining.min(cost - 1))
        }
    };
    Decision {
        outcome,
        limit: most,
        remaining,
        reset_after: answer.reset_after.unwrap_or_else(|| limit.full_refill()),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// The answer of a node that has no share.
pub(super) fn without_share(charge: &Charge<'_>) -> Decision {
    let nothing = cell::CellAnswer {
        outcome: Outcome::Deny(RetryAfter::Never),
        burst: 0,
        remaining: 0,
        reset_after: None,
    };
    decision(&nothing, charge)
}
