//! Replies: JSON, problem documents, and the one place that maps errors to them.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::body::Frame;
use quell::store::StoreError;
use quell::{AskError, Verdict};
use quell_protocol::escape_json;
use quell_protocol::http::{PROBLEM_JSON, Problem, ProblemKind, VerdictBody};
use serde::Serialize;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A reply of this status and type.
pub(super) fn reply(status: StatusCode, kind: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Room for the verdict of one rule, and nearly that of two.
const VERDICT_BYTES: usize = 512;

/// 200 with a verdict.
pub(super) fn verdict(verdict: &Verdict) -> Response {
    let mut body = Vec::with_capacity(VERDICT_BYTES);
    VerdictBody::from(verdict).write_json(&mut body);
    reply(StatusCode::OK, JSON, body)
}

/// 204, which has neither a body nor a length of one (RFC 9110, 8.6).
pub(super) fn no_content() -> Response {
    let mut response = Response::new(Body::new(NoContent));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A body of which nobody says that it is 0 bytes long, as is said of an empty one.
struct NoContent;

impl HttpBody for NoContent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// 200 with `value` as JSON.
pub(super) fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// `value` as JSON.
pub(super) fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(body) => reply(status, JSON, shown(body)),
        Err(error) => problem(&Problem::new(ProblemKind::Internal, error.to_string())),
    }
}

/// JSON in which keys and other words of strangers stand, for an operator's terminal.
fn shown(json: String) -> String {
    let escaped = match escape_json(&json) {
        Cow::Owned(escaped) => Some(escaped),
        Cow::Borrowed(_) => None,
    };
    escaped.unwrap_or(json)
}

/// A problem document.
pub(super) fn problem(problem: &Problem) -> Response {
    let (status, body) = problem_body(problem);
    let kind = HeaderValue::from_static(PROBLEM_JSON);
    let mut response = reply(status, kind, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let soon = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, soon);
    }
    response
}

/// The status and the text of a problem document.
pub(super) fn problem_body(problem: &Problem) -> (StatusCode, String) {
    let status = StatusCode::from_u16(problem.status);
    // A document of texts and a number cannot fail to be written.
    let body = serde_json::to_string(problem).unwrap_or_default();
    (
        status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        shown(body),
    )
}

/// What is told when there is no answer; `domains` are those that there are.
pub(super) fn ask_problem(error: &AskError, domain: &str, domains: &[&str]) -> Box<Problem> {
    Box::new(match error {
        AskError::UnknownDomain => {
            let known = match domains {
                [] => "there are no rules at all: start with --rules FILE".to_owned(),
                _ => format!("write one of {}", listed(domains)),
            };
            let detail = format!("no rules for domain {domain:?}: {known}");
            Problem::new(ProblemKind::UnknownDomain, detail)
        }
        AskError::UnknownRule => {
            let detail = format!("{error}: GET /v1/rules lists the rules of domain {domain:?}");
            Problem::new(ProblemKind::NotFound, detail)
        }
        AskError::Impossible(_)
        | AskError::HoldName
        | AskError::HoldLength
        | AskError::HoldDescriptors
        | AskError::Store(StoreError::Unable(_)) => {
            Problem::new(ProblemKind::InvalidRequest, error.to_string())
        }
        AskError::UnknownHold => {
            let detail = format!(
                "{error} in domain {domain:?}, or it was over for two minutes: write that of a reservation"
            );
            Problem::new(ProblemKind::NotFound, detail)
        }
        AskError::Store(StoreError::HoldTaken) => {
            Problem::new(ProblemKind::Conflict, error.to_string())
        }
        AskError::Store(StoreError::TooManyHolds) | AskError::Overslept => {
            Problem::new(ProblemKind::Overloaded, error.to_string())
        }
        AskError::Store(StoreError::Overloaded) => {
            Problem::new(ProblemKind::StoreOverloaded, error.to_string())
        }
        AskError::Store(StoreError::Unavailable(_)) => {
            Problem::new(ProblemKind::TemporarilyReduced, error.to_string())
        }
        _ => Problem::new(ProblemKind::Internal, error.to_string()),
    })
}

/// A request that is not as it should be.
pub(super) fn invalid(detail: String) -> Box<Problem> {
    Box::new(Problem::new(ProblemKind::InvalidRequest, detail))
}

/// The first few names of a list.
fn listed(names: &[&str]) -> String {
    const MOST: usize = 10;
    let shown: Vec<&str> = names.iter().take(MOST).copied().collect();
    let more = names.len() - shown.len();
    let rest = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{rest}", shown.join(", "))
}

/// Whole milliseconds, rounded up.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
