//! HTTP without a server: bodies, fields and problem documents.

mod ask;
mod authorize;
mod body;
mod fields;
mod json;
mod key;
mod path;
mod problem;
mod question;
mod verdict;
mod write;

pub use ask::{EncodeError, encode_query};
pub use authorize::{AuthorizeError, AuthorizeMap, EntrySource, Reading, authorize};
pub use body::parse_query;
pub use fields::{
    DEGRADED, RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitItem, definition_field, retry_after,
    status_field,
};
pub use json::BodyError;
pub use key::{KeyRequest, parse_key};
pub use problem::{PROBLEM_JSON, Problem, ProblemKind};
pub use question::{Question, find_question};
pub use verdict::{DecisionBody, OutcomeBody, VerdictBody};
