//! Errors: why rules cannot be applied, and why a call has no answer.

use std::fmt;
use std::sync::Arc;

use quell_core::limit_error::LimitError;

use crate::store::StoreError;

/// A rule that this machine or this store cannot apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    /// The rule's domain.
    pub domain: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// What is wrong with its limit.
    pub error: LimitError,
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rule {} of domain {}: {}",
            self.rule, self.domain, self.error
        )
    }
}

impl std::error::Error for RulesError {}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No rules for the query's domain.
    UnknownDomain,
    /// No such rule in the domain, or it is unlimited.
    UnknownRule,
    /// The entries name no key of this rule: no query without this entry has one.
    NoKey {
        /// The rule.
        rule: Arc<str>,
        /// The entry that is missing.
        entry: Arc<str>,
    },
    /// The limit that came with the call is impossible.
    Impossible(LimitError),
    /// The name of a hold is too long, or not of printable ASCII without spaces.
    HoldName,
    /// A hold of zero, or longer than [`MAX_HOLD`](quell_core::hold::MAX_HOLD).
    HoldLength,
    /// More than one descriptor: settling could not tell what each of them cost.
    HoldDescriptors,
    /// The domain has no such hold, or it was forgotten.
    UnknownHold,
    /// The caller's turn came, but its permit's lease expired before the caller went on.
    Overslept,
    /// The store fails.
    Store(StoreError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain => f.write_str("no rules for this domain"),
            Self::UnknownRule => f.write_str("no such rule in this domain, or it is unlimited"),
            Self::NoKey { rule, entry } => write!(
                f,
                "rule {rule} has a key per {entry}: write {entry:?} among the entries"
            ),
            Self::Impossible(error) => error.fmt(f),
            Self::HoldName => f.write_str(
                "the id is no name of a hold: write 1 to 64 printable ASCII characters without spaces",
            ),
            Self::HoldLength => {
                f.write_str("a hold must be longer than 0 and at most a day: write its length")
            }
            Self::HoldDescriptors => f.write_str(
                "a reservation has one descriptor: reserve each of them under an id of its own",
            ),
            Self::UnknownHold => f.write_str("no reservation or permit has this id"),
            Self::Overslept => f.write_str("the turn came and was over before the caller went on"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl From<StoreError> for AskError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
