//! Meter: what the schedules of one process minted, counted apart from its bucket.
//!
//! A bucket that is right never lets through more than that, whatever it was handed meanwhile. What
//! a full bucket loses is not taken off, so this is a bound and no second bucket.

use quell_core::time::Monotonic;
use quell_shares::schedule::Schedule;

use crate::check::Violation;

/// One limit of one process. All in billionths of a micro-unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    minted: u128,
    used: u128,
    from: Monotonic,
}

impl Meter {
    /// A process that starts has nothing.
    #[must_use]
    pub const fn start(now: Monotonic) -> Self {
        Self {
            minted: 0,
            used: 0,
            from: now,
        }
    }

    /// A schedule was in force until `now`, on the process's clock.
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

    /// So many micro-units were admitted.
    pub fn take(&mut self, cost: u64) {
        self.used += u128::from(cost) * 1_000_000_000;
    }

    /// Nobody is above its bucket.
    #[must_use]
    pub fn above(&self, now: u64) -> Option<Violation> {
        (self.used > self.minted).then(|| Violation {
            at: now,
            promise: "S2",
            text: format!(
                "a process admitted {} millionths of what its rights had minted only {} of",
                self.used / 1_000_000_000,
                self.minted / 1_000_000_000
            ),
        })
    }
}
