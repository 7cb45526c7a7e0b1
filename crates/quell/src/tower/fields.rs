//! Fields: `RateLimit-Policy`, `RateLimit` and `Retry-After` on a response.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use quell_core::descriptor::Query;
use quell_core::rate_limit_fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitItem, definition_field, retry_after, status_field,
};
use quell_core::rule::RuleSet;
use quell_core::verdict::Verdict;

/// The two fields of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    definition: Option<String>,
    status: Option<String>,
}

impl Fields {
    /// What is told about each limit that has a say.
    pub(super) fn of(rules: &RuleSet, query: &Query<'_>, verdict: &Verdict) -> Self {
        let items = RateLimitItem::of(rules, query, verdict);
        Self {
            definition: definition_field(&items),
            status: status_field(&items),
        }
    }

    /// Adds the fields to those of a response; another layer's are kept, since both are lists.
    pub(super) fn append_to(self, headers: &mut HeaderMap) {
        let fields = [
            (RATE_LIMIT_POLICY, self.definition),
            (RATE_LIMIT, self.status),
        ];
        for (name, value) in fields {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
    }
}

/// Adds `Retry-After`, unless the request passes or can never pass.
pub(super) fn add_retry_after(verdict: &Verdict, headers: &mut HeaderMap) {
    if let Some(seconds) = retry_after(verdict, Duration::ZERO) {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}
