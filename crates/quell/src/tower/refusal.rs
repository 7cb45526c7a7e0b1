//! Refusal: the response to a client in place of the service's.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use quell_core::decision::RetryAfter;
use quell_core::rate_limit_fields::write_quoted;
use quell_core::refusal_page::RefusalPage;
use quell_core::verdict::Verdict;

use super::body::LimitBody;
use super::fields::add_retry_after;
use super::grpc::{self, Code};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A kind of refusal: the text of its problem document, and gRPC's status.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusalKind {
    uri: &'static str,
    title: &'static str,
    detail: &'static str,
    status: StatusCode,
    code: Code,
}

const EXCEEDED: RefusalKind = RefusalKind {
    uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota exceeded",
    detail: "Too many requests. Wait as long as Retry-After says.",
    status: StatusCode::TOO_MANY_REQUESTS,
    code: Code::ResourceExhausted,
};

const BANNED: RefusalKind = RefusalKind {
    detail: "Too many refusals: every request is refused for a while. Wait as long as Retry-After says.",
    ..EXCEEDED
};

const PERMANENT: RefusalKind = RefusalKind {
    detail: "The cost is above what the limit can ever hold. Ask for less at once.",
    ..EXCEEDED
};

const DEGRADED: RefusalKind = RefusalKind {
    uri: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Temporarily reduced capacity",
    detail: "The limits cannot be counted at the moment. Try again later.",
    status: StatusCode::SERVICE_UNAVAILABLE,
    code: Code::Unavailable,
};

/// Too many calls wait for their turn.
pub(super) const OVERLOADED: RefusalKind = RefusalKind {
    uri: "urn:quell:problem:overloaded",
    title: "The server is overloaded",
    detail: "Too many requests wait. Try again later.",
    status: StatusCode::SERVICE_UNAVAILABLE,
    code: Code::Unavailable,
};

/// The path has no normal spelling.
pub(super) const UNREADABLE: RefusalKind = RefusalKind {
    uri: "urn:quell:problem:invalid-request",
    title: "Something in the request is wrong",
    detail: "Servers do not agree on what this path is. Write it without encoded slashes, backslashes and dots.",
    status: StatusCode::BAD_REQUEST,
    code: Code::InvalidArgument,
};

/// This layer is not set up correctly. Clients are not told the reason.
pub(super) const INTERNAL: RefusalKind = RefusalKind {
    uri: "urn:quell:problem:internal",
    title: "The server failed",
    detail: "The limits of this server are not set up.",
    status: StatusCode::INTERNAL_SERVER_ERROR,
    code: Code::Internal,
};

/// The response to a query that a limit denied. gRPC has no pages.
pub(super) fn denied<B>(
    verdict: &Verdict,
    page: Option<&RefusalPage>,
    request: &HeaderMap,
) -> Response<LimitBody<B>> {
    let kind = if verdict.degraded {
        DEGRADED
    } else if verdict.is_permanent() {
        PERMANENT
    } else if verdict.banned {
        BANNED
    } else {
        EXCEEDED
    };
    let wait = match verdict.retry_after {
        Some(RetryAfter::After(wait)) => Some(wait),
        Some(RetryAfter::Never) | None => None,
    };
    let mut response = respond(kind, page, verdict, wait, request);
    add_retry_after(verdict, response.headers_mut());
    response
}

/// The response to a request for which no limit was asked.
pub(super) fn refuse<B>(kind: RefusalKind, request: &HeaderMap) -> Response<LimitBody<B>> {
    respond(kind, None, &Verdict::default(), None, request)
}

fn respond<B>(
    mut kind: RefusalKind,
    page: Option<&RefusalPage>,
    verdict: &Verdict,
    wait: Option<Duration>,
    request: &HeaderMap,
) -> Response<LimitBody<B>> {
    if let Some(content_type) = grpc::content_type(request) {
        let mut response = Response::new(LimitBody::refused(Bytes::new()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type.clone());
        grpc::add_status(kind.code, kind.detail, wait, headers);
        return response;
    }
    let status = page.and_then(RefusalPage::status_code);
    if let Some(status) = status.and_then(|status| StatusCode::from_u16(status).ok()) {
        kind.status = status;
    }
    let body = page.and_then(RefusalPage::page_body);
    let content_type = body.and_then(|body| HeaderValue::from_str(body.content_type()).ok());
    let (text, content_type) = match (body, content_type) {
        (Some(body), Some(content_type)) => (body.text().to_owned(), content_type),
        _ => (document(&kind, verdict), PROBLEM_JSON),
    };
    let mut response = Response::new(LimitBody::refused(Bytes::from(text)));
    *response.status_mut() = kind.status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A problem document (RFC 9457).
fn document(kind: &RefusalKind, verdict: &Verdict) -> String {
    let RefusalKind {
        uri, title, detail, ..
    } = kind;
    let status = kind.status.as_u16();
    let mut text = String::with_capacity(256);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        r#"{{"type":"{uri}","title":"{title}","status":{status},"detail":"{detail}""#
    );
    let denying = verdict
        .decisions
        .iter()
        .filter(|rule| !rule.shadow && !rule.decision.outcome.is_allow());
    for (index, rule) in denying.clone().enumerate() {
        text.push_str(if index == 0 {
            r#","violated-policies":["#
        } else {
            ","
        });
        write_quoted(&rule.rule, &mut text);
    }
    if denying.count() > 0 {
        text.push(']');
    }
    text.push('}');
    text
}
