//! Problem documents (RFC 9457): what went wrong, and what to write or do.

use quell_core::rate_limit_fields::wire_name;
use quell_core::verdict::Verdict;
use serde::{Deserialize, Serialize};

use super::authorize::AuthorizeError;
use super::json::BodyError;

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The field, and all it says, of an answer that is degraded: a boolean of RFC 9651.
pub const DEGRADED: (&str, &str) = ("quell-degraded", "?1");

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A limit denies (429).
    QuotaExceeded,
    /// The store failed and the answer that was declared for that is no (503).
    TemporarilyReduced,
    /// The body is no JSON (400).
    BadJson,
    /// The body is JSON, but a member is wrong or missing (400).
    InvalidField,
    /// A parameter or header is missing or wrong (400).
    InvalidRequest,
    /// The rules know no such domain (404).
    UnknownDomain,
    /// There is nothing at this path (404).
    NotFound,
    /// The path does not have this method (405).
    MethodNotAllowed,
    /// An id stands for something else (409).
    Conflict,
    /// The request took too long to arrive (408).
    RequestTimeout,
    /// The body is longer than the server takes (413).
    BodyTooLarge,
    /// The body is of another type than JSON (415).
    UnsupportedMediaType,
    /// A credential is missing or wrong (401).
    Unauthorized,
    /// A page of a stranger may have sent it (403).
    Forbidden,
    /// The server has more to do than it can (503).
    Overloaded,
    /// The store answers, and has more to do than it can (503).
    StoreOverloaded,
    /// The store failed and nothing was declared, or the server is at fault (500).
    Internal,
}

impl ProblemKind {
    /// The URI that names it.
    #[must_use]
    pub const fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::TemporarilyReduced => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::BadJson => "urn:quell:problem:bad-json",
            Self::InvalidField => "urn:quell:problem:invalid-field",
            Self::InvalidRequest => "urn:quell:problem:invalid-request",
            Self::UnknownDomain => "urn:quell:problem:unknown-domain",
            Self::NotFound => "urn:quell:problem:not-found",
            Self::MethodNotAllowed => "urn:quell:problem:method-not-allowed",
            Self::Conflict => "urn:quell:problem:conflict",
            Self::RequestTimeout => "urn:quell:problem:request-timeout",
            Self::BodyTooLarge => "urn:quell:problem:body-too-large",
            Self::UnsupportedMediaType => "urn:quell:problem:unsupported-media-type",
            Self::Unauthorized => "urn:quell:problem:unauthorized",
            Self::Forbidden => "urn:quell:problem:forbidden",
            Self::Overloaded => "urn:quell:problem:overloaded",
            Self::StoreOverloaded => "urn:quell:problem:store-overloaded",
            Self::Internal => "urn:quell:problem:internal",
        }
    }

    /// A short text, always the same.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota exceeded",
            Self::TemporarilyReduced => "Temporarily reduced capacity",
            Self::BadJson => "The body is not JSON",
            Self::InvalidField => "Something in the body is wrong",
            Self::InvalidRequest => "Something in the request is wrong",
            Self::UnknownDomain => "No rules for this domain",
            Self::NotFound => "Nothing is here",
            Self::MethodNotAllowed => "Method not allowed",
            Self::Conflict => "The id is taken",
            Self::RequestTimeout => "The request took too long",
            Self::BodyTooLarge => "The body is too large",
            Self::UnsupportedMediaType => "The body is of an unsupported type",
            Self::Unauthorized => "A credential is needed",
            Self::Forbidden => "The request may come from a stranger's page",
            Self::Overloaded => "The server is overloaded",
            Self::StoreOverloaded => "The store is overloaded",
            Self::Internal => "The server failed",
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded => 429,
            Self::BadJson | Self::InvalidField | Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::UnknownDomain | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::Conflict => 409,
            Self::BodyTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Internal => 500,
            Self::TemporarilyReduced | Self::Overloaded | Self::StoreOverloaded => 503,
        }
    }
}

/// A problem document. Members that a later version adds are passed over when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The URI of its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short text, the same for all of its kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here, and what to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// A JSON pointer (RFC 6901) to what is wrong in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The rules that deny, named as in the `RateLimit` fields.
    #[serde(
        default,
        rename = "violated-policies",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub violated: Vec<String>,
}

impl Problem {
    /// A problem with a text that says what to write.
    #[must_use]
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind: kind.uri().to_owned(),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: Some(detail.into()),
            pointer: None,
            violated: Vec::new(),
        }
    }

    /// What a refusal says to people's clients: `quota-exceeded` with the rules that deny, or
    /// `temporary-reduced-capacity` if the store failed.
    #[must_use]
    pub fn refusal(verdict: &Verdict) -> Self {
        let kind = if verdict.degraded {
            ProblemKind::TemporarilyReduced
        } else {
            ProblemKind::QuotaExceeded
        };
        let violated = verdict
            .decisions
            .iter()
            .filter(|rule| !rule.shadow && !rule.decision.outcome.is_allow())
            .map(|rule| wire_name(&rule.rule))
            .collect();
        Self {
            violated,
            ..Self::new(kind, refusal_detail(verdict))
        }
    }
}

fn refusal_detail(verdict: &Verdict) -> &'static str {
    if verdict.degraded {
        "The limits cannot be counted at the moment. Try again later."
    } else if verdict.is_permanent() {
        "The cost is above what the limit can ever hold. Ask for less at once."
    } else if verdict.banned {
        "Too many refusals: every request is refused for a while. Wait as long as Retry-After says."
    } else {
        "Too many requests. Wait as long as Retry-After says."
    }
}

impl From<&BodyError> for Problem {
    fn from(error: &BodyError) -> Self {
        let kind = match error {
            BodyError::Syntax { .. } => ProblemKind::BadJson,
            BodyError::Field { .. } => ProblemKind::InvalidField,
        };
        Self {
            pointer: error.pointer().map(ToOwned::to_owned),
            ..Self::new(kind, error.to_string())
        }
    }
}

impl From<&AuthorizeError> for Problem {
    fn from(error: &AuthorizeError) -> Self {
        Self::new(ProblemKind::InvalidRequest, error.to_string())
    }
}
