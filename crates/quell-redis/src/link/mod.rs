//! Link: the way to whichever server has a key now.
//!
//! A command is sent once. It is sent again only where the server said that it did not run it (it is
//! a replica, it is loading, the key moved, the script is gone), or where it was never sent because
//! no connection stood. When a connection breaks with commands on the way, nobody knows whether they
//! ran: they fail, and nothing is charged twice.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, ServerErrorKind, Value};

use crate::url::{Shape, StoreUrl};

mod counted;
mod node;
mod settings;

use node::Node;
pub(crate) use settings::Settings;

/// How long to wait before a server is asked again that said to come back later.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No connection: the command was not sent.
    Unreachable(String),
    /// The connection broke, or there was no answer in time: nobody knows whether the command ran.
    Unknown(String),
    /// The server refused the command and did not run it.
    Refused(String),
    /// The server does not know the script. It is sent along in the same call, so nobody sees this.
    NoScript,
    /// A value stands under one of our names that is none of ours.
    Foreign(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "not reachable: {reason}"),
            Self::Unknown(reason) => write!(f, "{reason}"),
            Self::Refused(reason) => write!(f, "it refused: {reason}"),
            Self::NoScript => f.write_str("it forgets scripts at once"),
            Self::Foreign(reason) => write!(
                f,
                "a key of ours holds something that Quell did not write: {reason}; delete it, or \
                 give Quell a database of its own"
            ),
        }
    }
}

impl std::error::Error for Failure {}

/// What became of one attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// It is over, one way or the other.
    Failed(Failure),
    /// Not run: this server is no primary (any more), or not yet up.
    Away(String),
}

/// The way to the servers.
#[derive(Debug)]
pub(crate) enum Link {
    /// One server, always at the same address.
    Single(Arc<Node>),
}

impl Link {
    pub(crate) fn new(url: &StoreUrl) -> Self {
        let settings = Arc::new(Settings::new(url));
        match url.shape() {
            Shape::Single(address) => Self::Single(Node::new(address.clone(), settings)),
        }
    }

    /// Keys in the groups that one script may see together.
    pub(crate) fn together<'k>(&self, keys: &'k [Vec<u8>]) -> Vec<&'k [Vec<u8>]> {
        let Self::Single(_) = self;
        if keys.is_empty() {
            Vec::new()
        } else {
            vec![keys]
        }
    }

    /// Sends `command`, which is about `key`, to the server that has it. Goes on trying while servers
    /// say that they ran nothing: the caller limits the time.
    pub(crate) async fn call(&self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        let Self::Single(node) = self;
        let _ = key;
        loop {
            match node.call(command).await {
                Ok(value) => return Ok(value),
                Err(Attempt::Failed(failure)) => return Err(failure),
                Err(Attempt::Away(reason)) => {
                    tracing::debug!(?node, reason, "asking again");
                    // Another server may answer at this address soon.
                    node.hang_up();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// What an error of a server or a connection means.
fn judge(error: &RedisError) -> Attempt {
    let text = || match error.detail() {
        Some(detail) => format!("{} {detail}", error.code().unwrap_or_default()),
        None => error.to_string(),
    };
    let code = error.code().unwrap_or_default();
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::NoScript) => Attempt::Failed(Failure::NoScript),
        redis::ErrorKind::Io => Attempt::Failed(Failure::Unknown(format!(
            "the connection broke before the answer: {error}"
        ))),
        _ => match code {
            "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => {
                Attempt::Away(text())
            }
            "WRONGTYPE" => Attempt::Failed(Failure::Foreign(text())),
            _ => Attempt::Failed(of_script(&text())),
        },
    }
}

/// Errors inside a script carry the error of the command that failed in their text.
fn of_script(text: &str) -> Failure {
    if text.contains("QUELLFOREIGN") || text.contains("WRONGTYPE") {
        return Failure::Foreign(text.to_owned());
    }
    Failure::Refused(text.to_owned())
}
