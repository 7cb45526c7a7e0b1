//! Reservations and permits: `/v1/reserve`, `/v1/settle`, `/v1/cancel`, `/v1/release`, `/v1/renew`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use quell::Ending;
use quell_protocol::http::{self, EndedBody, Problem, ProblemKind};

use super::{body, reply};
use crate::shared::Shared;

pub(super) async fn reserve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let bytes = match body::read(request, &shared.config.bounds).await {
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
    end(&shared, request, |actual| {
        actual.map(Ending::Settle).ok_or_else(|| {
            "what did it cost? write \"actual\" and a whole number, which may be 0".to_owned()
        })
    })
    .await
}

pub(super) async fn cancel(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, |actual| without(actual, Ending::Cancel)).await
}

pub(super) async fn release(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, |actual| without(actual, Ending::Release)).await
}

pub(super) async fn renew(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    end(&shared, request, |actual| without(actual, Ending::Renew)).await
}

fn without(actual: Option<u64>, ending: Ending) -> Result<Ending, String> {
    match actual {
        None => Ok(ending),
        Some(_) => Err("only /v1/settle says what it cost: leave \"actual\" out".to_owned()),
    }
}

async fn end(
    shared: &Shared,
    request: Request,
    ending: impl FnOnce(Option<u64>) -> Result<Ending, String>,
) -> Response {
    let bytes = match body::read(request, &shared.config.bounds).await {
        Ok(bytes) => bytes,
        Err(problem) => return reply::problem(&problem),
    };
    let asked = match http::parse_end(&bytes) {
        Ok(asked) => asked,
        Err(error) => return reply::problem(&Problem::from(&error)),
    };
    let ending = match ending(asked.actual) {
        Ok(ending) => ending,
        Err(reason) => {
            let problem = Problem {
                pointer: Some("/actual".to_owned()),
                ..Problem::new(ProblemKind::InvalidField, reason)
            };
            return reply::problem(&problem);
        }
    };
    match shared.end(&asked.domain, &asked.id, ending).await {
        Ok(finished) => reply::json(&EndedBody {
            id: asked.id,
            outcome: Cow::Borrowed(finished.fate.name()),
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
