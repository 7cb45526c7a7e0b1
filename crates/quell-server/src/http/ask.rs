//! The questions: `/v1/acquire`, `/v1/peek` and `/v1/authorize`.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use quell::{Operation, Plan, Query, Verdict};
use quell_core::address::canonical;
use quell_core::algorithm::Algorithm;
use quell_core::limit::Limit;
use quell_core::refusal_page::RefusalPage;
use quell_core::rule::{Rule, RuleSet};
use quell_protocol::http::{
    self, AuthorizeError, BodyError, DEGRADED, Problem, ProblemKind, RATE_LIMIT, RATE_LIMIT_POLICY,
    RateLimitItem, WOULD_REFUSE,
};

use super::answer::{self, read_body};
use super::caller::{Client, caller, requests};
use super::reply;
use super::reply::{RouteResult, parameters, unknown_parameter};
use super::requests::Requests;
use crate::access::{Caller, Role};
use crate::hang_up::GONE;
use crate::shared::{FailedCall, Shared};
use crate::store::ServerStore;
use crate::traces::Traces;

// Handlers take the whole request: extractors would copy its headers.

pub(super) async fn acquire(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    verdict(&shared, Operation::Acquire, request).await
}

pub(super) async fn peek(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    verdict(&shared, Operation::Peek, request).await
}

/// Answers a question.
async fn verdict(shared: &Shared, operation: Operation, request: Request) -> RouteResult {
    let (caller, requests) = (caller(&request, Role::Ask)?, requests(&request));
    let context = shared.context(request.headers());
    let body = read_body(request, shared).await?;
    let mut asked = parse(operation, &body.bytes)?;
    asked.query.set_context(context);
    caller.sign(&mut asked.query)?;
    let verdict = if asked.max_wait.is_zero() {
        ask(shared, operation, &asked.query, &caller).await
    } else {
        // In a box, because the future of every question would be as large, and is moved.
        Box::pin(wait(shared, &asked, &caller, requests.as_deref())).await
    };
    let verdict = hand_over(shared, &asked.query, verdict?, requests.as_deref()).await;
    Ok(answer::verdict(&verdict?))
}

/// Reads the body of a question.
#[inline]
pub(super) fn parse(operation: Operation, body: &[u8]) -> Result<http::Acquire<'_>, BodyError> {
    match operation {
        Operation::Acquire => http::parse_acquire(body),
        Operation::Peek => http::parse_query(body).map(|query| http::Acquire {
            query,
            max_wait: Duration::ZERO,
        }),
    }
}

/// Waits for a turn. A place is given back when the request is dropped, or the client hangs up.
async fn wait(
    shared: &Shared,
    asked: &http::Acquire<'_>,
    caller: &Caller,
    requests: Option<&Requests>,
) -> Result<Verdict, Box<Problem>> {
    let limiter = &shared.limiter;
    let failed = FailedCall::new(Operation::Acquire, &asked.query, limiter.now());
    let answer = Box::pin(limiter.acquire_timeout(&asked.query, asked.max_wait));
    let answer = match requests {
        Some(requests) => requests.hang_up.or_else(answer).await.ok_or_else(gone)?,
        None => answer.await,
    };
    shared
        .traced(failed, answer)
        .map_err(|error| shared.ask_problem(&error, asked.query.domain(), caller))
}

/// The verdict of a call for a client that is still there. What another was granted to hold is given back, since
/// nobody would end it, unless it was answered at once.
pub(super) async fn hand_over(
    shared: &Shared,
    query: &Query<'_>,
    verdict: Verdict,
    requests: Option<&Requests>,
) -> Result<Verdict, Box<Problem>> {
    let has_waited = shared.config.store.is_some() || !verdict.waited.is_zero();
    match requests.filter(|_| has_waited && verdict.id.is_some()) {
        Some(requests) if requests.hang_up.has_come().await => {
            Err(Box::pin(give_back(shared, query, &verdict)).await)
        }
        _ => Ok(verdict),
    }
}

/// Gives back what a client was granted that has hung up. Returns its answer.
pub(super) async fn give_back(
    shared: &Shared,
    query: &Query<'_>,
    verdict: &Verdict,
) -> Box<Problem> {
    if let Some(id) = &verdict.id {
        shared.give_back(query.domain(), id).await;
    }
    gone()
}

/// The answer to a client that has hung up.
fn gone() -> Box<Problem> {
    reply::invalid(GONE.to_owned())
}

/// Asks the limiter. The request is complete.
pub(super) async fn ask(
    shared: &Shared,
    operation: Operation,
    query: &Query<'_>,
    caller: &Caller,
) -> Result<Verdict, Box<Problem>> {
    let now = shared.limiter.now();
    let answer = shared.limiter.ask(operation, query, now).await;
    let answer = shared.traced(FailedCall::new(operation, query, now), answer);
    answer.map_err(|error| shared.ask_problem(&error, query.domain(), caller))
}

/// Asks the limiter on, for a query that it could not answer at once.
pub(super) async fn ask_planned(
    shared: &Shared,
    query: &Query<'_>,
    plan: Plan<'_, ServerStore>,
    caller: &Caller,
) -> Result<Verdict, Box<Problem>> {
    let failed = FailedCall::new(plan.operation(), query, plan.begun());
    let answer = shared.limiter.ask_planned(query, plan).await;
    let answer = shared.traced(failed, answer);
    answer.map_err(|error| shared.ask_problem(&error, query.domain(), caller))
}

impl Shared {
    /// Context of a request for the span of its answer.
    pub(crate) fn context(&self, headers: &HeaderMap) -> Vec<u8> {
        match &self.traces {
            Some(_) => Traces::context(headers),
            None => Vec::new(),
        }
    }
}

/// The query string of `/v1/authorize`.
struct Parameters {
    domain: String,
    allow_status: StatusCode,
    deny_status: Option<StatusCode>,
}

impl Parameters {
    fn parse(query: Option<&str>, rules: &RuleSet, caller: &Caller) -> Result<Self, Box<Problem>> {
        let wrong = reply::invalid;
        let mut domain = None;
        let mut allow_status = StatusCode::NO_CONTENT;
        let mut deny_status = None;
        for (name, value) in parameters(query) {
            match &*name {
                "domain" => domain = Some(value.into_owned()),
                "allow_status" => {
                    allow_status = match &*value {
                        "200" => StatusCode::OK,
                        "204" => StatusCode::NO_CONTENT,
                        _ => {
                            return Err(wrong(format!(
                                "allow_status={value} is not the status of a permission: write 200 or 204"
                            )));
                        }
                    };
                }
                "deny_status" => {
                    let number = value.parse::<u16>().ok();
                    let number = number.filter(|number| (400..600).contains(number));
                    let status = number.and_then(|number| StatusCode::from_u16(number).ok());
                    deny_status = Some(status.ok_or_else(|| {
                        wrong(format!(
                            "deny_status={value} is not the status of a refusal: write 400 to 599, such as \
                            403"
                        ))
                    })?);
                }
                _ => {
                    return Err(unknown_parameter(
                        &name,
                        "domain, allow_status and deny_status",
                    ));
                }
            }
        }
        let domain = match domain {
            Some(domain) => domain,
            None => only_domain(rules, caller).ok_or_else(|| {
                wrong("the domain is missing: write /v1/authorize?domain=NAME".to_owned())
            })?,
        };
        Ok(Self {
            domain,
            allow_status,
            deny_status,
        })
    }
}

/// The domain, if there is only one that the caller may ask for: then a request may leave it out.
fn only_domain(rules: &RuleSet, caller: &Caller) -> Option<String> {
    let mut domains = rules.domains().filter(|domain| caller.reaches(domain));
    let first = domains.next()?;
    domains.next().is_none().then(|| first.to_owned())
}

pub(super) async fn authorize(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let (caller, requests) = (caller(&request, Role::Ask)?, requests(&request));
    let rules = shared.limiter.rules();
    let parameters = Parameters::parse(request.uri().query(), &rules, &caller)?;
    let fields = request.headers().iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    caller.check(Role::Ask, Some(&parameters.domain))?;
    let map = &shared.config.authorize.map;
    let query = http::authorize(&parameters.domain, fields.iter().copied(), map);
    let query = query.map_err(|error| unreadable(&error, parameters.deny_status))?;
    let mut query = with_address(query, request.extensions().get());
    query.set_context(shared.context(request.headers()));
    caller.sign(&mut query)?;
    if let Some((rule, limit)) = rules.follow_up(&query) {
        return Err(unsupported(rule, limit).into());
    }
    let verdict = ask(&shared, Operation::Acquire, &query, &caller).await?;
    let verdict = hand_over(&shared, &query, verdict, requests.as_deref()).await?;
    let page = rules.refusal_page(&query, &verdict);
    let mut response = answer(&shared, &parameters, &verdict, page);
    for (is_so, (name, value)) in [
        (verdict.degraded, DEGRADED),
        (verdict.would_refuse(), WOULD_REFUSE),
    ] {
        if is_so {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
    }
    add_fields(&shared, &rules, &query, &verdict, response.headers_mut());
    Ok(response)
}

/// The answer to headers that make no query. An unreadable path is the caller's fault, and gets the
/// status that the gateway asked for: most take a 400 for a failure of this server.
fn unreadable(error: &AuthorizeError, deny_status: Option<StatusCode>) -> Box<Problem> {
    let mut problem = Box::new(Problem::from(error));
    if let (AuthorizeError::Path { .. }, Some(status)) = (error, deny_status) {
        problem.status = status.as_u16();
    }
    problem
}

/// The answer to a query under a limit that needs more of its caller than a yes or no: a gateway neither
/// waits for a delay nor gives a permit back, so the limit would let others pass than it says.
pub(crate) fn unsupported(rule: &Rule, limit: &Limit) -> Box<Problem> {
    let name = &rule.name;
    let detail = match limit.algorithm() {
        Algorithm::Concurrency(_) => format!(
            "rule `{name}` hands out permits (`algorithm: concurrency`), and a gateway cannot give them \
             back: write a `match` that none of its requests fits, and have the application ask \
             /v1/acquire and /v1/release"
        ),
        _ => format!(
            "rule `{name}` delays calls, and a gateway cannot wait: write `delay_after: burst` to refuse \
             what does not fit, or have the application ask /v1/acquire"
        ),
    };
    Box::new(Problem::new(ProblemKind::UnsupportedRule, detail))
}

/// The query with the connection's address, unless the gateway sends that of the caller.
fn with_address<'a>(query: Query<'a>, client: Option<&Client>) -> Query<'a> {
    const ADDRESS: &str = "remote_address";
    let mut descriptors = query.descriptors().iter();
    match client.and_then(|client| client.address) {
        Some(ip) if descriptors.all(|d| d.get(ADDRESS).is_none_or(<[u8]>::is_empty)) => {
            query.entry(ADDRESS, canonical(ip).to_string())
        }
        _ => query,
    }
}

/// 204; or the page of the rule that refused, and where that says nothing a problem document. The status
/// is the one that the gateway asked for, since some gateways take few others for a permission or a refusal;
/// otherwise that of a refusal is the page's (docs/decisions/0181).
fn answer(
    shared: &Shared,
    parameters: &Parameters,
    verdict: &Verdict,
    page: Option<&RefusalPage>,
) -> Response {
    if verdict.is_allow() {
        return match parameters.allow_status {
            StatusCode::NO_CONTENT => reply::no_content(),
            status => status.into_response(),
        };
    }
    let mut problem = Problem::refusal(verdict);
    let asked = parameters.deny_status.filter(|_| !verdict.degraded);
    let asked = asked.map(|status| status.as_u16());
    if let Some(status) = asked.or_else(|| page?.status_code()) {
        problem.status = status;
    }
    let mut response = reply::problem(&problem);
    if let Some(body) = page.and_then(RefusalPage::page_body)
        && let Ok(kind) = HeaderValue::from_str(body.content_type())
    {
        response.headers_mut().insert(CONTENT_TYPE, kind);
        *response.body_mut() = Body::from(body.text().to_owned());
    }
    let jitter = jitter(shared.config.retry_jitter);
    if let Some(seconds) = http::retry_after(verdict, jitter) {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    } else if !verdict.degraded {
        // What can never pass has no wait, whatever its status is.
        response.headers_mut().remove(RETRY_AFTER);
    }
    response
}

/// A random duration below `most`. It need not be secret.
pub(crate) fn jitter(most: Duration) -> Duration {
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    if nanos == 0 {
        return Duration::ZERO;
    }
    Duration::from_nanos(RandomState::new().hash_one(nanos) % nanos)
}

/// Adds the `RateLimit` fields, and the older ones if they are wanted.
fn add_fields(
    shared: &Shared,
    rules: &RuleSet,
    query: &Query<'_>,
    verdict: &Verdict,
    headers: &mut HeaderMap,
) {
    let items = RateLimitItem::for_verdict(rules, query, verdict, shared.limiter.now().wall);
    let mut add = |name: &'static str, value: Option<String>| {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    add(RATE_LIMIT_POLICY, http::definition_field(&items));
    add(RATE_LIMIT, http::status_field(&items));
    if shared.config.x_rate_limit_headers
        && let Some(binding) = verdict.binding_rule()
    {
        let decision = &binding.decision;
        let reset = decision.reset_after.as_nanos().div_ceil(1_000_000_000);
        add("x-ratelimit-limit", Some(decision.limit.to_string()));
        add(
            "x-ratelimit-remaining",
            Some(decision.remaining.to_string()),
        );
        add("x-ratelimit-reset", Some(reset.to_string()));
    }
}
