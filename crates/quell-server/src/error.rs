//! Errors of a server's start, and of a stop that is not clean.

use std::io;
use std::path::{Path, PathBuf};

use quell::RulesError;
use quell_fleet::agent::FleetError;
use quell_rules::Problem;

use crate::access::CredentialsError;
use crate::listen::BindError;
use crate::tls::TlsError;

/// Reason why a server does not start, or does not stop cleanly. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The rules have mistakes: each with its place and what to write.
    #[error("the rules have mistakes:{}", .0.iter().map(|problem| format!("\n  {problem}")).collect::<String>())]
    Rules(Vec<Problem>),
    /// Rules cannot be read from a store.
    #[error("cannot read the rules from {url}: {reason}; fix that, or write another --rules")]
    RulesStore {
        /// URL of the store; shows no password.
        url: String,
        /// Reason, as far as known.
        reason: String,
    },
    /// A store of rules does not answer, or refuses.
    #[error("cannot read the rules from {url}: {reason}; fix that, or write another --rules")]
    RulesStoreGone {
        /// URL of the store; shows no password.
        url: String,
        /// Reason, as far as known.
        reason: String,
    },
    /// The settings for a control plane cannot be used.
    #[error("cannot follow the control plane {url}: {reason}")]
    ControlPlane {
        /// URL of the control plane.
        url: String,
        /// Reason, as far as known.
        reason: String,
    },
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// This server cannot be a node of a fleet.
    #[error("this server cannot be a node of its fleet")]
    Fleet(#[from] FleetError),
    /// The file of overrides cannot be used.
    #[error("cannot use the overrides of single keys: {0}")]
    Overrides(quell::override_store::OverrideStoreError),
    /// The key that signs reservations cannot be had.
    #[error("cannot use envoy_secret: {0}")]
    EnvoySecret(String),
    /// A rule is sound and still cannot be followed on this machine.
    #[error("{0}")]
    Impossible(RulesError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The decision log cannot be written.
    #[error("cannot write the decision log to {target}: write another --decision-log")]
    DecisionLog {
        /// Target of the log.
        target: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Traces cannot be sent.
    #[error("cannot send traces to {endpoint}: {reason}; fix that, or leave --otlp-endpoint out")]
    Traces {
        /// Endpoint of the collector.
        endpoint: String,
        /// Reason, as far as known.
        reason: String,
    },
    /// The runtime was shut down meanwhile.
    #[error("interrupted: the runtime was shut down")]
    Interrupted,
}

/// Reason why a data directory cannot be used. The text says which file, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// Another server uses it.
    #[error("{} is in use by another server: stop that one, or give another --data-dir", .0.display())]
    InUse(PathBuf),
    /// The system says no.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Action that failed.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A pipe, a device or a directory stands where a file should.
    #[error("{} is not a regular file: move it away, or give another --data-dir", .0.display())]
    NotAFile(PathBuf),
    /// The file is no snapshot.
    #[error("{} is not a snapshot of Quell: move it away, or give another --data-dir", .0.display())]
    Foreign(PathBuf),
    /// The file was written by another version.
    #[error(
        "{} has format {version}, and this version of quell reads {known}: start the version that wrote \
         it, or move the file away to start without its states",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format it is in.
        version: u32,
        /// The format that this version reads.
        known: u32,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({reason}): put a copy in its place, or move it away to start without its \
         states",
        path.display()
    )]
    Torn {
        /// The file.
        path: PathBuf,
        /// Sign of the damage.
        reason: String,
    },
}

/// Error for an error of the system, from `action` on `path`.
pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io {
        action,
        path,
        source,
    }
}
