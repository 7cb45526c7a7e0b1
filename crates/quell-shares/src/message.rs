//! Messages between members and coordinators. Each is complete in itself, so any of them may be
//! lost, duplicated or late.
//!
//! Limits are known by their numbers, and lists of them are in the order of the numbers. A grant has
//! all limits of its member: one that it does not have is gone.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::plan::{LimitId, MemberId, Name};
use crate::schedule::{LEASE_STEPS, Right};

/// A member's load under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The limit.
    pub limit: LimitId,
    /// Offered cost in micro-units per second, smoothed.
    pub demand: u64,
    /// Amount by which it may grow until the next grant, by how it moved.
    pub margin: u64,
    /// Micro-units admitted since the last report.
    pub admitted: u64,
    /// Micro-units refused since the last report.
    pub denied: u64,
    /// Totals of answers since the process began to count.
    pub totals: Totals,
}

/// Micro-units that calls asked for under a limit, since a process began to count. A report that is lost
/// loses nothing of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All of them.
    pub asked: u64,
    /// Units that were refused.
    pub refused: u64,
    /// Units that were answered while no coordinator granted the node's share.
    pub degraded: u64,
}

/// Rights of a member to one limit, in durations from the moment of its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The limit.
    pub limit: LimitId,
    /// Leases, each with the time it has left.
    pub leases: [(Right, Duration); LEASE_STEPS],
    /// The right that follows the leases.
    pub gap: Right,
    /// Time until the base begins.
    pub base_in: Duration,
    /// The static share.
    pub base: Right,
    /// Time until the base ends.
    pub base_for: Duration,
    /// The right that remains then.
    pub floor: Right,
    /// Time until the floor ends, too; `None` if it does not end.
    pub floor_for: Option<Duration>,
    /// The rate and burst of the whole limit, of which the others are parts.
    pub whole: Right,
}

/// Rights to one limit that a snapshot file keeps for the next start of a process. It must be written
/// before the schedule that it follows from is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The limit.
    pub limit: LimitId,
    /// The least that the schedule ever allows.
    pub right: Right,
    /// The rate and burst of the whole limit, of which it is a part.
    pub whole: Right,
}

/// The file that a process keeps for the next start of its member. A member says when to write it
/// ([`Adopt::snapshot`](crate::member::Adopt::snapshot)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSnapshot {
    /// The newest epoch that it obeyed; its generation is part of the number.
    pub epoch: u64,
    /// The number of its start.
    pub incarnation: u64,
    /// The newest version of the record that it was told of.
    pub record: u64,
    /// The plan that `kept` is of.
    pub revision: u64,
    /// The names of its limits.
    pub names: Vec<LimitName>,
    /// Rights of the next start to each limit, until it is granted more.
    pub kept: Vec<Kept>,
}

/// Rights that a living member gave up because a leader did not know it. It may be granted again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The epoch of that leader; another one must not count with it.
    pub epoch: u64,
    /// The static share of each limit, as far as it had not ended.
    pub bases: Vec<Kept>,
}

/// The request of a process that starts. Its id is its own: the process before it is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The member.
    pub member: MemberId,
    /// Distinguishes this start from every other.
    pub nonce: u64,
    /// Its weight.
    pub weight: u32,
    /// The groups that it is in, besides that of all; at most
    /// [`MAX_MEMBERSHIPS`](crate::plan::MAX_MEMBERSHIPS) are taken.
    pub groups: Vec<Name>,
    /// True if something external (a lock, an ordinal) ensures that no other process has the id.
    pub exclusive: bool,
    /// The incarnation of the start that it replaces, as a coordinator told it; 0 if it knows of
    /// none. A join that was overtaken names an older one, and is not obeyed.
    pub replaces: u64,
    /// Rights to each limit until its first grant: those that its snapshot kept.
    pub floors: Vec<Kept>,
    /// Rights that it had, if it was alive when a leader did not know it.
    pub gave_up: Option<GivenUp>,
    /// The newest epoch that it knows.
    pub epoch: u64,
    /// The newest version of the record that it knows.
    pub record: u64,
}

/// The name of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitName {
    /// The limit.
    pub limit: LimitId,
    /// The rule's name.
    pub name: Name,
}

/// The number given to a process start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The epoch of the leader that gave it.
    pub epoch: u64,
    /// The nonce of the start.
    pub nonce: u64,
    /// The number.
    pub incarnation: u64,
    /// The version of the leader's record.
    pub record: u64,
    /// The limits that it shares.
    pub names: Vec<LimitName>,
}

/// Demand of a member, and the version that it has in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The member.
    pub member: MemberId,
    /// The number of its start.
    pub incarnation: u64,
    /// Rises with every report of an incarnation.
    pub seq: u64,
    /// The newest epoch that it obeys: it obeys no older one, and no schedule of an older one is on
    /// its way into force.
    pub epoch: u64,
    /// The version of that epoch that is in force; 0 before the first.
    pub applied: u64,
    /// The plan that its rights are parts of; 0 before its first grant.
    pub revision: u64,
    /// The newest version of the record that it was told of. If the store has an older one, it was
    /// restored from a backup.
    pub record: u64,
    /// One load per limit that it knows.
    pub loads: Vec<Load>,
    /// Everything that it holds, while no version of the epoch is in force and no older one is on its
    /// way; of limits that it does not name, it holds nothing.
    pub held: Option<Vec<Held>>,
}

/// A grant of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The limit.
    pub limit: LimitId,
    /// Leases that fall from step to step, each counted from the sending of the report.
    pub leases: [(Right, Duration); LEASE_STEPS],
    /// The right between the leases and the base.
    pub gap: Right,
    /// The static share.
    pub base: Right,
    /// The right that remains after the base.
    pub floor: Right,
    /// The rate and burst of the whole limit, of which the others are parts.
    pub whole: Right,
}

/// The answer to a report. It replaces everything that the member holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The start that it is for.
    pub incarnation: u64,
    /// The epoch of the leader that grants.
    pub epoch: u64,
    /// Rises with every grant and push to a member in an epoch.
    pub version: u64,
    /// The report that it answers.
    pub seq: u64,
    /// The plan it follows.
    pub revision: u64,
    /// The version of the leader's record.
    pub record: u64,
    /// T, from now on.
    pub report: Duration,
    /// P, counted from the receipt of this message.
    pub promise: Duration,
    /// F, counted from the sending of the report.
    pub hold: Duration,
    /// Time until the floors end, too, counted from the sending of the report; `None` if they do not.
    pub ends: Option<Duration>,
    /// True if the member is being drained: it gets no seat again when it has lost this one.
    pub draining: bool,
    /// One grant per limit. The member gives up every limit that is not there.
    pub rights: Vec<Granted>,
    /// The names of all these limits if the report was of another plan; otherwise none.
    pub names: Vec<LimitName>,
}

/// The answer of a coordinator that is still learning: nothing changes, except that a member that
/// has more than it wants may have to stay below its base for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The start that it is for.
    pub incarnation: u64,
    /// The epoch of the leader that is learning.
    pub epoch: u64,
    /// The report that it answers.
    pub seq: u64,
    /// The version of the leader's record.
    pub record: u64,
    /// Time to stay below the base, counted from the receipt of this message, if at all.
    pub promise: Option<Duration>,
}

/// A coordinator's number, the same for all members and coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoordinatorId(pub u32);

/// Another rate of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// The limit.
    pub limit: LimitId,
    /// Replaces its lease from now until the lease ends.
    pub right: Right,
}

/// A change that the member did not ask for: other rates within its existing leases. It extends
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The start that it is for.
    pub incarnation: u64,
    /// The epoch of the leader that pushes.
    pub epoch: u64,
    /// Rises with every grant and push to a member in an epoch.
    pub version: u64,
    /// The plan that the rights are parts of.
    pub revision: u64,
    /// One right per limit.
    pub rights: Vec<Pushed>,
}

/// A member leaves, and has set its own rights to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The member.
    pub member: MemberId,
    /// The start that it ends.
    pub incarnation: u64,
}

/// A request of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A process starts.
    Join(Join),
    /// A member's load and versions.
    Report(Report),
    /// A member leaves.
    Leave(Leave),
}

/// Reason why a member that joins is given no seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSeat {
    /// A process that may be alive has its number.
    Taken,
    /// All seats of this group are taken; `None` is the group of all.
    Full(Option<Name>),
    /// No plan in force has this group, which the process names.
    NoGroup(Name),
    /// Others with the same credential joined too often in the last minute. A coordinator says so before a
    /// ledger is asked.
    TooManyJoins,
    /// The configuration store takes no writes, and a seat is written before it is given. A coordinator says so
    /// beside the ledger, which goes on trying.
    Unwritten,
}

impl fmt::Display for NoSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str(
                "another process has its number: give it one of its own, or deregister the number if that \
                 process is dead",
            ),
            Self::Full(None) => f.write_str(
                "all seats of the fleet are taken: deregister dead nodes, or raise `--seats` of the \
                 coordinators or `cluster_size` in the rules",
            ),
            Self::Full(Some(group)) => write!(
                f,
                "all seats of the group `{group}` are taken: deregister dead nodes of it, or raise \
                 `cluster_size` in its rules, or with `cluster_size: auto` its smallest limit"
            ),
            Self::NoGroup(group) => write!(
                f,
                "no rule in force names the group `{group}`: write `group: {group}` in a rule with `rung: \
                 shares`, or start the node without `--fleet-group {group}`"
            ),
            Self::TooManyJoins => f.write_str(
                "too many nodes joined with its token or certificate within a minute, and the node joins \
                later: give each node one of its own (`quell token new --member`)",
            ),
            Self::Unwritten => f.write_str(
                "the coordinator cannot write its configuration store, and `quell fleet status` says why: \
                the node joins when that is fixed",
            ),
        }
    }
}

/// An answer of a coordinator. A `retry` is the least time to wait before asking again; a shell adds a
/// random part, so that members do not ask in step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The number of its start.
    Joined(Joined),
    /// Another start has the seat: join again and name that start.
    Occupied {
        /// The nonce of the start that asked.
        nonce: u64,
        /// The incarnation that has the seat.
        incarnation: u64,
        /// The epoch of the leader that says so.
        epoch: u64,
        /// Zero: naming the incarnation is all that is missing.
        retry: Duration,
    },
    /// Schedule that the member may use.
    Grant(Grant),
    /// The coordinator is still learning.
    Hold(Hold),
    /// Other rates, at once.
    Push(Push),
    /// The seat is given back: after a leave, or because the member was drained.
    Left {
        /// The start that has ended.
        incarnation: u64,
    },
    /// The coordinator does not know the member: join, or join again.
    Unknown {
        /// The start that is not known, or 0 for a join that is refused.
        incarnation: u64,
        /// The epoch of the leader that says so.
        epoch: u64,
        /// Zero for a start that is not known, a lease for a join that is refused.
        retry: Duration,
        /// Reason why a join is refused.
        no_seat: Option<NoSeat>,
    },
    /// This coordinator is not the leader, or does not decide.
    Elsewhere {
        /// The leader, as far as is known.
        leader: Option<CoordinatorId>,
        /// Zero if the leader is known.
        retry: Duration,
    },
}
