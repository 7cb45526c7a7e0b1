//! Leader: which coordinator may decide, and until when.
//!
//! ```text
//! FOLLOWER -elected-> LEARNING -(all fenced, old leader's time over) or (every old lease dead)->
//! GRANTING -own time over, key lost, or a higher generation-> FOLLOWER
//! ```
//!
//! The lock service may take a leader's key away early, late, or while the leader is paused, so
//! having the key is not enough. Two rules are: a leader decides nothing after `send time of the
//! last answered keep-alive + TTL/sigma` on its own clock, and a new leader grants nothing before
//! `elected + TTL*sigma` on its clock. What the new leader must know by then is in
//! [`ledger`](crate::ledger).

mod witnesses;

use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use crate::generation;
use crate::ledger::{Claim, Ledger, Operation, OperationError, Snapshot};
use crate::message::{CoordinatorId, Request, Response};
use crate::plan::{Drift, MemberId, Record};

use self::witnesses::Witnesses;

pub use self::witnesses::Unproven;
pub use crate::effect::{Effect, Why};
pub use crate::store_rollback::{Number, StoreRollback};

/// Wait of a member that asks a coordinator which knows no leader.
const NO_LEADER: Duration = Duration::from_millis(500);

/// The result of an election for its winner.
#[derive(Clone, Debug)]
pub struct Elected {
    /// Unique and rising: the revision that created the key. With the generation of the record it is
    /// the epoch.
    pub revision: u64,
    /// Instant at which the campaign was sent, on the coordinator's own clock.
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
    doubt: Option<Doubt>,
    /// Instant at which the store was last asked.
    asked: Option<Monotonic>,
    /// Members that name numbers which the store has not given.
    witnesses: Witnesses,
    /// Rollback of the store that this coordinator itself has seen.
    store_rollback: Option<StoreRollback>,
    /// True if an operator was told.
    alarmed: bool,
    /// True if the leader decides nothing any more: the store went back before this coordinator was
    /// elected, so there may be members that the record does not know.
    stopped: bool,
}

/// A write was refused, or the store was seen to go back: there may be a later leader, or the record may
/// be an older one.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Monotonic,
    /// The version of the leader's record at that time.
    ours: u64,
}

/// One coordinator: a follower, or the leader for a limited time.
#[derive(Clone, Debug)]
pub struct Coordinator {
    drift: Drift,
    key_lasts: Duration,
    leading: Option<Leading>,
    /// The highest epoch that this process had, and when it got it.
    highest: Option<(u64, Monotonic)>,
    /// The coordinator that is said to have the key.
    elsewhere: Option<CoordinatorId>,
    /// Rollback of the store while this process ran, if no operator has raised the generation.
    store_rollback: Option<StoreRollback>,
}

impl Coordinator {
    /// A follower. `key_lasts` is the time to live of the leader's key.
    #[must_use]
    pub fn new(drift: Drift, key_lasts: Duration) -> Self {
        Self {
            drift,
            key_lasts,
            leading: None,
            highest: None,
            elsewhere: None,
            store_rollback: None,
        }
    }

    fn own_time(&self, asked: Monotonic) -> Monotonic {
        let nanos = self.drift.shortest(saturating_nanos(self.key_lasts));
        asked.saturating_add(Duration::from_nanos(nanos))
    }

    /// Starts to lead.
    pub fn elected(&mut self, now: Monotonic, elected: Elected) {
        let generation = generation::of(elected.record.version);
        let epoch = generation::number(generation, elected.revision);
        // Either this answer was overtaken, or the store gives an epoch again.
        let again = self.highest.filter(|(highest, _)| *highest >= epoch);
        if again.is_some_and(|(_, at)| elected.asked <= at) {
            return;
        }
        self.note_generation(generation);
        let again = again.map(|(seen, _)| StoreRollback {
            member: None,
            others: 0,
            number: Number::Epoch,
            seen,
            stored: epoch,
            leads_on: false,
        });
        self.elsewhere = None;
        if again.is_none() {
            self.highest = Some((epoch, now));
        }
        let store_rollback = self.store_rollback.or(again);
        let deadline = self.own_time(elected.asked);
        let lasts = saturating_nanos(self.key_lasts);
        let quiet = self.drift.longest(lasts);
        let Elected {
            record, snapshot, ..
        } = elected;
        let ledger = Ledger::new(now, epoch, record, snapshot, self.drift, quiet);
        self.leading = Some(Leading {
            deadline,
            ledger,
            doubt: None,
            asked: None,
            witnesses: Witnesses::default(),
            store_rollback,
            alarmed: false,
            stopped: store_rollback.is_some(),
        });
    }

    /// Records that a keep-alive for the key of [`Ledger::epoch`] that was sent at `asked` was answered:
    /// the key is still held.
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
    /// [`SuspendDetector`](crate::suspend_detector::SuspendDetector)).
    pub fn step_down(&mut self, why: Why, effects: &mut Vec<Effect>) {
        let Some(leading) = self.leading.take() else {
            return;
        };
        let epoch = leading.ledger.epoch();
        effects.push(Effect::SteppedDown { epoch, why });
        if !matches!(why, Why::KeyLost | Why::HandedOver) {
            effects.push(Effect::Resign { epoch });
        }
    }

    /// The proof that the store was restored from a backup, while nobody has raised the generation.
    #[must_use]
    pub fn store_rollback(&self) -> Option<StoreRollback> {
        let leading = self.leading.as_ref();
        leading.map_or(self.store_rollback, Leading::proof)
    }

    /// Claims of members that agree and prove nothing, while this coordinator leads.
    #[must_use]
    pub fn unproven(&self) -> Option<Unproven> {
        let leading = self.leading.as_ref();
        let leading = leading.filter(|leading| leading.proof().is_none());
        leading?.witnesses.unproven()
    }

    /// Returns true if the coordinator has the lead and decides nothing, because the store went back.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.leading.as_ref().is_some_and(Leading::is_stopped)
    }

    /// The store went back: this process saw `seen` in it, and now it has `stored`, which is lower. A
    /// leader that still has the key leads on, because it knows what was lost; another one does not,
    /// until the generation is raised.
    pub fn store_went_back(
        &mut self,
        now: Monotonic,
        (number, seen, stored): (Number, u64, u64),
        effects: &mut Vec<Effect>,
    ) {
        let store_rollback = StoreRollback {
            member: None,
            others: 0,
            number,
            seen,
            stored,
            leads_on: false,
        };
        self.store_rollback = Some(store_rollback);
        match self.leading(now, effects) {
            Some(leading) => leading.doubt_store(now, effects),
            None => effects.push(Effect::StoreRollback(store_rollback)),
        }
    }

    /// The record is of this generation: a store that went back before that was raised is of no concern
    /// any more.
    pub fn note_generation(&mut self, generation: u64) {
        let is_raised = |proof: &StoreRollback| proof.least_generation() <= generation;
        if self.store_rollback.as_ref().is_some_and(is_raised) {
            self.store_rollback = None;
        }
    }

    /// The ledger of a leader whose time is not over.
    #[must_use]
    pub fn leads(&self, now: Monotonic) -> Option<&Ledger> {
        let leading = self.leading.as_ref()?;
        (now < leading.deadline).then_some(&leading.ledger)
    }

    fn leading(&mut self, now: Monotonic, effects: &mut Vec<Effect>) -> Option<&mut Leading> {
        if self.leading.as_ref().is_some_and(|l| now >= l.deadline) {
            self.step_down(Why::TimeOver, effects);
        }
        self.leading.as_mut()
    }

    /// Handles a request. What to do is added to `effects`.
    pub fn receive(&mut self, now: Monotonic, request: Request, effects: &mut Vec<Effect>) {
        let to = match &request {
            Request::Join(join) => join.member,
            Request::Report(report) => report.member,
            Request::Leave(leave) => leave.member,
        };
        let leader = self.elsewhere;
        let Some(leading) = self.leading(now, effects) else {
            let known = leader.is_some();
            let retry = if known { Duration::ZERO } else { NO_LEADER };
            let answer = Response::Elsewhere { leader, retry };
            effects.push(Effect::answer(to, answer));
            return;
        };
        let claim = leading.ledger.ahead(&request);
        let is_seated = leading.ledger.is_seated(&request);
        leading.witnesses.note(now, to, is_seated, claim);
        if leading.may_answer(to, claim) {
            return leading.ledger.receive(now, request, effects);
        }
        let retry = if leading.is_stopped() {
            leading.ledger.record().plan.timing.lease
        } else {
            NO_LEADER
        };
        let leader = None;
        effects.push(Effect::answer(to, Response::Elsewhere { leader, retry }));
        if leading.witnesses.has_unchecked() && !leading.stopped {
            leading.verify(now, effects);
        }
    }

    /// Takes a change of an operator or an orchestrator, which is written with the next write. The
    /// ledger's record shows when it is stored.
    ///
    /// # Errors
    /// [`OperationError::Elsewhere`] if this coordinator does not lead, otherwise why the change
    /// cannot be made.
    pub fn operate(
        &mut self,
        now: Monotonic,
        operation: Operation,
        effects: &mut Vec<Effect>,
    ) -> Result<(), OperationError> {
        let leader = self.elsewhere;
        let leading = self.leading(now, effects).filter(|l| !l.is_stopped());
        let leading = leading.ok_or(OperationError::Elsewhere(leader))?;
        leading.ledger.operate(operation)?;
        leading.ledger.write(effects);
        Ok(())
    }

    /// Does what is due; call it a few times per report period.
    pub fn tick(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(leading) = self.leading(now, effects) {
            let lease = leading.ledger.record().plan.timing.lease;
            leading.witnesses.forget_silent(now, lease);
            leading.alarm(effects);
            if !leading.stopped && (leading.doubt.is_some() || leading.witnesses.has_unchecked()) {
                leading.verify(now, effects);
            }
            if !leading.is_stopped() {
                leading.ledger.tick(now, effects);
            }
        }
    }

    /// Records that this record is stored: after this leader's own write, or because another
    /// process wrote it.
    pub fn stored(&mut self, now: Monotonic, record: Record, effects: &mut Vec<Effect>) {
        let Some(leading) = self.leading(now, effects) else {
            return;
        };
        let raised = generation::of(record.version) > generation::of(leading.ledger.epoch());
        if raised {
            self.step_down(Why::GenerationRaised, effects);
        } else if !leading.stopped {
            leading.ledger.stored(now, record, effects);
        }
    }

    /// The last write was refused or not answered: it is made again, from the current record.
    pub fn not_stored(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(leading) = self.leading(now, effects).filter(|l| !l.stopped) {
            if leading.ledger.writes() {
                leading.doubt_store(now, effects);
            }
            leading.ledger.not_stored(effects);
        }
    }

    /// A write of somebody else under the leader's key was refused.
    pub fn refused(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        if let Some(leading) = self.leading(now, effects).filter(|l| !l.stopped) {
            leading.doubt_store(now, effects);
        }
    }

    /// Records that the store was asked at `asked` or later ([`Effect::Verify`]), that the key of this
    /// epoch was still held, and that this was the record.
    pub fn verified(
        &mut self,
        now: Monotonic,
        asked: Monotonic,
        record: Record,
        effects: &mut Vec<Effect>,
    ) {
        let store_rollback = self.store_rollback;
        let Some(leading) = self.leading(now, effects).filter(|l| !l.stopped) else {
            return;
        };
        let raised = generation::of(record.version) > generation::of(leading.ledger.epoch());
        if !raised {
            leading.witnesses.check(asked, record.version);
            if let Some(doubt) = leading.doubt.take_if(|doubt| asked >= doubt.since) {
                leading.settle(doubt, &record, store_rollback, effects);
            }
            leading.alarm(effects);
        }
        self.stored(now, record, effects);
    }

    /// Stops leading, and returns what a successor needs in order to continue at once. The snapshot
    /// must be written in the same transaction that deletes the key; if that fails, nothing was
    /// handed over.
    pub fn hand_over(&mut self, now: Monotonic, effects: &mut Vec<Effect>) -> Option<Snapshot> {
        let leading = self.leading(now, effects).filter(|l| !l.is_stopped())?;
        let snapshot = leading.ledger.snapshot(now);
        self.step_down(Why::HandedOver, effects);
        if snapshot.is_none() {
            let epoch = self.highest.map_or(0, |(epoch, _)| epoch);
            effects.push(Effect::Resign { epoch });
        }
        snapshot
    }
}

impl Leading {
    fn proof(&self) -> Option<StoreRollback> {
        self.store_rollback.or_else(|| self.witnesses.proof())
    }

    fn is_stopped(&self) -> bool {
        self.stopped || self.witnesses.proof().is_some()
    }

    /// Returns true if the ledger may answer a request that makes this claim.
    fn may_answer(&self, member: MemberId, claim: Option<Claim>) -> bool {
        if self.is_stopped() {
            return false;
        }
        claim.is_none_or(|claim| {
            // Who has heard a later leader obeys none before. While this one learns, it also hears whether
            // there are others that say the same.
            let obeys = claim.number != Number::Epoch;
            let is_time = claim.is_seated || self.ledger.grants();
            obeys && is_time && self.witnesses.is_checked(member)
        })
    }

    /// The record may be an older one, or another coordinator's.
    fn doubt_store(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        let ours = self.ledger.record().version;
        self.doubt.get_or_insert(Doubt { since: now, ours });
        self.verify(now, effects);
    }

    /// Asks the store whether there is a later leader, but not all the time.
    fn verify(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        let recent = |asked: Monotonic| now < asked.saturating_add(NO_LEADER);
        if !self.asked.is_some_and(recent) {
            self.asked = Some(now);
            let epoch = self.ledger.epoch();
            effects.push(Effect::Verify { epoch });
        }
    }

    /// The key is still held, so no leader came later, and all that was written is known here. If the
    /// record is an older one it is written again.
    fn settle(
        &mut self,
        doubt: Doubt,
        record: &Record,
        store_rollback: Option<StoreRollback>,
        effects: &mut Vec<Effect>,
    ) {
        let (seen, stored) = (doubt.ours, record.version);
        let is_older = stored < seen;
        let older = is_older.then_some(StoreRollback {
            member: None,
            others: 0,
            number: Number::Record,
            seen,
            stored,
            leads_on: true,
        });
        let seen_before = store_rollback.map(|proof| StoreRollback {
            leads_on: true,
            ..proof
        });
        self.store_rollback = self.store_rollback.or(older).or(seen_before);
        if is_older {
            self.ledger.write_again(effects);
        }
    }

    fn alarm(&mut self, effects: &mut Vec<Effect>) {
        let proof = self.proof().filter(|_| !self.alarmed);
        self.alarmed |= proof.is_some();
        effects.extend(proof.map(Effect::StoreRollback));
    }
}
