//! Messages between members and coordinators. Each says all there is to say, so any of them may be
//! lost, doubled or late.

use alloc::vec::Vec;
use core::time::Duration;

use crate::plan::MemberId;
use crate::schedule::{LEASE_STEPS, Right};

/// What a member says of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Offered cost in micro-units per second, smoothed.
    pub demand: u64,
    /// Micro-units admitted since the last report.
    pub admitted: u64,
    /// Micro-units refused since the last report.
    pub denied: u64,
}

/// What a member holds of one limit when it says so, in durations from that moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Leases, each with the time it has left.
    pub leases: [(Right, Duration); LEASE_STEPS],
    /// What follows them.
    pub gap: Right,
    /// How long until the base begins.
    pub base_in: Duration,
    /// The static share.
    pub base: Right,
    /// How long until the base ends.
    pub base_for: Duration,
    /// What is left then.
    pub floor: Right,
    /// The rate and burst of the whole limit, of which all these are parts.
    pub whole: Right,
}

/// What a file keeps of one limit for the next start of a process. It is written before what it
/// follows from is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The least that the schedule ever allows.
    pub right: Right,
    /// The rate and burst of the whole limit, of which it is a part.
    pub whole: Right,
}

/// A process that starts asks to be known. Its id is its own: the process before it is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Who asks.
    pub member: MemberId,
    /// Tells this start from every other.
    pub nonce: u64,
    /// What it counts for.
    pub weight: u32,
    /// Whether something outside (a lock, an ordinal) makes sure that no other process has the id.
    pub exclusive: bool,
    /// The incarnation of the start that it takes over from, as a coordinator told it; 0 if it knows
    /// of none. A join that was overtaken names an older one, and is not obeyed.
    pub replaces: u64,
    /// What it uses until its first grant, for each limit: what its snapshot kept.
    pub floors: Vec<Kept>,
}

/// The number of a process start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The epoch that gave it.
    pub epoch: u64,
    /// Which start it numbers.
    pub nonce: u64,
    /// The number.
    pub incarnation: u64,
}

/// What a member wants and what it has put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who reports.
    pub member: MemberId,
    /// The number of its start.
    pub incarnation: u64,
    /// Rises with every report of an incarnation.
    pub seq: u64,
    /// The newest epoch it obeys: it takes nothing from older ones, and nothing of theirs is on its
    /// way into force.
    pub epoch: u64,
    /// The version of that epoch that is in force; 0 before the first.
    pub applied: u64,
    /// The plan that what it holds is of; 0 before its first grant.
    pub revision: u64,
    /// For each limit.
    pub loads: Vec<Load>,
    /// For each limit, while no version of the epoch is in force; else empty.
    pub held: Vec<Held>,
}

/// What is granted of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Leases that fall from step to step, each counted from the sending of the report.
    pub leases: [(Right, Duration); LEASE_STEPS],
    /// What follows them until the base begins.
    pub gap: Right,
    /// The static share.
    pub base: Right,
    /// What is left of it in the end.
    pub floor: Right,
    /// The rate and burst of the whole limit, of which all these are parts.
    pub whole: Right,
}

/// The answer to a report. It replaces everything that the member holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The start that it is for.
    pub incarnation: u64,
    /// Whose grant it is.
    pub epoch: u64,
    /// Rises with every grant and push to a member in an epoch.
    pub version: u64,
    /// The report that it answers.
    pub seq: u64,
    /// The plan it follows.
    pub revision: u64,
    /// P, from the receipt of this.
    pub promise: Duration,
    /// F, from the sending of the report.
    pub hold: Duration,
    /// For each limit.
    pub rights: Vec<Granted>,
}

/// The answer of a coordinator that is still learning: nothing changes, and a member that has more
/// than it wants may stay below its base for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The start that it is for.
    pub incarnation: u64,
    /// Who is learning.
    pub epoch: u64,
    /// The report that it answers.
    pub seq: u64,
    /// How long to stay below the base from the receipt of this, if at all.
    pub promise: Option<Duration>,
}

/// Which coordinator, as all members and coordinators number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoordinatorId(pub u32);

/// A change that was not asked for: other rates within the leases that there are. It extends
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The start that it is for.
    pub incarnation: u64,
    /// Whose push it is.
    pub epoch: u64,
    /// Rises with every grant and push to a member in an epoch.
    pub version: u64,
    /// For each limit, what its lease is from now until its end.
    pub rights: Vec<Right>,
}

/// A member goes, and has set its own right to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// Who goes.
    pub member: MemberId,
    /// The start that it ends.
    pub incarnation: u64,
}

/// What a member sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A process starts.
    Join(Join),
    /// What it wants and has.
    Report(Report),
    /// It goes.
    Leave(Leave),
}

/// What a coordinator sends to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The number of its start.
    Joined(Joined),
    /// The seat is taken by another start: join again and name it.
    Occupied {
        /// The start that asked.
        nonce: u64,
        /// The one that has the seat.
        incarnation: u64,
    },
    /// What it may use.
    Grant(Grant),
    /// Wait.
    Hold(Hold),
    /// Other rates at once.
    Push(Push),
    /// It is forgotten.
    Left {
        /// The start that has ended.
        incarnation: u64,
    },
    /// Not known here: join (again).
    Unknown {
        /// The start that is not known, or 0 for a join that is refused.
        incarnation: u64,
    },
    /// Not the leader; who leads, as far as is known.
    Elsewhere(Option<CoordinatorId>),
}
