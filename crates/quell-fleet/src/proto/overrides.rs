//! Messages about the stored overrides of a fleet.

use prost::Message;

/// A call about the stored overrides of the fleet. Positions and cursors are texts of the store; overrides are lines of
/// JSON, so that none takes much more memory than the bytes that it came in.
#[derive(Clone, PartialEq, Message)]
pub struct OverrideCall {
    #[prost(oneof = "override_call::Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub kind: Option<override_call::Kind>,
    /// The member that calls: a follower is one, and has a stream.
    #[prost(uint32, tag = "11")]
    pub member: u32,
}

/// Kinds of an [`OverrideCall`].
pub mod override_call {
    use prost::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Kind {
        /// Asks for the newest position.
        #[prost(bool, tag = "1")]
        Position(bool),
        /// The override with the id of this deletion.
        #[prost(string, tag = "2")]
        Get(String),
        #[prost(message, tag = "3")]
        List(super::OverrideList),
        /// Changes, one on each line: the revision that is expected or `-`, a space, and the JSON.
        #[prost(string, tag = "4")]
        Apply(String),
        #[prost(message, tag = "5")]
        Since(super::OverridesSince),
        /// To be answered when there is another position than this one.
        #[prost(string, tag = "6")]
        Wait(String),
        /// The same, of a follower that is registered meanwhile.
        #[prost(message, tag = "7")]
        WaitAs(super::OverrideFollower),
        #[prost(message, tag = "8")]
        Report(super::OverrideFollower),
        /// The name of a follower that stops.
        #[prost(string, tag = "9")]
        Leave(String),
        /// Asks for all followers.
        #[prost(bool, tag = "10")]
        Followers(bool),
    }
}

/// Progress of a follower.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverrideFollower {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub position: String,
    /// For how long it has lacked something.
    #[prost(uint64, tag = "3")]
    pub behind_ms: u64,
}

/// The overrides that are listed.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverrideList {
    /// Missing: those of all domains.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// Missing: those of any rule; `*`: those for every rule; else those of this rule.
    #[prost(string, optional, tag = "2")]
    pub rule: Option<String>,
    #[prost(string, tag = "3")]
    pub prefix: String,
    #[prost(string, optional, tag = "4")]
    pub plan: Option<String>,
    /// The cursor after which the list goes on; empty for its beginning.
    #[prost(string, tag = "5")]
    pub after: String,
    #[prost(uint64, tag = "6")]
    pub most: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverridesSince {
    #[prost(string, tag = "1")]
    pub position: String,
    #[prost(uint64, tag = "2")]
    pub most: u64,
}

/// The answer to an [`OverrideCall`].
#[derive(Clone, PartialEq, Message)]
pub struct OverrideAnswer {
    #[prost(
        oneof = "override_answer::Kind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    )]
    pub kind: Option<override_answer::Kind>,
}

/// Kinds of an [`OverrideAnswer`].
pub mod override_answer {
    use prost::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Kind {
        #[prost(string, tag = "1")]
        Position(String),
        /// The override, or nothing.
        #[prost(string, tag = "2")]
        Stored(String),
        #[prost(message, tag = "3")]
        Page(super::OverridePage),
        #[prost(message, tag = "4")]
        Applied(super::OverridesApplied),
        #[prost(message, tag = "5")]
        Conflict(super::OverrideConflict),
        #[prost(message, tag = "6")]
        Changes(super::OverrideChanges),
        /// The changes since are not known; true if the store lost some.
        #[prost(bool, tag = "7")]
        Gone(bool),
        #[prost(message, tag = "8")]
        Failed(super::OverrideFailure),
        #[prost(bool, tag = "9")]
        Done(bool),
        /// Followers, one on each line: the revision that it has, for how many ms it has lacked something, and its name.
        #[prost(string, tag = "10")]
        Followers(String),
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverridePage {
    #[prost(string, tag = "1")]
    pub lines: String,
    /// Empty at the end of the list.
    #[prost(string, tag = "2")]
    pub next: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverridesApplied {
    /// The revision of each change; 0 where there was nothing to delete.
    #[prost(uint64, repeated, tag = "1")]
    pub revisions: Vec<u64>,
    #[prost(string, tag = "2")]
    pub position: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverrideConflict {
    #[prost(uint64, tag = "1")]
    pub index: u64,
    #[prost(uint64, tag = "2")]
    pub current: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverrideChanges {
    #[prost(string, tag = "1")]
    pub lines: String,
    #[prost(string, tag = "2")]
    pub position: String,
    #[prost(uint64, tag = "3")]
    pub newest: u64,
}

/// A failure of the store behind the coordinator.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OverrideFailure {
    /// 1: no answer, nothing was written. 2: no answer to a write. 3: unfit. 4: a foreign cursor. 5: damaged. 6: refused.
    /// 7: full, with the two numbers in `what`.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(string, tag = "2")]
    pub reason: String,
    /// Of what is damaged.
    #[prost(string, tag = "3")]
    pub what: String,
    /// The change that is unfit.
    #[prost(uint64, optional, tag = "4")]
    pub index: Option<u64>,
}
