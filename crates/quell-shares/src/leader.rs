//! Leader: which coordinator may decide, and until when.
//!
//! ```text
//! FOLLOWER -elected-> LEARNING -(all fenced, old leader's time over) or (every old lease dead)->
//! GRANTING -own time over, or a higher epoch-> FOLLOWER
//! ```
//!
//! The lock service may take a leader's key away early, late, or while the leader is paused, so
//! having the key is not enough. Two rules are: a leader decides nothing after `send time of the
//! last answered keep-alive + TTL/sigma` on its own clock, and a new leader grants nothing before
//! `elected + TTL*sigma` on its clock. What the new leader must know by then is in
//! [`ledger`](crate::ledger).

use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use crate::ledger::{Ledger, Snapshot};
use crate::message::{CoordinatorId, Request, Response};
use crate::plan::{Drift, MemberId, Record};
use crate::{Switch, errs};

/// An action that a coordinator wants carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Effect {
    pub(crate) const fn answer(to: MemberId, answer: Response) -> Self {
        Self::Response { to, answer }
    }
}

/// The result of an election for its winner.
#[derive(Clone, Debug)]
pub struct Elected {
    /// Unique and rising: the revision that created the key.
    pub epoch: u64,
    /// When the campaign was sent, on the coordinator's own clock.
    pub asked: Monotonic,
    /// The stored record, as of the election or later.
    pub record: Record,
    /// The snapshot of the previous leader, if it handed over in an orderly way.
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, Debug)]
struct Leading {
    deadline: Monotonic,
    ledger: Ledger,
}

/// One coordinator: a follower, or the leader for a limited time.
#[derive(Clone, Debug)]
pub struct Coordinator {
    drift: Drift,
    key_lasts: Duration,
    leading: Option<Leading>,
    /// The coordinator that is said to have the key.
    elsewhere: Option<CoordinatorId>,
    mistake: Switch,
}

impl Coordinator {
    /// A follower. `key_lasts` is the time to live of the leader's key.
    #[must_use]
    pub fn new(drift: Drift, key_lasts: Duration) -> Self {
        Self {
            drift,
            key_lasts,
            leading: None,
            elsewhere: None,
            mistake: Switch::default(),
        }
    }

    /// From now on makes a deliberate mistake.
    #[cfg(feature = "mutations")]
    pub fn set_mistake(&mut self, mistake: Option<crate::mistake::Mistake>) {
        self.mistake = Switch(mistake);
    }

    fn own_time(&self, asked: Monotonic) -> Monotonic {
        let nanos = self.drift.shortest(saturating_nanos(self.key_lasts));
        asked.saturating_add(Duration::from_nanos(nanos))
    }

    /// Starts to lead.
    pub fn elected(&mut self, now: Monotonic, elected: Elected) {
        let newer = |leading: &Leading| leading.ledger.epoch() >= elected.epoch;
        if self.leading.as_ref().is_some_and(newer) {
            return;
        }
        self.elsewhere = None;
        let deadline = self.own_time(elected.asked);
        let lasts = saturating_nanos(self.key_lasts);
        let quiet = self.drift.longest(lasts);
        let ledger = Ledger::new(now, elected, self.drift, quiet, self.mistake);
        self.leading = Some(Leading { deadline, ledger });
    }

    /// Records that a keep-alive sent at `asked` was answered: the key is still held.
    pub fn kept(&mut self, epoch: u64, asked: Monotonic) {
        let deadline = self.own_time(asked);
        if let Some(leading) = self.leading.as_mut()
            && leading.ledger.epoch() == epoch
        {
            leading.deadline = leading.deadline.max(deadline);
        }
    }

    /// Another coordinator has the key, or none has: members that ask here are told so. It need not
    /// be true.
    pub const fn follow(&mut self, leader: Option<CoordinatorId>) {
        self.elsewhere = leader;
    }

    /// Stops leading: the key is lost, or the clock stood still (see
    /// [`Still`](crate::still::Still)), so rights counted on it may be underestimated.
    pub fn step_down(&mut self) {
        self.leading = None;
    }

    /// The ledger of a leader whose time is not over.
    #[must_use]
    pub fn leads(&self, now: Monotonic) -> Option<&Ledger> {
        let leading = self.leading.as_ref()?;
        (now < leading.deadline || errs!(self, DecideAfterDeadline)).then_some(&leading.ledger)
    }

    fn ledger(&mut self, now: Monotonic) -> Option<&mut Ledger> {
        let late = !errs!(self, DecideAfterDeadline);
        if late && self.leading.as_ref().is_some_and(|l| now >= l.deadline) {
            self.leading = None;
        }
        self.leading.as_mut().map(|leading| &mut leading.ledger)
    }

    /// Handles a request. What to do is added to `effects`.
    pub fn receive(&mut self, now: Monotonic, request: Request, effects: &mut Vec<Effect>) {
        let (to, epoch) = match &request {
            Request::Join(join) => (join.member, 0),
            Request::Report(report) => (report.member, report.epoch),
            Request::Leave(leave) => (leave.member, 0),
        };
        if self.leads(now).is_some_and(|ledger| epoch > ledger.epoch()) {
            self.leading = None;
        }
        match self.ledger(now) {
            Some(ledger) => ledger.receive(now, request, effects),
            None => effects.push(Effect::answer(to, Response::Elsewhere(self.elsewhere))),
        }
    }

    /// Does what is due; call it a few times per report period.
    pub fn tick(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.tick(now, effects);
        }
    }

    /// Records that this record is stored: after this leader's own write, or because another
    /// process wrote it.
    pub fn stored(&mut self, now: Monotonic, record: Record, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.stored(now, record, effects);
        }
    }

    /// The last write was refused or not answered: it is made again, from the current record.
    pub fn not_stored(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.not_stored(effects);
        }
    }

    /// Stops leading, and returns what a successor needs in order to continue at once. The snapshot
    /// must be written in the same transaction that deletes the key; if that fails, nothing was
    /// handed over.
    pub fn hand_over(&mut self, now: Monotonic) -> Option<Snapshot> {
        let snapshot = self.ledger(now)?.snapshot(now);
        if !errs!(self, HandOverGoesOn) {
            self.leading = None;
        }
        snapshot
    }
}
