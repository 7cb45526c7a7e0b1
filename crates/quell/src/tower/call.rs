//! Call layer: limits in front of a service that does not speak HTTP.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use derive_where::derive_where;
use quell_core::descriptor::Query;
use quell_core::verdict::Verdict;
use tower_layer::Layer;
use tower_service::Service;

use super::gate::{Admission, Failure, Gate};
use super::permit::{self, CallPhase, Permit};
use crate::limiter::Limiter;
use crate::store::HoldStore;

/// Puts limits in front of any service: a closure makes the query of a call, and the response is an
/// [`CallOutcome`].
///
/// ```
/// use quell::store::memory::MemoryStore;
/// use quell::tower::CallLayer;
/// use quell::{Limiter, Query};
///
/// struct Job { user: String }
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let layer = CallLayer::new(limiter, |job: &Job| {
///     Query::new("jobs").entry("user", job.user.clone())
/// });
/// # drop(layer);
/// ```
#[derive_where(Clone; D)]
#[derive_where(Debug; S)]
pub struct CallLayer<S, D, C = AsEstimated> {
    gate: Arc<Gate<S>>,
    #[derive_where(skip(Debug))]
    describe: D,
    #[derive_where(skip(Debug))]
    cost_after: Arc<C>,
}

/// Finds the real cost of a call: a closure, or [`AsEstimated`].
pub trait CostAfter<R>: Send + Sync + 'static {
    /// The real cost, 0 or more; `None` keeps the estimate.
    fn cost(&self, response: &R) -> Option<u64>;
}

impl<R, F: Fn(&R) -> Option<u64> + Send + Sync + 'static> CostAfter<R> for F {
    fn cost(&self, response: &R) -> Option<u64> {
        self(response)
    }
}

/// Every call costs what its query says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsEstimated;

impl<R> CostAfter<R> for AsEstimated {
    fn cost(&self, _response: &R) -> Option<u64> {
        None
    }
}

impl<S: HoldStore, D> CallLayer<S, D> {
    /// Limits on any store; `describe` is a `Fn(&Call) -> Query<'static>`.
    #[must_use]
    pub fn new(limiter: Limiter<S>, describe: D) -> Self {
        Self {
            gate: Arc::new(Gate::new(limiter)),
            describe,
            cost_after: Arc::new(AsEstimated),
        }
    }
}

impl<S: HoldStore, D, C> CallLayer<S, D, C> {
    /// Calls pass, uncounted, while the store fails. Without this they are refused then ([`CallOutcome::Refused`]), unless
    /// their rules say what happens: those of a store with a fallback do.
    #[must_use]
    pub fn allow_on_failure(mut self) -> Self {
        Arc::make_mut(&mut self.gate).allows_on_failure = true;
        self
    }

    /// Charges the query's cost as an estimate, and settles it with the real cost when the response has
    /// arrived. `cost`, a `Fn(&Response) -> Option<u64>`, finds the real cost.
    ///
    /// The estimate stays if `cost` finds none, if the service fails, and if the call is dropped before.
    /// A lower cost is returned; a higher one is owed, and the key refuses until it is repaid. Rules
    /// with a `cost` keep what they charged. On a store without holds every call fails.
    ///
    /// ```
    /// use quell::store::memory::MemoryStore;
    /// use quell::tower::CallLayer;
    /// use quell::{Cost, Limiter, Query};
    ///
    /// struct Prompt { user: String }
    /// struct Text { tokens: u64 }
    ///
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let estimate = Cost::new(400).ok_or("a cost of 0")?;
    /// let layer = CallLayer::new(limiter, move |prompt: &Prompt| {
    ///     Query::new("models").entry("user", prompt.user.clone()).cost(estimate)
    /// });
    /// let layer = layer.cost_after(|text: &Text| Some(text.tokens));
    /// # drop(layer);
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub fn cost_after<R, F>(mut self, cost: F) -> CallLayer<S, D, F>
    where
        F: Fn(&R) -> Option<u64> + Send + Sync + 'static,
    {
        Arc::make_mut(&mut self.gate).pays_later = true;
        CallLayer {
            gate: self.gate,
            describe: self.describe,
            cost_after: Arc::new(cost),
        }
    }

    /// As [`LimitLayer::max_wait`](super::LimitLayer::max_wait).
    #[must_use]
    pub fn max_wait(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.gate).max_wait = longest;
        self
    }

    /// As [`LimitLayer::max_delay`](super::LimitLayer::max_delay).
    #[must_use]
    pub fn max_delay(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.gate).max_delay = longest;
        self
    }

    /// As [`LimitLayer::max_waiting`](super::LimitLayer::max_waiting).
    #[must_use]
    pub fn max_waiting(mut self, calls: usize) -> Self {
        Arc::make_mut(&mut self.gate).max_waiting = calls;
        self
    }

    /// As [`LimitLayer::on_each_failure`](super::LimitLayer::on_each_failure).
    #[must_use]
    pub fn on_each_failure(mut self, listener: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.gate).listener = Some(Arc::new(listener));
        self
    }
}

impl<S, D: Clone, C, Inner> Layer<Inner> for CallLayer<S, D, C> {
    type Service = CallService<S, D, Inner, C>;

    fn layer(&self, inner: Inner) -> Self::Service {
        CallService {
            layer: self.clone(),
            inner,
        }
    }
}

/// A service with limits in front of it, made by a [`CallLayer`].
#[derive(Debug)]
#[derive_where(Clone; D, Inner)]
pub struct CallService<S, D, Inner, C = AsEstimated> {
    layer: CallLayer<S, D, C>,
    inner: Inner,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome<T> {
    /// The call was allowed: the service's response.
    Passed(T),
    /// A limit denies it, or the store fails.
    Refused(Box<Verdict>),
    /// The call would have to wait, and too many calls wait already; nothing was charged.
    Overloaded,
}

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The query's domain has no rules.
    #[error("{0}")]
    Limits(Failure),
    /// The service failed.
    #[error("{0}")]
    Service(E),
}

type ResponseFuture<T, E> =
    Pin<Box<dyn Future<Output = Result<CallOutcome<T>, CallError<E>>> + Send>>;

impl<S, D, Inner, Call, C> Service<Call> for CallService<S, D, Inner, C>
where
    S: HoldStore,
    D: Fn(&Call) -> Query<'static>,
    C: CostAfter<Inner::Response>,
    Inner: Service<Call> + Clone + Send + 'static,
    Inner::Future: Send,
    Call: Send + 'static,
{
    type Response = CallOutcome<Inner::Response>;
    type Error = CallError<Inner::Error>;
    type Future = ResponseFuture<Inner::Response, Inner::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(CallError::Service)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let gate = Arc::clone(&self.layer.gate);
        let query = (self.layer.describe)(&call);
        let cost_after = Arc::clone(&self.layer.cost_after);
        // The service that is ready handles this call. Its clone, which stays here, has to become ready
        // again.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        Box::pin(async move {
            match gate.admit(&query).await {
                Admission::Allowed(_, mut permit) => {
                    let response = permit::keep(&mut permit, inner.call(call)).await;
                    if let Some(permit) = &mut permit {
                        permit.note_response(match &response {
                            Ok(_) => CallPhase::Served,
                            Err(_) => CallPhase::Failed,
                        });
                    }
                    let bill = permit.as_ref().and_then(Permit::bill);
                    if let (Some(bill), Ok(response)) = (bill, &response)
                        && let Some(cost) = cost_after.cost(response)
                    {
                        bill.set(cost);
                    }
                    drop(permit);
                    response
                        .map(CallOutcome::Passed)
                        .map_err(CallError::Service)
                }
                Admission::Denied(verdict) => Ok(CallOutcome::Refused(Box::new(verdict))),
                Admission::Overloaded => Ok(CallOutcome::Overloaded),
                Admission::Broken(failure) => Err(CallError::Limits(failure)),
            }
        })
    }
}
