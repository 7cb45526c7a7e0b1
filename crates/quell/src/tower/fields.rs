//! Fields: `RateLimit-Policy`, `RateLimit` and `Retry-After` on a response.
//!
//! The words and the rounding are those of `quell-protocol`, which this crate cannot depend on; a
//! test holds both against each other (docs/decisions/0040).

use std::fmt::Write;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use quell_core::decision::{Decision, RetryAfter};
use quell_core::descriptor::Query;
use quell_core::rule::RuleSet;
use quell_core::verdict::Verdict;

const DEFINITION: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field: 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The two fields of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    definition: String,
    status: String,
}

impl Fields {
    /// What is told about each limit that has a say.
    pub(super) fn of(rules: &RuleSet, query: &Query<'_>, verdict: &Verdict) -> Self {
        let mut fields = Self::default();
        let in_force = rules.domain(query.domain());
        for decided in verdict.decisions.iter().filter(|decided| !decided.shadow) {
            let rule = in_force
                .iter()
                .find(|rule| rule.rule().name == decided.rule);
            let active = rule.and_then(|rule| {
                let mut descriptors = query.descriptors().iter();
                descriptors.find_map(|descriptor| rule.limit_for(descriptor))
            });
            // None if a reload came in between: what is gone need not be told.
            if let Some(active) = active {
                let window = active.limit.full_refill();
                fields.add(&decided.rule, window, &decided.decision);
            }
        }
        fields
    }

    fn add(&mut self, rule: &str, window: Duration, decision: &Decision) {
        write_string(rule, &mut self.definition);
        write_integer("q", decision.limit, &mut self.definition);
        write_integer("w", seconds(window).max(1), &mut self.definition);
        write_string(rule, &mut self.status);
        write_integer("r", decision.remaining, &mut self.status);
        let until = match decision.retry_after() {
            None => Some(seconds(decision.reset_after)),
            Some(RetryAfter::After(wait)) => Some(seconds(wait).max(1)),
            Some(RetryAfter::Never) => None,
        };
        if let Some(until) = until {
            write_integer("t", until, &mut self.status);
        }
    }

    /// Adds the fields to those of a response; another layer's are kept, since both are lists.
    pub(super) fn append_to(self, headers: &mut HeaderMap) {
        for (name, value) in [(DEFINITION, self.definition), (STATUS, self.status)] {
            if let Ok(value) = HeaderValue::try_from(value)
                && !value.is_empty()
            {
                headers.append(name, value);
            }
        }
    }
}

/// Adds `Retry-After`, unless the request passes or can never pass.
pub(super) fn add_retry_after(verdict: &Verdict, headers: &mut HeaderMap) {
    if let Some(RetryAfter::After(wait)) = verdict.retry_after {
        headers.insert(RETRY_AFTER, seconds(wait).max(1).into());
    }
}

/// A rule's name in quotes, as structured fields and JSON both have it: what is not printable ASCII,
/// and `%`, is percent-encoded byte by byte.
pub(super) fn write_quoted(name: &str, text: &mut String) {
    text.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'%' | ..b' ' | 0x7f.. => {
                // Writing to a String cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text.push('"');
}

fn write_string(name: &str, text: &mut String) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    write_quoted(name, text);
}

fn write_integer(parameter: &str, value: u64, text: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(text, ";{parameter}={}", value.min(MAX_INTEGER));
}

/// Whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    let begun = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(begun)
}
