//! Error: why rules cannot be followed, and why a question has no answer.

use std::fmt;
use std::sync::Arc;

use quell_core::limit::LimitError;

use crate::store::StoreError;

/// A rule that cannot be followed on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    /// The rule's domain.
    pub domain: Arc<str>,
    /// The rule's name.
    pub rule: Arc<str>,
    /// What is wrong with a limit of it.
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
    /// The limit that came with the call is impossible.
    Impossible(LimitError),
    /// The store cannot tell.
    Store(StoreError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain => f.write_str("no rules for this domain"),
            Self::UnknownRule => f.write_str("no such rule in this domain, or it is unlimited"),
            Self::Impossible(error) => error.fmt(f),
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
