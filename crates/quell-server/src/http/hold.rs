//! Reservations and permits: `/v1/reserve`, `/v1/settle`, `/v1/cancel`, `/v1/release`, `/v1/renew`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quell::Ending;
use quell_protocol::http::{self, EndBody, EndedBody, Problem, ProblemKind};

use super::{body, reply};
use crate::shared::Shared;

pub(super) async fn reserve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let bytes = match body::read(request, &shared).await {
        Ok(bytes) => bytes,
        Err(problem) => return reply::problem(&problem),
    };
    let asked = match http::parse_reserve(&bytes) {
        Ok(asked) => asked,
        Err(error) => return reply::problem(&Problem::from(&error)),
    };
    let limiter = &shared.limiter;
    let verdict = limiter.reserve(&asked.query, asked.hold, asked.id.as_deref());
    match verdict.await {
        Ok(verdict) => reply::verdict(&verdict),
        Err(error) => reply::problem(&shared.ask_problem(&error, asked.query.domain())),
    }
}

pub(super) async fn settle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, Deed::Settle).await
}

pub(super) async fn cancel(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, Deed::Cancel).await
}

pub(super) async fn release(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, Deed::Release).await
}

pub(super) async fn renew(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, Deed::Renew).await
}

/// What the path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Settle,
    Cancel,
    Release,
    Renew,
}

impl Deed {
    /// The ending that a body asks for, or the field that is wrong and what to write.
    fn ending(self, asked: &EndBody<'_>) -> Result<Ending, (&'static str, &'static str)> {
        if asked.failed.is_some() && self != Self::Release {
            let reason = "only /v1/release says that it failed: leave \"failed\" out";
            return Err(("/failed", reason));
        }
        match (self, asked.actual) {
            (Self::Settle, Some(actual)) => Ok(Ending::Settle(actual)),
            (Self::Settle, None) => Err((
                "/actual",
                "what did it cost? write \"actual\" and a whole number, which may be 0",
            )),
            (_, Some(_)) => Err((
                "/actual",
                "only /v1/settle says what it cost: leave \"actual\" out",
            )),
            (Self::Cancel, None) => Ok(Ending::Cancel),
            (Self::Release, None) if asked.failed == Some(true) => Ok(Ending::Fail),
            (Self::Release, None) => Ok(Ending::Release),
            (Self::Renew, None) => Ok(Ending::Renew),
        }
    }
}

async fn end(shared: &Shared, request: Request, deed: Deed) -> Response {
    let bytes = match body::read(request, shared).await {
        Ok(bytes) => bytes,
        Err(problem) => return reply::problem(&problem),
    };
    let asked = match http::parse_end(&bytes) {
        Ok(asked) => asked,
        Err(error) => return reply::problem(&Problem::from(&error)),
    };
    let ending = match deed.ending(&asked) {
        Ok(ending) => ending,
        Err((pointer, reason)) => {
            let problem = Problem {
                pointer: Some(pointer.to_owned()),
                ..Problem::new(ProblemKind::InvalidField, reason)
            };
            return reply::problem(&problem);
        }
    };
    match shared.end(&asked.domain, &asked.id, ending).await {
        Ok(finished) => reply::json(&EndedBody {
            id: asked.id,
            outcome: Cow::Borrowed(finished.status.name()),
            repeated: finished.repeated,
        }),
        Err(error) => reply::problem(&shared.ask_problem(&error, &asked.domain)),
    }
}

impl Shared {
    /// What is told when there is no answer.
    pub(super) fn ask_problem(&self, error: &quell::AskError, domain: &str) -> Box<Problem> {
        let rules = self.limiter.rules();
        let domains: Vec<&str> = rules.domains().collect();
        reply::ask_problem(error, domain, &domains)
    }
}
