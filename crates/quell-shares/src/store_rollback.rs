//! Store rollback: proof that the store was restored from a backup although its generation was not raised.
//!
//! A coordinator that runs meanwhile sees it itself: the store has a lower revision or an older record
//! than before. One that was started afterwards hears it from members (see `leader/witnesses.rs`).
//! Of members that joined since the backup the record knows nothing, and neither what they may use.

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
    /// The revision of the store, or of one of its keys.
    Revision,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Epoch => "epoch",
            Self::Incarnation => "incarnation",
            Self::Record => "record version",
            Self::Revision => "revision",
        })
    }
}

/// The store has a lower number than someone else has seen, or gave one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRollback {
    /// The member that has seen it; `None` if it was this coordinator itself.
    pub member: Option<MemberId>,
    /// Number of other members that say the same.
    pub others: usize,
    /// Number that went back.
    pub number: Number,
    /// Value that was seen.
    pub seen: u64,
    /// Value that the store has.
    pub stored: u64,
    /// True if this coordinator leads on, since it has the key and knows all that was lost.
    pub leads_on: bool,
}

impl StoreRollback {
    /// The least generation to which the fleet must be raised.
    #[must_use]
    pub const fn least_generation(&self) -> u64 {
        let (seen, stored) = (generation::of(self.seen), generation::of(self.stored));
        1 + if seen > stored { seen } else { stored }
    }
}

impl fmt::Display for StoreRollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration store was restored from a backup: ")?;
        match (self.member, self.others) {
            (None, _) => f.write_str("this coordinator has")?,
            (Some(member), 0) => write!(f, "member {} has", member.0)?,
            (Some(member), others) => write!(f, "member {} and {others} more have", member.0)?,
        }
        let shown = |number| (generation::of(number), generation::within(number));
        let ((of, seen), (in_store, stored)) = (shown(self.seen), shown(self.stored));
        let number = self.number;
        write!(
            f,
            " seen {number} {seen} of generation {of}, and the store is at {stored} of generation {in_store}; "
        )?;
        let least = self.least_generation();
        match self.leads_on {
            false => write!(
                f,
                "no seat is given or taken until the generation is raised to {least} or more"
            ),
            true => write!(
                f,
                "this coordinator leads on with what it knows, and no other one can: raise the generation \
                 to {least} or more"
            ),
        }?;
        f.write_str(" (docs/fleet.md)")
    }
}
