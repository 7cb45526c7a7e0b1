//! Fields: `RateLimit-Policy`, `RateLimit` and `Retry-After` on a response.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use quell_core::descriptor::Query;
use quell_core::rate_limit_fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, RateLimitItem, definition_field, retry_after, status_field,
};
use quell_core::rule::RuleSet;
use quell_core::time::Wall;
use quell_core::verdict::Verdict;

/// The two fields of one answer, if there is something to report.
pub(super) type Fields = Vec<(HeaderName, HeaderValue)>;

/// The fields for each limit that is not in shadow.
pub(super) fn fields(rules: &RuleSet, query: &Query<'_>, verdict: &Verdict, wall: Wall) -> Fields {
    let items = RateLimitItem::for_verdict(rules, query, verdict, wall);
    let fields = [
        (RATE_LIMIT_POLICY, definition_field(&items)),
        (RATE_LIMIT, status_field(&items)),
    ];
    let field = |(name, value): (_, Option<String>)| {
        let value = HeaderValue::try_from(value?).ok()?;
        Some((HeaderName::from_static(name), value))
    };
    fields.into_iter().filter_map(field).collect()
}

/// Adds `Retry-After`, unless the request passes or can never pass.
pub(super) fn add_retry_after(verdict: &Verdict, headers: &mut HeaderMap) {
    if let Some(seconds) = retry_after(verdict, Duration::ZERO) {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}
