//! HTTP without a server: bodies, fields and problem documents.

mod admin;
mod ask;
mod authorize;
mod bearer;
mod body;
mod hold_bodies;
mod json;
mod overrides;
mod path;
mod problem;
mod question;
mod verdict;
mod write;

pub use admin::{
    BanBody, BansBody, CandidateBody, CandidateCounts, CandidateNodes, CandidateRequest,
    ChangedBody, Failure, HealthStatus, HeldKeyBody, HoldBody, HoldState, HoldsBody,
    MAX_LISTED_HOLDS, RefusedKeyBody, RunningCandidateBody, StartedBody, StatusBody, StoppedBody,
    TopBody,
};
pub use ask::{EncodeError, build_query, encode_query};
pub use authorize::{AuthorizeError, AuthorizeMap, EntrySource, Reading, authorize};
pub use bearer::bearer_token;
pub use body::{
    Acquire, KeyRequest, Reserve, encode_key, parse_acquire, parse_key, parse_key_name,
    parse_query, parse_reserve,
};
pub use hold_bodies::{ActualBody, EndBody, EndedBody, parse_end};
pub use json::BodyError;
pub use overrides::{
    BatchBody, ChainLinkBody, ChainSource, DeletedOverridesBody, LineMistake, OverriddenKeyBody,
    OverrideRecordBody, OverrideServersBody, OverridesBody, ProratedBody,
};
pub use problem::{DEGRADED, PROBLEM_JSON, Problem, ProblemKind, WOULD_REFUSE};
pub use quell_core::rate_limit_fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitItem, definition_field, retry_after, status_field,
};
pub use question::{Question, find_question};
pub use verdict::{DecisionBody, OutcomeBody, VerdictBody};
