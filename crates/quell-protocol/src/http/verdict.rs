//! The verdict's twin: what `/v1/acquire` and `/v1/peek` answer, and what their clients read.
//!
//! Durations are whole milliseconds, rounded up. Null means "not applicable".

use std::borrow::Cow;

use quell_core::decision::{Decision, RetryAfter};
use quell_core::verdict::{RuleDecision, Verdict};
use serde::{Deserialize, Serialize};

use crate::rounding::milliseconds;

/// A verdict as JSON has it. Fields that a later version adds are passed over when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictBody<'a> {
    /// Whether the query may go on.
    pub allowed: bool,
    /// The rule that binds; none if no rule has a say.
    pub binding: Option<Cow<'a, str>>,
    /// What remains under the binding rule; none if no limit applies.
    pub remaining: Option<u64>,
    /// Milliseconds until the same query could pass; none when allowed, or never.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until everything is at rest; none if no limit applies.
    pub reset_after_ms: Option<u64>,
    /// Milliseconds that an allowed query should wait.
    pub delay_ms: u64,
    /// Whether the query can never pass at its cost.
    pub permanent: bool,
    /// Whether a limit that denies does so by a ban.
    pub banned: bool,
    /// Whether a store failed and the answer was declared, not counted.
    pub degraded: bool,
    /// Whether no rule decided anything.
    pub unmatched: bool,
    /// The name of what is held, permits or a reservation; left out where nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// Milliseconds that the caller waited for its turn; left out where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Each rule's decision, in file order.
    pub decisions: Vec<DecisionBody<'a>>,
}

/// A rule's decision as JSON has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionBody<'a> {
    /// The rule's name.
    pub rule: Cow<'a, str>,
    /// What its limit said.
    pub outcome: OutcomeBody,
    /// The largest cost from rest.
    pub limit: u64,
    /// The largest cost that would be allowed now.
    pub remaining: u64,
    /// Milliseconds until the same call could pass; none when allowed, or never.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the key is at rest.
    pub reset_after_ms: u64,
    /// Milliseconds that an allowed call should wait.
    pub delay_ms: u64,
    /// Whether the call can never pass at its cost.
    pub permanent: bool,
    /// Whether a ban stands on the key.
    pub banned: bool,
    /// Whether the rule is only reported.
    pub shadow: bool,
}

/// An outcome as JSON has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutcomeBody {
    /// The call fits.
    Allow,
    /// It does not.
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
        }
    }
}

/// A wait in milliseconds, at least 1; none for never.
fn wait(retry_after: RetryAfter) -> Option<u64> {
    match retry_after {
        RetryAfter::After(wait) => Some(milliseconds(wait).max(1)),
        RetryAfter::Never => None,
    }
}
