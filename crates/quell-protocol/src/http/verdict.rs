//! The JSON form of a verdict: the answer of `/v1/acquire` and `/v1/peek`, which clients read.
//!
//! Durations are whole milliseconds, rounded up. Null means "not applicable".

use std::borrow::Cow;
use std::num::NonZeroU64;

use quell_core::decision::{Decision, RetryAfter};
use quell_core::verdict::{RuleDecision, Verdict};
use serde::{Deserialize, Serialize};

use crate::rounding::milliseconds;

/// The answer to a question. Unknown fields, which a later version may add, are ignored.
///
/// Times are whole milliseconds, rounded up, exact and not capped: above 2^53 (285,000 years) a client whose numbers
/// are doubles reads them rounded, and 18446744073709551615 means at least that long. Units are whole numbers up to
/// 2^64-1, which such a client reads rounded above 2^53.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct VerdictBody<'a> {
    /// True if the query is allowed.
    pub allowed: bool,
    /// Of the rules that refuse, the one with the longest wait; if none does, the one under which the fewest further
    /// calls like this one pass; null if no rule decided.
    pub binding: Option<Cow<'a, str>>,
    /// The largest cost that the binding rule would allow now; null if no limit applies.
    pub remaining: Option<u64>,
    /// Milliseconds until the same query could pass; null if it is allowed, or can never pass (then `permanent` is
    /// true).
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until nothing is used any more; null if no limit applies.
    pub reset_after_ms: Option<u64>,
    /// Milliseconds that an allowed query should wait.
    pub delay_ms: u64,
    /// True if the query can never pass at its cost.
    pub permanent: bool,
    /// True if a limit denies because of a ban.
    pub banned: bool,
    /// True if a store failed, so that the answer was declared and not counted.
    pub degraded: bool,
    /// True if no rule decided anything.
    pub unmatched: bool,
    /// The id of permits or a reservation; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// Milliseconds that the caller waited for its turn; left out if it did not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub waited_ms: Option<u64>,
    /// Each rule's decision, in file order.
    pub decisions: Vec<DecisionBody<'a>>,
    /// True if a rule in shadow would refuse the query; left out if none would.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "openapi", schemars(extend("const" = true)))]
    pub would_refuse: bool,
}

/// A rule's decision, with times and units as in the verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DecisionBody<'a> {
    /// The rule's name.
    pub rule: Cow<'a, str>,
    /// The outcome of its limit.
    pub outcome: OutcomeBody,
    /// The largest cost from rest.
    pub limit: u64,
    /// The largest cost that would be allowed now.
    pub remaining: u64,
    /// Milliseconds until the same call could pass; null if it is allowed, or can never pass (then `permanent` is
    /// true).
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the key is at rest.
    pub reset_after_ms: u64,
    /// Milliseconds that an allowed call should wait.
    pub delay_ms: u64,
    /// True if the call can never pass at its cost.
    pub permanent: bool,
    /// True if the key is banned.
    pub banned: bool,
    /// True if the rule is in shadow.
    pub shadow: bool,
    /// This server decided alone: from units that servers charge in advance (`leased`) or afterwards (`synced`), or
    /// from its part of a fleet's limit (`shares`); left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schemars(extend("enum" = ["leased", "synced", "shares"]))
    )]
    pub rung: Option<Cow<'a, str>>,
    /// By how many units all servers together may exceed the limit then; left out where it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub bound: Option<u64>,
    /// True if the rule is in shadow and would refuse the call; left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "openapi", schemars(extend("const" = true)))]
    pub would_refuse: bool,
}

/// An outcome as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum OutcomeBody {
    /// The call fits.
    Allow,
    /// The call does not fit.
    Deny,
}

impl OutcomeBody {
    /// The word in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl<'a> From<&'a Verdict> for VerdictBody<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        Self {
            allowed: verdict.is_allow(),
            binding: verdict
                .binding_rule()
                .map(|rule| Cow::Borrowed(&*rule.rule)),
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after.and_then(wait),
            reset_after_ms: verdict.reset_after.map(milliseconds),
            delay_ms: milliseconds(verdict.delay),
            permanent: verdict.is_permanent(),
            banned: verdict.banned,
            degraded: verdict.degraded,
            unmatched: verdict.is_unmatched(),
            id: verdict.id.as_deref().map(Cow::Borrowed),
            waited_ms: (!verdict.waited.is_zero()).then(|| milliseconds(verdict.waited)),
            decisions: verdict.decisions.iter().map(DecisionBody::from).collect(),
            would_refuse: verdict.would_refuse(),
        }
    }
}

impl<'a> From<&'a RuleDecision> for DecisionBody<'a> {
    fn from(rule: &'a RuleDecision) -> Self {
        let decision: &Decision = &rule.decision;
        let retry_after = decision.retry_after();
        Self {
            rule: Cow::Borrowed(&*rule.rule),
            outcome: if decision.outcome.is_allow() {
                OutcomeBody::Allow
            } else {
                OutcomeBody::Deny
            },
            limit: decision.limit,
            remaining: decision.remaining,
            retry_after_ms: retry_after.and_then(wait),
            reset_after_ms: milliseconds(decision.reset_after),
            delay_ms: milliseconds(decision.delay),
            permanent: retry_after == Some(RetryAfter::Never),
            banned: decision.banned,
            shadow: rule.shadow,
            rung: rule.rung.map(Cow::Borrowed),
            bound: rule.bound.map(NonZeroU64::get),
            would_refuse: rule.would_refuse(),
        }
    }
}

/// A wait in milliseconds, at least 1; `None` for never.
fn wait(retry_after: RetryAfter) -> Option<u64> {
    match retry_after {
        RetryAfter::After(wait) => Some(milliseconds(wait).max(1)),
        RetryAfter::Never => None,
    }
}
