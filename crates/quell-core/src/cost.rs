//! Cost: how many units a descriptor consumes.

use core::fmt;
use core::num::NonZeroU64;

/// Units consumed by one descriptor: at least 1, at most `u64::MAX`.
///
/// There is no cost of 0: checking without charging is an operation of its own
/// ([`Operation::Peek`](crate::charge::Operation::Peek)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit: the default.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// The greatest cost.
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// A cost of `units`, or `None` for 0.
    #[must_use]
    pub const fn new(units: u64) -> Option<Self> {
        match NonZeroU64::new(units) {
            Some(units) => Some(Self(units)),
            None => None,
        }
    }

    /// The number of units.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The sum of both costs; saturates.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0.get()))
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<NonZeroU64> for Cost {
    fn from(units: NonZeroU64) -> Self {
        Self(units)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
