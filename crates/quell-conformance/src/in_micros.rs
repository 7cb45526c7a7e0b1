//! A store in microseconds: it answers like one that counts in them, such as Redis.

use std::time::Duration;

use delegate::delegate;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView, Placed,
    Store, StoreResult,
};
use quell_core::charge::{LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;

/// A store whose answers are rounded up to microseconds.
#[derive(Debug, Default)]
pub struct InMicros<S>(pub S);

/// Rounds up.
fn micros(duration: Duration) -> Duration {
    let micros = duration.as_nanos().div_ceil(1_000);
    let seconds = u64::try_from(micros / 1_000_000).unwrap_or(u64::MAX);
    let rest = u32::try_from(micros % 1_000_000).unwrap_or(0);
    Duration::new(seconds, rest * 1_000)
}

fn round(decision: &mut Decision) {
    decision.delay = micros(decision.delay);
    decision.reset_after = micros(decision.reset_after);
    if let Outcome::Deny(RetryAfter::After(wait)) = &mut decision.outcome {
        *wait = micros(*wait);
    }
}

impl<S: Store> Store for InMicros<S> {
    type Lookup = ();

    delegate! {
        to self.0 {
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
            fn most_units(&self, rung: Rung) -> u64;
        }
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        let mut answer = self.0.decide(charges, operation, now).await?;
        answer.decisions.iter_mut().for_each(round);
        Ok(answer)
    }
}

impl<S: HoldStore> HoldStore for InMicros<S> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        let mut placed = self.0.hold(set, claim, now).await?;
        placed.decisions.iter_mut().for_each(round);
        placed.wait = placed.wait.map(micros);
        Ok(placed)
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        let mut finished = self.0.end(id, ending, now).await?;
        if let Some(finished) = &mut finished {
            finished.wait = finished.wait.map(micros);
        }
        Ok(finished)
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        let advanced = self.0.advance(id, now).await?;
        Ok(advanced.map(|(wait, next)| (micros(wait), next)))
    }

    delegate! {
        to self.0 {
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
        }
    }
}

impl<S: AdminStore> AdminStore for InMicros<S> {
    delegate! {
        to self.0 {
            async fn administer(&self, set: &LimitSet<'_>, action: Action<'_>, now: Now)
                -> StoreResult<usize>;
            async fn ban_count(&self, now: Now) -> StoreResult<usize>;
        }
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let mut all = self.0.view(set, now).await?;
        for KeyView { holds, .. } in &mut all {
            holds
                .iter_mut()
                .for_each(|hold| hold.left = micros(hold.left));
            holds.sort_unstable();
        }
        Ok(all)
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let mut bans = self.0.ban_page(page, now).await?;
        bans.for_each(|ban| ban.left = micros(ban.left));
        Ok(bans)
    }
}
