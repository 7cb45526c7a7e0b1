//! The messages of package `quell.fleet.v1`: what the members of a fleet and its coordinators say to each other, and
//! the file of a node.
//!
//! Every message is complete in itself, so any of them may be lost, repeated or late; what a stream that breaks had on
//! its way is never needed. Rates are micro-units per second, bursts micro-units, durations nanoseconds. Unknown fields
//! are ignored, and a tag means one thing for ever; a change that this cannot express is a new package, `quell.fleet.v2`.

#![expect(
    missing_docs,
    reason = "most fields are those of the messages of `quell-shares`"
)]

use prost::Message;

mod overrides;

pub use overrides::*;

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Rules of coordinators that the member has. Missing: it has rules of its own.
    #[prost(message, optional, tag = "4")]
    pub rules: Option<RulesSeen>,
    /// Report of a server about its calls, every 2 s. Missing: the one before still holds.
    #[prost(message, optional, tag = "5")]
    pub seen: Option<NodeSeen>,
    #[prost(oneof = "request::Kind", tags = "1, 2, 3")]
    pub kind: Option<request::Kind>,
}

/// Kinds of a [`Request`].
pub mod request {
    use prost::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Kind {
        #[prost(message, tag = "1")]
        Join(super::Join),
        #[prost(message, tag = "2")]
        Report(super::Report),
        #[prost(message, tag = "3")]
        Leave(super::Leave),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(oneof = "response::Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    pub kind: Option<response::Kind>,
}

/// Kinds of a [`Response`].
pub mod response {
    use prost::Oneof;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Kind {
        #[prost(message, tag = "1")]
        Joined(super::Joined),
        #[prost(message, tag = "2")]
        Occupied(super::Occupied),
        #[prost(message, tag = "3")]
        Grant(super::Grant),
        #[prost(message, tag = "4")]
        Hold(super::Hold),
        #[prost(message, tag = "5")]
        Push(super::Push),
        #[prost(message, tag = "6")]
        Left(super::Left),
        #[prost(message, tag = "7")]
        Unknown(super::Unknown),
        #[prost(message, tag = "8")]
        Elsewhere(super::Elsewhere),
        #[prost(message, tag = "9")]
        Rules(super::Rules),
        #[prost(message, tag = "10")]
        Candidate(super::Candidate),
        #[prost(message, tag = "11")]
        Judged(super::Judged),
    }
}

/// Rules of coordinators that a member has. Versions are written as a number and a digest of the text:
/// `7 1f2e3d4c5b6a`.
#[derive(Clone, PartialEq, Message)]
pub struct RulesSeen {
    /// The version in force; empty if none is.
    #[prost(string, tag = "1")]
    pub applied: String,
    /// The version that it was given last; it need not be given again.
    #[prost(string, tag = "2")]
    pub known: String,
    /// Reason why that is not in force.
    #[prost(string, tag = "3")]
    pub refused: String,
    /// Missing: it runs no candidates.
    #[prost(message, optional, tag = "4")]
    pub candidate: Option<CandidateSeen>,
    /// Counts for each rule of the newest [`Judged`], once the member has counted it.
    #[prost(message, repeated, tag = "5")]
    pub answered: Vec<RuleAnswers>,
    /// True if the member counts answers of rules; only then is it given [`Judged`].
    #[prost(bool, tag = "6")]
    pub counts: bool,
}

/// Rules for which the member shall count answers, in place of those before, named as domain/rule.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Judged {
    #[prost(string, repeated, tag = "1")]
    pub rules: Vec<String>,
}

/// Answers to calls under a rule since the process began to count.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RuleAnswers {
    #[prost(string, tag = "1")]
    pub rule: String,
    #[prost(uint64, tag = "2")]
    pub asked: u64,
    #[prost(uint64, tag = "3")]
    pub refused: u64,
    #[prost(uint64, tag = "4")]
    pub degraded: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Rules {
    #[prost(string, tag = "1")]
    pub head: String,
    #[prost(uint64, tag = "2")]
    pub at_ms: u64,
    #[prost(string, tag = "3")]
    pub who: String,
    #[prost(string, tag = "4")]
    pub change: String,
    #[prost(string, tag = "5")]
    pub note: String,
    #[prost(string, tag = "6")]
    pub text: String,
}

/// Rules that run in shadow beside those in force.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Candidate {
    /// Number of the candidate, never that of another one; 0: there is none.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub text: String,
    /// Summary of its changes.
    #[prost(string, tag = "3")]
    pub change: String,
    /// Reason that its author gave.
    #[prost(string, tag = "4")]
    pub note: String,
    /// Person who started it.
    #[prost(string, tag = "5")]
    pub by: String,
    /// Start, in seconds since 1970.
    #[prost(int64, tag = "6")]
    pub at: i64,
    /// Number of nodes that share a limit that is new.
    #[prost(uint32, tag = "7")]
    pub nodes: u32,
    /// The version of the rules that it was made from; empty: there was none.
    #[prost(string, tag = "8")]
    pub from: String,
}

/// Counts of a candidate since the member began to run it.
#[derive(Clone, PartialEq, Message)]
pub struct CandidateSeen {
    /// Number of the candidate that it was given last; 0: none.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Reason why it does not run.
    #[prost(string, tag = "2")]
    pub refused: String,
    #[prost(uint64, tag = "3")]
    pub calls: u64,
    /// Calls that were allowed and that the candidate would refuse.
    #[prost(uint64, tag = "4")]
    pub would_refuse: u64,
    /// Calls that were refused and that the candidate would allow.
    #[prost(uint64, tag = "5")]
    pub would_allow: u64,
    /// Calls of domains that the candidate does not have.
    #[prost(uint64, tag = "6")]
    pub unanswered: u64,
    /// The keys that it would refuse most often.
    #[prost(message, repeated, tag = "7")]
    pub keys: Vec<CandidateKey>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct CandidateKey {
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub at_least: u64,
    #[prost(uint64, tag = "3")]
    pub at_most: u64,
}

/// Decisions of a server in the last minute, and the keys that it refuses.
#[derive(Clone, PartialEq, Message)]
pub struct NodeSeen {
    /// Times of its decisions.
    #[prost(message, optional, tag = "1")]
    pub latency: Option<Latency>,
    /// The keys refused most often, at most 20.
    #[prost(message, repeated, tag = "2")]
    pub refused: Vec<CandidateKey>,
    /// Any other key was refused at most so often.
    #[prost(uint64, tag = "3")]
    pub others_at_most: u64,
    /// Time for which refusals are counted, up to now.
    #[prost(uint64, tag = "4")]
    pub refused_ns: u64,
    /// Missing: they are not known, since the store does not answer.
    #[prost(message, optional, tag = "5")]
    pub bans: Option<Bans>,
    /// Outcomes within the window of `latency`.
    #[prost(message, optional, tag = "6")]
    pub outcomes: Option<Outcomes>,
}

/// Numbers of calls by outcome; those that were answered degraded are among the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Outcomes {
    #[prost(uint64, tag = "1")]
    pub allowed: u64,
    #[prost(uint64, tag = "2")]
    pub denied: u64,
    /// Calls that were allowed, and that a rule in shadow would have refused.
    #[prost(uint64, tag = "3")]
    pub would_refuse: u64,
    #[prost(uint64, tag = "4")]
    pub degraded: u64,
}

/// Decisions by how long they took.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Latency {
    /// The upper edges of the buckets, in nanoseconds, ascending; at most 64.
    #[prost(uint64, repeated, tag = "1")]
    pub edges_ns: Vec<u64>,
    /// Number of decisions in each bucket; the last one is above all edges.
    #[prost(uint64, repeated, tag = "2")]
    pub counts: Vec<u64>,
    /// Time in which they were made, up to now.
    #[prost(uint64, tag = "3")]
    pub window_ns: u64,
}

/// Bans in force.
#[derive(Clone, PartialEq, Message)]
pub struct Bans {
    /// At most 20, the longest first.
    #[prost(message, repeated, tag = "1")]
    pub bans: Vec<Ban>,
    /// Number of all bans, with those that are not in the list.
    #[prost(uint64, tag = "2")]
    pub total: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ban {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(string, tag = "2")]
    pub rule: String,
    #[prost(message, repeated, tag = "3")]
    pub entries: Vec<KeyEntry>,
    #[prost(uint64, tag = "4")]
    pub left_ns: u64,
    /// Reason that an operator gave; empty if none.
    #[prost(string, tag = "5")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct KeyEntry {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Missing: the call had no such entry.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Right {
    #[prost(uint64, tag = "1")]
    pub rate: u64,
    #[prost(uint64, tag = "2")]
    pub burst: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Lease {
    #[prost(message, optional, tag = "1")]
    pub right: Option<Right>,
    #[prost(uint64, tag = "2")]
    pub lasts_ns: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct LimitName {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

/// Rights that a process has before its first grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Kept {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    #[prost(message, optional, tag = "2")]
    pub right: Option<Right>,
    #[prost(message, optional, tag = "3")]
    pub whole: Option<Right>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GivenUp {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(message, repeated, tag = "2")]
    pub bases: Vec<Kept>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Join {
    #[prost(uint32, tag = "1")]
    pub member: u32,
    #[prost(uint64, tag = "2")]
    pub nonce: u64,
    #[prost(uint32, tag = "3")]
    pub weight: u32,
    #[prost(string, repeated, tag = "4")]
    pub groups: Vec<String>,
    #[prost(bool, tag = "5")]
    pub exclusive: bool,
    #[prost(uint64, tag = "6")]
    pub replaces: u64,
    #[prost(message, repeated, tag = "7")]
    pub floors: Vec<Kept>,
    #[prost(message, optional, tag = "8")]
    pub gave_up: Option<GivenUp>,
    #[prost(uint64, tag = "9")]
    pub epoch: u64,
    #[prost(uint64, tag = "10")]
    pub record: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Load {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    #[prost(uint64, tag = "2")]
    pub demand: u64,
    #[prost(uint64, tag = "3")]
    pub margin: u64,
    #[prost(uint64, tag = "4")]
    pub admitted: u64,
    #[prost(uint64, tag = "5")]
    pub denied: u64,
    #[prost(message, optional, tag = "6")]
    pub totals: Option<Totals>,
}

/// Micro-units that calls asked for since the process began to count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Totals {
    #[prost(uint64, tag = "1")]
    pub asked: u64,
    #[prost(uint64, tag = "2")]
    pub refused: u64,
    #[prost(uint64, tag = "3")]
    pub degraded: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Held {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    /// At most 3.
    #[prost(message, repeated, tag = "2")]
    pub leases: Vec<Lease>,
    #[prost(message, optional, tag = "3")]
    pub gap: Option<Right>,
    #[prost(uint64, tag = "4")]
    pub base_in_ns: u64,
    #[prost(message, optional, tag = "5")]
    pub base: Option<Right>,
    #[prost(uint64, tag = "6")]
    pub base_for_ns: u64,
    #[prost(message, optional, tag = "7")]
    pub floor: Option<Right>,
    /// Without it the floor has no end.
    #[prost(uint64, optional, tag = "8")]
    pub floor_for_ns: Option<u64>,
    #[prost(message, optional, tag = "9")]
    pub whole: Option<Right>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeldLimits {
    #[prost(message, repeated, tag = "1")]
    pub limits: Vec<Held>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Report {
    #[prost(uint32, tag = "1")]
    pub member: u32,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    #[prost(uint64, tag = "3")]
    pub seq: u64,
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    #[prost(uint64, tag = "5")]
    pub applied: u64,
    #[prost(uint64, tag = "6")]
    pub revision: u64,
    #[prost(uint64, tag = "7")]
    pub record: u64,
    #[prost(message, repeated, tag = "8")]
    pub loads: Vec<Load>,
    /// Missing while the member acknowledges a version; an empty list says that it holds nothing.
    #[prost(message, optional, tag = "9")]
    pub held: Option<HeldLimits>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Leave {
    #[prost(uint32, tag = "1")]
    pub member: u32,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Joined {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub nonce: u64,
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    #[prost(message, repeated, tag = "4")]
    pub names: Vec<LimitName>,
    #[prost(uint64, tag = "5")]
    pub record: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Occupied {
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    #[prost(uint64, tag = "4")]
    pub retry_ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Granted {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    /// At most 3.
    #[prost(message, repeated, tag = "2")]
    pub leases: Vec<Lease>,
    #[prost(message, optional, tag = "3")]
    pub gap: Option<Right>,
    #[prost(message, optional, tag = "4")]
    pub base: Option<Right>,
    #[prost(message, optional, tag = "5")]
    pub floor: Option<Right>,
    #[prost(message, optional, tag = "6")]
    pub whole: Option<Right>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Grant {
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub version: u64,
    #[prost(uint64, tag = "4")]
    pub seq: u64,
    #[prost(uint64, tag = "5")]
    pub revision: u64,
    #[prost(uint64, tag = "6")]
    pub record: u64,
    #[prost(uint64, tag = "7")]
    pub report_ns: u64,
    #[prost(uint64, tag = "8")]
    pub promise_ns: u64,
    #[prost(uint64, tag = "9")]
    pub hold_ns: u64,
    #[prost(uint64, optional, tag = "10")]
    pub ends_ns: Option<u64>,
    #[prost(bool, tag = "11")]
    pub draining: bool,
    #[prost(message, repeated, tag = "12")]
    pub rights: Vec<Granted>,
    #[prost(message, repeated, tag = "13")]
    pub names: Vec<LimitName>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Hold {
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub seq: u64,
    #[prost(uint64, tag = "4")]
    pub record: u64,
    #[prost(uint64, optional, tag = "5")]
    pub promise_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Pushed {
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    #[prost(message, optional, tag = "2")]
    pub right: Option<Right>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Push {
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub version: u64,
    #[prost(uint64, tag = "4")]
    pub revision: u64,
    #[prost(message, repeated, tag = "5")]
    pub rights: Vec<Pushed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Left {
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Unknown {
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub retry_ns: u64,
    /// Reason why a join is refused.
    #[prost(message, optional, tag = "4")]
    pub no_seat: Option<NoSeat>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct NoSeat {
    #[prost(enumeration = "no_seat::Why", tag = "1")]
    pub why: i32,
    /// The group that this is about; empty for the group of all.
    #[prost(string, tag = "2")]
    pub group: String,
}

/// Reasons of a [`NoSeat`].
pub mod no_seat {
    use prost::Enumeration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[repr(i32)]
    pub enum Why {
        /// All seats of the group are taken.
        Full = 0,
        /// A process that may be alive has the member's number.
        Taken = 1,
        /// No rule in force names the group.
        NoGroup = 2,
        /// Others with the same credential joined too often in the last minute.
        TooManyJoins = 3,
        /// The configuration store takes no writes.
        Unwritten = 4,
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Elsewhere {
    #[prost(uint32, optional, tag = "1")]
    pub leader: Option<u32>,
    #[prost(uint64, tag = "2")]
    pub retry_ns: u64,
    /// URL of the leader, as members reach it; empty if that is not known.
    #[prost(string, tag = "3")]
    pub url: String,
}

/// The file of a node, with which its next start begins. It is never sent.
#[derive(Clone, PartialEq, Message)]
pub struct NodeFile {
    #[prost(uint32, tag = "1")]
    pub member: u32,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    #[prost(uint64, tag = "4")]
    pub record: u64,
    #[prost(uint64, tag = "5")]
    pub revision: u64,
    #[prost(message, repeated, tag = "6")]
    pub names: Vec<LimitName>,
    #[prost(message, repeated, tag = "7")]
    pub kept: Vec<Kept>,
}
