//! Rollout: a plan that some members follow before all do.

use core::time::Duration;

use super::{MemberId, Name, Plan};

/// Members that follow a plan that is being rolled out. A stage never takes the plan from members that
/// follow it already.
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
    /// Stage of the rollout. The seats say which members follow it.
    pub stage: Stage,
    /// Bounds beyond which a leader takes it back by itself; `None` if only an operator does.
    pub band: Option<Band>,
}

/// Answers that the members that follow a rollout may give, of each limit that it changes. A leader that
/// hears more of it over a window takes the rollout back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The most that may be refused, in parts of a million of what calls asked for.
    pub max_refused: Option<u32>,
    /// The most that may be answered while no coordinator grants the member's share.
    pub max_degraded: Option<u32>,
    /// Over so long; the stage has lasted for as long before it is judged.
    pub window: Duration,
}

impl Band {
    /// The window, if none is said: longer than a share takes to move, and than a lease.
    pub const WINDOW: Duration = Duration::from_secs(30);

    /// The windows that a band may have.
    pub const WINDOWS: core::ops::RangeInclusive<Duration> =
        Duration::from_secs(5)..=Duration::from_secs(3_600);
}

/// A rollout that a leader took back by itself. It stays until the next rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// Time, in milliseconds since 1970.
    pub at_ms: u64,
    /// Reason, for people.
    pub why: Name,
}
