//! Errors: why rules cannot be applied, and why a call has no answer.

use std::sync::Arc;
use std::time::Duration;

use quell_core::limit_error::LimitError;
use quell_core::query_bounds::QueryError;
use quell_core::time::Exact;
use thiserror::Error;

use crate::store::StoreError;

/// A rule that this machine or this store cannot apply.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("rule {rule} of domain {domain}: {error}")]
pub struct RulesError {
    /// The rule's domain.
    pub domain: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// Reason why the limit is not valid.
    pub error: LimitError,
}

/// Reason why there is no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No rules for the query's domain.
    #[error("no rules for this domain")]
    UnknownDomain,
    /// No such rule in the domain, or it is unlimited.
    #[error("no such rule in this domain, or it is unlimited")]
    UnknownRule,
    /// The entries name no key of this rule: no query without this entry has one.
    #[error("rule {rule} has a key per {entry}: write {entry:?} among the entries")]
    NoKey {
        /// The rule.
        rule: Arc<str>,
        /// The entry that is missing.
        entry: Arc<str>,
    },
    /// The limit that came with the call is impossible.
    #[error(transparent)]
    Impossible(LimitError),
    /// The name of a hold is too long, or not of printable ASCII without spaces.
    #[error("the id is no name of a hold: write 1 to 64 printable ASCII characters without spaces")]
    HoldName,
    /// A reservation that would last longer than a rule lets it.
    #[error(
        "rule {rule} lets a reservation last {} at most: reserve for a shorter time and renew, or write a longer \
         max_hold in the rule",
        Exact(*most)
    )]
    LongHold {
        /// The rule.
        rule: Arc<str>,
        /// The longest that it allows.
        most: Duration,
    },
    /// A reservation that is out of bounds: its length, or the number of its descriptors.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A settlement that does not say of each descriptor what it cost.
    #[error(
        "the reservation has {descriptors} descriptors: settle it with {descriptors} numbers, one for \
         each in their order"
    )]
    Unsettled {
        /// Number of descriptors of the reservation.
        descriptors: usize,
    },
    /// The domain has no such hold, or it was forgotten.
    #[error("no reservation or permit has this id")]
    UnknownHold,
    /// The caller's turn came, but its permit's lease expired before the caller went on, or its hold was
    /// cancelled meanwhile.
    #[error("the turn was over, or cancelled, before the caller went on")]
    Overslept,
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}
