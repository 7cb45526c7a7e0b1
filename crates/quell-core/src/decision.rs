//! Decision: one limit's answer. It contains durations and no instants.

use core::time::Duration;

use smallvec::SmallVec;

/// Time after which a refused caller may retry.
///
/// Ordered: `Never` is longer than any duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryAfter {
    /// The shortest wait after which the same call could pass; never zero.
    After(Duration),
    /// The cost is above what the limit can ever hold.
    Never,
}

/// Outcome of a call under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The call fits.
    Allow,
    /// The call does not fit; after this wait it would.
    Deny(RetryAfter),
}

impl Outcome {
    /// Returns true if the call fits.
    #[must_use]
    pub const fn is_allow(self) -> bool {
        matches!(self, Self::Allow)
    }
}

/// Decisions on a set, in its order. A single one, which is the usual case, needs no allocation.
pub type Decisions = SmallVec<[Decision; 1]>;

/// The answer of one limit to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Outcome of the call under this limit.
    pub outcome: Outcome,
    /// The largest cost that the limit admits from rest, in units. For a learned ceiling, its present
    /// value.
    pub limit: u64,
    /// The largest cost that would be allowed right now, after this answer; at most `limit`.
    pub remaining: u64,
    /// Time until the key is at rest if nothing more is charged.
    pub reset_after: Duration,
    /// Delay of an allowed call before it continues (`leaky_bucket`); otherwise zero.
    pub delay: Duration,
    /// True if the key is banned, including by this call.
    pub banned: bool,
}

impl Decision {
    /// Returns true if the call fits.
    #[must_use]
    pub const fn is_allow(&self) -> bool {
        self.outcome.is_allow()
    }

    /// The same decision for a caller that has waited for `waited` since: the delay is over.
    #[must_use]
    pub const fn waited_for(self, waited: Duration) -> Self {
        Self {
            delay: Duration::ZERO,
            reset_after: self.reset_after.saturating_sub(waited),
            ..self
        }
    }

    /// The same decision with the numbers of `later`: what remains, and when the key is at rest.
    #[must_use]
    pub const fn with_numbers_of(self, later: &Self) -> Self {
        Self {
            limit: later.limit,
            remaining: later.remaining,
            reset_after: later.reset_after,
            ..self
        }
    }

    /// The wait after which the same call could pass; `None` if it passes now.
    #[must_use]
    pub const fn retry_after(&self) -> Option<RetryAfter> {
        match self.outcome {
            Outcome::Allow => None,
            Outcome::Deny(wait) => Some(wait),
        }
    }
}
