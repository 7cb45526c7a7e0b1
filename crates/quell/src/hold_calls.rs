//! The calls of a [`Limiter`] that wait, reserve, and end holds.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quell_core::charge::{Charges, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::descriptor::Query;
use quell_core::hold::{Claim, Ending, HoldId, MAX_HOLD, WaitLimits};
use quell_core::time::{Monotonic, Now};
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::limiter::Limiter;
use crate::store::{Finished, HoldStatus, HoldStore, LocalStore, Placed, StoreError};
use crate::waiters::Wakeup;

/// What came of a claim: the decisions, and the name under which it can be ended.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) id: Option<Arc<str>>,
    pub(crate) waited: Duration,
    pub(crate) degraded: bool,
}

impl Placement {
    pub(crate) fn of(placed: Placed, id: HoldId) -> Self {
        Self {
            decisions: placed.decisions,
            id: placed.held.then(|| id.name().into()),
            waited: Duration::ZERO,
            degraded: placed.degraded,
        }
    }
}

/// Whether something in the set is held, not used.
pub(crate) fn has_permits(set: &LimitSet<'_>) -> bool {
    let mut charges = set.charges().iter();
    charges.any(|charge| charge.active.limit.lease().is_some())
}

/// A name that nobody else has: 128 bits that differ from process to process and call to call.
pub(crate) fn new_id(domain: &str) -> HoldId {
    // Each state has keys of its own, drawn from the system's randomness.
    let bits = || RandomState::new().hash_one(domain);
    loop {
        let name = format!("{:016x}{:016x}", bits(), bits());
        if let Some(id) = HoldId::new(domain, &name) {
            return id;
        }
    }
}

/// Leaves the queue when dropped: cancels the hold of a caller that went away before its turn.
pub(crate) struct WaitGuard<'a, S: HoldStore> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) id: HoldId,
    pub(crate) is_placed: bool,
}

impl<S: HoldStore> Drop for WaitGuard<'_, S> {
    fn drop(&mut self) {
        self.limiter.waiters.leave(&self.id);
        if self.is_placed {
            self.limiter.abandon(&self.id, Ending::Cancel);
        }
    }
}

impl<S: HoldStore> Limiter<S> {
    /// Waits for its turn, however long that takes, and charges then.
    ///
    /// First come, first served for each key: nobody who comes later, waiting or not, goes before.
    /// Refused at once where it could never pass, where a ban stands, and where too many wait already
    /// (1,000 on a key, [`MAX_WAITING`](crate::MAX_WAITING) in all). A dropped future gives its place
    /// back, and those behind it move up. `leaky_bucket` and `concurrency` with a queue may ask for a
    /// delay on top, which is waited for too.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`]; [`AskError::Overslept`] if the future was not polled for so long
    /// that a permit's lease went by.
    pub async fn acquire(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.acquire_timeout(query, Duration::MAX).await
    }

    /// Waits for its turn if that comes within `most`, and is refused at once and uncharged if it
    /// does not.
    ///
    /// # Errors
    /// As [`Limiter::acquire`].
    pub async fn acquire_timeout(
        &self,
        query: &Query<'_>,
        most: Duration,
    ) -> Result<Verdict, AskError> {
        let id = new_id(query.domain());
        let claim = Claim {
            id: &id,
            hold: None,
            wait: Some(WaitLimits::of(most)),
            is_named: false,
        };
        self.claim(query, &claim).await
    }

    /// Charges an estimate now, of which the true cost is paid later with [`Limiter::settle`].
    ///
    /// The verdict's `id` names the reservation: `name`, or one made up. With the same name it may be
    /// asked again, as after a timeout: that charges nothing and answers the same. Rules that say
    /// `cost` charge that, and keep it. After `hold` what nobody settled stays charged, or is given
    /// back where the rule says `on_expiry: release`.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`]; and if `name` or `hold` is not possible, the query has more than
    /// one descriptor, or the name stands for something else.
    pub async fn reserve(
        &self,
        query: &Query<'_>,
        hold: Duration,
        name: Option<&str>,
    ) -> Result<Verdict, AskError> {
        if hold.is_zero() || hold > MAX_HOLD {
            return Err(AskError::HoldLength);
        }
        if query.descriptors().len() != 1 {
            return Err(AskError::HoldDescriptors);
        }
        let id = match name {
            Some(name) => HoldId::new(query.domain(), name).ok_or(AskError::HoldName)?,
            None => new_id(query.domain()),
        };
        let claim = Claim {
            id: &id,
            hold: Some(hold),
            wait: None,
            is_named: name.is_some(),
        };
        self.claim(query, &claim).await
    }

    /// Pays what a reservation cost in truth, 0 or more: less than the estimate is given back, as far
    /// as it still counts; more is owed, and refused until it is repaid. Its permits come back. Said
    /// again, nothing changes.
    ///
    /// # Errors
    /// [`AskError::UnknownHold`] if there is none; [`AskError::Store`] if the store cannot tell.
    pub async fn settle(&self, domain: &str, id: &str, actual: u64) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Settle(actual)).await
    }

    /// Gives back all that a reservation or an acquire holds, as if it had not been.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn cancel(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Cancel).await
    }

    /// Gives permits back; what was charged stays charged.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn release(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Release).await
    }

    /// [`Limiter::release`], and says that the work failed for want of room or time: a limit of
    /// permits that learns its ceiling comes down by a tenth.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn fail(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Fail).await
    }

    /// Begins the lease of permits, and the hold of a reservation, anew.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn renew(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Renew).await
    }

    /// Ends or renews what an id stands for.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn end(&self, domain: &str, id: &str, ending: Ending) -> Result<Finished, AskError> {
        let id = HoldId::new(domain, id).ok_or(AskError::HoldName)?;
        let finished = self.store.end(&id, ending, self.now()).await?;
        let finished = finished.ok_or(AskError::UnknownHold)?;
        self.waiters.wake(&finished.next);
        Ok(finished)
    }

    /// [`Limiter::release`] without waiting for the answer, for a permit that is dropped.
    pub fn release_detached(&self, domain: &str, id: &str) {
        if let Some(id) = HoldId::new(domain, id) {
            self.abandon(&id, Ending::Release);
        }
    }

    /// Ends or renews without waiting for the answer.
    pub(crate) fn abandon(&self, id: &HoldId, ending: Ending) {
        let next = self.store.abandon(id, ending, self.now());
        self.waiters.wake(&next);
    }

    /// How many callers of this process wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    async fn claim(&self, query: &Query<'_>, claim: &Claim<'_>) -> Result<Verdict, AskError> {
        let now = self.now();
        let rules = self.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        self.claim_set(query, &set, claim, now).await
    }

    pub(crate) async fn claim_set(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let (placed, waited) = self.hold(query, set, claim, now).await?;
        let is_over = claim.hold.is_none() && !has_permits(set);
        let mut placement = Placement::of(placed, claim.id.clone());
        placement.waited = waited;
        if is_over {
            placement.id = None;
        }
        Ok(self.conclude_held(query, set, placement, now))
    }

    /// Makes a claim, and waits for what it says to wait for.
    async fn hold(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, Duration), AskError> {
        let mut claim = *claim;
        if claim.wait.is_none() {
            return Ok((self.store.hold(set, &claim, now).await?, Duration::ZERO));
        }
        if !self.waiters.enter(claim.id) {
            // No seat: it goes at once or not at all.
            claim.wait = Some(WaitLimits::of(Duration::ZERO));
        }
        let mut guard = WaitGuard {
            limiter: self,
            id: claim.id.clone(),
            is_placed: true,
        };
        let placed = self.store.hold(set, &claim, now).await?;
        let charges = set.charges().iter().zip(&placed.decisions);
        let with_say = charges.filter(|(charge, _)| !charge.shadow);
        let is_refused = with_say.clone().any(|(_, d)| !d.outcome.is_allow());
        let delay = with_say.map(|(_, decision)| decision.delay).max();
        let delay = delay.unwrap_or_default();
        if !is_refused && !delay.is_zero() {
            let wait = placed.wait.unwrap_or_default();
            let after = delay.saturating_sub(wait);
            let turn = now.monotonic.saturating_add(wait);
            if !placed.held {
                // Decided without the store, which knows of no place: there is only time to wait for.
                self.sleep_until(claim.id, turn.saturating_add(after)).await;
                guard.is_placed = false;
                return Ok(self.waited_since(now, placed));
            }
            let is_in_time = match self.wait(claim.id, turn, after).await {
                Ok(is_in_time) => is_in_time,
                // The guard keeps its place: dropped, it gives back what was charged.
                Err(error) => return self.answer_without_store(set, &claim, now, error).await,
            };
            // What was charged stays charged; a permit is somebody else's by now.
            if !is_in_time && has_permits(set) {
                return Err(AskError::Overslept);
            }
            // Until then who goes away gives back what it holds.
            let (mut placed, waited) = self.waited_since(now, placed);
            self.refresh(query, set, &mut placed.decisions).await;
            guard.is_placed = false;
            return Ok((placed, waited));
        }
        guard.is_placed = false;
        Ok((placed, Duration::ZERO))
    }

    /// What was placed at `began`, as it is to be told now that the wait is over.
    fn waited_since(&self, began: Now, mut placed: Placed) -> (Placed, Duration) {
        let waited = self.now().monotonic.since(began.monotonic);
        for decision in &mut placed.decisions {
            *decision = decision.waited_for(waited);
        }
        (placed, waited)
    }

    /// Says what is left now of limits that were waited for: others came and went meanwhile, and
    /// windows ended. If the store cannot tell, what was said before stays.
    async fn refresh(&self, query: &Query<'_>, set: &LimitSet<'_>, decisions: &mut [Decision]) {
        let now = self.now();
        let rules = self.rules.load_full();
        let current = rules.resolve(query, now, &self.calendar);
        let keys = |set: &LimitSet<'_>| {
            let keys = set.charges().iter().map(|charge| set.key(charge));
            keys.map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        if keys(&current) != keys(set) {
            return;
        }
        let answer = self
            .decide(Charges::Set(&current), Operation::Peek, now)
            .await;
        let Some(answer) = answer.ok().filter(|answer| !answer.degraded) else {
            return;
        };
        for (decision, current) in decisions.iter_mut().zip(&answer.decisions) {
            *decision = decision.with_numbers_of(current);
        }
    }

    /// What is declared for a caller whose store failed while it waited in line since `began`.
    async fn answer_without_store(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        began: Now,
        error: StoreError,
    ) -> Result<(Placed, Duration), AskError> {
        let now = self.now();
        let waited = now.monotonic.since(began.monotonic);
        let rest = claim.wait.map(|limits| WaitLimits {
            turn: limits.turn.saturating_sub(waited),
            in_all: limits.in_all.saturating_sub(waited),
        });
        let rest = Claim {
            wait: rest,
            ..*claim
        };
        let placed = self.store.fall_back(set, &rest, now, error)?;
        let charges = set.charges().iter().zip(&placed.decisions);
        let with_say = charges.filter(|(charge, _)| !charge.shadow);
        let is_refused = with_say.clone().any(|(_, d)| !d.outcome.is_allow());
        let delay = with_say.map(|(_, decision)| decision.delay).max();
        let delay = delay.filter(|delay| !is_refused && !delay.is_zero());
        if let Some(delay) = delay {
            let end = now.monotonic.saturating_add(delay);
            self.sleep_until(claim.id, end).await;
            let (placed, _) = self.waited_since(now, placed);
            return Ok((placed, self.now().monotonic.since(began.monotonic)));
        }
        Ok((placed, waited))
    }

    /// Sleeps until the turn of `id` and `after` longer, wherever the turn moves meanwhile. Says
    /// whether the hold still stood then.
    async fn wait(
        &self,
        id: &HoldId,
        turn: Monotonic,
        after: Duration,
    ) -> Result<bool, StoreError> {
        let mut turn = turn.saturating_add(after);
        loop {
            let call = self.wait_until(id, turn).await;
            let now = self.now();
            if call == Wakeup::Moved {
                // If the store cannot tell, the turn that it gave stands.
                if let Ok(Some((wait, next))) = self.store.advance(id, now).await {
                    turn = now.monotonic.saturating_add(wait).saturating_add(after);
                    if !self.store.has_remote_wakeups() {
                        self.waiters.wake(&next);
                    }
                }
                continue;
            }
            let finished = self.store.end(id, Ending::Arrive, now).await?;
            let Some(finished) = finished else {
                return Ok(false);
            };
            match finished.wait {
                Some(wait) => turn = now.monotonic.saturating_add(wait).saturating_add(after),
                None => return Ok(finished.status != HoldStatus::Expired),
            }
        }
    }
}

impl<S: HoldStore> Limiter<S> {
    /// Sleeps until `turn`, or until somebody before `id` has left, here or on another node.
    async fn wait_until(&self, id: &HoldId, turn: Monotonic) -> Wakeup {
        let mut here = pin!(self.waiters.wait(id, turn, &self.clock));
        let mut elsewhere = pin!(self.store.wait_promoted(id));
        poll_fn(|context| {
            if let Poll::Ready(call) = here.as_mut().poll(context) {
                return Poll::Ready(call);
            }
            elsewhere.as_mut().poll(context).map(|()| Wakeup::Moved)
        })
        .await
    }

    /// Makes a claim at a given instant. Where it has to wait for its turn, the verdict's `delay` says
    /// how long; nobody is called.
    ///
    /// # Errors
    /// As [`Limiter::reserve`].
    pub async fn hold_at(
        &self,
        query: &Query<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let rules = self.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        let placed = self.store.hold(&set, claim, now).await?;
        let placement = Placement::of(placed, claim.id.clone());
        Ok(self.conclude_held(query, &set, placement, now))
    }

    /// Ends or renews at a given instant what is held; `None` if the id is not known.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store cannot tell.
    pub async fn end_at(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, AskError> {
        let finished = self.store.end(id, ending, now).await?;
        if let Some(finished) = &finished {
            self.waiters.wake(&finished.next);
        }
        Ok(finished)
    }

    /// Sleeps among the waiters; nobody wakes a caller that is in no queue.
    pub(crate) async fn sleep_until(&self, id: &HoldId, end: Monotonic) {
        while self.waiters.wait(id, end, &self.clock).await != Wakeup::Due {}
    }
}

impl<S: LocalStore> Limiter<S> {
    /// Makes a claim at a given instant, on a store in this process. Where it has to wait for its
    /// turn, the verdict's `delay` says how long; nobody is called.
    ///
    /// # Errors
    /// As [`Limiter::reserve`].
    pub fn hold_local(
        &self,
        query: &Query<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let rules = self.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        let placed = self.store.hold_local(&set, claim, now)?;
        let placement = Placement::of(placed, claim.id.clone());
        Ok(self.conclude_held(query, &set, placement, now))
    }

    /// Ends or renews at a given instant what is held on a store in this process; `None` if the id is
    /// not known.
    pub fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        let finished = self.store.end_local(id, ending, now)?;
        self.waiters.wake(&finished.next);
        Some(finished)
    }
}
