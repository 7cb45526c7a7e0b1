//! Admission: asks for a call, and delays it until it may continue.

use std::time::Duration;

use quell_core::charge::{Charges, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::descriptor::Query;
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::hold_id::new_id;
use crate::limiter::{Limiter, permit_id};
use crate::store::HoldStore;

/// The answer to a call, after any wait.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) verdict: Verdict,
    /// Lifetime of its hold without a renewal, if it has one.
    pub(crate) keep: Option<Duration>,
}

impl<S: HoldStore> Limiter<S> {
    /// Asks, and returns when the call may continue, or why it may not. If `hold` is given, the
    /// charge can be settled for that long. If the future is dropped before it returns, nothing is
    /// charged.
    pub(crate) async fn admit(
        &self,
        query: &Query<'_>,
        wait_limits: WaitLimits,
        hold: Option<Duration>,
    ) -> Result<Admitted, AskError> {
        let now = self.now();
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        let limits = || set.charges().iter().map(|charge| &charge.active.limit);
        let may_wait = !wait_limits.turn.is_zero() || limits().any(|limit| limit.may_delay());
        let verdict = if hold.is_none() && !may_wait {
            let id = permit_id(Operation::Acquire, query, &set);
            let charges = Charges::new(&set, id.as_ref());
            let decided = self.parts.store.decide(charges, Operation::Acquire, now);
            let answer = decided.await?;
            self.conclude(Operation::Acquire, query, &set, &answer, id.as_ref(), now)
        } else {
            let id = new_id(query.domain());
            let claim = Claim {
                hold,
                wait: may_wait.then_some(wait_limits),
                ..Claim::plain(&id)
            };
            self.claim_set(query, &set, &claim, now).await?
        };
        let keep = limits().filter_map(|limit| limit.lease()).chain(hold).min();
        Ok(Admitted {
            keep: keep.filter(|_| verdict.id.is_some()),
            verdict,
        })
    }
}
