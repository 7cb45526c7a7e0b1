//! Gate: asks for a query, applies what was declared for failures, and waits a shaped call's delay.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::charge::Operation;
use quell_core::decision::RetryAfter;
use quell_core::descriptor::Query;
use quell_core::verdict::Verdict;

use super::address::Unconnected;
use crate::error::AskError;
use crate::limiter::Limiter;
use crate::store::Store;

/// The longest delay that is slept unless said. Clients and proxies commonly give up after a
/// minute; who waits longer waits for nobody.
pub(super) const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60);

/// Calls that sleep at one time, unless said: as many as `quell serve` takes connections.
pub(super) const DEFAULT_MAX_WAITING: usize = 10_000;

/// How long a caller is told to wait while the store cannot tell: long enough for a failover to get
/// somewhere, short enough that nobody is gone.
const RETRY_WHEN_DEGRADED: Duration = Duration::from_secs(1);

/// What is answered when the store cannot tell. There is no safe guess, so it has to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The call goes on, uncounted.
    Allow,
    /// The call is refused (503, gRPC `UNAVAILABLE`).
    Deny,
}

/// Why the limiter gave no answer, or none that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The limiter has no answer: the store cannot tell, or there is no such domain.
    Ask(AskError),
    /// The server did not add this extension to the request, so nobody knows who is connected. In
    /// axum: serve `app.into_make_service_with_connect_info::<SocketAddr>()`.
    Unconnected {
        /// The type of the extension.
        extension: &'static str,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(error) => error.fmt(f),
            Self::Unconnected { extension } => write!(
                f,
                "requests have no extension {extension}: have the server add what it knows of the \
                 connection, in axum with into_make_service_with_connect_info"
            ),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Unconnected> for Failure {
    fn from(unconnected: Unconnected) -> Self {
        let Unconnected(extension) = unconnected;
        Self::Unconnected { extension }
    }
}

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Admission {
    Allowed(Verdict),
    Denied(Verdict),
    /// Too many wait already; nothing was charged.
    Overloaded,
    /// This layer is not set up.
    Broken(Failure),
}

/// Hears of failures.
type Listener = Arc<dyn Fn(&Failure) + Send + Sync>;

/// Admits calls.
pub(super) struct Gate<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) on_failure: OnFailure,
    pub(super) max_delay: Duration,
    pub(super) max_waiting: usize,
    pub(super) listener: Option<Listener>,
    waiting: Arc<AtomicUsize>,
}

impl<S> Gate<S> {
    pub(super) fn new(limiter: Arc<Limiter<S>>, on_failure: OnFailure) -> Self {
        Self {
            limiter,
            on_failure,
            max_delay: DEFAULT_MAX_DELAY,
            max_waiting: DEFAULT_MAX_WAITING,
            listener: None,
            waiting: Arc::default(),
        }
    }
}

impl<S: Store> Gate<S> {
    /// Asks, and returns when the call may go on, or why it may not.
    pub(super) async fn admit(&self, query: &Query<'_>) -> Admission {
        if self.waiting.load(Ordering::Relaxed) >= self.max_waiting {
            match self.limiter.peek(query).await {
                Ok(verdict) if verdict.is_allow() && !verdict.delay.is_zero() => {
                    return Admission::Overloaded;
                }
                // A refusal has to be counted, for bans; a failure is told once, below.
                _ => {}
            }
        }
        let now = self.limiter.now();
        let verdict = match self.limiter.ask(Operation::Acquire, query, now).await {
            Ok(verdict) => verdict,
            Err(error @ AskError::Store(_)) => {
                self.tell(&Failure::Ask(error));
                self.declared()
            }
            Err(error) => {
                let failure = Failure::Ask(error);
                self.tell(&failure);
                return Admission::Broken(failure);
            }
        };
        if !verdict.is_allow() {
            return Admission::Denied(verdict);
        }
        let delay = verdict.delay.min(self.max_delay);
        if !delay.is_zero() {
            let _waiting = Waiting::begin(&self.waiting);
            tokio::time::sleep(delay).await;
        }
        Admission::Allowed(verdict)
    }

    /// The answer when the store cannot tell.
    fn declared(&self) -> Verdict {
        let wait = match self.on_failure {
            OnFailure::Allow => None,
            OnFailure::Deny => Some(RetryAfter::After(RETRY_WHEN_DEGRADED)),
        };
        Verdict {
            retry_after: wait,
            degraded: true,
            ..Verdict::default()
        }
    }

    pub(super) fn tell(&self, failure: &Failure) {
        if let Some(listener) = &self.listener {
            listener(failure);
        }
    }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            on_failure: self.on_failure,
            max_delay: self.max_delay,
            max_waiting: self.max_waiting,
            listener: self.listener.clone(),
            waiting: Arc::clone(&self.waiting),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("limiter", &self.limiter)
            .field("on_failure", &self.on_failure)
            .field("max_delay", &self.max_delay)
            .field("max_waiting", &self.max_waiting)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// One call that sleeps, until it is dropped: its client may go away.
#[derive(Debug)]
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
