//! Schedule: the rights of a member, as one list in which each right has its end.
//!
//! ```text
//! lease 925/s until s+D | gap min(r, f) until v+P | base f until s+F | floor m [until s+G | nothing]
//! ```
//!
//! s is when the answered report was sent and v when the answer came, both on the member's own
//! clock. A right ends without any action: the bucket looks up in the list which right was in force
//! when, and settles piece by piece. A bucket that is given another schedule keeps its tokens, cut
//! to the new burst: a lease never creates tokens, so moving a share back and forth creates none.

use quell_core::time::Monotonic;

/// A rate and the burst that goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Right {
    /// Micro-units per second.
    pub rate: u64,
    /// Micro-units.
    pub burst: u64,
}

impl Right {
    /// No rate and no burst.
    pub const NONE: Self = Self { rate: 0, burst: 0 };

    /// The smaller rate and the smaller burst.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            rate: self.rate.min(other.rate),
            burst: self.burst.min(other.burst),
        }
    }

    /// The higher rate and the higher burst.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            rate: self.rate.max(other.rate),
            burst: self.burst.max(other.burst),
        }
    }
}

/// A right until an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The first instant at which it is no longer in force.
    pub until: Monotonic,
    /// The right in force before that instant.
    pub right: Right,
}

/// The most leases of one grant: each allows less than the one before.
pub const LEASE_STEPS: usize = 3;

/// The most steps of a schedule: leases, gap, base and floor.
pub const STEPS: usize = LEASE_STEPS + 3;

/// Quota of a member, from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    steps: [Step; STEPS],
    len: usize,
    last: Right,
}

impl Schedule {
    /// One right without an end.
    #[must_use]
    pub fn constant(last: Right) -> Self {
        Self {
            last,
            ..Self::default()
        }
    }

    /// Steps in order of time, and the right that follows them. Steps beyond [`STEPS`] are dropped,
    /// and a step that ends before the one before it is skipped.
    #[must_use]
    pub fn new(steps: &[Step], last: Right) -> Self {
        let mut schedule = Self::constant(last);
        let mut end = Monotonic::ORIGIN;
        for step in steps {
            if step.until > end && schedule.len < STEPS {
                schedule.steps[schedule.len] = *step;
                schedule.len += 1;
                end = step.until;
            }
        }
        schedule
    }

    /// The steps, in order of time.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        self.steps.get(..self.len).unwrap_or_default()
    }

    /// The right after the last step.
    #[must_use]
    pub const fn last(&self) -> Right {
        self.last
    }

    /// The right in force at an instant.
    #[must_use]
    pub fn at(&self, now: Monotonic) -> Right {
        let step = self.steps().iter().find(|step| now < step.until);
        step.map_or(self.last, |step| step.right)
    }
}

/// A token bucket that is filled by a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    schedule: Schedule,
    tokens: u64,
    /// Billionths of a micro-unit, less than one micro-unit.
    rest: u64,
    settled: Monotonic,
}

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

impl Bucket {
    /// An empty bucket: a process starts without a burst.
    #[must_use]
    pub const fn new(schedule: Schedule, now: Monotonic) -> Self {
        Self {
            schedule,
            tokens: 0,
            rest: 0,
            settled: now,
        }
    }

    /// The schedule in force.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Micro-units that were available when the bucket was last settled.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Brings the bucket to an instant, piece by piece across the steps. If the clock reads earlier
    /// than before, nothing is added.
    pub fn settle(&mut self, now: Monotonic) {
        let mut from = self.settled;
        if now <= from {
            return;
        }
        let schedule = self.schedule;
        for step in schedule.steps() {
            if step.until > from {
                let to = step.until.min(now);
                self.piece(step.right, to.as_nanos() - from.as_nanos());
                from = to;
                if from == now {
                    break;
                }
            }
        }
        if from < now {
            self.piece(schedule.last(), now.as_nanos() - from.as_nanos());
        }
        // A step that ends now is no longer in force.
        self.clamp(schedule.at(now).burst);
        self.settled = now;
    }

    fn piece(&mut self, right: Right, nanos: u64) {
        let sum = u128::from(right.rate) * u128::from(nanos) + u128::from(self.rest);
        let minted = u64::try_from(sum / SECOND).unwrap_or(u64::MAX);
        self.tokens = self.tokens.saturating_add(minted);
        self.rest = u64::try_from(sum % SECOND).unwrap_or(0);
        self.clamp(right.burst);
    }

    fn clamp(&mut self, burst: u64) {
        if self.tokens >= burst {
            self.tokens = burst;
            self.rest = 0;
        }
    }

    /// Takes `cost` micro-units if they are available.
    pub fn try_take(&mut self, now: Monotonic, cost: u64) -> bool {
        self.settle(now);
        let fits = self.tokens >= cost;
        if fits {
            self.tokens -= cost;
        }
        fits
    }

    /// Follows another schedule from now on, and keeps the tokens.
    pub fn follow(&mut self, now: Monotonic, schedule: Schedule) {
        self.settle(now);
        self.schedule = schedule;
        self.clamp(schedule.at(now.max(self.settled)).burst);
    }
}
