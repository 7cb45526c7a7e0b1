//! Replies: JSON, problem documents, and the one place that maps errors to them.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use quell_protocol::escape_json;
use quell_protocol::http::{BodyError, PROBLEM_JSON, Problem, ProblemKind};
use serde::Serialize;

use crate::access::Denied;

/// The type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A reply of this status and type.
pub fn reply(status: StatusCode, kind: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// 204, which has neither a body nor a length of one (RFC 9110, 8.6).
pub fn no_content() -> Response {
    let mut response = Response::new(Body::new(NoContent));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// An empty body for which no Content-Length is sent.
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
pub fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// `value` as JSON.
pub fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(body) => reply(status, JSON, shown(body)),
        Err(error) => problem(&Problem::new(ProblemKind::Internal, error.to_string())),
    }
}

/// JSON with keys and other text of strangers, escaped for an operator's terminal.
fn shown(json: String) -> String {
    match escape_json(&json) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => json,
    }
}

/// A problem document.
pub fn problem(problem: &Problem) -> Response {
    let (status, body) = problem_body(problem);
    let kind = HeaderValue::from_static(PROBLEM_JSON);
    let mut response = reply(status, kind, body);
    // A refusal of the token has this field, and other refusals with its status do not (RFC 6750, 3).
    let challenge = if status == StatusCode::UNAUTHORIZED {
        Some("Bearer realm=\"quell\"")
    } else if problem.kind == ProblemKind::NotPermitted.uri() {
        Some("Bearer realm=\"quell\", error=\"insufficient_scope\"")
    } else {
        None
    };
    if let Some(challenge) = challenge {
        let challenge = HeaderValue::from_static(challenge);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let soon = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, soon);
    }
    response
}

/// The detail of a refusal when the buffers of all connections are full.
pub const FULL: &str = "the buffers of all connections are full (max_buffer_bytes): send requests and read answers at once";

/// An answer to no request in particular, after which the connection ends.
pub fn overloaded(detail: impl Into<String>) -> Arc<[u8]> {
    let problem = Problem::new(ProblemKind::Overloaded, detail);
    unasked("503 Service Unavailable\r\nRetry-After: 1", &problem)
}

/// A problem as the whole answer to a connection whose request is not read.
pub fn unasked(status_and_fields: &str, problem: &Problem) -> Arc<[u8]> {
    // A document of texts and a number cannot fail to be written.
    let body = serde_json::to_string(problem).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 {status_and_fields}\r\n\
         Content-Type: {PROBLEM_JSON}\r\n\
         Content-Length: {}\r\n\
         Connection: close\r\n\r\n\
         {body}",
        body.len()
    );
    Arc::from(text.into_bytes())
}

/// The answer to a client that does not speak TLS where the listener does.
#[must_use]
pub fn no_tls() -> Arc<[u8]> {
    let problem = Problem::new(
        ProblemKind::InvalidRequest,
        "this port speaks TLS: write https:// in place of http://",
    );
    unasked("400 Bad Request", &problem)
}

/// The code of gRPC for a caller that is not known.
const UNAUTHENTICATED: &[u8] = b"16";

/// Returns true if an answer says that the caller is not known: by its status, or by that of gRPC.
#[must_use]
pub fn is_unauthenticated(answer: &Response) -> bool {
    let code = answer.headers().get("grpc-status");
    answer.status() == StatusCode::UNAUTHORIZED
        || code.is_some_and(|code| code.as_bytes() == UNAUTHENTICATED)
}

/// Marks an answer whose body goes on until the client or the server ends it; what it may take is bounded
/// where it is made.
#[derive(Clone, Copy, Debug)]
pub struct Endless;

/// Result of a route.
pub type RouteResult = Result<Response, Refusal>;

/// A problem in place of an answer: what a route returns where it fails.
#[derive(Debug)]
pub struct Refusal(Box<Problem>);

impl From<Box<Problem>> for Refusal {
    fn from(problem: Box<Problem>) -> Self {
        Self(problem)
    }
}

impl From<Refusal> for Box<Problem> {
    fn from(Refusal(problem): Refusal) -> Self {
        problem
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self(denied.into())
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self(Box::new(Problem::from(&error)))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        problem(&self.0)
    }
}

/// The status and the text of a problem document.
pub fn problem_body(problem: &Problem) -> (StatusCode, String) {
    let status = StatusCode::from_u16(problem.status);
    // A document of texts and a number cannot fail to be written.
    let body = serde_json::to_string(problem).unwrap_or_default();
    (
        status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        shown(body),
    )
}

/// The problem of an invalid request.
pub fn invalid(detail: String) -> Box<Problem> {
    Box::new(Problem::new(ProblemKind::InvalidRequest, detail))
}

/// Names and values of a query string.
pub fn parameters(query: Option<&str>) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

/// The problem of an unknown parameter.
pub fn unknown_parameter(name: &str, known: &str) -> Box<Problem> {
    invalid(format!("unknown parameter {name:?}: write {known}"))
}

/// The problem of a body whose member at `pointer` is invalid.
pub fn invalid_field(pointer: &str, reason: impl Into<String>) -> Box<Problem> {
    Box::new(Problem {
        pointer: Some(pointer.to_owned()),
        ..Problem::new(ProblemKind::InvalidField, reason)
    })
}

/// Whole milliseconds, rounded up.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_wrote_is_escaped() {
        let said = shown(serde_json::json!({ "why": "a\u{9b}2J\u{202e}" }).to_string());
        assert_eq!(said, r#"{"why":"a\u009b2J\u202e"}"#);
    }

    #[test]
    fn parameters_are_decoded() {
        let query = Some("a=1%2f2+3&&b&c=%zz%4&%41=%f0%9f%90%a2");
        let said: Vec<_> = parameters(query).into_owned().collect();
        let expected = [("a", "1/2 3"), ("b", ""), ("c", "%zz%4"), ("A", "🐢")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(said, expected);
    }
}
