//! Limit layer: limits in front of a service that speaks HTTP.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use derive_where::derive_where;
use http::request::Parts;
use http::{Request, Response, StatusCode, response};
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
use quell_core::refusal_page::RefusalPage;
use quell_core::rule::{DomainRules, EmptyValue, Per, Rule};
use quell_core::verdict::Verdict;
use tower_layer::Layer;
use tower_service::Service;

use super::body::LimitBody;
use super::entries::{ADDRESS, Entries};
use super::fields::{Fields, fields};
use super::gate::{Admission, Failure, Gate};
use super::grpc;
use super::permit::{self, CallPhase, Permit};
use super::refusal;
use crate::limiter::Limiter;
use crate::store::HoldStore;
use crate::store::memory::MemoryStore;

/// The domain of a layer with only one limit.
const OWN_DOMAIN: &str = "layer";

/// Puts limits in front of a service.
///
/// ```
/// use quell::store::memory::MemoryStore;
/// use quell::tower::{Entries, LimitLayer};
/// use quell::Limiter;
///
/// let limiter = Limiter::new(MemoryStore::new());
/// // limiter.set_rules(..) with what a rules file says
/// let layer = LimitLayer::new(limiter, "shop", Entries::new().method().path());
/// # drop(layer);
/// ```
///
/// Clones share everything, the limiter too. All limits of one limiter are charged together or not at
/// all. If one layer is inside another, each charges on its own, the outer one first.
#[derive(Debug)]
#[derive_where(Clone)]
pub struct LimitLayer<S> {
    shared: Arc<LayerParts<S>>,
}

#[derive_where(Clone)]
#[derive_where(Debug; S)]
struct LayerParts<S> {
    gate: Gate<S>,
    domain: Arc<str>,
    entries: Entries,
    send_fields: SendFields,
    /// For rules that have none.
    page: Option<Arc<RefusalPage>>,
    #[derive_where(skip(Debug))]
    cost_after: Option<CostAfter>,
}

/// Finds the real cost in the head of a response.
type CostAfter = Arc<dyn Fn(&response::Parts) -> Option<u64> + Send + Sync>;

/// Responses that get the `RateLimit` fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SendFields {
    /// On all, so that clients can slow down before they are refused.
    #[default]
    Always,
    /// On refusals only.
    OnRefusal,
    /// On none. A refusal still has `Retry-After`.
    Never,
}

impl LimitLayer<MemoryStore> {
    /// One limit, in memory, on each distinct combination of the values of `entries`; without entries,
    /// on all requests together. A request that lacks an entry is not limited, as under a [`Rule`] that does not
    /// say otherwise ([`OnMissing`](crate::rule::OnMissing)). Of an IPv6 `remote_address`
    /// only the first 64 bits count, because one client commonly has a whole /64.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible.
    pub fn each(
        name: &str,
        limit: impl Into<LimitSpec>,
        entries: Entries,
    ) -> Result<Self, LimitError> {
        let per = entries.names().into_iter().map(|entry| match entry {
            ADDRESS => Per::address(entry),
            _ => Per::value(entry),
        });
        let rule = Rule {
            per: per.collect(),
            empty: EmptyValue::Missing,
            ..Rule::new(name, limit)?
        };
        let limiter = Limiter::new(MemoryStore::new());
        limiter
            .set_rules(vec![DomainRules::new(OWN_DOMAIN, vec![rule])])
            .map_err(|wrong| wrong.error)?;
        Ok(Self::new(limiter, OWN_DOMAIN, entries))
    }
}

impl<S: HoldStore> LimitLayer<S> {
    /// The limits of `domain`.
    ///
    /// While the domain has no rules, which is a mistake, every request is answered 500.
    #[must_use]
    pub fn new(limiter: Limiter<S>, domain: &str, entries: Entries) -> Self {
        let shared = LayerParts {
            gate: Gate::new(limiter),
            domain: Arc::from(domain),
            entries,
            send_fields: SendFields::default(),
            page: None,
            cost_after: None,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Calls pass, uncounted, while the store fails. Without this they are refused then (503, gRPC `UNAVAILABLE`), unless
    /// their rules say what happens: those of a store with a fallback do.
    #[must_use]
    pub fn allow_on_failure(mut self) -> Self {
        Arc::make_mut(&mut self.shared).gate.allows_on_failure = true;
        self
    }

    /// Sets the responses that get the `RateLimit` fields; by default all.
    #[must_use]
    pub fn send_fields(mut self, send_fields: SendFields) -> Self {
        Arc::make_mut(&mut self.shared).send_fields = send_fields;
        self
    }

    /// The status and body of refusals, for rules that do not say their own; by default 429 and a problem
    /// document. Where the store failed, and over gRPC, refusals stay as they are.
    #[must_use]
    pub fn refusal_page(mut self, page: RefusalPage) -> Self {
        Arc::make_mut(&mut self.shared).page = Some(Arc::new(page));
        self
    }

    /// The longest time that a request waits for its turn if a limit would refuse it; by default zero,
    /// which is not at all. First come, first served. A request whose turn would not come in time is
    /// refused at once, uncharged.
    #[must_use]
    pub fn max_wait(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.shared).gate.max_wait = longest;
        self
    }

    /// Charges the cost in the entries as an estimate, and settles it with the real cost when the
    /// response has been sent, or dropped because the client went away.
    ///
    /// `cost` looks for the real cost in the response's head. If it is not there, the service reports it
    /// through the [`Bill`](super::Bill) among its request's extensions, until the body ends. Without a
    /// report the estimate stays. A lower cost is returned; a higher one is owed, and the key refuses
    /// until it is repaid. Rules with a `cost` keep what they charged.
    #[must_use]
    pub fn cost_after(
        mut self,
        cost: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::make_mut(&mut self.shared);
        shared.gate.pays_later = true;
        shared.cost_after = Some(Arc::new(cost));
        self
    }

    /// The longest time that a request sleeps for the delay of a leaky bucket or of a queue; by default
    /// 60 s. A request with a longer delay is refused, uncharged.
    ///
    /// On a store without holds the request was already charged. It sleeps for this long only, and goes
    /// on ahead of its turn; the limit still admits no more.
    #[must_use]
    pub fn max_delay(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.shared).gate.max_delay = longest;
        self
    }

    /// Sets how many calls of the limiter may sleep at one time; by default 10,000. Beyond that, a call
    /// that would have to sleep for a delay is refused uncharged (503), and no call waits for a turn. Calls
    /// that come at the same moment may exceed it by a few.
    #[must_use]
    pub fn max_waiting(mut self, calls: usize) -> Self {
        Arc::make_mut(&mut self.shared).gate.max_waiting = calls;
        self
    }

    /// Sets a listener for each call that gets no counted answer, to log or count it. It must be quick
    /// and must not block. Answers go to the limiter's [`Observer`](crate::observer::Observer).
    #[must_use]
    pub fn on_each_failure(mut self, listener: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.shared).gate.listener = Some(Arc::new(listener));
        self
    }

    /// The limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
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

/// A service with limits in front of it, made by a [`LimitLayer`].
#[derive(Debug)]
#[derive_where(Clone; Inner)]
pub struct LimitService<S, Inner> {
    shared: Arc<LayerParts<S>>,
    inner: Inner,
}

/// The future of a response with limits in front of it. If it is dropped while it waits, its place and
/// its charge are given back (on a store with holds); if it is dropped later, its permits.
pub type LimitFuture<B, E> =
    Pin<Box<dyn Future<Output = Result<Response<LimitBody<B>>, E>> + Send>>;

impl<S, Inner, Sent, B> Service<Request<Sent>> for LimitService<S, Inner>
where
    S: HoldStore,
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
        // The service that is ready handles this request. Its clone, which stays here, has to become
        // ready again.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let (verdict, fields, mut permit) = match shared.admit(&parts).await {
                Admitted::Allowed(verdict, fields, permit) => (verdict, fields, permit),
                Admitted::Refused(response) => return Ok(response),
            };
            parts.extensions.insert(Arc::clone(&verdict));
            let bill = permit.as_ref().and_then(Permit::bill).cloned();
            if let Some(bill) = &bill {
                parts.extensions.insert(bill.clone());
            }
            let call = inner.call(Request::from_parts(parts, body));
            let response = permit::keep(&mut permit, call).await;
            if let Some(permit) = &mut permit {
                permit.note_response(course(&response));
            }
            let (head, body) = response?.into_parts();
            if let (Some(bill), Some(cost)) = (bill, shared.cost_after(&head)) {
                bill.set(cost);
            }
            let body = LimitBody::served(body, permit);
            let mut response = Response::from_parts(head, body);
            // This appends: another layer's fields are kept, because they are lists.
            response.headers_mut().extend(fields);
            response.extensions_mut().insert(verdict);
            Ok(response)
        })
    }
}

/// State of the service as a response shows it: 503 and 504 mean that it lacked room or time.
fn course<B, E>(response: &Result<Response<B>, E>) -> CallPhase {
    let Ok(response) = response else {
        return CallPhase::Failed;
    };
    let status = response.status();
    let is_busy = status == StatusCode::SERVICE_UNAVAILABLE
        || status == StatusCode::GATEWAY_TIMEOUT
        || grpc::is_busy(response.headers());
    if is_busy {
        CallPhase::Failed
    } else {
        CallPhase::Served
    }
}

/// The result of admitting a request.
enum Admitted<B> {
    Allowed(Arc<Verdict>, Fields, Option<Permit>),
    Refused(Response<LimitBody<B>>),
}

impl<S: HoldStore> LayerParts<S> {
    fn cost_after(&self, head: &response::Parts) -> Option<u64> {
        self.cost_after.as_ref().and_then(|cost| cost(head))
    }

    async fn admit<B>(&self, request: &Parts) -> Admitted<B> {
        let refuse = |kind| Admitted::Refused(refusal::refuse(kind, &request.headers));
        let query = match self.entries.query(&self.domain, request) {
            Ok(query) => query,
            Err(failure) => {
                self.gate.report(&failure);
                return refuse(match failure {
                    Failure::Path(_) => refusal::UNREADABLE,
                    _ => refusal::INTERNAL,
                });
            }
        };
        let fields = |verdict: &Verdict, is_told: bool| match is_told {
            true => {
                let limiter = &self.gate.limiter;
                fields(&limiter.rules(), &query, verdict, limiter.now().wall)
            }
            false => Fields::new(),
        };
        match self.gate.admit(&query).await {
            Admission::Allowed(verdict, permit) => {
                let fields = fields(&verdict, self.send_fields == SendFields::Always);
                Admitted::Allowed(Arc::new(verdict), fields, permit)
            }
            Admission::Denied(verdict) => {
                let rules = self.gate.limiter.rules();
                let own = (!verdict.degraded)
                    .then_some(self.page.as_deref())
                    .flatten();
                let page = rules.refusal_page(&query, &verdict).or(own);
                let mut response = refusal::denied(&verdict, page, &request.headers);
                response
                    .headers_mut()
                    .extend(fields(&verdict, self.send_fields != SendFields::Never));
                response.extensions_mut().insert(Arc::new(verdict));
                Admitted::Refused(response)
            }
            Admission::Overloaded => refuse(refusal::OVERLOADED),
            Admission::Broken(_) => refuse(refusal::INTERNAL),
        }
    }
}
