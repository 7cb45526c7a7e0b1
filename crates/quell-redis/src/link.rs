//! Sends commands to the server that has a key now.
//!
//! A command is sent once. It is sent again only if the server said that it did not run it (it is a
//! replica, it is loading, the key moved, the script is not loaded), or if it was never sent because there
//! was no connection. If a connection breaks with commands in flight, it is unknown whether they ran: they
//! fail, and nothing is charged twice.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::resp::{ServerError, Value};

use crate::sync::sleep;
use crate::url::{Address, ServerShape, StoreUrl};

mod cluster;
mod command;
mod connection;
mod endpoint;
#[cfg(test)]
pub(crate) mod fake;
mod node;
mod reply;
mod search;
mod sentinel;
mod settings;
mod shared_task;
mod slot_tags;
mod traffic;

use cluster::{Cluster, slot_of};
pub(crate) use command::Command;
pub(crate) use endpoint::Endpoint;
use node::Node;
use search::Search;
use sentinel::Sentinel;
pub(crate) use settings::Settings;

/// Reason why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The command was not handed to the system to send: there is no connection, or earlier commands have
    /// no answer.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// The command was handed to the system to send, and the connection broke, or there was no answer
    /// in time: it is unknown whether it ran.
    #[error("{0}")]
    Unknown(String),
    /// The store answers, but more calls wait than it can answer in time. This call came last and was not
    /// sent.
    #[error("more calls wait for the store than it answers in time")]
    Overloaded,
    /// The server refused the command and did not run it.
    #[error("the server refused the command: {0}")]
    Refused(String),
    /// The server can run no such command now, and ran nothing: it is a replica, it is loading, or its
    /// cluster is down. No other server was found in time.
    #[error("the server takes no calls now: {0}")]
    NotReady(String),
    /// The keys of the command are being moved from one server to another, and still were when its time
    /// was over. Both servers answer, and ran nothing.
    #[error("the keys of this call move to another server: {0}")]
    Moving(String),
    /// The server does not know the script. The text is sent then, so callers never see this.
    #[error("the server forgets scripts at once")]
    NoScript,
    /// One of our keys has a value that Quell did not write.
    #[error(
        "a key of Quell holds a value that Quell did not write: {0}; give Quell a database of its own"
    )]
    Foreign(String),
}

impl Failure {
    /// Returns true if the server takes no writes at all now, on any key.
    pub(crate) fn refuses_writes(&self) -> bool {
        let words = ["NOREPLICAS ", "OOM command", "MISCONF "];
        matches!(self, Self::Refused(reason) if words.iter().any(|word| reason.contains(word)))
    }
}

/// Reason why an attempt has no answer.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// The command failed, and is not sent again.
    Failed(Failure),
    /// Not run: another server has the key, from now on.
    Moved(Address),
    /// Not run: another server has the key, for this one command.
    Ask(Address),
    /// Not run: this server is not a primary (any more), is still loading, or does not have all of the
    /// keys. The command is sent again, and fails with this if that does not help.
    Away(Failure),
}

/// Sends commands to the servers of a store.
#[derive(Debug)]
pub(crate) struct Link {
    /// Time that a command may take.
    timeout: Duration,
    route: Route,
}

/// Route from a key to its server.
#[derive(Debug)]
enum Route {
    /// One server, always at the same address.
    Single(Arc<Node>),
    /// One primary at a time, as sentinels say.
    Sentinel(Arc<Sentinel>),
    /// Many primaries, each with some of the keys.
    Cluster(Arc<Cluster>),
}

impl Link {
    /// Sends commands to the servers at `url`, each of which may take `timeout`.
    pub(crate) fn new(url: &StoreUrl, timeout: Duration) -> Self {
        Self::with_settings(Settings::new(url, timeout))
    }

    /// The same with these settings.
    pub(crate) fn with_settings(settings: Settings) -> Self {
        let (timeout, settings) = (settings.timeout, Arc::new(settings));
        let shape = settings.url.shape.clone();
        let route = match &shape {
            ServerShape::Single(address) => Route::Single(Node::new(address.clone(), settings)),
            ServerShape::Sentinel { sentinels, name } => {
                Route::Sentinel(Arc::new(Sentinel::new(sentinels, name, settings)))
            }
            ServerShape::Cluster(seeds) => {
                slot_tags::prepare();
                Route::Cluster(Arc::new(Cluster::new(seeds, settings)))
            }
        };
        Self { timeout, route }
    }

    /// The only endpoint, or the cluster that has many.
    fn only(&self) -> Result<&Arc<Endpoint>, &Arc<Cluster>> {
        match &self.route {
            Route::Single(node) => Ok(&node.endpoint),
            Route::Sentinel(sentinel) => Ok(&sentinel.endpoint),
            Route::Cluster(cluster) => Err(cluster),
        }
    }

    /// The slot of `key`: a script may see keys in the same slot. 0 without slots.
    pub(crate) fn group_of(&self, key: &[u8]) -> u16 {
        if self.is_spread() { slot_of(key) } else { 0 }
    }

    /// A hash tag for names in the slot of `key`; `None` without slots.
    pub(crate) fn tag_of(&self, key: &[u8]) -> Option<u32> {
        let is_spread = self.is_spread();
        is_spread.then(|| slot_tags::tag_of(slot_of(key)))
    }

    /// Keys in the groups that one script may see together.
    pub(crate) fn together<'k>(&self, keys: &'k [Vec<u8>]) -> Vec<&'k [Vec<u8>]> {
        let size = if self.is_spread() {
            1
        } else {
            keys.len().max(1)
        };
        keys.chunks(size).collect()
    }

    /// Returns true if there is one server only.
    pub(crate) const fn is_single(&self) -> bool {
        matches!(self.route, Route::Single(_))
    }

    /// Returns true if several servers have the keys.
    pub(crate) const fn is_spread(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// The server that is asked about `key`.
    pub(crate) fn endpoint_of(&self, key: &[u8]) -> Arc<Endpoint> {
        let only = self.only().cloned();
        only.unwrap_or_else(|cluster| cluster.endpoint_of(slot_of(key)))
    }

    /// All servers that are asked, as far as is known.
    pub(crate) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        let only = self.only().map(|only| vec![Arc::clone(only)]);
        only.unwrap_or_else(|cluster| cluster.endpoints())
    }

    /// Returns true if any server is thought to be gone. Cheap: asked before every call.
    pub(crate) fn is_any_gone(&self) -> bool {
        let only = self.only().map(|only| only.breaker.is_open());
        only.unwrap_or_else(|cluster| cluster.is_any_gone())
    }

    /// A hash tag for keys on `endpoint`; `None` if it has no slot (any more).
    pub(crate) fn tag_at(&self, endpoint: &Arc<Endpoint>) -> Option<String> {
        let only = self.only().map(|_| Some(String::new()));
        only.unwrap_or_else(|cluster| cluster.tag_at(endpoint))
    }

    /// Asks other servers which server has the keys of one that does not answer.
    pub(crate) async fn find_successor(&self, endpoint: &Arc<Endpoint>) {
        let found = match &self.route {
            Route::Single(_) => Ok(()),
            Route::Sentinel(sentinel) => sentinel.refresh().await,
            Route::Cluster(cluster) => cluster.find_successor(endpoint).await,
        };
        if let Err(failure) = found {
            tracing::debug!(
                %failure,
                "no server says which server took over the keys of a lost one"
            );
        }
    }

    /// Gives up the connections to a server, in case its machine is gone: then no answer comes back on
    /// them, and the system would wait for a quarter of an hour.
    pub(crate) fn hang_up(&self, endpoint: &Arc<Endpoint>) {
        match &self.route {
            Route::Single(node) => node.hang_up(),
            Route::Sentinel(sentinel) => sentinel.hang_up(),
            Route::Cluster(cluster) => cluster.hang_up(endpoint),
        }
    }

    /// [`call`](Self::call) for callers who come so often that a connection is never quiet. One without an answer is
    /// given up: perhaps nothing ever comes back on it.
    pub(crate) async fn call_or_hang_up(
        &self,
        key: &[u8],
        command: Command,
    ) -> Result<Value, Failure> {
        let answer = self.call(key, command).await;
        if let Err(Failure::Unknown(_) | Failure::Unreachable(_)) = &answer {
            self.hang_up(&self.endpoint_of(key));
        }
        answer
    }

    /// Sends `command`, which is about `key`, to the server that has it, and tries again while servers
    /// say that they ran nothing. A server that does not know a script gets its text.
    ///
    /// Each attempt may take as long as a command may, not counting the time that it spends on a
    /// connection, which has its own limit. So a command that times out here was not sent.
    pub(crate) async fn call(&self, key: &[u8], mut command: Command) -> Result<Value, Failure> {
        let timeout = self.timeout;
        loop {
            let attempt = async {
                match &self.route {
                    Route::Single(node) => {
                        let search = Search::begin(timeout);
                        loop {
                            let failure = match node.call(&command).await {
                                Ok(value) => return Ok(value),
                                Err(attempt) => again_at_one(attempt)?,
                            };
                            tracing::debug!(?node, %failure, "asking again");
                            search.pause(failure).await?;
                        }
                    }
                    Route::Sentinel(sentinel) => sentinel.call(&command).await,
                    Route::Cluster(cluster) => cluster.call(key, &command).await,
                }
            };
            let answer = {
                let (mut attempt, mut end) = (pin!(attempt), pin!(sleep(timeout)));
                let answer = poll_fn(|context| match attempt.as_mut().poll(context) {
                    Poll::Pending if !command.is_on_connection() => {
                        let late = || Failure::Unreachable(command.late(timeout));
                        end.as_mut().poll(context).map(|()| Err(late()))
                    }
                    answer => answer,
                });
                answer.await
            };
            // The script was never loaded or was flushed, or the server restarted: it ran nothing.
            match answer {
                Err(Failure::NoScript) => match command.with_text() {
                    Some(with_text) => command = with_text,
                    None => return answer,
                },
                _ => return answer,
            }
        }
    }
}

/// Failure after which a single server is asked again; an error if it should not be.
fn again_at_one(attempt: AttemptFailure) -> Result<Failure, Failure> {
    match attempt {
        AttemptFailure::Away(failure) => Ok(failure),
        AttemptFailure::Failed(failure) => Err(failure),
        AttemptFailure::Moved(_) | AttemptFailure::Ask(_) => Err(Failure::Refused(
            "this server is one of a cluster: write redis+cluster:// in place of redis://"
                .to_owned(),
        )),
    }
}

/// Meaning of an error of a server.
fn judge(error: &ServerError) -> AttemptFailure {
    if let Some(node) = error.redirect() {
        let (host, port) = node.rsplit_once(':').unwrap_or((node, ""));
        let there = Address::new(host, port.parse().unwrap_or_default());
        return match error.code() {
            "ASK" => AttemptFailure::Ask(there),
            _ => AttemptFailure::Moved(there),
        };
    }
    let text = error.to_string();
    match error.code() {
        "NOSCRIPT" => AttemptFailure::Failed(Failure::NoScript),
        "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => {
            AttemptFailure::Away(Failure::NotReady(text))
        }
        "TRYAGAIN" => AttemptFailure::Away(Failure::Moving(text)),
        "WRONGTYPE" => AttemptFailure::Failed(Failure::Foreign(text)),
        _ => of_script(text),
    }
}

/// Meaning of the error of one call of a batch. `None`: this server may not write, so the call is sent
/// again on its own.
pub(crate) fn of_entry(text: String) -> Option<Failure> {
    if text.contains("READONLY ") {
        return None;
    }
    match of_script(text) {
        AttemptFailure::Failed(failure) => Some(failure),
        _ => None,
    }
}

/// An error inside a script has the text of the command's error in its own text; before Redis 7 it
/// follows another code. Such commands fail at the script's first write, so the script wrote nothing.
fn of_script(text: String) -> AttemptFailure {
    // The error is the script's, not a command's: it could not make sense of a value.
    let is_own = text.starts_with("user_script:") || text.contains(" user_script:");
    if is_own || text.contains("QUELLFOREIGN") || text.contains("WRONGTYPE") {
        return AttemptFailure::Failed(Failure::Foreign(text));
    }
    if text.contains("-READONLY ") {
        return AttemptFailure::Away(Failure::NotReady(text));
    }
    // A key that the script found by itself is being moved to another server: nothing was written.
    if text.contains("non local key") {
        return AttemptFailure::Away(Failure::Moving(text));
    }
    AttemptFailure::Failed(Failure::Refused(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_inside_a_script_are_told_apart_as_redis_6_and_7_say_them() {
        let away = "ERR Error running script (call to f_1): @user_script:2: @user_script: 2: -READONLY You can't write against a read only replica.";
        assert!(matches!(
            of_script(away.to_owned()),
            AttemptFailure::Away(_)
        ));
        for foreign in [
            "ERR Error running script (call to f_1): @user_script:1: -WRONGTYPE Operation against a key",
            "ERR user_script:9: QUELLFOREIGN a value that Quell did not write script: 1",
            "ERR Error running script (call to f_1): @user_script:7: user_script:7: attempt to index a nil value",
            "ERR user_script:7: bad argument #1 to 'min' (number expected, got nil) script: 1, on @user_script:7.",
            "user_script:7: bad argument #1 to 'min' (number expected, got nil)",
        ] {
            let failure = of_script(foreign.to_owned());
            assert!(matches!(
                failure,
                AttemptFailure::Failed(Failure::Foreign(_))
            ));
        }
        for full in [
            "ERR Error running script (call to f_1): @user_script:4: -OOM command not allowed",
            "OOM command not allowed when used memory > 'maxmemory'. script: 1, on @user_script:4.",
        ] {
            let failure = of_script(full.to_owned());
            assert!(matches!(
                failure,
                AttemptFailure::Failed(Failure::Refused(_))
            ));
        }
    }
}
