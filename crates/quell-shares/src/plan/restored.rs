//! Restored: what an operator says after the store was restored from a backup.

use core::fmt;
use core::time::Duration;

use super::Record;
use crate::generation;

/// The longest lease of any plan since the backup, because members may follow plans that the record
/// does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The longest lease.
    pub lease: Duration,
}

/// Reason why a generation cannot be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RaiseError {
    /// The generation is not higher than the one in force.
    NotHigher {
        /// The generation in force.
        now: u64,
    },
    /// The generation is above [`generation::HIGHEST`].
    TooHigh,
}

impl fmt::Display for RaiseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHigher { now } => write!(
                f,
                "the generation is {now}: give a higher one, such as the date as YYMMDD"
            ),
            Self::TooHigh => write!(f, "a generation is at most {}", generation::HIGHEST),
        }
    }
}

impl core::error::Error for RaiseError {}

impl Record {
    /// The generation of all its numbers.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        generation::of(self.version)
    }

    /// The store was restored from a backup. From now on every number is of a higher generation, and
    /// leaders set aside what may be held by members that the record does not know, until
    /// [`Record::mark_all_heard`]. The plan stays, under a new revision.
    ///
    /// # Errors
    /// [`RaiseError`] if the generation is not higher, or too high.
    pub fn raise_generation(&mut self, to: u64, longest: Restored) -> Result<(), RaiseError> {
        let now = self.generation();
        if to <= now {
            return Err(RaiseError::NotHigher { now });
        }
        if to > generation::HIGHEST {
            return Err(RaiseError::TooHigh);
        }
        let first = generation::number(to, 0);
        self.version = first;
        self.incarnations = first;
        self.revisions = first;
        self.limit_ids = first;
        self.follow(self.plan.clone());
        let before = self.restored.unwrap_or_default();
        self.restored = Some(Restored {
            lease: longest.lease.max(before.lease),
        });
        Ok(())
    }

    /// Every process of the time before has reported, or is dead and its snapshot gone: an operator says
    /// so.
    pub const fn mark_all_heard(&mut self) {
        self.restored = None;
    }
}
