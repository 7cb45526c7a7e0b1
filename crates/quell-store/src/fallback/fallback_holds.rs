//! Holds with a fallback: claims go to the store, or are answered as declared while it is gone.
//!
//! The fallback decides a claim like an acquire, and nothing is held: a share of a rate is used at once
//! and for good, permits cannot be shared and are refused, and allowed units are not counted. No caller
//! waits for a turn meanwhile. Ending a hold has no fallback: it fails, and can be repeated when the store
//! is back.

use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::Now;

use super::in_flight::has_rate;
use super::{FallbackReason, FallbackStore, Inner};
use crate::remote::{FailureKind, HoldFailure, RemoteFailure, RemoteStore};
use quell::store::{Answer, Finished, HoldStatus, HoldStore, Placed, StoreError, StoreResult};

impl<S: RemoteStore> HoldStore for FallbackStore<S> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        let (inner, operation) = (&self.inner, Operation::Acquire);
        let mut refusal = inner.write_refusal(set);
        if refusal.is_none() {
            let in_flight = match inner.prepare(set, Some(claim), operation, now).await {
                Ok(in_flight) => in_flight,
                Err(halt) => {
                    let answer = inner.answer_halted(set, operation, now, halt)?;
                    return Ok(placed(claim, answer));
                }
            };
            let undecided = match inner.store.try_hold(set, claim, now).await {
                Ok((mut placed, decided)) => {
                    // An answer that is repeated says nothing of now. A refusal is not remembered: what
                    // is held comes back.
                    if placed.held {
                        inner.note_hold(set, claim.id);
                    }
                    if !placed.repeated && set.passes(&placed.decisions) {
                        in_flight.complete(set, &mut placed.decisions, now, decided);
                    }
                    return Ok(placed);
                }
                Err(HoldFailure::Refused(error)) => return Err(error),
                Err(HoldFailure::Failed(undecided)) => undecided,
            };
            // Perhaps it was made, and the fallback's answer holds nothing. A name that its caller may use
            // again, here or on another node, is left alone: that call's hold would be ended.
            if undecided.failure.kind == FailureKind::Unknown && !claim.is_named {
                inner.store.abandon(claim.id, Ending::Cancel, now);
            }
            drop(in_flight);
            refusal = inner.note_write_refusal(set, now, &undecided);
            if refusal.is_none() {
                let reason = FallbackReason::Failed(undecided);
                return inner.fall_back_claim(set, claim, now, &reason);
            }
        }
        // A server that takes no writes holds nothing.
        let answer = inner.decide_on_store(set, operation, now, refusal).await?;
        Ok(placed(claim, answer))
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        let ended = self.inner.store.end(id, ending, now).await;
        // It may have ended without an answer, and be ended again; and one that was renewed gives back later.
        let is_over = match &ended {
            Ok(Some(ended)) => ended.status != HoldStatus::Stands,
            ended => ended.is_ok(),
        };
        self.inner.forget_refusals(id, is_over);
        ended.inspect_err(|error| self.inner.failed(error))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        let advanced = self.inner.store.advance(id, now).await;
        advanced.inspect_err(|error| self.inner.failed(error))
    }

    /// The declared answer for a caller that has waited in line until the store failed. Its place is
    /// given back, so what a share admits here is owed.
    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> StoreResult<Placed> {
        let StoreError::Unavailable(reason) = error else {
            return Err(error);
        };
        let reason = FallbackReason::Failed(RemoteFailure::unreachable(&reason).into());
        self.inner.fall_back_claim(set, claim, now, &reason)
    }

    async fn wait_promoted(&self, id: &HoldId) {
        self.inner.store.wait_promoted(id).await;
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.inner.forget_refusals(id, true);
        self.inner.store.abandon(id, ending, now)
    }
}

impl<S: RemoteStore> Inner<S> {
    fn fall_back_claim(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        reason: &FallbackReason,
    ) -> StoreResult<Placed> {
        let answer = self.fall_back(set, Operation::Acquire, now, reason)?;
        Ok(placed(claim, answer))
    }

    /// Remembers which cached refusals depend on a hold. None do for permits.
    fn note_hold(&self, set: &LimitSet<'_>, id: &HoldId) {
        let cache = &self.denial_cache;
        let rates = set.charges().iter().filter(|charge| has_rate(charge));
        let keys = rates.map(|charge| cache.print(set.key(charge).as_bytes()));
        let keys = keys.collect();
        self.hold_keys.add(cache.print(id.as_bytes()), keys);
    }

    /// Forgets the refusals that depend on a hold; forgets the hold, too, if it is certainly over.
    fn forget_refusals(&self, id: &HoldId, is_over: bool) {
        let cache = &self.denial_cache;
        let id = cache.print(id.as_bytes());
        let keys = self.hold_keys.take(id);
        for key in &keys {
            cache.forget_refusals(*key);
        }
        if !is_over {
            self.hold_keys.add(id, keys);
        }
    }

    /// Records that a caller was answered with this error.
    pub(super) fn failed(self: &Arc<Self>, error: &StoreError) {
        if let StoreError::Unavailable(reason) = error {
            self.degraded(reason);
        }
    }
}

/// The answer to a claim for which nothing is held.
fn placed(claim: &Claim<'_>, answer: Answer) -> Placed {
    let mut placed = Placed::from(answer);
    let most = claim.wait.map_or(Duration::MAX, |wait| wait.in_all);
    for decision in &mut placed.decisions {
        decision.delay = decision.delay.min(most);
    }
    placed
}
