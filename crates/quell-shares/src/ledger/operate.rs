//! Operate: what an operator, or an orchestrator, asks of the leader. Each operation is one change
//! of the record; it takes effect when that is stored, and then as every change of it: in order, as
//! members acknowledge.

use core::fmt;

use super::Ledger;
use crate::message::CoordinatorId;
use crate::plan::{Band, Drift, MemberId, Plan, PlanError, Record, Stage, TakenBack};

/// A change of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The member is dead and will not come back, and its snapshot is gone: its seat and its share
    /// are free at once.
    Deregister(MemberId),
    /// This start of the member is dead, an orchestrator says, and its snapshot is gone: the same,
    /// unless another start has the seat meanwhile.
    Fence {
        /// The member.
        member: MemberId,
        /// The number of the start that is dead.
        incarnation: u64,
    },
    /// The member is to use nothing any more, and then has no seat; or, while it still has one, it
    /// is to go on.
    Drain {
        /// The member.
        member: MemberId,
        /// True to drain the member, false to let it go on.
        drain: bool,
    },
    /// Another weight for a member.
    SetWeight {
        /// The member.
        member: MemberId,
        /// Its weight, at least 1.
        weight: u32,
    },
    /// Another plan for all members. Ends a rollout.
    SetPlan(Plan),
    /// Another plan for some members, while the others follow the one in force.
    RollOut {
        /// The plan.
        plan: Plan,
        /// Members that follow it.
        stage: Stage,
        /// Bounds beyond which the leader takes it back by itself.
        band: Option<Band>,
    },
    /// The plan that is being rolled out is for more members, with this band.
    Advance(Stage, Option<Band>),
    /// The plan that is being rolled out is for all members.
    Complete,
    /// All members follow the plan in force again.
    TakeBack,
    /// The same by the leader itself, unless another plan is being rolled out meanwhile.
    TakeBackOf {
        /// The revision of the plan that is being rolled out.
        revision: u64,
        /// Time and reason.
        note: TakenBack,
    },
}

/// Reason why an operation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationError {
    /// Another coordinator leads, as far as is known.
    Elsewhere(Option<CoordinatorId>),
    /// The member has no seat.
    NoSeat,
    /// Another start of the member has the seat.
    Replaced {
        /// Its number.
        incarnation: u64,
    },
    /// A weight is 0.
    Weight,
    /// The plan cannot be used.
    Plan(PlanError),
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(Some(leader)) => write!(f, "coordinator {} leads: ask it", leader.0),
            Self::Elsewhere(None) => f.write_str("no coordinator leads now: ask again in a second"),
            Self::NoSeat => {
                f.write_str("no such member has a seat: `status` lists those that have")
            }
            Self::Replaced { incarnation } => write!(
                f,
                "start {incarnation} of the member has the seat, another one than was named"
            ),
            Self::Weight => f.write_str("a weight is at least 1: drain the member instead"),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for OperationError {}

impl Ledger {
    /// Takes an operation. It is written with the next write, after those that were taken before.
    pub(crate) fn operate(&mut self, operation: Operation) -> Result<(), OperationError> {
        let mut record = self.record.clone();
        for waiting in &self.pending.operations {
            // One that is refused now is dropped when its turn comes.
            let _ = waiting.apply(&mut record, self.drift);
        }
        if self.has_nothing_to_change(&operation, &record) {
            return Err(OperationError::NoSeat);
        }
        operation.apply(&mut record, self.drift)?;
        self.pending.operations.push_back(operation);
        Ok(())
    }

    /// Returns true if an operation is about a seat that does not exist, or that is being given back. Once
    /// such an operation is taken, a seat that is gone shows that it is done.
    fn has_nothing_to_change(&self, operation: &Operation, record: &Record) -> bool {
        match operation {
            Operation::Deregister(member) | Operation::Fence { member, .. } => {
                record.seat(*member).is_none()
            }
            Operation::Drain {
                member,
                drain: false,
            } => self.accounts.get(member).is_some_and(|one| one.left),
            _ => false,
        }
    }

    /// Returns true if an operator lets a drained member go on, and that is not yet stored.
    pub(super) fn is_drain_undone(&self, member: MemberId) -> bool {
        let undo = Operation::Drain {
            member,
            drain: false,
        };
        self.pending.operations.contains(&undo)
    }

    /// Result of an operation that was taken; `None` while it waits for its write.
    ///
    /// # Errors
    /// It was dropped: what was written before its turn leaves nothing for it to change.
    #[must_use]
    pub fn result(&self, operation: &Operation) -> Option<Result<(), OperationError>> {
        let waits = self.pending.operations.contains(operation);
        let shown = || operation.apply(&mut self.record.clone(), self.drift);
        (!waits).then(|| shown().map(|_| ()))
    }

    /// Applies the operation that waits longest. Returns whether the record changed.
    pub(super) fn apply_operation(&self, record: &mut Record) -> bool {
        let first = self.pending.operations.front();
        first.is_some_and(|first| first.apply(record, self.drift) == Ok(true))
    }

    /// Drops operations that the record shows, or refuses.
    pub(super) fn settle_operations(&mut self) {
        while let Some(first) = self.pending.operations.front() {
            if first.apply(&mut self.record.clone(), self.drift) == Ok(true) {
                return;
            }
            self.pending.operations.pop_front();
        }
    }
}

impl Operation {
    /// Applies it to a record. Returns whether that changed anything: applied again, it changes
    /// nothing.
    fn apply(&self, record: &mut Record, drift: Drift) -> Result<bool, OperationError> {
        match self {
            Self::Deregister(member) => Ok(record.remove(*member)),
            Self::Fence {
                member,
                incarnation,
            } => match record.seat(*member) {
                None => Ok(false),
                Some(seat) if seat.incarnation != *incarnation => Err(OperationError::Replaced {
                    incarnation: seat.incarnation,
                }),
                Some(_) => Ok(record.remove(*member)),
            },
            Self::Drain { member, drain } => {
                let seat = record.seat_mut(*member).ok_or(OperationError::NoSeat)?;
                Ok(core::mem::replace(&mut seat.draining, *drain) != *drain)
            }
            Self::SetWeight { weight: 0, .. } => Err(OperationError::Weight),
            Self::SetWeight { member, weight } => {
                let seat = record.seat_mut(*member).ok_or(OperationError::NoSeat)?;
                if seat.weight == *weight {
                    return Ok(false);
                }
                let groups = seat.groups.clone();
                seat.change(*weight, groups);
                record.plan_again();
                Ok(true)
            }
            Self::SetPlan(plan) => {
                plan.check_after(Some(&record.plan), drift)?;
                if record.rollout.is_none() && plan.is_like(&record.plan) {
                    return Ok(false);
                }
                record.replace_plan(plan.clone())?;
                Ok(true)
            }
            Self::RollOut { plan, stage, band } => {
                plan.check_after(Some(&record.plan), drift)?;
                let same = |rollout: &crate::plan::Rollout| {
                    (rollout.stage, rollout.band) == (*stage, *band) && plan.is_like(&rollout.plan)
                };
                if record.rollout.as_ref().is_some_and(same) {
                    return Ok(false);
                }
                record.roll_out(plan.clone(), *stage, *band)?;
                Ok(true)
            }
            Self::Advance(stage, band) => advance(record, *stage, *band),
            Self::Complete => {
                let lasts = record.rollout.is_some();
                if lasts {
                    record.complete()?;
                }
                Ok(lasts)
            }
            Self::TakeBack => {
                let lasts = record.rollout.is_some();
                record.take_back();
                Ok(lasts)
            }
            Self::TakeBackOf { revision, note } => Ok(take_back(record, *revision, note)),
        }
    }
}

fn advance(record: &mut Record, stage: Stage, band: Option<Band>) -> Result<bool, OperationError> {
    let before = record.rollout.as_ref();
    let before = before.map(|rollout| (rollout.stage, rollout.band));
    record.advance(stage, band)?;
    Ok(before != Some((stage, band)))
}

/// Takes back the rollout of this revision, if it is the one that the record has.
fn take_back(record: &mut Record, revision: u64, note: &TakenBack) -> bool {
    let rollout = record.rollout.as_ref();
    let lasts = rollout.is_some_and(|rollout| rollout.plan.revision == revision);
    if lasts {
        record.take_back();
        record.taken_back = Some(note.clone());
    }
    lasts
}

impl From<PlanError> for OperationError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}
