//! Search: how long one call looks for a server that runs it.
//!
//! It ends a little before the call's own time is over, so that what is answered is what the servers
//! said, and not that there was no answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::command::Command;
use super::node::Node;
use super::{Attempt, Failure};

/// How long to wait before a server is asked again that said to come back later.
const PAUSE: Duration = Duration::from_millis(10);

/// How long one server may take to say who has the keys, before it counts as silent.
pub(super) const ASK_TIME: Duration = Duration::from_millis(500);

/// The search of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    end: Instant,
}

impl Search {
    /// Begins one of a call that may take so long.
    pub(super) fn begin(time: Duration) -> Self {
        let time = time.saturating_sub(PAUSE.min(time / 2));
        let now = Instant::now();
        Self {
            end: now.checked_add(time).unwrap_or(now),
        }
    }

    /// Waits until somebody may be asked again; gives up with what was heard `last` if that would be
    /// too late.
    pub(super) async fn pause(self, last: Failure) -> Result<(), Failure> {
        if Instant::now() + PAUSE >= self.end {
            return Err(last);
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Awaits work that goes on without us; gives up with what was heard `last`.
    pub(super) async fn bound<T>(
        self,
        last: impl FnOnce() -> Failure,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = timeout_at(self.end, work).await;
        done.unwrap_or_else(|_| Err(last()))
    }
}

/// Asks one server, and not for long: who is silent gets a new connection the next time.
pub(super) async fn look_at(node: &Arc<Node>, command: &Cmd) -> Result<Value, Failure> {
    match timeout(ASK_TIME, node.call(&Command::from(command))).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Attempt::Failed(failure))) => {
            if matches!(failure, Failure::Unknown(_) | Failure::Unreachable(_)) {
                node.hang_up();
            }
            Err(failure)
        }
        Ok(Err(Attempt::Away(reason))) => Err(Failure::NotReady(reason)),
        Ok(Err(Attempt::Moved(_) | Attempt::Ask(_))) => Err(Failure::Refused(format!(
            "{} sends us elsewhere",
            node.address()
        ))),
        Err(_) => {
            node.hang_up();
            let address = node.address();
            let reason = format!("{address}: no answer within {ASK_TIME:?}");
            Err(Failure::Unreachable(reason))
        }
    }
}
