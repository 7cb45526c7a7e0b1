//! Hold calls: those calls of a [`Limiter`] that wait for a turn, reserve, and end holds.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use quell_core::charge::{Charges, LimitSet, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::decision::Decision;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::{HoldId, MAX_HOLD};
use quell_core::time::{Monotonic, Now};
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::limiter::{Limiter, known};
use crate::store::{Finished, HoldStatus, HoldStore, LocalStore, Placed, StoreError, StoreResult};
use crate::waiters::Wakeup;

/// Whether the set has a limit on permits.
pub(crate) fn has_permits(set: &LimitSet<'_>) -> bool {
    let mut charges = set.charges().iter();
    charges.any(|charge| charge.active.limit.lease().is_some())
}

/// Whether a limit that is not in shadow refuses, and the longest delay of those limits.
fn summary(set: &LimitSet<'_>, placed: &Placed) -> (bool, Duration) {
    let set = known(set, placed.places.as_deref());
    let charges = set.charges().iter().zip(&placed.decisions);
    let with_say = charges.filter(|(charge, _)| !charge.shadow);
    let is_refused = with_say.clone().any(|(_, one)| !one.outcome.is_allow());
    let delay = with_say.map(|(_, decision)| decision.delay).max();
    (is_refused, delay.unwrap_or_default())
}

/// A new id of 128 random bits.
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

/// Leaves the queue when dropped: cancels the hold of a caller that went away before its turn, unless
/// another call under its id waits here, or has gone on.
pub(crate) struct WaitGuard<'a, S: HoldStore> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) id: HoldId,
    /// Whether it is among those that wait: there may be too many.
    pub(crate) is_in: bool,
    /// Whether the store may have a hold or a place for it.
    pub(crate) is_placed: bool,
    /// Whether it goes on, with its hold.
    pub(crate) has_passed: bool,
}

impl<S: HoldStore> Drop for WaitGuard<'_, S> {
    fn drop(&mut self) {
        let waiters = &self.limiter.waiters;
        let is_nobodys = waiters.leave(&self.id, self.is_in, self.has_passed);
        if self.is_placed && is_nobodys {
            self.limiter.abandon(&self.id, Ending::Cancel);
        }
    }
}

impl<S: HoldStore> Limiter<S> {
    /// Waits for the caller's turn, however long that takes, and charges then.
    ///
    /// First come, first served on each key: no later call goes first, not even one that does not wait.
    /// The call is refused at once if it could never pass, if the key is banned, or if too many callers
    /// wait already (1,000 on a key, [`MAX_WAITING`](crate::MAX_WAITING) in all). Dropping the future
    /// gives its place back, and those behind it move up. `leaky_bucket`, and `concurrency` with a
    /// queue, may add a delay; the call sleeps for that too.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`]; [`AskError::Overslept`] if the future was not polled until a
    /// permit's lease had expired.
    pub async fn acquire(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.acquire_timeout(query, Duration::MAX).await
    }

    /// Waits for the caller's turn if that comes within `most`. If not, the call is refused at once and
    /// charges nothing.
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
            wait: Some(WaitLimits::of(most)),
            ..Claim::plain(&id)
        };
        self.claim(query, &claim).await
    }

    /// Charges an estimate now. [`Limiter::settle`] replaces it by the real cost later.
    ///
    /// The verdict's `id` names the reservation: it is `name`, or a new one. Calling again with the same
    /// name, as after a timeout, charges nothing and gives the same answer. A rule with `cost` charges
    /// that, and settling does not change it. A reservation that is not settled within `hold` stays
    /// charged, or is given back if its rule says `on_expiry: release`.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`]; and if `name` or `hold` is invalid, if the query has more than one
    /// descriptor, or if the name is in use for another query.
    pub async fn reserve(
        &self,
        query: &Query<'_>,
        hold: Duration,
        name: Option<&str>,
    ) -> Result<Verdict, AskError> {
        self.reserve_within(query, hold, name, None).await
    }

    /// As [`Limiter::reserve`], and waits for the caller's turn if that comes within `most`. If not, the
    /// call is refused at once and charges nothing. The hold begins when the wait is over. Calls that wait
    /// under one name share a place, which is given back when the last of them in this process is dropped.
    ///
    /// # Errors
    /// As [`Limiter::reserve`], and as [`Limiter::acquire`]; [`AskError::Overslept`] if the place was given
    /// back.
    pub async fn reserve_timeout(
        &self,
        query: &Query<'_>,
        hold: Duration,
        name: Option<&str>,
        most: Duration,
    ) -> Result<Verdict, AskError> {
        self.reserve_within(query, hold, name, Some(WaitLimits::of(most)))
            .await
    }

    async fn reserve_within(
        &self,
        query: &Query<'_>,
        hold: Duration,
        name: Option<&str>,
        wait: Option<WaitLimits>,
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
            hold: Some(hold),
            is_named: name.is_some(),
            wait,
            ..Claim::plain(&id)
        };
        self.claim(query, &claim).await
    }

    /// Settles a reservation with its real cost, 0 or more. If that is less than the estimate, the
    /// difference is returned as far as it still counts. If it is more, the rest is owed, and the key
    /// refuses until it is repaid. Permits come back. Settling again changes nothing.
    ///
    /// # Errors
    /// [`AskError::UnknownHold`] if there is no such hold; [`AskError::Store`] if the store fails.
    pub async fn settle(&self, domain: &str, id: &str, actual: u64) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Settle(actual)).await
    }

    /// Gives back all that a reservation or an acquire holds, charges included.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn cancel(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Cancel).await
    }

    /// Gives permits back; rates stay charged.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn release(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Release).await
    }

    /// As [`Limiter::release`], for work that failed for lack of room or time: an `adaptive` limit
    /// lowers its ceiling by a tenth.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn fail(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Fail).await
    }

    /// Restarts the lease of permits and the hold time of a reservation.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn renew(&self, domain: &str, id: &str) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Renew).await
    }

    /// Ends or renews the hold with this id.
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

    /// As [`Limiter::release`], without waiting for the answer. For permits that are dropped.
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

    /// The number of callers in this process that wait for their turn.
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
        let id = Some(claim.id).filter(|_| !is_over);
        Ok(self.conclude_held(query, set, &placed, id, waited, now))
    }

    /// Makes a claim, and sleeps until its turn and through its delay.
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
        let is_in = self.waiters.enter(claim.id);
        if !is_in {
            // Too many callers wait already: this one passes at once or is refused.
            claim.wait = Some(WaitLimits::of(Duration::ZERO));
        }
        let mut guard = WaitGuard {
            limiter: self,
            id: claim.id.clone(),
            is_in,
            is_placed: true,
            has_passed: false,
        };
        let placed = match self.store.hold(set, &claim, now).await {
            Ok(placed) => placed,
            Err(error) => {
                // A store that answered has no place for this call; one under its id is another's.
                guard.is_placed = matches!(error, StoreError::Unavailable(_));
                return Err(error.into());
            }
        };
        let (is_refused, delay) = summary(set, &placed);
        if !is_refused && !delay.is_zero() {
            let wait = placed.wait.unwrap_or_default();
            let after = delay.saturating_sub(wait);
            let turn = now.monotonic.saturating_add(wait);
            if !placed.held {
                // The fallback decided, not the store, so there is no place in a queue, only a delay to
                // sleep for.
                self.sleep_until(claim.id, turn.saturating_add(after)).await;
                guard.is_placed = false;
                return Ok(self.waited_since(now, placed));
            }
            let status = match self.wait(claim.id, turn, after).await {
                Ok(status) => status,
                // `is_placed` stays set, so the guard cancels the claim when it is dropped.
                Err(error) => return self.answer_without_store(set, &claim, now, error).await,
            };
            // Cancelled by its id, or since the same call was dropped at another server. If the turn was missed,
            // rates stay charged, but another caller may have the permit by now.
            let is_missed = status == HoldStatus::Expired && has_permits(set);
            if status == HoldStatus::Cancelled || is_missed {
                return Err(AskError::Overslept);
            }
            // `refresh` may wait: if the caller goes away during it, the guard still cancels.
            let (mut placed, waited) = self.waited_since(now, placed);
            self.refresh(query, set, &mut placed.decisions).await;
            guard.has_passed = true;
            return Ok((placed, waited));
        }
        (guard.is_placed, guard.has_passed) = (!is_refused, !is_refused);
        Ok((placed, Duration::ZERO))
    }

    /// Turns the answer to a claim made at `began` into the answer to give now that the wait is over.
    fn waited_since(&self, began: Now, mut placed: Placed) -> (Placed, Duration) {
        let waited = self.now().monotonic.since(began.monotonic);
        for decision in &mut placed.decisions {
            *decision = decision.waited_for(waited);
        }
        (placed, waited)
    }

    /// Updates the decisions' numbers after a wait, since other calls were made meanwhile and windows
    /// ended. If the store fails, they stay as they are.
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

    /// The fallback's answer for a caller whose store failed while it waited since `began`.
    async fn answer_without_store(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        began: Now,
        error: StoreError,
    ) -> Result<(Placed, Duration), AskError> {
        let now = self.now();
        let waited = now.monotonic.since(began.monotonic);
        let rest = Claim {
            wait: claim.wait.map(|limits| WaitLimits {
                turn: limits.turn.saturating_sub(waited),
                in_all: limits.in_all.saturating_sub(waited),
            }),
            ..*claim
        };
        let placed = self.store.fall_back(set, &rest, now, error)?;
        let (is_refused, delay) = summary(set, &placed);
        if !is_refused && !delay.is_zero() {
            let end = now.monotonic.saturating_add(delay);
            self.sleep_until(claim.id, end).await;
            let (placed, _) = self.waited_since(now, placed);
            return Ok((placed, self.now().monotonic.since(began.monotonic)));
        }
        Ok((placed, waited))
    }

    /// Sleeps until the turn of `id`, even if that moves, and then for `after`. Returns what became of the
    /// hold.
    async fn wait(&self, id: &HoldId, turn: Monotonic, after: Duration) -> StoreResult<HoldStatus> {
        let mut turn = turn.saturating_add(after);
        loop {
            let call = self.wait_until(id, turn).await;
            let now = self.now();
            if call == Wakeup::Moved {
                // If the store fails, the last turn that it gave is kept.
                if let Ok(Some((wait, next))) = self.store.advance(id, now).await {
                    turn = now.monotonic.saturating_add(wait).saturating_add(after);
                    self.waiters.wake(&next);
                }
                continue;
            }
            let finished = self.store.end(id, Ending::Arrive, now).await?;
            let Some(finished) = finished else {
                return Ok(HoldStatus::Expired);
            };
            match finished.wait {
                Some(wait) => turn = now.monotonic.saturating_add(wait).saturating_add(after),
                None => return Ok(finished.status),
            }
        }
    }

    /// Sleeps until `turn`, or until somebody ahead of `id` leaves, in this process or another.
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

    /// Makes a claim at a given instant, without sleeping: if it has to wait for its turn, the verdict's
    /// `delay` says how long.
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
        Ok(self.conclude_held(query, &set, &placed, Some(claim.id), Duration::ZERO, now))
    }

    /// Ends or renews a hold at a given instant; `None` if the id is not known.
    ///
    /// # Errors
    /// [`AskError::Store`] if the store fails.
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

    /// Sleeps until `end`. The caller is in no queue, so nothing wakes it earlier.
    pub(crate) async fn sleep_until(&self, id: &HoldId, end: Monotonic) {
        while self.waiters.wait(id, end, &self.clock).await != Wakeup::Due {}
    }
}

impl<S: LocalStore> Limiter<S> {
    /// As [`Limiter::hold_at`], on a store in this process.
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
        Ok(self.conclude_held(query, &set, &placed, Some(claim.id), Duration::ZERO, now))
    }

    /// As [`Limiter::end_at`], on a store in this process.
    pub fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        let finished = self.store.end_local(id, ending, now)?;
        self.waiters.wake(&finished.next);
        Some(finished)
    }
}
