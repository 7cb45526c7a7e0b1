//! The model in microseconds, with its holds.

use std::time::Duration;

use quell_core::charge::{LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::hold::{Claim, Ending, HoldId};
use quell_core::rule::Changes;
use quell_core::time::Now;

use super::model::{InMicros, micros, round};
use crate::store::{Action, Banned, Finished, Placed, Store, StoreError};

/// As [`InMicros`], with the holds of the store.
#[derive(Debug)]
pub(super) struct HeldInMicros<S>(pub(super) InMicros<S>);

impl<S: Store> Store for HeldInMicros<S> {
    fn adopt(&self, changes: &Changes) {
        self.0.adopt(changes);
    }

    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        self.0.charge(set, operation, now).await
    }

    fn has_holds(&self) -> bool {
        self.0.0.has_holds()
    }

    fn most_learned(&self) -> usize {
        self.0.0.most_learned()
    }

    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        let mut placed = self.0.0.hold(set, claim, now).await?;
        placed.decisions.iter_mut().for_each(round);
        placed.wait = placed.wait.map(micros);
        Ok(placed)
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        let mut finished = self.0.0.end(id, ending, now).await?;
        if let Some(finished) = &mut finished {
            finished.wait = finished.wait.map(micros);
        }
        Ok(finished)
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        let advanced = self.0.0.advance(id, now).await?;
        Ok(advanced.map(|(wait, next)| (micros(wait), next)))
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        self.0.administer(set, action, now).await
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        self.0.bans(most, now).await
    }
}
