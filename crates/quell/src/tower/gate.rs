//! Gate: decides a query, answers while the store fails, and sleeps for delays.

use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use quell_core::claim::WaitLimits;
use quell_core::decision::RetryAfter;
use quell_core::descriptor::Query;
use quell_core::hold::HoldId;
use quell_core::path::PathError;
use quell_core::verdict::Verdict;

use super::bill::Bill;
use super::permit::Permit;
use crate::admit::Admitted;
use crate::error::AskError;
use crate::limiter::Limiter;
use crate::store::{HoldStore, StoreError};

/// The default of the longest delay. Clients and proxies commonly give up after a minute.
pub(super) const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60);

/// The default of how many calls may sleep at one time: the number of connections that `quell serve`
/// accepts.
pub(super) const DEFAULT_MAX_WAITING: usize = 10_000;

/// Lifetime of a call's hold without a renewal, if it has no lease. It is renewed while the call lives, and
/// expires if the process dies.
const KEEP: Duration = Duration::from_secs(60);

/// The `retry_after` of refusals during an outage: long enough for a fail-over to make progress, short
/// enough that callers still come back.
const RETRY_WHEN_DEGRADED: Duration = Duration::from_secs(1);

/// Reason why the limiter gave no answer, or none that was counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The limiter has no answer: the store fails, or there is no such domain.
    #[error("{0}")]
    Ask(AskError),
    /// The server did not add this extension to the request, so the client's address is not known. In
    /// axum: serve `app.into_make_service_with_connect_info::<SocketAddr>()`.
    #[error(
        "requests have no extension {extension}: have the server add what it knows of the connection, in axum with into_make_service_with_connect_info"
    )]
    Unconnected {
        /// The type of the extension.
        extension: &'static str,
    },
    /// Servers resolve the request's path differently; it was answered 400.
    #[error("{0}")]
    Path(PathError),
}

/// The result of admitting a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// The call may continue, with its holds.
    Allowed(Verdict, Option<Permit>),
    Denied(Verdict),
    /// Too many calls wait already, for their turn or for the store; nothing was charged.
    Overloaded,
    /// This layer is not set up correctly.
    Broken(Failure),
}

/// Function that is called on failures.
type FailureListener = Arc<dyn Fn(&Failure) + Send + Sync>;

/// Admits calls.
#[derive_where(Clone)]
#[derive_where(Debug; S)]
pub(super) struct Gate<S> {
    pub(super) limiter: Limiter<S>,
    /// True if calls pass, uncounted, while the store fails.
    pub(super) allows_on_failure: bool,
    pub(super) max_wait: Duration,
    pub(super) max_delay: Duration,
    pub(super) max_waiting: usize,
    /// True if the cost is an estimate until the response has been sent.
    pub(super) pays_later: bool,
    #[derive_where(skip(Debug))]
    pub(super) listener: Option<FailureListener>,
}

impl<S> Gate<S> {
    pub(super) fn new(limiter: Limiter<S>) -> Self {
        Self {
            limiter,
            allows_on_failure: false,
            max_wait: Duration::ZERO,
            max_delay: DEFAULT_MAX_DELAY,
            max_waiting: DEFAULT_MAX_WAITING,
            pays_later: false,
            listener: None,
        }
    }
}

impl<S: HoldStore> Gate<S> {
    /// Decides, and returns when the call may continue, or why it may not. If the future is dropped
    /// before, what was taken is given back.
    pub(super) async fn admit(&self, query: &Query<'_>) -> Admission {
        let mut wait_limits = WaitLimits {
            turn: self.max_wait,
            in_all: self.max_wait.max(self.max_delay),
        };
        if self.limiter.waiting() >= self.max_waiting {
            match self.limiter.peek(query).await {
                Ok(verdict) if verdict.is_allow() && !verdict.delay.is_zero() => {
                    return Admission::Overloaded;
                }
                // A refusal has to be counted, for bans. A failure is reported below.
                _ => wait_limits.turn = Duration::ZERO,
            }
        }
        let hold = self.pays_later.then_some(KEEP);
        let Admitted { verdict, keep } = match self.limiter.admit(query, wait_limits, hold).await {
            Ok(admitted) => admitted,
            // An overloaded store has not failed, so `allows_on_failure` does not apply.
            Err(
                AskError::Store(StoreError::TooManyHolds | StoreError::Overloaded)
                | AskError::Overslept,
            ) => {
                return Admission::Overloaded;
            }
            Err(error) if is_of_store(&error) => {
                self.report(&Failure::Ask(error));
                let (verdict, keep) = (self.declared(), None);
                Admitted { verdict, keep }
            }
            Err(error) => {
                let failure = Failure::Ask(error);
                self.report(&failure);
                return Admission::Broken(failure);
            }
        };
        if !verdict.is_allow() {
            return Admission::Denied(verdict);
        }
        let id = verdict.id.as_deref();
        let id = id.and_then(|id| HoldId::new(query.domain(), id));
        let permit = id.zip(keep).map(|(id, keep)| {
            let bill = self.pays_later.then(Bill::default);
            Permit::new(&self.limiter, id, keep, bill)
        });
        Admission::Allowed(verdict, permit)
    }

    /// The answer if the store fails.
    fn declared(&self) -> Verdict {
        let refused = !self.allows_on_failure;
        Verdict {
            retry_after: refused.then_some(RetryAfter::After(RETRY_WHEN_DEGRADED)),
            degraded: true,
            ..Verdict::default()
        }
    }

    pub(super) fn report(&self, failure: &Failure) {
        if let Some(listener) = &self.listener {
            listener(failure);
        }
    }
}

/// Returns true if the error is an outage of the store, and not a missing feature.
const fn is_of_store(error: &AskError) -> bool {
    matches!(error, AskError::Store(error) if !matches!(error, StoreError::Unable(_)))
}
