//! Admission: asks for a call, and holds it back until it may go on.

use std::time::Duration;

use quell_core::charge::Operation;
use quell_core::descriptor::Query;
use quell_core::hold::{Claim, Patience};
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::holding::{Leaving, new_id};
use crate::limiter::{Limiter, check_domain};
use crate::store::Store;

/// The answer to a call that was held back as long as it had to be.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) verdict: Verdict,
    /// How long what it holds lasts without being renewed, if it holds something.
    pub(crate) keep: Option<Duration>,
}

impl<S: Store> Limiter<S> {
    /// Asks, and returns when the call may go on, or why it may not. What was charged can be settled
    /// if it is to be kept for `hold`. Dropped before it returns, it charged nothing.
    ///
    /// On a store without holds nothing waits for a turn, a delay is cut to what `patience` has in all,
    /// and what was charged stays charged.
    pub(crate) async fn admit(
        &self,
        query: &Query<'_>,
        patience: Patience,
        hold: Option<Duration>,
    ) -> Result<Admitted, AskError> {
        let now = self.now();
        let rules = self.rules.load_full();
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(&rules, query, &set)?;
        let limits = || set.charges().iter().map(|charge| &charge.installed.limit);
        let may_wait = !patience.turn.is_zero() || limits().any(|limit| limit.may_delay());
        let has_holds = self.store.has_holds();
        let verdict = if hold.is_none() && !(may_wait && has_holds) {
            let verdict = self.ask_set(Operation::Acquire, query, &set, now);
            let mut verdict = verdict.await?;
            if verdict.is_allow() && !verdict.delay.is_zero() {
                let began = self.now().monotonic;
                self.pause(verdict.delay.min(patience.in_all)).await;
                verdict.has_waited(self.now().monotonic.since(began));
            }
            verdict
        } else {
            let id = new_id(query.domain());
            let claim = Claim {
                id: &id,
                hold,
                wait: may_wait.then_some(patience),
                is_named: false,
            };
            self.claim_set(query, &set, &claim, now).await?
        };
        let keep = limits().filter_map(|limit| limit.lease()).chain(hold).min();
        Ok(Admitted {
            keep: keep.filter(|_| verdict.id.is_some()),
            verdict,
        })
    }

    /// Sleeps in the waiting room, in which nobody calls for who has no place in a line.
    async fn pause(&self, delay: Duration) {
        let id = new_id("");
        let end = self.now().monotonic.saturating_add(delay);
        self.room.enter(&id);
        let leaving = Leaving {
            limiter: self,
            id,
            is_placed: false,
        };
        self.sleep_until(&leaving.id, end).await;
    }
}
