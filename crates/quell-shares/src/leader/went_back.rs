//! Went back: proof that the store was restored from a backup although its generation was not raised.
//!
//! Epochs, incarnations and versions of the record only rise. So a member that knows a higher one than
//! the leader has either heard a later leader, or the store went back. The leader then asks the store
//! once more. If it still has the key, and the record is not newer, the store went back: of members that
//! joined since the backup it knows nothing, and neither what they may use.

use core::fmt;

use crate::generation;
use crate::plan::MemberId;

/// A number that only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// The number of a leadership.
    Epoch,
    /// The number of a process start.
    Incarnation,
    /// The version of the record.
    Record,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Epoch => "epoch",
            Self::Incarnation => "incarnation",
            Self::Record => "record version",
        })
    }
}

/// The store has a lower number than someone else has seen, or gave one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WentBack {
    /// The member that has seen it; `None` if it was this coordinator itself.
    pub member: Option<MemberId>,
    /// Which number.
    pub number: Number,
    /// What was seen.
    pub seen: u64,
    /// What the store has.
    pub stored: u64,
}

impl WentBack {
    /// The least generation to which the fleet must be raised.
    #[must_use]
    pub const fn least_generation(&self) -> u64 {
        let (seen, stored) = (generation::of(self.seen), generation::of(self.stored));
        1 + if seen > stored { seen } else { stored }
    }
}

impl fmt::Display for WentBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration store was restored from a backup: ")?;
        match self.member {
            Some(member) => write!(f, "member {} ", member.0)?,
            None => f.write_str("this coordinator ")?,
        }
        let shown = |number| (generation::of(number), generation::within(number));
        let ((of, seen), (in_store, stored)) = (shown(self.seen), shown(self.stored));
        let least = self.least_generation();
        write!(
            f,
            "has seen {} {seen} of generation {of}, and the store is at {stored} of generation \
             {in_store}; no seat is given or taken until the generation is raised to {least} or more \
             (docs/fleet.md)",
            self.number
        )
    }
}
