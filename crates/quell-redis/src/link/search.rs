//! Search of one call for a server that runs it, and its time limit.
//!
//! The search ends a little before the call's own timeout, so that the caller gets the servers' reason
//! and not just a timeout.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::resp::{Cmd, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::command::Command;
use super::node::Node;
use super::settings::ASK_TIME;
use super::{AttemptFailure, Failure};
use crate::sync::sleep;

/// The pause before a server is asked again that ran nothing.
const PAUSE: Duration = Duration::from_millis(10);

/// The search of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    end: Instant,
}

impl Search {
    /// Begins the search of a call that may take `time`.
    pub(super) fn begin(time: Duration) -> Self {
        let time = time.saturating_sub(PAUSE.min(time / 2));
        let now = Instant::now();
        Self {
            end: now.checked_add(time).unwrap_or(now),
        }
    }

    /// Pauses before the next attempt; fails with the `last` failure if that would be too late.
    pub(super) async fn pause(self, last: Failure) -> Result<(), Failure> {
        if Instant::now() + PAUSE >= self.end {
            return Err(last);
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Awaits work that continues without this call; when the time is over fails with the `last` failure.
    pub(super) async fn bound<T>(
        self,
        last: impl FnOnce() -> Failure,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = timeout_at(self.end, work).await;
        done.unwrap_or_else(|_| Err(last()))
    }
}

/// Asks one server, with a short timeout. A silent server gets a new connection the next time. An
/// overloaded server keeps its connection: that calls wait, or that it answers others first, does not
/// prove that it is gone.
pub(super) async fn look_at(node: &Arc<Node>, command: &Cmd) -> Result<Value, Failure> {
    let command = Command::from(command);
    let address = &node.address;
    let failure = match timeout(ASK_TIME, node.call(&command)).await {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(AttemptFailure::Away(failure))) => return Err(failure),
        Ok(Err(AttemptFailure::Moved(_) | AttemptFailure::Ask(_))) => {
            return Err(Failure::Refused(format!(
                "{address} redirects to another server"
            )));
        }
        Ok(Err(AttemptFailure::Failed(
            failure @ (Failure::Unknown(_) | Failure::Unreachable(_)),
        ))) => failure,
        Ok(Err(AttemptFailure::Failed(failure))) => return Err(failure),
        Err(_) if command.is_waiting() => return Err(Failure::Overloaded),
        Err(_) => Failure::Unreachable(format!("{address}: no answer within {ASK_TIME:?}")),
    };
    match command.sent() {
        Some(sent) if node.hang_up_if_silent(sent) => Err(Failure::Overloaded),
        _ => Err(failure),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    use super::super::Settings;
    use super::*;
    use crate::resp::cmd;
    use crate::url::Address;

    /// A server that gives every command the same answer, as often as the test allows.
    pub(crate) struct Fake {
        pub(crate) address: Address,
        /// Number of commands that it may answer.
        pub(crate) answers: Arc<Semaphore>,
        /// Number of connections that were made to it.
        pub(crate) accepted: Arc<AtomicUsize>,
    }

    impl Fake {
        pub(crate) async fn start(reply: &'static [u8]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
            let answers = Arc::new(Semaphore::new(0));
            let allowed = Arc::clone(&answers);
            let accepted = Arc::<AtomicUsize>::default();
            let made = Arc::clone(&accepted);
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    made.fetch_add(1, Ordering::Relaxed);
                    let allowed = Arc::clone(&allowed);
                    tokio::spawn(async move {
                        let mut bytes = [0; 4_096];
                        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                            for _ in bytes[..count].iter().filter(|byte| **byte == b'*') {
                                allowed.acquire().await.unwrap().forget();
                                if stream.write_all(reply).await.is_err() {
                                    return;
                                }
                            }
                        }
                    });
                }
            });
            Self {
                address,
                answers,
                accepted,
            }
        }

        /// Makes calls that may take for ever; returns when a connection has them all.
        pub(crate) async fn calls(
            &self,
            node: &Arc<Node>,
            count: usize,
        ) -> tokio::task::JoinHandle<usize> {
            let commands: Vec<_> = (0..count).map(|_| Command::from(&cmd("PING"))).collect();
            let (node, sent) = (Arc::clone(node), commands.clone());
            let calls = tokio::spawn(async move {
                let calls = sent.iter().map(|command| node.call(command));
                let answers = join_all(calls).await;
                answers.iter().filter(|answer| answer.is_ok()).count()
            });
            while !commands.iter().all(Command::is_on_connection) {
                sleep(Duration::from_millis(1)).await;
            }
            calls
        }
    }

    /// More calls than may be in flight.
    pub(crate) const MANY: usize = 1_100;

    pub(crate) fn settings() -> Arc<Settings> {
        let url = "redis://localhost".parse().unwrap();
        Arc::new(Settings::new(&url, Duration::from_secs(60)))
    }

    /// A node with a connection on which `count` calls wait.
    async fn busy(fake: &Fake, count: usize) -> (Arc<Node>, tokio::task::JoinHandle<usize>) {
        let node = Node::new(fake.address.clone(), settings());
        fake.answers.add_permits(Semaphore::MAX_PERMITS);
        look_at(&node, &cmd("PING")).await.unwrap();
        fake.answers.forget_permits(Semaphore::MAX_PERMITS);
        let calls = fake.calls(&node, count).await;
        (node, calls)
    }

    #[tokio::test]
    async fn a_look_that_waits_in_the_queue_leaves_the_connection_alone() {
        let fake = Fake::start(b"+OK\r\n").await;
        let (node, calls) = busy(&fake, MANY).await;
        let before = node.live().unwrap();
        let looked = look_at(&node, &cmd("PING")).await;
        assert_eq!(looked, Err(Failure::Overloaded));
        assert!(node.live().is_some_and(|live| live.is_same(&before)));
        fake.answers.add_permits(MANY + 1);
        assert_eq!(calls.await.unwrap(), MANY);
    }

    #[tokio::test]
    async fn a_look_hangs_up_on_who_is_silent_and_not_on_who_answers_others() {
        for is_silent in [false, true] {
            let fake = Fake::start(b"+OK\r\n").await;
            let (node, calls) = busy(&fake, 16).await;
            let before = node.live().unwrap();
            let look = cmd("PING");
            let (looked, ()) = futures_util::future::join(look_at(&node, &look), async {
                sleep(ASK_TIME / 5).await;
                fake.answers.add_permits(if is_silent { 0 } else { 8 });
            })
            .await;
            match looked {
                Err(Failure::Unreachable(_)) => assert!(is_silent),
                other => assert!(!is_silent && other == Err(Failure::Overloaded)),
            }
            let is_kept = node.live().is_some_and(|live| live.is_same(&before));
            assert_eq!(is_kept, !is_silent);
            fake.answers.add_permits(17);
            assert_eq!(calls.await.unwrap(), 16);
        }
    }
}
