//! `RateLimit-Policy`, `RateLimit` and `Retry-After`, as the server and the `tower` layer write them.
//!
//! The first two are lists of structured fields (RFC 9651) as in
//! draft-ietf-httpapi-ratelimit-headers-10 and -11, with one item per limit that is not in shadow:
//!
//! ```text
//! RateLimit-Policy: "login-per-ip";q=5;w=60
//! RateLimit: "login-per-ip";r=0;t=12
//! ```
//!
//! `q` is the limit, `w` its window or full refill, `r` what remains, `t` the wait on deny and the
//! time to rest on allow (left out for "never"); seconds, rounded up. A limit on which other nodes may have
//! used units that this node does not know of also has `quell-rung`, and `quell-bound`, by how many units they
//! may exceed it together: a vendor's parameters, which the draft allows.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::num::NonZeroU64;
use core::time::Duration;

use crate::decision::{Decision, RetryAfter};
use crate::descriptor::Query;
use crate::rule::RuleSet;
use crate::time::Wall;
use crate::verdict::Verdict;

/// The name of the field with the limits, as HTTP/2 writes it.
pub const RATE_LIMIT_POLICY: &str = "ratelimit-policy";

/// The name of the field with what is left of them, as HTTP/2 writes it.
pub const RATE_LIMIT: &str = "ratelimit";

/// The largest integer of a structured field: 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A limit that is not in shadow, with its answer. Leave shadow rules out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitItem<'a> {
    /// The rule's name.
    pub rule: &'a str,
    /// The window of a window algorithm, the full refill of a bucket
    /// ([`Limit::full_refill`](crate::limit::Limit::full_refill)).
    pub window: Duration,
    /// The unit; `None` means a request, as in the draft.
    pub unit: Option<&'a str>,
    /// A text in base64 that tells the caller under which key it was counted; `None` does not reveal
    /// that.
    pub partition_key: Option<&'a str>,
    /// The rung, as in [`RuleDecision::rung`](crate::verdict::RuleDecision::rung).
    pub rung: Option<&'static str>,
    /// By how many units all nodes together may exceed the limit.
    pub bound: Option<NonZeroU64>,
    /// The limit's decision.
    pub decision: &'a Decision,
}

impl<'a> RateLimitItem<'a> {
    /// The limits in `verdict`, given at `wall`, that are not in shadow, by the rules in force. A rule that a reload has
    /// removed meanwhile is left out.
    #[must_use]
    pub fn for_verdict(
        rules: &RuleSet,
        query: &Query<'_>,
        verdict: &'a Verdict,
        wall: Wall,
    ) -> Vec<Self> {
        let with_say = verdict.decisions.iter().filter(|decided| !decided.shadow);
        let items = with_say.filter_map(|decided| {
            let mut descriptors = query.descriptors().iter();
            let (domain, rule) = (query.domain(), &*decided.rule);
            let limit = descriptors.find_map(|one| rules.limit_of(domain, rule, one, wall))?;
            Some(Self {
                rule: &decided.rule,
                window: limit.full_refill(),
                unit: None,
                partition_key: None,
                rung: decided.rung,
                bound: decided.bound,
                decision: &decided.decision,
            })
        });
        items.collect()
    }

    fn write_name(&self, text: &mut String) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        write_quoted(self.rule, text);
    }

    fn write_partition_key(&self, text: &mut String) {
        if let Some(key) = self.partition_key {
            // Writing to a String cannot fail.
            let _ = write!(text, ";pk=:{key}:");
        }
    }
}

/// The value of `RateLimit-Policy`; `None` without items.
#[must_use]
pub fn definition_field(items: &[RateLimitItem<'_>]) -> Option<String> {
    let mut text = String::new();
    for item in items {
        item.write_name(&mut text);
        write_integer("q", item.decision.limit, &mut text);
        write_integer("w", seconds(item.window).max(1), &mut text);
        if let Some(unit) = item.unit {
            text.push_str(";qu=");
            write_quoted(unit, &mut text);
        }
        item.write_partition_key(&mut text);
        if let Some(rung) = item.rung {
            text.push_str(";quell-rung=");
            text.push_str(rung);
        }
        if let Some(bound) = item.bound {
            write_integer("quell-bound", bound.get(), &mut text);
        }
    }
    (!items.is_empty()).then_some(text)
}

/// The value of `RateLimit`; `None` without items.
#[must_use]
pub fn status_field(items: &[RateLimitItem<'_>]) -> Option<String> {
    let mut text = String::new();
    for item in items {
        item.write_name(&mut text);
        write_integer("r", item.decision.remaining, &mut text);
        let until = match item.decision.retry_after() {
            None => Some(seconds(item.decision.reset_after)),
            Some(RetryAfter::After(wait)) => Some(seconds(wait).max(1)),
            Some(RetryAfter::Never) => None,
        };
        if let Some(until) = until {
            write_integer("t", until, &mut text);
        }
        item.write_partition_key(&mut text);
    }
    (!items.is_empty()).then_some(text)
}

/// The value of `Retry-After` in seconds, rounded up, at least 1; `None` if the query is allowed or can
/// never pass.
///
/// `jitter` is added to the wait. Drawn anew for each refusal, it keeps callers that were refused
/// together from coming back together. Zero for none.
#[must_use]
pub fn retry_after(verdict: &Verdict, jitter: Duration) -> Option<u64> {
    match verdict.retry_after? {
        RetryAfter::After(wait) => Some(seconds(wait.saturating_add(jitter)).max(1)),
        RetryAfter::Never => None,
    }
}

/// Whole seconds, rounded up; at most `u64::MAX`.
#[must_use]
pub fn seconds(duration: Duration) -> u64 {
    let begun = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(begun)
}

/// A rule's name in the fields: everything except printable ASCII, and also `%`, is percent-encoded
/// byte by byte, so that different names stay different.
#[must_use]
pub fn wire_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Appends [`wire_name`] in quotes, which is valid in structured fields and in JSON.
pub fn write_quoted(name: &str, text: &mut String) {
    text.push('"');
    for letter in wire_name(name).chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

fn write_integer(parameter: &str, value: u64, text: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(text, ";{parameter}={}", value.min(MAX_INTEGER));
}
