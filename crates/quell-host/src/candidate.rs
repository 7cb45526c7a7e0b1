//! Candidate: what people are shown of rules that run in shadow.

use serde::Serialize;

use crate::refused_key::KeyBody;

/// Facts about a candidate, for people.
#[derive(Clone, Debug, Default, Serialize)]
pub struct About {
    /// Which store of rules it is for, from 0.
    #[serde(skip)]
    pub place: usize,
    /// The version that its text was made from; empty: there was none.
    #[serde(skip)]
    pub from: String,
    /// The rules.
    #[serde(skip)]
    pub text: String,
    /// Its changes, in a line.
    pub change: String,
    /// Why.
    pub note: String,
    /// Its starter.
    pub by: String,
    /// When it was started, in seconds since 1970.
    pub at: i64,
}

/// Calls since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// That it decided.
    pub calls: u64,
    /// That were allowed, and that it would refuse.
    pub would_refuse: u64,
    /// That were refused, and that it would allow.
    pub would_allow: u64,
    /// Of domains that it does not have.
    pub unanswered: u64,
}

/// Results of a candidate.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateStatus {
    /// The candidate.
    #[serde(flatten)]
    pub about: About,
    /// Calls since it was started.
    #[serde(flatten)]
    pub counts: Counts,
    /// The keys of calls that were allowed and that it would refuse, most often first.
    pub keys: Vec<KeyBody>,
    /// The nodes that run it; none if it is that of one server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<CandidateNodes>,
}

/// The nodes that are to run a candidate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CandidateNodes {
    /// Nodes running it.
    pub running: usize,
    /// Number of all nodes.
    pub of: usize,
    /// Why others do not, each with its number.
    pub refused: Vec<String>,
}
