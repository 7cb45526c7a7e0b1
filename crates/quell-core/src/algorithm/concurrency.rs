//! Concurrency: a number of permits at any instant, each held and given back.
//!
//! The usual recipe, a counter that goes up when a call comes and down when it leaves, leaks: a caller
//! that dies never counts down, and after enough of them no call passes. Here every permit is a hold
//! with a lease (see [`hold`](crate::hold)). It comes back when it is released or when its lease ends. A
//! caller that needs longer renews it.
//!
//! ```text
//! used = units of all holds that are taken and whose lease lasts
//! allow iff used + n <= max + queue
//! delay = unit * floor(used / max)          (unit = (unit + how long the last one was held) / 2)
//! ```
//!
//! With `queue`, calls above `max` are admitted with a delay, after which a permit should be free: the
//! `delay` of `resty.limit.conn`. If callers keep to their delays, at most `max` run; the store only
//! enforces `max + queue`. Without `queue` no call is delayed, and `acquire` waits for a permit.
//!
//! Example, max 2, queue 2, a call takes 100 ms: four calls at once are allowed with delays 0, 0,
//! 100 and 100 ms; the fifth is refused.
//!
//! With `adaptive` the number is learned (see [`adaptive`](super::adaptive)). Then there is no queue,
//! and `acquire` waits for a permit.
//!
//! Bound: `max + queue` at any instant, as long as holders end with their leases.
//!
//! Bad at: rates. A permit that is held for 1 ms can be used a thousand times a second.

use core::fmt;
use core::time::Duration;

use super::adaptive::Adaptive;
use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::hold::{MAX_HOLD, MAX_HOLDS};
use crate::limit_error::LimitError;
use crate::time::{Exact, Monotonic, saturating_nanos};
use crate::usage::Usage;

/// The default lease: longer than nearly all calls, and short enough to wait for after a crash.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// The numbers of a limit of permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Permits that may be held without a delay, at least 1; with `min`, the upper bound of the learned
    /// number. Together with `queue` at most [`MAX_HOLDS`].
    pub max: u64,
    /// The lower bound of the learned number of permits, at least 1 and at most `max`. Default: nothing
    /// is learned, and `max` applies.
    ///
    /// With it the number of permits is learned from how long they are held. It begins at `min`, and
    /// returns to it when no permit came back for a lease. A call that costs more than the learned
    /// number is refused. Not together with a queue.
    pub min: Option<u64>,
    /// Number of calls that may be admitted above `max`, with a delay. Default: 0.
    pub queue: u64,
    /// After how long a permit expires, above 0 and at most [`MAX_HOLD`]. Default: [`DEFAULT_LEASE`].
    pub lease: Duration,
    /// Assumed time of a call until the first permit is released, at most [`MAX_HOLD`]. Default: 0.
    pub unit_delay: Duration,
}

impl Concurrency {
    pub(crate) const fn new(max: u64) -> Self {
        Self {
            max,
            min: None,
            queue: 0,
            lease: DEFAULT_LEASE,
            unit_delay: Duration::ZERO,
        }
    }

    /// Makes the number of permits learned, between `min` and `max`: see [`min`](Self#structfield.min).
    #[must_use]
    pub const fn adaptive(mut self, min: u64) -> Self {
        self.min = Some(min);
        self
    }

    setters! {
        queue(u64) => queue;
        lease(Duration) => lease;
        unit_delay(Duration) => unit_delay;
    }

    pub(crate) fn prove(self) -> Result<(Algorithm, Engine), LimitError> {
        if self.max == 0 {
            return Err(LimitError::ZeroLimit);
        }
        match self.min {
            Some(0) => return Err(LimitError::ZeroMin),
            Some(min) if min > self.max => return Err(LimitError::MinAboveMax),
            Some(_) if self.queue > 0 => return Err(LimitError::AdaptiveWithQueue),
            _ => {}
        }
        let limit = self.max.saturating_add(self.queue);
        if limit > MAX_HOLDS as u64 {
            return Err(LimitError::ManyPermits);
        }
        if self.lease.is_zero() || self.lease > MAX_HOLD {
            return Err(LimitError::Lease);
        }
        if self.unit_delay > MAX_HOLD {
            return Err(LimitError::UnitDelay);
        }
        let engine = Engine::Permits(PermitEngine {
            max: self.max,
            adaptive: self.min.map(|min| Adaptive::new(min, self.max)),
            limit,
            lease: self.lease,
            unit: saturating_nanos(self.unit_delay),
        });
        Ok((Algorithm::Concurrency(self), engine))
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.max;
        match self.min {
            Some(min) => write!(f, "{min} to {max} at a time, learned")?,
            None => write!(f, "{max} at a time")?,
        }
        if self.queue > 0 {
            write!(f, ", queue {}", self.queue)?;
        }
        write!(f, ", lease {}", Exact(self.lease))?;
        if !self.unit_delay.is_zero() {
            write!(f, ", unit_delay {}", Exact(self.unit_delay))?;
        }
        Ok(())
    }
}

/// A limit of permits with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermitEngine {
    max: u64,
    adaptive: Option<Adaptive>,
    limit: u64,
    lease: Duration,
    unit: u64,
}

impl PermitEngine {
    /// `limit` includes the queue.
    pub(super) const fn with_limit(&self, limit: u64) -> Self {
        let queue = self.limit - self.max;
        Self {
            max: limit.saturating_sub(queue),
            adaptive: None,
            limit,
            lease: self.lease,
            unit: self.unit,
        }
    }

    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) const fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    fn has_queue(&self) -> bool {
        self.limit > self.max
    }

    fn used(usage: &Usage) -> u64 {
        match usage {
            Usage::Concurrency { used, .. } => *used,
            Usage::Learning(learned) => learned.used,
            _ => 0,
        }
    }

    /// Learned time of a call, and the instant until which it counts.
    fn learned(&self, usage: &Usage) -> (u64, Monotonic) {
        match usage {
            Usage::Concurrency { unit, until, .. } => {
                ((*unit).min(saturating_nanos(MAX_HOLD)), *until)
            }
            Usage::Learning(learned) => (0, learned.until),
            _ => (self.unit, Monotonic::ORIGIN),
        }
    }

    pub(super) fn set_used(&self, usage: &mut Usage, used: u64) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.set_used(usage, used);
            return;
        }
        let (unit, until) = self.learned(usage);
        *usage = Usage::Concurrency { used, unit, until };
    }

    /// Learns how long a call held `units`, or that it failed or never reported back.
    pub(super) fn learn(&self, usage: &mut Usage, units: u64, held: Option<Duration>, at: &At) {
        let until = at.now.monotonic.saturating_add(self.lease);
        if let Some(adaptive) = &self.adaptive {
            adaptive.learn(usage, units, held, until);
        } else if let Some(held) = held.filter(|_| self.has_queue()) {
            let (unit, _) = self.learned(usage);
            *usage = Usage::Concurrency {
                used: Self::used(usage),
                unit: unit.midpoint(saturating_nanos(held)),
                until,
            };
        }
    }

    /// Converts what was learned under `from`; the use is determined by the holds.
    pub(super) fn adopt(&self, usage: Usage) -> Usage {
        match (&self.adaptive, &usage) {
            (Some(adaptive), _) => adaptive.adopt(usage),
            (None, Usage::Concurrency { .. }) => usage,
            (None, _) => Usage::Rest,
        }
    }
}

impl Mechanics for PermitEngine {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn limit_now(&self, usage: &Usage) -> u64 {
        match &self.adaptive {
            Some(adaptive) => adaptive.ceiling(usage),
            None => self.limit,
        }
    }

    fn full_refill(&self) -> Duration {
        self.lease
    }

    /// The use is determined by the holds (see [`Engine::reconcile`]): without any it is nothing.
    fn settle(&self, usage: &mut Usage, at: &At) {
        let now = at.now.monotonic;
        if let Some(adaptive) = &self.adaptive {
            adaptive.settle(usage, now, self.lease);
            return;
        }
        let (unit, until) = self.learned(usage);
        let until = until.min(now.saturating_add(self.lease));
        *usage = if until > now {
            Usage::Concurrency {
                used: 0,
                unit,
                until,
            }
        } else {
            Usage::Rest
        };
    }

    fn check(&self, usage: &Usage, _at: &At, cost: u64) -> Outcome {
        if Self::used(usage).saturating_add(cost) <= self.limit_now(usage) {
            Outcome::Allow
        } else {
            // The usage alone does not tell when; the holds do.
            Outcome::Deny(RetryAfter::Never)
        }
    }

    /// Does nothing: a permit is its hold.
    fn take(&self, _usage: &mut Usage, _at: &At, _cost: u64) {}

    fn remaining(&self, usage: &Usage, _at: &At) -> u64 {
        self.limit_now(usage).saturating_sub(Self::used(usage))
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        let (_, until) = self.learned(usage);
        until.since(at.now.monotonic)
    }

    fn delay(&self, usage: &Usage, _at: &At) -> Duration {
        if !self.has_queue() {
            return Duration::ZERO;
        }
        let (unit, _) = self.learned(usage);
        let rounds = Self::used(usage) / self.max;
        Duration::from_nanos(unit.saturating_mul(rounds))
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        match usage {
            Usage::Concurrency { until, .. } => *until = until.shifted(nanos),
            Usage::Learning(learned) => learned.until = learned.until.shifted(nanos),
            _ => {}
        }
    }
}
