//! Verdict: the query's answer, all decisions combined.

use alloc::sync::Arc;
use core::num::NonZeroU64;
use core::time::Duration;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::decision::{Decision, RetryAfter};

/// The decision of one rule, with the rule's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDecision {
    /// The rule's name.
    pub rule: Arc<str>,
    /// True if the rule is in shadow: reported, but it cannot refuse.
    pub shadow: bool,
    /// Cost of the call under this rule, in the units of its limit.
    pub cost: Cost,
    /// The decision of its limit.
    pub decision: Decision,
    /// The name of the rung, if the answer is of a rung on which other nodes may have used units that this
    /// node does not know of (`leased`, `shares`).
    pub rung: Option<&'static str>,
    /// If it is decided from leases: by how many units all nodes together may exceed the limit.
    pub bound: Option<NonZeroU64>,
}

impl RuleDecision {
    /// Returns true if the rule would refuse this call if it were not in shadow.
    #[must_use]
    pub const fn would_refuse(&self) -> bool {
        self.shadow && !self.decision.outcome.is_allow()
    }

    /// Returns true if fewer further calls like this one pass than under `other`: `remaining` divided by
    /// the cost, compared exactly.
    fn passes_fewer_than(&self, other: &Self) -> bool {
        let calls = |one: &Self, other: &Self| {
            u128::from(one.decision.remaining) * u128::from(other.cost.get())
        };
        calls(self, other) < calls(other, self)
    }
}

/// Decisions with their rules' names. A single one needs no allocation.
pub type RuleDecisions = SmallVec<[RuleDecision; 1]>;

/// The answer to a query.
///
/// Denied if any limit that is not in shadow denies. Combined numbers leave shadow limits out. They are
/// `None` or zero if no other limit applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Each rule's decision, in file order.
    pub decisions: RuleDecisions,
    /// Index of the binding decision. If the query is denied, this is the denying one with the longest
    /// `retry_after`. If it is allowed, the one under which the fewest further calls like this one pass
    /// (`remaining` divided by the cost there). Ties go by file order.
    pub binding: Option<usize>,
    /// Units that remain under the binding rule.
    pub remaining: Option<u64>,
    /// If denied, the longest wait among the limits that deny; `None` if allowed.
    pub retry_after: Option<RetryAfter>,
    /// The longest time to rest; `None` if no limit applies.
    pub reset_after: Option<Duration>,
    /// The longest delay of an allowed call.
    pub delay: Duration,
    /// True if a limit denies because of a ban.
    pub banned: bool,
    /// The id of permits or a reservation, under which they can be ended.
    pub id: Option<Arc<str>>,
    /// Time that the caller waited for this answer.
    pub waited: Duration,
    /// True if the store failed, and the answer is that of `on_failure`.
    pub degraded: bool,
}

impl Verdict {
    /// Combines decisions, which are in file order.
    #[must_use]
    pub fn combine(decisions: impl IntoIterator<Item = RuleDecision>) -> Self {
        let mut verdict = Self::default();
        for decided in decisions {
            if !decided.shadow {
                verdict.add(&decided);
            }
            verdict.decisions.push(decided);
        }
        if verdict.retry_after.is_some() {
            verdict.delay = Duration::ZERO;
        }
        verdict
    }

    fn add(&mut self, decided: &RuleDecision) {
        let decision = &decided.decision;
        if self.is_bound_by(decided) {
            self.binding = Some(self.decisions.len());
            self.remaining = Some(decision.remaining);
            self.retry_after = decision.retry_after();
        }
        self.reset_after = self.reset_after.max(Some(decision.reset_after));
        self.delay = self.delay.max(decision.delay);
        self.banned |= decision.banned && !decision.outcome.is_allow();
    }

    /// Returns true if this decision binds more than all before it.
    fn is_bound_by(&self, decided: &RuleDecision) -> bool {
        match (decided.decision.retry_after(), self.retry_after) {
            (Some(wait), longest) => Some(wait) > longest,
            (None, Some(_)) => false,
            (None, None) => self
                .binding_rule()
                .is_none_or(|binding| decided.passes_fewer_than(binding)),
        }
    }

    /// Returns true if the query is allowed.
    #[must_use]
    pub const fn is_allow(&self) -> bool {
        self.retry_after.is_none()
    }

    /// The binding decision with its rule.
    #[must_use]
    pub fn binding_rule(&self) -> Option<&RuleDecision> {
        self.decisions.get(self.binding?)
    }

    /// Returns true if the query can never pass at its cost.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.retry_after == Some(RetryAfter::Never)
    }

    /// Returns true if a rule in shadow would refuse the query.
    #[must_use]
    pub fn would_refuse(&self) -> bool {
        self.decisions.iter().any(RuleDecision::would_refuse)
    }

    /// Returns true if no rule decided anything.
    #[must_use]
    pub fn is_unmatched(&self) -> bool {
        self.decisions.is_empty()
    }
}
