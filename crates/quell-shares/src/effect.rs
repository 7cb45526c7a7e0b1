//! Effect: what a state machine of the coordinator wants carried out.

use core::fmt;

use crate::message::Response;
use crate::plan::{MemberId, Record};
use crate::store_rollback::StoreRollback;

/// An action that a coordinator wants carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "writes are few, and handled at once"
)]
pub enum Effect {
    /// Send this to a member.
    Response {
        /// The receiver.
        to: MemberId,
        /// The answer.
        answer: Response,
    },
    /// Write this record, if the key is still held and the stored record is the previous version.
    Write(Record),
    /// This coordinator does not lead any more.
    SteppedDown {
        /// The epoch that is over.
        epoch: u64,
        /// The reason.
        why: Why,
    },
    /// Give the key of this epoch up, so that another coordinator can lead at once. There is no
    /// snapshot.
    Resign {
        /// The epoch.
        epoch: u64,
    },
    /// A member has been silent for so long that nothing is planned for it; what it may use is set
    /// aside.
    Suspect(MemberId),
    /// A member that was suspected has reported.
    Heard(MemberId),
    /// Read the key and the record again. If the key of this epoch is still held, call
    /// [`Coordinator::verified`](crate::leader::Coordinator::verified), otherwise [`Coordinator::step_down`](crate::leader::Coordinator::step_down).
    Verify {
        /// The epoch.
        epoch: u64,
    },
    /// The store was restored from a backup, and this leader grants less or nothing until an operator
    /// acts. It is said once in each epoch, and by one that does not lead as soon as it sees that itself.
    StoreRollback(StoreRollback),
}

/// Reason why a coordinator does not lead any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// No keep-alive was answered in time.
    TimeOver,
    /// The store says that the key is lost.
    KeyLost,
    /// The clock stood still, so rights counted on it may be underestimated.
    ClockStoodStill,
    /// The coordinator handed over.
    HandedOver,
    /// An operator raised the generation of the fleet.
    GenerationRaised,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimeOver => "no keep-alive of the leader's key was answered in time",
            Self::KeyLost => "the store says that the leader's key is lost",
            Self::ClockStoodStill => "the clock stood still",
            Self::HandedOver => "another coordinator takes over",
            Self::GenerationRaised => "the generation of the fleet was raised",
        })
    }
}

impl Effect {
    pub(crate) const fn answer(to: MemberId, answer: Response) -> Self {
        Self::Response { to, answer }
    }
}
