//! Limit layer: limits in front of a service that speaks HTTP.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use quell_core::limit::LimitError;
use quell_core::rule::{DomainRules, Effect, OnMissing, Per, Prefix, Rule};
use quell_core::verdict::Verdict;
use tower_layer::Layer;
use tower_service::Service;

use super::body::LimitBody;
use super::entries::{ADDRESS, Entries};
use super::fields::Fields;
use super::gate::{Admission, Failure, Gate, OnFailure};
use super::refusal;
use crate::keyed::IntoLimit;
use crate::limiter::Limiter;
use crate::store::memory::MemoryStore;
use crate::store::{LocalStore, Store};

/// The domain of a layer with one limit of its own.
const OWN_DOMAIN: &str = "layer";

/// Puts limits in front of a service.
///
/// ```
/// use std::sync::Arc;
/// use quell::store::memory::MemoryStore;
/// use quell::tower::{Entries, LimitLayer};
/// use quell::Limiter;
///
/// let limiter = Arc::new(Limiter::new(MemoryStore::new()));
/// // limiter.set_rules(..) with what a rules file says
/// let layer = LimitLayer::new(limiter, "shop", Entries::new().method().path());
/// # drop(layer);
/// ```
///
/// Clones share everything, the limiter too. All limits of one limiter are charged together or not
/// at all; of two layers, one in the other, each charges for itself, the outer one first.
#[derive(Debug)]
pub struct LimitLayer<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    gate: Gate<S>,
    domain: Arc<str>,
    entries: Entries,
    tell: Tell,
}

/// On which responses the `RateLimit` fields stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tell {
    /// On all, so that clients can slow down before they are refused.
    #[default]
    Everyone,
    /// On refusals only.
    Refused,
    /// On none. A refusal still has `Retry-After`.
    Nobody,
}

impl LimitLayer<MemoryStore> {
    /// One limit, in memory, on each distinct combination of what `entries` say; with no entries, on
    /// all requests together. Requests that lack an entry share the keys of those that lack it. Of
    /// an IPv6 `remote_address` the first 64 bits count: one client commonly has them all.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn each(name: &str, limit: impl IntoLimit, entries: Entries) -> Result<Self, LimitError> {
        let per = entries.names().into_iter().map(|entry| Per {
            entry: Arc::from(entry),
            prefix: Prefix::new(32, 64).filter(|_| entry == ADDRESS),
        });
        let rule = Rule {
            name: Arc::from(name),
            matchers: Vec::new(),
            per: per.collect(),
            on_missing: OnMissing::SharedKey,
            effect: Effect::Limit(limit.into_limit()?),
            overrides: Vec::new(),
            cost: None,
            shadow: false,
            on_failure: None,
        };
        let rules = DomainRules {
            domain: Arc::from(OWN_DOMAIN),
            rules: vec![rule],
        };
        let limiter = Limiter::new(MemoryStore::new());
        limiter
            .set_rules(vec![rules])
            .map_err(|wrong| wrong.error)?;
        Ok(Self::new(Arc::new(limiter), OWN_DOMAIN, entries))
    }
}

impl<S: LocalStore> LimitLayer<S> {
    /// The limits of `domain`, on a store in this process.
    ///
    /// A domain without rules is a mistake, and answered 500 for as long as there are none.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S>>, domain: &str, entries: Entries) -> Self {
        // A store in this process always can tell.
        Self::with_on_failure(limiter, domain, entries, OnFailure::Deny)
    }
}

impl<S: Store> LimitLayer<S> {
    /// The limits of `domain`, on any store, and what is answered when it cannot tell.
    #[must_use]
    pub fn with_on_failure(
        limiter: Arc<Limiter<S>>,
        domain: &str,
        entries: Entries,
        on_failure: OnFailure,
    ) -> Self {
        let shared = Shared {
            gate: Gate::new(limiter, on_failure),
            domain: Arc::from(domain),
            entries,
            tell: Tell::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// On which responses the `RateLimit` fields stand; unless said, on all.
    #[must_use]
    pub fn tell(mut self, tell: Tell) -> Self {
        Arc::make_mut(&mut self.shared).tell = tell;
        self
    }

    /// The longest that a leaky bucket's delay is slept, 60 s unless said.
    ///
    /// A longer delay is cut to it, so that the call leaves ahead of its turn: it is charged by then,
    /// and how many are admitted does not change. To have calls refused instead, give the rule a
    /// burst of at most the rate times the longest wait.
    #[must_use]
    pub fn max_delay(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.shared).gate.max_delay = longest;
        self
    }

    /// How many calls may sleep at one time, 10,000 unless said. Past it, a call that would have to
    /// is refused uncharged (503); those that come in the same moment may be a few more.
    #[must_use]
    pub fn max_waiting(mut self, calls: usize) -> Self {
        Arc::make_mut(&mut self.shared).gate.max_waiting = calls;
        self
    }

    /// Hears of each call without a counted answer, to log it or count it: it must be quick and must
    /// not block. Answers themselves are seen by the limiter's
    /// [`Observer`](crate::observer::Observer).
    #[must_use]
    pub fn on_each_failure(mut self, listener: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).gate.listener = Some(Arc::new(listener));
        self
    }

    /// The limiter.
    #[must_use]
    pub fn limiter(&self) -> &Arc<Limiter<S>> {
        &self.shared.gate.limiter
    }
}

impl<S, Inner> Layer<Inner> for LimitLayer<S> {
    type Service = LimitService<S, Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        LimitService {
            shared: Arc::clone(&self.shared),
            inner,
        }
    }
}

impl<S> Clone for LimitLayer<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            domain: Arc::clone(&self.domain),
            entries: self.entries.clone(),
            tell: self.tell,
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("gate", &self.gate)
            .field("domain", &self.domain)
            .field("entries", &self.entries)
            .field("tell", &self.tell)
            .finish()
    }
}

/// A service with limits in front of it, made by a [`LimitLayer`].
#[derive(Debug)]
pub struct LimitService<S, Inner> {
    shared: Arc<Shared<S>>,
    inner: Inner,
}

impl<S, Inner: Clone> Clone for LimitService<S, Inner> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            inner: self.inner.clone(),
        }
    }
}

/// The future of a response with limits in front of it. Dropped, it ends a wait; what was charged
/// stays charged.
pub struct LimitFuture<B, E>(Answering<B, E>);

type Answering<B, E> = Pin<Box<dyn Future<Output = Result<Response<LimitBody<B>>, E>> + Send>>;

impl<B, E> Future for LimitFuture<B, E> {
    type Output = Result<Response<LimitBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for LimitFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFuture").finish_non_exhaustive()
    }
}

impl<S, Inner, Sent, B> Service<Request<Sent>> for LimitService<S, Inner>
where
    S: Store,
    Inner: Service<Request<Sent>, Response = Response<B>> + Clone + Send + 'static,
    Inner::Future: Send,
    Sent: Send + 'static,
{
    type Response = Response<LimitBody<B>>;
    type Error = Inner::Error;
    type Future = LimitFuture<B, Inner::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        // The one that is ready does the work; the clone that stays has to become ready again.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        LimitFuture(Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let (verdict, fields) = match shared.admit(&parts).await {
                Admitted::Allowed(verdict, fields) => (verdict, fields),
                Admitted::Refused(response) => return Ok(response),
            };
            parts.extensions.insert(Arc::clone(&verdict));
            let response = inner.call(Request::from_parts(parts, body)).await?;
            let mut response = response.map(LimitBody::served);
            if let Some(fields) = fields {
                fields.append_to(response.headers_mut());
            }
            response.extensions_mut().insert(verdict);
            Ok(response)
        }))
    }
}

/// What becomes of a request.
enum Admitted<B> {
    Allowed(Arc<Verdict>, Option<Fields>),
    Refused(Response<LimitBody<B>>),
}

impl<S: Store> Shared<S> {
    async fn admit<B>(&self, request: &Parts) -> Admitted<B> {
        let query = match self.entries.query(&self.domain, request) {
            Ok(query) => query,
            Err(unconnected) => {
                self.gate.tell(&Failure::from(unconnected));
                return Admitted::Refused(refusal::broken(&request.headers));
            }
        };
        let fields = |verdict: &Verdict, is_told: bool| {
            is_told.then(|| Fields::of(&self.gate.limiter.rules(), &query, verdict))
        };
        match self.gate.admit(&query).await {
            Admission::Allowed(verdict) => {
                let fields = fields(&verdict, self.tell == Tell::Everyone);
                Admitted::Allowed(Arc::new(verdict), fields)
            }
            Admission::Denied(verdict) => {
                let mut response = refusal::denied(&verdict, &request.headers);
                if let Some(fields) = fields(&verdict, self.tell != Tell::Nobody) {
                    fields.append_to(response.headers_mut());
                }
                response.extensions_mut().insert(Arc::new(verdict));
                Admitted::Refused(response)
            }
            Admission::Overloaded => Admitted::Refused(refusal::overloaded(&request.headers)),
            Admission::Broken(_) => Admitted::Refused(refusal::broken(&request.headers)),
        }
    }
}
