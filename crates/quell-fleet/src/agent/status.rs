//! Status: what a node is and may use, for health, metrics and operators.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::Monotonic;
use quell_shares::member::Phase;
use quell_shares::plan::{LimitId, MICRO, MemberId, Timing};
use quell_shares::schedule::Schedule;

/// A node that no coordinator has answered for so long since it started is cut off: as long as a lease, unless
/// the plan says otherwise.
const ALONE: Duration = Timing::DEFAULT.lease;

/// A node starves that was granted next to nothing for so long while calls asked for it: one that becomes busy
/// has its share within three reports, which are 3 s at the most.
pub(super) const STARVED: Duration = Duration::from_secs(5);

/// Source of a node's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// The node was granted nothing since it started, and uses the floors of its file.
    #[default]
    Joining,
    /// A coordinator answers, and its leases are in force.
    Granted,
    /// Its leases have ended. It uses at most its static share.
    Gap,
    /// No coordinator has answered for long: its static share.
    Static,
    /// For longer than that, or since it started: its floor.
    Floor,
    /// The node is leaving.
    Leaving,
    /// An operator has drained it: it has nothing, and does not come back.
    Drained,
}

impl NodeState {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::Granted,
        Self::Gap,
        Self::Static,
        Self::Floor,
        Self::Leaving,
        Self::Drained,
    ];

    /// Its name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Granted => "granted",
            Self::Gap => "gap",
            Self::Static => "static",
            Self::Floor => "floor",
            Self::Leaving => "leaving",
            Self::Drained => "drained",
        }
    }

    /// Returns true if the node uses the quota declared for a node that is cut off.
    #[must_use]
    pub const fn is_cut_off(self) -> bool {
        matches!(self, Self::Gap | Self::Static | Self::Floor)
    }
}

/// Trouble that keeps a node from being granted its share. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub Arc<str>);

/// One limit of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Its number.
    pub id: LimitId,
    /// Its name in the fleet; empty if none is known.
    pub name: Arc<str>,
    /// Schedule of the node's quota.
    pub schedule: Schedule,
    /// Instants at which its rights follow each other.
    pub phase: Phase,
    /// Since when calls ask for it, are all refused, and the node's share is next to nothing.
    pub(super) hungry_since: Option<Monotonic>,
}

impl LimitStatus {
    /// Quota of the node now, in units per second, rounded down.
    #[must_use]
    pub fn share(&self, now: Monotonic) -> u64 {
        self.schedule.at(now).rate / MICRO
    }

    /// The rate of the whole limit, in units per second, rounded down.
    #[must_use]
    pub const fn whole(&self) -> u64 {
        self.phase.whole.rate / MICRO
    }
}

/// A node, as its task last saw it. What depends on the time is computed from an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStatus {
    /// Its number.
    pub member: Option<MemberId>,
    /// True if the node has joined.
    pub(super) joined: bool,
    /// True if the node has set its rights to nothing.
    pub(super) leaving: bool,
    /// True if the node has been drained.
    pub(super) drained: bool,
    /// True if an operator drains the node.
    pub is_draining: bool,
    /// The coordinator that it speaks to.
    pub coordinator: Option<Arc<str>>,
    /// Instant at which the node's task began.
    pub(super) started: Monotonic,
    /// Instant at which a coordinator last answered.
    pub answered: Option<Monotonic>,
    /// The number of this start.
    pub incarnation: u64,
    /// The newest leadership that it heard of.
    pub epoch: u64,
    /// The revision of the plan that it follows; 0 before its first grant.
    pub revision: u64,
    /// Its limits, in the order of their numbers.
    pub limits: Vec<LimitStatus>,
    /// For how long it has been cut off in all.
    pub cut_off: Duration,
    /// Answers that a coordinator should not have sent: garbage, or of another start.
    pub unreadable: u64,
    /// Trouble that keeps the node from its share.
    pub trouble: Option<Trouble>,
    /// Reason why the node's file cannot be written.
    pub file_trouble: Option<Arc<str>>,
}

impl FleetStatus {
    /// State of the node at an instant: of its limits the one that is worst off.
    #[must_use]
    pub fn state(&self, now: Monotonic) -> NodeState {
        if self.drained {
            return NodeState::Drained;
        }
        if self.leaving {
            return NodeState::Leaving;
        }
        if !self.joined || self.revision == 0 {
            let has_floors = !self.limits.is_empty() && self.answered.is_none();
            return match has_floors && now.since(self.started) >= ALONE {
                true => NodeState::Floor,
                false => NodeState::Joining,
            };
        }
        let phases = self.limits.iter().map(|limit| limit.phase);
        let worst = |one: fn(&Phase) -> Monotonic| phases.clone().map(|phase| one(&phase)).min();
        match worst(|phase| phase.leased_until) {
            None => NodeState::Granted,
            Some(end) if now < end => NodeState::Granted,
            Some(_) if Some(now) < worst(|phase| phase.base_from) => NodeState::Gap,
            Some(_) if Some(now) < worst(|phase| phase.base_until) => NodeState::Static,
            Some(_) => NodeState::Floor,
        }
    }

    /// For how long the node may still use its leases.
    #[must_use]
    pub fn lease_left(&self, now: Monotonic) -> Duration {
        let ends = self.limits.iter().map(|limit| limit.phase.leased_until);
        ends.min().map_or(Duration::ZERO, |end| end.since(now))
    }

    /// The limits of which the node is granted nothing while it has demand: it answers, and refuses every call.
    pub fn starved(&self, now: Monotonic) -> impl Iterator<Item = &LimitStatus> {
        let is_granted = self.state(now) == NodeState::Granted;
        let starves = move |limit: &&LimitStatus| {
            let push_queue = limit.hungry_since.filter(|_| is_granted);
            push_queue.is_some_and(|since| now.since(since) >= STARVED)
        };
        self.limits.iter().filter(starves)
    }

    /// The limit of a name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitStatus> {
        self.limits.iter().find(|limit| &*limit.name == name)
    }
}
