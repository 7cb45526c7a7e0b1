//! Candidate: what people are shown of rules that run in shadow.

use quell_protocol::http::{CandidateCounts, CandidateNodes, RefusedKeyBody, RunningCandidateBody};

/// Facts about a candidate, for people.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Number of its store of rules, from 0.
    pub place: usize,
    /// The version that its text was made from; empty: there was none.
    pub from: String,
    /// The rules.
    pub text: String,
    /// Its changes, in a line.
    pub change: String,
    /// Reason, for people.
    pub note: String,
    /// Its starter.
    pub by: String,
    /// Time of its start, in seconds since 1970.
    pub at: i64,
}

/// Results of a candidate.
#[derive(Clone, Debug)]
pub struct CandidateStatus {
    /// The candidate.
    pub about: About,
    /// Calls since it was started.
    pub counts: CandidateCounts,
    /// The keys of calls that were allowed and that it would refuse, most often first.
    pub keys: Vec<RefusedKeyBody>,
    /// The nodes that run it; none if it is that of one server.
    pub nodes: Option<CandidateNodes>,
}

impl From<CandidateStatus> for RunningCandidateBody {
    fn from(status: CandidateStatus) -> Self {
        let about = status.about;
        Self {
            change: about.change,
            note: about.note,
            by: about.by,
            at: about.at,
            counts: status.counts,
            keys: status.keys,
            nodes: status.nodes,
        }
    }
}
