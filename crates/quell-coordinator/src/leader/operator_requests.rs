//! Desk: where operators are heard.

use std::time::Duration;

use quell_core::time::{Monotonic, Now};
use quell_shares::ledger::{Operation, OperationError};
use quell_shares::plan::TakenBack;

use super::judge::StagedRules;
use super::leader_task::LeaderTask;
use super::{ChangeError, ReplySender, Step};
use crate::codec::check_room;
use crate::store::ConfigStore;

/// Time between logs that quota is reserved.
const REMIND: Duration = Duration::from_secs(300);

/// A rate as a percentage of another, rounded up.
fn percent(rate: u64, of: u64) -> u64 {
    let percent = (u128::from(rate) * 100).div_ceil(u128::from(of.max(1)));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

impl<S: ConfigStore> LeaderTask<S> {
    /// Passes a change on to the state machine. Its result is told when it is stored.
    pub(super) fn operate(&mut self, operation: Operation, reply_to: ReplySender) {
        if let Some(error) = &self.unwritten {
            reply_to.send(Err(ChangeError::Store(error.clone()))).ok();
            return;
        }
        let now = self.now();
        match self.core.operate(now, operation.clone(), &mut self.effects) {
            Ok(()) => self.taken.push((operation, reply_to)),
            Err(error) => {
                let error = self.refusal(&error);
                reply_to.send(Err(error)).ok();
            }
        }
    }

    /// Makes a step of a rollout, of what has this mark.
    pub(super) fn roll_out(&mut self, (step, mark): (Step, Option<String>), reply_to: ReplySender) {
        match self.operation(step, mark.as_deref()) {
            Ok(operation) => self.operate(operation, reply_to),
            Err(error) => {
                reply_to.send(Err(error)).ok();
            }
        }
    }

    fn operation(&self, step: Step, mark: Option<&str>) -> Result<Operation, ChangeError> {
        let refused = |text: &str| Err(ChangeError::Refused(text.to_owned()));
        let Some(ledger) = self.core.leads(self.now()) else {
            return Err(self.elsewhere());
        };
        let record = ledger.record();
        // A take-back is never in the way of anybody.
        let is_seen = |mark| step == Step::Back || mark == self.wanted.borrow().mark();
        if !mark.is_none_or(is_seen) {
            return refused(
                "the rules changed since you looked: look at what waits now (`quell fleet preview`, or \
                 the page Rollout), and make the step again",
            );
        }
        let wanted = self.wanted.borrow().plan(Some(record));
        let rollout = record.rollout.as_ref();
        match (step, rollout) {
            (Step::Back, None) => refused("nothing is being rolled out"),
            (Step::Back, Some(_)) => Ok(Operation::TakeBack),
            (Step::Stage(stage, edit), Some(rollout)) if rollout.plan.is_like(&wanted) => {
                Ok(Operation::Advance(stage, edit.apply(rollout.band)?))
            }
            (Step::All, Some(rollout)) if rollout.plan.is_like(&wanted) => Ok(Operation::Complete),
            (Step::All, Some(_)) => refused(
                "the rules changed since this rollout began: roll them out to some members first, or \
                 take this rollout back",
            ),
            (_, None) if record.plan.is_like(&wanted) => refused(
                "the rules are in force already: change them, and start the coordinators with --changes \
                staged",
            ),
            (Step::Stage(stage, edit), _) => {
                let band = edit.apply(None)?;
                let mut next = record.clone();
                if next.roll_out(wanted.clone(), stage, band).is_ok() {
                    check_room(&next)?;
                }
                let plan = wanted;
                Ok(Operation::RollOut { plan, stage, band })
            }
            (Step::All, None) => Ok(Operation::SetPlan(wanted)),
        }
    }

    /// Takes a rollout back that has left its band, once, and says so when it is stored.
    pub(super) fn judge_rollout(&mut self, now: Now) {
        let Some(ledger) = self.core.leads(now.monotonic) else {
            self.judge.turn(now.monotonic, None, StagedRules::default());
            return;
        };
        let record = ledger.record();
        if let Some(operation) = &self.taking_back {
            if ledger.result(operation).is_none() {
                return;
            }
            if let (Operation::TakeBackOf { note, .. }, Some(stored)) =
                (operation, &record.taken_back)
                && note == stored
            {
                tracing::warn!(
                    why = %note.why,
                    "a rollout went beyond its bounds and is taken back"
                );
                self.taken_back += 1;
            }
            self.taking_back = None;
        }
        // A leader that still learns would judge what its own change made.
        let judged = ledger.grants().then_some(record);
        let rules = StagedRules::new(
            self.rule_distribution.rolled_out(),
            self.rule_distribution.judged(),
        );
        let breach = self.judge.turn(now.monotonic, judged, rules);
        let (Some(breach), Some(rollout)) = (breach, &record.rollout) else {
            return;
        };
        let operation = Operation::TakeBackOf {
            revision: rollout.plan.revision,
            note: TakenBack {
                at_ms: now.wall.as_nanos() / 1_000_000,
                why: breach.to_string().into(),
            },
        };
        let taken = self
            .core
            .operate(now.monotonic, operation.clone(), &mut self.effects);
        if taken.is_ok() {
            self.taking_back = Some(operation);
        }
    }

    /// Logs that quota is reserved after a restore, and until when.
    pub(super) fn remind_of_reserved(&mut self, now: Monotonic) {
        let Some(ledger) = self.core.leads(now).filter(|ledger| ledger.grants()) else {
            return;
        };
        let is_due = |told: Monotonic| now.since(told) >= REMIND;
        if ledger.record().restored.is_none() || !self.reminded.is_none_or(is_due) {
            return;
        }
        self.reminded = Some(now);
        let view = ledger.view(now);
        let reserved = view.limits.iter().filter(|limit| limit.reserved > 0);
        let most = reserved
            .clone()
            .max_by_key(|limit| percent(limit.reserved, limit.rate));
        tracing::warn!(
            limits = reserved.count(),
            most = most.map(|limit| &*limit.name),
            percent = most.map(|limit| percent(limit.reserved, limit.rate)),
            "etcd was restored: quota that no node has claimed since is reserved; when every node has reported, run \
             `quell fleet restored --all-heard` to release it"
        );
    }

    /// Tells operators whose change is stored, or will not be.
    pub(super) fn settle(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let Some(ledger) = self.core.leads(self.now()) else {
            return self.leave_open();
        };
        let mut waiting = Vec::new();
        for (operation, reply_to) in std::mem::take(&mut self.taken) {
            match ledger.result(&operation) {
                None => waiting.push((operation, reply_to)),
                Some(result) => {
                    reply_to
                        .send(result.map_err(|error| self.refusal(&error)))
                        .ok();
                }
            }
        }
        self.taken = waiting;
    }

    /// Tells operators whose change was on its way to the store when the lead was lost.
    pub(super) fn leave_open(&mut self) {
        for (_, reply_to) in self.taken.drain(..) {
            reply_to.send(Err(ChangeError::Unconfirmed)).ok();
        }
    }

    fn elsewhere(&self) -> ChangeError {
        let leader = self.show.borrow().leader.clone();
        ChangeError::Elsewhere { leader }
    }

    fn refusal(&self, error: &OperationError) -> ChangeError {
        match error {
            OperationError::Elsewhere(_) if self.core.is_stopped() => ChangeError::Refused(
                "the configuration store was restored from a backup: raise the generation first"
                    .to_owned(),
            ),
            OperationError::Elsewhere(_) => self.elsewhere(),
            OperationError::Weight => ChangeError::Wrong(error.to_string()),
            other => ChangeError::Refused(other.to_string()),
        }
    }
}
