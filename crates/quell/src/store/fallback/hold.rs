//! Holds with a fallback: claims go to the store, or are answered as declared while it is gone.
//!
//! The fallback decides a claim like an acquire, and nothing is held: a share of a rate is used at once
//! and for good, permits cannot be shared and are refused, and allowed units are not counted. Nobody
//! waits for a turn meanwhile. Ending a hold has no fallback: it fails, and can be repeated when the store
//! is back.

use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::Now;

use super::{FallbackReason, Inner};
use crate::store::remote::{FailureKind, HoldFailure, RemoteFailure, RemoteStore};
use crate::store::{Answer, Finished, Placed, StoreError};

impl<S: RemoteStore> Inner<S> {
    pub(super) async fn hold(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        if let Some(failure) = self.write_refusal(set) {
            let answer = self.decide_without_writes(set, now, failure).await?;
            return Ok(placed(claim, answer));
        }
        let in_flight = match self
            .prepare(set, Some(claim), Operation::Acquire, now)
            .await
        {
            Ok(in_flight) => in_flight,
            Err(reason) => return self.fallback(set, claim, now, &reason),
        };
        match self.store.try_hold(set, claim, now).await {
            Ok((placed, decided)) => {
                // What was answered before says nothing of now. A refusal is not remembered: what is held
                // comes back.
                if !placed.repeated && set.passes(&placed.decisions) {
                    in_flight.complete(set, &placed.decisions, now, decided);
                }
                Ok(placed)
            }
            Err(HoldFailure::Refused(error)) => Err(error),
            Err(HoldFailure::Failed(undecided)) => {
                // Perhaps it was made, and what is answered in its place holds nothing. A name that its
                // caller may say again, here or on another node, would end what that one holds.
                if undecided.failure.kind == FailureKind::Unknown && !claim.is_named {
                    self.store.abandon(claim.id, Ending::Cancel, now);
                }
                drop(in_flight);
                let operation = Operation::Acquire;
                let answer = self.answer_undecided(set, operation, now, undecided);
                Ok(placed(claim, answer.await?))
            }
        }
    }

    fn fallback(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        reason: &FallbackReason,
    ) -> Result<Placed, StoreError> {
        let answer = self.fall_back(set, Operation::Acquire, now, reason)?;
        Ok(placed(claim, answer))
    }

    /// What is declared for a caller that has waited in line until the store failed. Its place is
    /// given back, so what a share admits here is owed.
    pub(super) fn fall_back_in_queue(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        match error {
            StoreError::Unavailable(reason) => {
                let reason = FallbackReason::Failed(RemoteFailure::unreachable(&reason).into());
                self.fallback(set, claim, now, &reason)
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

/// The answer to a claim for which nothing is held.
fn placed(claim: &Claim<'_>, answer: Answer) -> Placed {
    let mut decisions = answer.decisions.into_vec();
    for decision in &mut decisions {
        let most = claim.wait.map_or(Duration::MAX, |wait| wait.in_all);
        decision.delay = decision.delay.min(most);
    }
    Placed {
        decisions,
        places: answer.places,
        held: false,
        wait: None,
        repeated: false,
        degraded: answer.degraded,
    }
}
