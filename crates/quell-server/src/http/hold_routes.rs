//! Reservations and permits: `/v1/reserve`, `/v1/settle`, `/v1/cancel`, `/v1/release`, `/v1/renew`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::routing::{MethodRouter, post};
use quell::{Ending, Operation};
use quell_protocol::http::{self, ActualBody, EndBody, EndedBody, Problem};

use super::answer::{self, read_body};
use super::ask::hand_over;
use super::caller::{caller, requests};
use super::reply::{self, RouteResult};
use crate::access::{Caller, Role};
use crate::shared::{FailedCall, Shared};

pub(super) async fn reserve(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let (caller, requests) = (caller(&request, Role::Ask)?, requests(&request));
    let context = shared.context(request.headers());
    let body = read_body(request, &shared).await?;
    let mut asked = http::parse_reserve(&body.bytes)?;
    asked.query.set_context(context);
    caller.sign(&mut asked.query)?;
    let limiter = &shared.limiter;
    let failed = FailedCall::new(Operation::Acquire, &asked.query, limiter.now());
    let verdict = limiter.reserve(&asked.query, asked.hold, asked.id.as_deref());
    match shared.traced(failed, verdict.await) {
        Ok(verdict) => {
            // A name may be used again, also by a client that lost its connection.
            let requests = requests.filter(|_| asked.id.is_none());
            let verdict = hand_over(&shared, &asked.query, verdict, requests.as_deref()).await?;
            Ok(answer::verdict(&verdict))
        }
        Err(error) => Err(shared
            .ask_problem(&error, asked.query.domain(), &caller)
            .into()),
    }
}

/// Action that the path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldAction {
    Settle,
    Cancel,
    Release,
    Renew,
}

impl HoldAction {
    /// The ending that a body asks for.
    fn ending(self, asked: &EndBody<'_>) -> Result<Ending, Box<Problem>> {
        let wrong = |pointer, reason: &str| Err(reply::invalid_field(pointer, reason));
        match (self, &asked.actual) {
            _ if asked.failed.is_some() && self != Self::Release => {
                let reason = "only /v1/release says that it failed: leave \"failed\" out";
                wrong("/failed", reason)
            }
            (Self::Settle, Some(ActualBody(actual))) => Ok(Ending::Settle(actual.clone())),
            (Self::Settle, None) => {
                let reason = "what did it cost? write \"actual\" and a whole number, which may be 0, or a \
                     list with one for each descriptor";
                wrong("/actual", reason)
            }
            (_, Some(_)) => {
                let reason = "only /v1/settle says what it cost: leave \"actual\" out";
                wrong("/actual", reason)
            }
            (Self::Cancel, None) => Ok(Ending::Cancel),
            (Self::Release, None) if asked.failed == Some(true) => Ok(Ending::Fail),
            (Self::Release, None) => Ok(Ending::Release),
            (Self::Renew, None) => Ok(Ending::Renew),
        }
    }
}

/// The route of a deed.
pub(super) fn route(deed: HoldAction) -> MethodRouter<Arc<Shared>> {
    post(
        async move |State(shared): State<Arc<Shared>>, request: Request| {
            end(&shared, request, deed).await
        },
    )
}

async fn end(shared: &Shared, request: Request, deed: HoldAction) -> RouteResult {
    let caller = caller(&request, Role::Ask)?;
    let body = read_body(request, shared).await?;
    let asked = http::parse_end(&body.bytes)?;
    caller.check(Role::Ask, Some(&asked.domain))?;
    let ending = deed.ending(&asked)?;
    match shared.end(&asked.domain, &asked.id, ending).await {
        Ok(finished) => Ok(reply::json(&EndedBody {
            id: asked.id,
            outcome: Cow::Borrowed(finished.status.name()),
            repeated: finished.repeated,
        })),
        Err(error) => Err(shared.ask_problem(&error, &asked.domain, &caller).into()),
    }
}

impl Shared {
    /// Problem for `caller` when there is no answer. It learns of no domain that its token is not for.
    pub(crate) fn ask_problem(
        &self,
        error: &quell::AskError,
        domain: &str,
        caller: &Caller,
    ) -> Box<Problem> {
        let rules = self.limiter.rules();
        let domains = rules.domains().filter(|domain| caller.reaches(domain));
        let domains: Vec<&str> = domains.collect();
        answer::ask_problem(error, domain, &domains)
    }
}
