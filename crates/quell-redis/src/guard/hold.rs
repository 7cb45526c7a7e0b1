//! Holds behind the guard: made and ended on the store, and what is declared while that cannot tell.
//!
//! What is declared decides a claim as it decides an acquire, and nothing is held then: a share of a
//! rate is used at once and for good, permits cannot be shared and are refused, and what is allowed is
//! counted nowhere. Nobody stands in a line meanwhile. What ends a hold has no declared answer: it
//! fails, and may be said again once the store is back.

use std::sync::Arc;
use std::time::Duration;

use quell::store::{Finished, Placed, Store, StoreError};
use quell_core::charge::{LimitSet, Operation};
use quell_core::hold::{Claim, Ending, HoldId};
use quell_core::time::Now;

use super::{Inner, Unready, passes};
use crate::asked::SetFailure;
use crate::hold::Trouble;
use crate::link::Failure;

impl Inner {
    pub(super) async fn hold(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        if let Some(failure) = self.refusal_of_writes(set) {
            return self.declared(set, claim, now, &Unready::Failed(failure.into()));
        }
        let flights = match self.ready(set, Some(claim), Operation::Acquire, now).await {
            Ok(flights) => flights,
            Err(unready) => return self.declared(set, claim, now, &unready),
        };
        match self.store.try_hold(set, claim, now).await {
            Ok((placed, clock)) => {
                // What was answered before says nothing of now. A refusal is not remembered: what is held
                // comes back.
                if !placed.repeated && passes(set, &placed.decisions) {
                    flights.land(set, &placed.decisions, now, clock);
                }
                Ok(placed)
            }
            Err(Trouble::Refused(error)) => Err(error),
            Err(Trouble::Failed(failure)) => {
                // Perhaps it was made, and what is answered in its place holds nothing. A name that its
                // caller may say again, here or on another node, would end what that one holds.
                if matches!(failure, Failure::Unknown(_)) && !claim.is_named {
                    self.store.abandon(claim.id, Ending::Cancel, now);
                }
                drop(flights);
                self.note_refusal_of_writes(set, &failure);
                let undecided = SetFailure::whole(failure, 0..set.charges().len());
                self.declared(set, claim, now, &Unready::Failed(undecided))
            }
        }
    }

    fn declared(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        unready: &Unready,
    ) -> Result<Placed, StoreError> {
        let answer = self.fall_back(set, Operation::Acquire, now, unready)?;
        let mut decisions = answer.decisions.into_vec();
        for decision in &mut decisions {
            let most = claim.wait.map_or(Duration::MAX, |wait| wait.in_all);
            decision.delay = decision.delay.min(most);
        }
        Ok(Placed {
            decisions,
            held: false,
            wait: None,
            repeated: false,
            degraded: true,
        })
    }

    /// What is declared for a caller that has waited in line until the store failed. Its place is
    /// given back, so what a share admits here is owed.
    pub(super) fn fall_back_in_line(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        match error {
            StoreError::Unavailable(reason) => {
                let unready = Unready::Failed(Failure::Unreachable(reason).into());
                self.declared(set, claim, now, &unready)
            }
            other => Err(other),
        }
    }

    pub(super) async fn end(
        self: &Arc<Self>,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        let ended = self.store.end(id, ending, now).await;
        ended.inspect_err(|error| self.failed(error))
    }

    pub(super) async fn advance(
        self: &Arc<Self>,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        let advanced = self.store.advance(id, now).await;
        advanced.inspect_err(|error| self.failed(error))
    }

    /// A caller was answered by this error.
    pub(super) fn failed(self: &Arc<Self>, error: &StoreError) {
        if let StoreError::Unavailable(reason) = error {
            self.degraded(reason);
        }
    }
}
