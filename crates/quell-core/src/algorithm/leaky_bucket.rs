//! Leaky bucket: calls queue up and leave at a steady rate.
//!
//! The classic picture is a bucket with a hole: each call pours in, the hole drains `rate`, and what
//! would overflow is refused. Draining it with a timer, or sleeping inside the limiter, costs a task per
//! key. It is enough to know the level, kept as in `gcra.rs`, and to tell every allowed call the delay
//! after which its turn comes:
//!
//! ```text
//! backlog = max(tat, now) - now            (what waits before this call)
//! allow iff backlog + n*T <= burst*T
//! delay = max(0, backlog - delay_after*T)
//! ```
//!
//! `burst` includes the call in service: nginx's and OpenResty's `burst=N` is `burst: N+1` here.
//! `delay_after: burst` never delays, which is pure policing.
//!
//! Example, 2/s with burst 5: five calls at 0 s are allowed with delays 0, 0.5, 1, 1.5 and 2 s; the
//! sixth is refused with `retry_after` 0.5 s.
//!
//! Bound: over any interval of length d at most `burst + rate*d` is admitted. Callers that keep to their
//! delays leave at `rate` and no faster.
//!
//! Bad at: callers that ignore the delay. For them it is a token bucket.

use core::fmt;
use core::time::Duration;

use super::gcra::Gcra;
use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::Outcome;
use crate::limit_error::LimitError;
use crate::rate::Rate;
use crate::usage::Usage;

/// The numbers of a leaky bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// The rate at which calls leave.
    pub rate: Rate,
    /// The largest cost admitted at one instant from rest, the call in service included, in units, at
    /// least 1. Default: the rate's count.
    pub burst: u64,
    /// Units that may be ahead of a call without delaying it, at most the burst. Default: 0.
    pub delay_after: u64,
}

impl LeakyBucket {
    pub(crate) const fn new(rate: Rate) -> Self {
        Self {
            rate,
            burst: rate.count(),
            delay_after: 0,
        }
    }

    setters! {
        burst(u64) => burst;
        delay_after(u64) => delay_after;
    }

    pub(crate) fn prove(self) -> Result<(Algorithm, Engine), LimitError> {
        if self.burst == 0 {
            return Err(LimitError::ZeroBurst);
        }
        if self.delay_after > self.burst {
            return Err(LimitError::DelayAfterAboveBurst);
        }
        let engine = Engine::Leaky(LeakyEngine {
            gcra: Gcra::new(self.rate, self.burst),
            delay_after: self.delay_after,
        });
        Ok((Algorithm::LeakyBucket(self), engine))
    }
}

impl fmt::Display for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, burst {}, delay_after {}",
            self.rate, self.burst, self.delay_after
        )
    }
}

/// A leaky bucket with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeakyEngine {
    gcra: Gcra,
    delay_after: u64,
}

impl LeakyEngine {
    pub(crate) const fn with_gcra(&self, gcra: Gcra) -> Self {
        Self {
            gcra,
            delay_after: self.delay_after,
        }
    }

    pub(crate) const fn gcra(&self) -> &Gcra {
        &self.gcra
    }

    pub(crate) fn used(&self, usage: &Usage, at: &At) -> u64 {
        self.gcra.used(tat(usage), at.now.monotonic)
    }

    pub(crate) fn with_used(&self, used: u64, at: &At) -> Usage {
        Usage::LeakyBucket {
            tat: self.gcra.with_used(used, at.now.monotonic),
        }
    }
}

fn tat(usage: &Usage) -> u128 {
    match usage {
        Usage::LeakyBucket { tat } | Usage::Owing { tat, .. } => *tat,
        _ => 0,
    }
}

impl Mechanics for LeakyEngine {
    fn limit(&self) -> u64 {
        self.gcra.burst()
    }

    fn full_refill(&self) -> Duration {
        self.gcra.full_refill()
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        if self.gcra.settle_debt(usage, at) {
            return;
        }
        *usage = match self.gcra.settle(tat(usage), at.now.monotonic) {
            0 => Usage::Rest,
            tat => Usage::LeakyBucket { tat },
        };
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        self.gcra.check(tat(usage), at.now.monotonic, cost)
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        let tat = self.gcra.take(tat(usage), at.now.monotonic, cost);
        *usage = Usage::LeakyBucket { tat };
    }

    fn remaining(&self, usage: &Usage, at: &At) -> u64 {
        self.gcra.remaining(tat(usage), at.now.monotonic)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        self.gcra.reset_after(tat(usage), at.now.monotonic)
    }

    fn delay(&self, usage: &Usage, at: &At) -> Duration {
        self.gcra
            .delay(tat(usage), at.now.monotonic, self.delay_after)
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::LeakyBucket { tat } | Usage::Owing { tat, .. } = usage {
            *tat = self.gcra.shift(*tat, nanos);
        }
        if let Usage::Owing { as_of, .. } = usage {
            *as_of = as_of.shifted(nanos);
        }
    }
}
