//! Problem documents (RFC 9457): what went wrong, and what to write or do.

use quell_core::rate_limit_fields::wire_name;
use quell_core::verdict::Verdict;
use serde::{Deserialize, Serialize};

use super::authorize::AuthorizeError;
use super::json::BodyError;
use super::overrides::LineMistake;

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The field of a degraded answer, with its only value: a boolean of RFC 9651.
pub const DEGRADED: (&str, &str) = ("quell-degraded", "?1");

/// The field of an answer that a rule in shadow would refuse, with its only value.
pub const WOULD_REFUSE: (&str, &str) = ("quell-would-refuse", "?1");

/// Declares [`ProblemKind`]: each kind, its status, its URI and its title.
macro_rules! problem_kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:literal, $uri:literal, $title:literal;)*) => {
        /// The kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[$doc])* $kind,)*
        }

        impl ProblemKind {
            /// The URI that names it.
            #[must_use]
            pub const fn uri(self) -> &'static str {
                match self {
                    $(Self::$kind => $uri,)*
                }
            }

            /// A short text, always the same.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title,)*
                }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$kind => $status,)*
                }
            }
        }
    };
}

problem_kinds! {
    /// A limit denies (429).
    QuotaExceeded = 429, "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "Quota exceeded";
    /// The store failed, and the declared answer is a refusal (503).
    TemporarilyReduced = 503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "Temporarily reduced capacity";
    /// The body is not JSON (400).
    BadJson = 400, "urn:quell:problem:bad-json", "The body is not JSON";
    /// The body is JSON, but a member is wrong or missing (400).
    InvalidField = 400, "urn:quell:problem:invalid-field", "Something in the body is wrong";
    /// A parameter or header is missing or wrong (400).
    InvalidRequest = 400, "urn:quell:problem:invalid-request", "Something in the request is wrong";
    /// The domain has no rules (404).
    UnknownDomain = 404, "urn:quell:problem:unknown-domain", "No rules for this domain";
    /// The path has no route (404).
    NotFound = 404, "urn:quell:problem:not-found", "Nothing is here";
    /// The path does not have this method (405).
    MethodNotAllowed = 405, "urn:quell:problem:method-not-allowed", "Method not allowed";
    /// The id is used for something else (409).
    Conflict = 409, "urn:quell:problem:conflict", "The id is taken";
    /// It has another revision than the caller saw (412).
    PreconditionFailed = 412, "urn:quell:problem:changed-meanwhile", "It was changed meanwhile";
    /// Lines of a batch are wrong (422).
    WrongLines = 422, "urn:quell:problem:wrong-lines", "Lines of the batch are wrong";
    /// The request took too long to arrive (408).
    RequestTimeout = 408, "urn:quell:problem:request-timeout", "The request took too long";
    /// The body is longer than the server accepts (413).
    BodyTooLarge = 413, "urn:quell:problem:body-too-large", "The body is too large";
    /// The body has a type other than JSON (415).
    UnsupportedMediaType = 415, "urn:quell:problem:unsupported-media-type",
        "The body is of an unsupported type";
    /// A credential is missing or wrong (401).
    Unauthorized = 401, "urn:quell:problem:unauthorized", "A credential is needed";
    /// The caller's token does not allow it (403).
    NotPermitted = 403, "urn:quell:problem:not-permitted", "The token does not allow this";
    /// A stranger's page may have sent it (403).
    Forbidden = 403, "urn:quell:problem:forbidden", "The request may come from a stranger's page";
    /// A rule needs more of its callers than a gateway can do (501).
    UnsupportedRule = 501, "urn:quell:problem:unsupported-rule",
        "A rule cannot be applied to a gateway's requests";
    /// The store did not answer a change, which it may have made (504).
    Unconfirmed = 504, "urn:quell:problem:unconfirmed", "The store did not confirm the change";
    /// There would be more overrides than there may be (507).
    StoreFull = 507, "urn:quell:problem:store-full", "The store is full";
    /// Another coordinator of the fleet leads, or none does (503).
    NotLeader = 503, "urn:quell:problem:not-leader", "This coordinator does not lead";
    /// The server is overloaded (503).
    Overloaded = 503, "urn:quell:problem:overloaded", "The server is overloaded";
    /// The store answers, but is overloaded (503).
    StoreOverloaded = 503, "urn:quell:problem:store-overloaded", "The store is overloaded";
    /// The store failed and no answer was declared, or the server is at fault (500).
    Internal = 500, "urn:quell:problem:internal", "The server failed";
}

/// A problem document. Unknown members, which a later version may add, are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The URI of its kind.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "uri")))]
    pub kind: String,
    /// A short text, the same for all of its kind.
    pub title: String,
    /// The HTTP status.
    #[cfg_attr(feature = "openapi", schemars(range(min = 400, max = 599)))]
    pub status: u16,
    /// Cause of this occurrence, and the text to write instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// A JSON pointer (RFC 6901) to what is wrong in the body; empty for the whole body, such as when a member is
    /// missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The rules that deny, named as in the `RateLimit` fields.
    #[serde(
        default,
        rename = "violated-policies",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub violated: Vec<String>,
    /// The revision that the override has, 0 for none, in place of the one that the caller saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The first lines of a batch that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<LineMistake>,
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
            revision: None,
            errors: Vec::new(),
        }
    }

    /// The problem for a refusal: `quota-exceeded` with the rules that deny, or
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
