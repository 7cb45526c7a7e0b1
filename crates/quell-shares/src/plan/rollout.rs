//! Rollout: a plan that some members follow before all do.

use super::{MemberId, Plan};

/// Which members follow a plan that is being rolled out. A stage never takes the plan from members
/// that follow it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// This one.
    Member(MemberId),
    /// This many of a hundred seats, rounded up, in the order of their ids; those that follow it
    /// already count.
    Percent(u8),
}

/// A plan beside the one in force. It is a whole plan, with a revision of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The plan.
    pub plan: Plan,
    /// How far it has come. The seats say which members follow it.
    pub stage: Stage,
}
