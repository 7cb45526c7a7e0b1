//! Parting: how a member leaves, and what it does when it learns that its seat is gone.

use super::{Adopt, Member, Stage, Standing};
use crate::errs;
use crate::message::Leave;

impl Member {
    /// Sets every right to nothing, for good. Once that is sealed, [`Member::farewell`] reports it.
    pub fn leave(&mut self) -> Adopt {
        self.stage = Stage::Leaving;
        self.give_up(self.version)
    }

    /// What to send until it is answered, once the leave is sealed.
    #[must_use]
    pub fn farewell(&self) -> Option<Leave> {
        let over = self.stage == Stage::Leaving
            && (self.pending.is_none() || errs!(self, LeaveBeforeZero));
        over.then_some(Leave {
            member: self.start.member,
            incarnation: self.incarnation,
        })
    }

    /// The member has no seat any more, although it is alive: an operator took it for dead. Its
    /// share belongs to other members, or soon will, so it gives up everything and joins as if it
    /// had just started. A leader never says this to a start that has a seat: it reads the record
    /// after it was elected, and only a leader gives seats.
    pub(super) fn unseated(&mut self, incarnation: u64) -> Option<Adopt> {
        if !self.is_for_me(incarnation) || errs!(self, DeregisteredGoesOn) {
            return None;
        }
        self.stage = Stage::Joining;
        self.revision = 0;
        Some(self.give_up(0))
    }

    fn give_up(&mut self, version: u64) -> Adopt {
        self.standings.fill(Standing::default());
        Adopt {
            prompt: true,
            ..self.adopt(self.epoch, version)
        }
    }
}
