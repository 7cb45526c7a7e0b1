//! Leader: which coordinator may decide, and until when.
//!
//! ```text
//! FOLLOWER -elected-> LEARNING -(all fenced, old leader's time over) or (every old lease dead)->
//! GRANTING -own time over, or a higher epoch-> FOLLOWER
//! ```
//!
//! The lock service may take a leader's key away early, late, or while it is paused, so the key
//! alone means nothing. Two rules do: a leader decides nothing after `send time of the last
//! keep-alive that was answered + TTL/sigma` on its own clock, and a new one grants nothing before
//! `elected + TTL*sigma` on its. What the new one must know by then is in
//! [`ledger`](crate::ledger).

use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use crate::ledger::{Ledger, Snapshot};
use crate::message::{Answer, CoordinatorId, Request};
use crate::plan::{Drift, MemberId, Record};
use crate::{Switch, errs};

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this to a member.
    Answer {
        /// To whom.
        to: MemberId,
        /// What.
        answer: Answer,
    },
    /// Write this record, if the key is still held and the version before it is the stored one.
    Write(Record),
}

impl Effect {
    pub(crate) const fn answer(to: MemberId, answer: Answer) -> Self {
        Self::Answer { to, answer }
    }
}

/// An election that was won.
#[derive(Clone, Debug)]
pub struct Elected {
    /// Unique and rising: the revision that created the key.
    pub epoch: u64,
    /// When the campaign was sent, on the own clock.
    pub asked: Monotonic,
    /// The record as it was then or later.
    pub record: Record,
    /// What the leader before left, if it went in order.
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, Debug)]
struct Leading {
    deadline: Monotonic,
    ledger: Ledger,
}

/// One coordinator: nothing, or the leader for a time.
#[derive(Clone, Debug)]
pub struct Coordinator {
    drift: Drift,
    key_lasts: Duration,
    leading: Option<Leading>,
    /// Who is said to have the key.
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

    /// Makes a mistake from now on.
    #[cfg(feature = "mutations")]
    pub fn set_mistake(&mut self, mistake: Option<crate::mistake::Mistake>) {
        self.mistake = Switch(mistake);
    }

    fn own_time(&self, asked: Monotonic) -> Monotonic {
        let nanos = self.drift.shortest(saturating_nanos(self.key_lasts));
        asked.saturating_add(Duration::from_nanos(nanos))
    }

    /// Begins to lead.
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

    /// A keep-alive that was sent at `asked` was answered: the key is held.
    pub fn kept(&mut self, epoch: u64, asked: Monotonic) {
        let deadline = self.own_time(asked);
        if let Some(leading) = self.leading.as_mut()
            && leading.ledger.epoch() == epoch
        {
            leading.deadline = leading.deadline.max(deadline);
        }
    }

    /// Somebody else has the key, or nobody has: what members are told who ask here. It need not be
    /// true.
    pub const fn follow(&mut self, leader: Option<CoordinatorId>) {
        self.elsewhere = leader;
    }

    /// Leads no more: the key is lost, or the clock stood still (see
    /// [`Still`](crate::still::Still)), and what was counted on it may be too little.
    pub fn step_down(&mut self) {
        self.leading = None;
    }

    /// The epoch and the ledger of a leader whose time is not over.
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

    /// Takes a request and says what to do.
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
            None => effects.push(Effect::answer(to, Answer::Elsewhere(self.elsewhere))),
        }
    }

    /// Does what is due; to be called a few times in a period.
    pub fn tick(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.tick(now, effects);
        }
    }

    /// The record is stored as it is here: after an own write, or because somebody else wrote it.
    pub fn stored(&mut self, now: Monotonic, record: Record, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.stored(now, record, effects);
        }
    }

    /// The last write was refused, or nothing was heard of it: it is made again from the record as
    /// it is.
    pub fn not_stored(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(ledger) = self.ledger(now) {
            ledger.not_stored(effects);
        }
    }

    /// Leads no more, and says what a successor needs in order to go on at once. It must be written
    /// in the same transaction that deletes the key; if that fails nothing was handed over.
    pub fn hand_over(&mut self, now: Monotonic) -> Option<Snapshot> {
        let snapshot = self.ledger(now)?.snapshot(now);
        if !errs!(self, HandOverGoesOn) {
            self.leading = None;
        }
        snapshot
    }
}
