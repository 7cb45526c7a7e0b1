//! Meter: how much the schedules of one process granted over time, counted independently of its
//! bucket.
//!
//! A correct bucket never admits more than that, whatever schedules it was given meanwhile. The
//! meter does not subtract what a full bucket loses, so it is an upper bound and not a second
//! bucket.

use quell_core::time::Monotonic;
use quell_shares::schedule::Schedule;

use crate::check::Violation;

/// The meter of one limit in one process. All amounts are in billionths of a micro-unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    minted: u128,
    used: u128,
    from: Monotonic,
}

impl Meter {
    /// A process that has just started may use nothing.
    #[must_use]
    pub const fn start(now: Monotonic) -> Self {
        Self {
            minted: 0,
            used: 0,
            from: now,
        }
    }

    /// Adds what a schedule granted until `now`, on the process's clock.
    pub fn pass(&mut self, schedule: &Schedule, now: Monotonic) {
        while self.from < now {
            let ends = schedule.steps().iter().map(|step| step.until);
            let next = ends.filter(|end| *end > self.from).min();
            let to = next.map_or(now, |end| end.min(now));
            let nanos = to.as_nanos() - self.from.as_nanos();
            self.minted += u128::from(schedule.at(self.from).rate) * u128::from(nanos);
            self.from = to;
        }
    }

    /// Adds this many admitted micro-units.
    pub fn take(&mut self, cost: u64) {
        self.used += u128::from(cost) * 1_000_000_000;
    }

    /// A violation, if more was admitted than was granted.
    #[must_use]
    pub fn above(&self, now: u64) -> Option<Violation> {
        (self.used > self.minted).then(|| Violation {
            at: now,
            promise: "S2",
            text: format!(
                "a process admitted {} micro-units, and its rights granted only {}",
                self.used / 1_000_000_000,
                self.minted / 1_000_000_000
            ),
        })
    }
}
