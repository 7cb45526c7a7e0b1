//! Why a server does not start, or does not stop cleanly.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use quell::RulesError;
use quell_rules::Problem;

use crate::snapshot::DataDirError;

/// Why a server does not start, or does not stop cleanly. The text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The rules have mistakes: each with its place and what to write.
    Rules(Vec<Problem>),
    /// Rules cannot be read from a store.
    RulesStore {
        /// Where it is; shows no password.
        url: String,
        /// What is known of the reason.
        reason: String,
    },
    /// A rule is sound and still cannot be followed on this machine.
    Impossible(RulesError),
    /// An address cannot be listened on.
    Bind {
        /// Which listener.
        listener: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The data directory cannot be used.
    DataDir(DataDirError),
    /// The decision log cannot be written.
    DecisionLog {
        /// Where it should be written.
        target: String,
        /// What the system says.
        source: io::Error,
    },
    /// The runtime was shut down meanwhile.
    Interrupted,
    /// Signals cannot be waited for.
    Signals(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(problems) => {
                f.write_str("the rules have mistakes:")?;
                for problem in problems {
                    write!(f, "\n  {problem}")?;
                }
                Ok(())
            }
            Self::RulesStore { url, reason } => write!(
                f,
                "cannot read the rules from {url}: {reason}; mend that, or write another --rules"
            ),
            Self::Impossible(error) => error.fmt(f),
            Self::Bind {
                listener, address, ..
            } => write!(
                f,
                "cannot listen on {address} for {listener}: stop who does, or write another --{listener}"
            ),
            Self::DataDir(error) => error.fmt(f),
            Self::DecisionLog { target, .. } => write!(
                f,
                "cannot write the decision log to {target}: write another --decision-log"
            ),
            Self::Interrupted => f.write_str("interrupted: the runtime was shut down"),
            Self::Signals(_) => f.write_str("cannot wait for signals"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. }
            | Self::DecisionLog { source, .. }
            | Self::Signals(source) => Some(source),
            Self::DataDir(error) => error.source(),
            Self::Rules(_) | Self::RulesStore { .. } | Self::Impossible(_) | Self::Interrupted => {
                None
            }
        }
    }
}
