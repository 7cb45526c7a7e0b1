//! Answer: the body of a question, and the answers of the limiter: verdicts, and the problems that stand for its errors.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use quell::store::StoreError;
use quell::{AskError, Verdict};
use quell_host::console::host::Host as _;
use quell_protocol::http::{Problem, ProblemKind, VerdictBody};

use super::body::{self, BufferedBody};
use super::reply::{JSON, reply};
use crate::shared::Shared;

/// Reads a JSON body, as [`body::read_json`] does.
pub(super) async fn read_body(
    request: Request,
    shared: &Shared,
) -> Result<BufferedBody, Box<Problem>> {
    body::read_json(request, shared.bodies(shared.config.max_body_bytes)).await
}

/// Room for the verdict of one rule, and nearly that of two.
const VERDICT_BYTES: usize = 512;

/// 200 with a verdict.
pub(super) fn verdict(verdict: &Verdict) -> Response {
    let mut body = Vec::with_capacity(VERDICT_BYTES);
    VerdictBody::from(verdict).write_json(&mut body);
    reply(StatusCode::OK, JSON, body)
}

/// The problem for an error; `domains` are those that exist.
pub(super) fn ask_problem(error: &AskError, domain: &str, domains: &[&str]) -> Box<Problem> {
    let (kind, more) = match error {
        AskError::UnknownDomain => {
            let known = match domains {
                [] => "there are no rules at all: start with --rules FILE".to_owned(),
                _ => format!("write one of {}", listed(domains)),
            };
            let detail = format!("no rules for domain {domain:?}: {known}");
            return Box::new(Problem::new(ProblemKind::UnknownDomain, detail));
        }
        AskError::UnknownRule => {
            let more = format!(": GET /v1/rules lists the rules of domain {domain:?}");
            (ProblemKind::NotFound, more)
        }
        AskError::UnknownHold => {
            let more = format!(
                " in domain {domain:?}, or it was over for two minutes: write that of a reservation"
            );
            (ProblemKind::NotFound, more)
        }
        error => (kind_of(error), String::new()),
    };
    Box::new(Problem::new(kind, format!("{error}{more}")))
}

fn kind_of(error: &AskError) -> ProblemKind {
    match error {
        AskError::Impossible(_)
        | AskError::HoldName
        | AskError::LongHold { .. }
        | AskError::Query(_)
        | AskError::Unsettled { .. }
        | AskError::Store(StoreError::Unable(_)) => ProblemKind::InvalidRequest,
        AskError::Store(StoreError::HoldTaken) => ProblemKind::Conflict,
        AskError::Store(StoreError::TooManyHolds) | AskError::Overslept => ProblemKind::Overloaded,
        AskError::Store(StoreError::Overloaded) => ProblemKind::StoreOverloaded,
        AskError::Store(StoreError::Unavailable(_) | StoreError::Unconfirmed(_)) => {
            ProblemKind::TemporarilyReduced
        }
        _ => ProblemKind::Internal,
    }
}

/// The first few names of a list.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 10;
    let shown: Vec<&str> = names.iter().take(MOST).copied().collect();
    let more = names.len() - shown.len();
    let shown = shown.join(", ");
    match more {
        0 => shown,
        _ => format!("{shown} and {more} more"),
    }
}
