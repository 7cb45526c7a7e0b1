//! Reason why a coordinator does not start, or ends by itself.

use quell::override_store::OverrideStoreError;
use quell::rule_store::RuleStoreError;
use quell_host::access::CredentialsError;
use quell_host::config::ConfigError;
use quell_host::listen::BindError;
use quell_host::tls::TlsError;
use quell_rules::Problem;

use crate::config::EtcdAccessError;
use crate::leader::{Ended, StartError};
use crate::store::OpenError;

/// Reason why a coordinator does not start, or ends by itself. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rules have mistakes: each with its place and what to write.
    #[error("{} in the rules", counted(.0.len(), "mistake"))]
    Rules(Vec<Problem>),
    /// Rules cannot be read from a store.
    #[error("cannot read the rules in {url}")]
    RulesStore {
        /// Its URL; shows no password.
        url: String,
        /// Reason.
        source: RuleStoreError,
    },
    /// A store has no rules yet.
    #[error("{url} has no rules yet: {advice}")]
    NoRules {
        /// Its URL; shows no password.
        url: String,
        /// Advice.
        advice: String,
    },
    /// The rules are sound, and a fleet cannot follow them.
    #[error("{0}")]
    Impossible(String),
    /// Etcd's credentials cannot be read.
    #[error(transparent)]
    EtcdAccess(#[from] EtcdAccessError),
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The file of the fleet cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file of stored overrides cannot be used.
    #[error("cannot read the stored overrides")]
    Overrides(#[source] OverrideStoreError),
    /// The coordinator cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The coordinator cannot go on.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The task that leads has ended without a reason.
    #[error("the leader task has ended: see the log for its reason")]
    TaskEnded,
}

/// `1 mistake`, `2 mistakes`.
fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
