//! Hold calls: those calls of a [`Limiter`] that wait for a turn, reserve, and end holds.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quell_core::account::Account;
use quell_core::actual::Actual;
use quell_core::charge::{Charges, LimitSet, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::query_bounds::{check_descriptors, check_hold};
use quell_core::rule::{ActiveRule, RuleSet};
use quell_core::time::{Monotonic, Now};
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::hold_id::new_id;
use crate::limiter::{Limiter, known};
use crate::store::{Finished, HoldStatus, HoldStore, LocalStore, Placed, StoreError, StoreResult};
use crate::waiters::Wakeup;

/// Refuses a reservation that a rule, which is not in shadow, does not let last so long. The lease of permits is
/// the rule's own.
fn check_length(
    rules: &RuleSet,
    query: &Query<'_>,
    set: &LimitSet<'_>,
    claim: &Claim<'_>,
) -> Result<(), AskError> {
    let Some(hold) = claim.hold else {
        return Ok(());
    };
    let domain = rules.domain(query.domain());
    let charges = set.charges().iter();
    let charges = charges.filter(|charge| !charge.shadow && charge.active.limit.lease().is_none());
    for charge in charges {
        let active = usize::try_from(charge.tag)
            .ok()
            .and_then(|tag| domain.get(tag));
        if let Some(rule) = active.map(ActiveRule::rule)
            && hold > rule.max_hold
        {
            return Err(AskError::LongHold {
                rule: Arc::clone(&rule.name),
                most: rule.max_hold,
            });
        }
    }
    Ok(())
}

/// Returns true if a limit that is not in shadow refuses, and the longest delay of those limits.
fn summary(set: &LimitSet<'_>, placed: &Placed) -> (bool, Duration) {
    let set = known(set, placed.places.as_deref());
    let charges = set.charges().iter().zip(&placed.decisions);
    let with_say = charges.filter(|(charge, _)| !charge.shadow);
    let is_refused = with_say.clone().any(|(_, one)| !one.outcome.is_allow());
    let delay = with_say.map(|(_, decision)| decision.delay).max();
    (is_refused, delay.unwrap_or_default())
}

/// Pause of a waiter that was told to ask for its turn while the store failed, before it asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A turn that moves by less has not moved: a shared store reads another clock, and answers after a round trip.
const TURN_JITTER: Duration = Duration::from_millis(100);

/// Interval at which a caller that slept through a delay checks whether its key is still banned. Meanwhile
/// its hold is renewed, which lasts for [`ARRIVAL`](quell_core::hold::ARRIVAL) at least.
pub(crate) const BAN_CHECK: Duration = Duration::from_secs(1);

/// Wait of a caller.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) began: Monotonic,
    /// Bounds on the wait that the caller accepts.
    pub(crate) limits: WaitLimits,
    /// End of the wait, as first announced to the caller.
    pub(crate) end: Monotonic,
    /// The delay that follows its turn.
    pub(crate) after: Duration,
}

impl Wait {
    /// End of the wait if the turn comes in `left`.
    pub(crate) fn end_after(&self, now: Monotonic, left: Duration) -> Monotonic {
        now.saturating_add(left.saturating_add(self.after))
    }

    /// Returns true if the turn has moved beyond the wait that the caller accepts.
    pub(crate) fn is_too_long(&self, now: Monotonic, left: Duration) -> bool {
        let turn = now.since(self.began).saturating_add(left);
        let in_all = turn.saturating_add(self.after);
        let has_moved = self.end_after(now, left) > self.end.saturating_add(TURN_JITTER);
        has_moved && (turn > self.limits.turn || in_all > self.limits.in_all)
    }
}

/// End of a wait.
#[derive(Debug)]
enum Waited {
    /// The caller may go on if its hold still stands.
    Arrived(HoldStatus),
    /// Its turn would come this much later, which is longer than it would wait.
    TooLong(Duration),
}

/// Leaves the queue when dropped: cancels the hold of a caller that went away before its turn, unless
/// another call under its id waits here, or has gone on.
pub(crate) struct WaitGuard<'a, S: HoldStore> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) id: HoldId,
    /// Under which account it is among those that wait; `None` if it is not, since there are too many.
    pub(crate) entered: Option<Account>,
    /// True if the store may have a hold or a place for the call.
    pub(crate) is_placed: bool,
    /// True if the call goes on, with its hold.
    pub(crate) has_passed: bool,
}

impl<S: HoldStore> Drop for WaitGuard<'_, S> {
    fn drop(&mut self) {
        let waiters = &self.limiter.parts.waiters;
        let is_nobodys = waiters.leave(&self.id, self.entered, self.has_passed);
        if self.is_placed && is_nobodys {
            self.limiter.abandon(&self.id, Ending::Cancel);
        }
    }
}

impl<S: HoldStore> Limiter<S> {
    /// Waits for the caller's turn, however long that takes, and charges then.
    ///
    /// First come, first served on each key: no later call goes first, not even one that does not wait.
    /// The call is refused at once if it could never pass, or if too many callers wait already (1,000 on a
    /// key, half of what others leave of
    /// [`MAX_WAITING`](crate::MAX_WAITING) for its domain, or for its account). While a key is banned,
    /// no turn comes. Dropping the future gives its place back, and those behind it move up. `leaky_bucket`, and `concurrency` with a
    /// queue, may add a delay; the call sleeps for that too.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`]; [`AskError::Overslept`] if the future was not polled until a
    /// permit's lease had expired.
    pub async fn acquire(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.acquire_timeout(query, Duration::MAX).await
    }

    /// Waits for the caller's turn if that comes within `most`. If not, the call is refused at once and
    /// charges nothing; and so it is as soon as its turn moves beyond that, since the key was banned or its
    /// limit lowered.
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
            wait: Some(WaitLimits::new(most)),
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
    /// As [`Limiter::try_acquire`]; and if `name` or `hold` is invalid, if `hold` is longer than the `max_hold` of
    /// a rule, if the query has no descriptor or more than
    /// [`MAX_DESCRIPTORS`](quell_core::query_bounds::MAX_DESCRIPTORS), or if the name is in use for another query.
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
        self.reserve_within(query, hold, name, Some(WaitLimits::new(most)))
            .await
    }

    async fn reserve_within(
        &self,
        query: &Query<'_>,
        hold: Duration,
        name: Option<&str>,
        wait: Option<WaitLimits>,
    ) -> Result<Verdict, AskError> {
        check_hold(hold)?;
        check_descriptors(query.descriptors().len())?;
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

    /// Settles a reservation with its real cost, 0 or more: one number, or for a query of several
    /// descriptors a list with one for each, in their order. If that is less than the estimate, the
    /// difference is returned as far as it still counts. If it is more, the rest is owed, and the key
    /// refuses until it is repaid; of a window that is over, nothing is owed. Permits come back. Settling
    /// again changes nothing.
    ///
    /// ```
    /// # use quell::store::memory::MemoryStore;
    /// # use quell::{AskError, Limiter};
    /// # async fn settle(limiter: &Limiter<MemoryStore>) -> Result<(), AskError> {
    /// limiter.settle("models", "job-1", 1_500).await?;
    /// // Input and output tokens, in the order of the descriptors.
    /// limiter.settle("models", "job-2", [1_500, 300]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AskError::UnknownHold`] if there is no such hold; [`AskError::Unsettled`] if its query has
    /// another number of descriptors, which changes nothing; [`AskError::Store`] if the store fails.
    pub async fn settle(
        &self,
        domain: &str,
        id: &str,
        actual: impl Into<Actual>,
    ) -> Result<Finished, AskError> {
        self.end(domain, id, Ending::Settle(actual.into())).await
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
        let finished = self.end_at(&id, ending, self.now()).await?;
        finished.ok_or(AskError::UnknownHold)
    }

    /// As [`Limiter::release`], without waiting for the answer. For permits that are dropped.
    pub fn release_detached(&self, domain: &str, id: &str) {
        if let Some(id) = HoldId::new(domain, id) {
            self.abandon(&id, Ending::Release);
        }
    }

    /// Ends or renews without waiting for the answer.
    pub(crate) fn abandon(&self, id: &HoldId, ending: Ending) {
        let next = self.parts.store.abandon(id, ending, self.now());
        self.parts.waiters.wake(&next);
    }

    /// The number of callers in this process that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.parts.waiters.len()
    }

    async fn claim(&self, query: &Query<'_>, claim: &Claim<'_>) -> Result<Verdict, AskError> {
        let now = self.now();
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        check_length(&rules, query, &set, claim)?;
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
        let is_over = claim.hold.is_none() && !set.has_permits();
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
            return Ok((
                self.parts.store.hold(set, &claim, now).await?,
                Duration::ZERO,
            ));
        }
        let is_in = self.parts.waiters.enter(claim.id, set.account());
        if !is_in {
            // Too many callers wait already: this one passes at once or is refused.
            claim.wait = Some(WaitLimits::new(Duration::ZERO));
        }
        let mut guard = WaitGuard {
            limiter: self,
            id: claim.id.clone(),
            entered: is_in.then_some(set.account()),
            is_placed: true,
            has_passed: false,
        };
        let placed = match self.parts.store.hold(set, &claim, now).await {
            Ok(placed) => placed,
            Err(error) => {
                // A store that answered has no place for this call; one under its id is another's.
                guard.is_placed = matches!(error, StoreError::Unavailable(_));
                return Err(error.into());
            }
        };
        let (is_refused, delay) = summary(set, &placed);
        if is_refused || delay.is_zero() {
            (guard.is_placed, guard.has_passed) = (!is_refused, !is_refused);
            return Ok((placed, Duration::ZERO));
        }
        if !placed.held {
            // The fallback decided, not the store, so there is no place in a queue, only a delay to sleep
            // for.
            let end = now.monotonic.saturating_add(delay);
            self.sleep_until(claim.id, end).await;
            guard.is_placed = false;
            return Ok(self.waited_since(now, placed));
        }
        self.take_turn(query, set, &claim, now, placed, guard).await
    }

    /// Sleeps until the turn of a claim that was placed at `now`, and through its delay.
    async fn take_turn(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        placed: Placed,
        mut guard: WaitGuard<'_, S>,
    ) -> Result<(Placed, Duration), AskError> {
        let (_, delay) = summary(set, &placed);
        let wait = Wait {
            began: now.monotonic,
            limits: claim.wait.unwrap_or(WaitLimits::new(Duration::MAX)),
            end: now.monotonic.saturating_add(delay),
            after: delay.saturating_sub(placed.wait.unwrap_or_default()),
        };
        let status = match self.wait(query, set, claim.id, &wait).await {
            Ok(Waited::Arrived(status)) => status,
            Ok(Waited::TooLong(left)) => {
                let (placed, waited) = self.waited_since(now, placed);
                let placed = self.refuse_late(query, set, placed, left, guard).await?;
                return Ok((placed, waited));
            }
            // `is_placed` stays set, so the guard cancels the claim when it is dropped.
            Err(error) => return self.answer_without_store(set, claim, now, error).await,
        };
        // Cancelled by its id, or since the same call was dropped at another server. If the turn was missed,
        // rates stay charged, but another caller may have the permit by now.
        let is_missed = status == HoldStatus::Expired && set.has_permits();
        if status == HoldStatus::Cancelled || is_missed {
            return Err(AskError::Overslept);
        }
        // `refresh` may wait: if the caller goes away during it, the guard still cancels.
        let (mut placed, waited) = self.waited_since(now, placed);
        self.refresh(query, set, &mut placed.decisions).await;
        guard.has_passed = true;
        Ok((placed, waited))
    }

    /// Turns the answer to a claim made at `began` into the answer to give now that the wait is over.
    fn waited_since(&self, began: Now, mut placed: Placed) -> (Placed, Duration) {
        let waited = self.now().monotonic.since(began.monotonic);
        for decision in &mut placed.decisions {
            *decision = decision.waited_for(waited);
        }
        (placed, waited)
    }

    /// Gives the place of a caller back whose turn has moved beyond what it would wait, and refuses it: `left`
    /// is how long its turn would have taken.
    async fn refuse_late(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        mut placed: Placed,
        left: Duration,
        mut guard: WaitGuard<'_, S>,
    ) -> Result<Placed, AskError> {
        // If the same call waits or has gone on here, the hold is that one's.
        guard.is_placed = self.parts.waiters.leave(&guard.id, guard.entered, false);
        guard.entered = None;
        if guard.is_placed {
            // Before the numbers are asked for, which it would change; dropped meanwhile, the guard does it.
            let ended = self
                .parts
                .store
                .end(&guard.id, Ending::Cancel, self.now())
                .await;
            let ended = ended?;
            guard.is_placed = false;
            self.parts
                .waiters
                .wake(&ended.map(|ended| ended.next).unwrap_or_default());
        }
        if let Some(current) = self.peek_again(query, set).await {
            (placed.decisions, placed.places) = (current, None);
        }
        let (is_refused, _) = summary(set, &placed);
        let known = known(set, placed.places.as_deref());
        for (charge, decision) in known.charges().iter().zip(&mut placed.decisions) {
            decision.delay = Duration::ZERO;
            if !is_refused && !charge.shadow {
                // Nothing refuses any more, since others have left or the ban was lifted.
                let soon = RetryAfter::After(left.max(Duration::from_nanos(1)));
                decision.outcome = Outcome::Deny(soon);
            }
        }
        Ok(Placed {
            held: false,
            wait: None,
            ..placed
        })
    }

    /// Updates the decisions' numbers after a wait, since other calls were made meanwhile and windows
    /// ended. If the store fails, they stay as they are.
    async fn refresh(&self, query: &Query<'_>, set: &LimitSet<'_>, decisions: &mut [Decision]) {
        let current = self.peek_again(query, set).await.unwrap_or_default();
        for (decision, current) in decisions.iter_mut().zip(&current) {
            *decision = decision.with_numbers_of(current);
        }
    }

    /// Current answers of the limits of a set; `None` if other limits apply to the query by now, or the
    /// store fails.
    async fn peek_again(&self, query: &Query<'_>, set: &LimitSet<'_>) -> Option<Vec<Decision>> {
        let now = self.now();
        let rules = self.parts.rules.load_full();
        let current = rules.resolve(query, now, &self.parts.calendar);
        let keys = |set: &LimitSet<'_>| {
            let keys = set.charges().iter().map(|charge| set.key(charge));
            keys.map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        if keys(&current) != keys(set) {
            return None;
        }
        let answer = self
            .parts
            .store
            .decide(Charges::Set(&current), Operation::Peek, now)
            .await;
        let answer = answer.ok().filter(|answer| !answer.degraded)?;
        Some(answer.decisions.into_vec()).filter(|all| all.len() == set.charges().len())
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
        let placed = self.parts.store.fall_back(set, &rest, now, error)?;
        let (is_refused, delay) = summary(set, &placed);
        if !is_refused && !delay.is_zero() {
            let end = now.monotonic.saturating_add(delay);
            self.sleep_until(claim.id, end).await;
            let (placed, _) = self.waited_since(now, placed);
            return Ok((placed, self.now().monotonic.since(began.monotonic)));
        }
        Ok((placed, waited))
    }

    /// Sleeps until the turn of `id`, even if that moves, and then through its delay. If the turn moves beyond
    /// what the caller would wait, it returns at once.
    async fn wait(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        id: &HoldId,
        wait: &Wait,
    ) -> StoreResult<Waited> {
        let mut end = wait.end;
        // When the store is asked again that could not say how far the turn has moved.
        let mut ask_again = None;
        loop {
            let until = ask_again.map_or(end, |at: Monotonic| at.min(end));
            let call = self.wait_until(id, until).await;
            let now = self.now();
            if call == Wakeup::Moved || now.monotonic < end {
                ask_again = None;
                match self.parts.store.advance(id, now).await {
                    Ok(Some((left, next))) => {
                        self.parts.waiters.wake(&next);
                        if wait.is_too_long(now.monotonic, left) {
                            return Ok(Waited::TooLong(left));
                        }
                        end = wait.end_after(now.monotonic, left);
                    }
                    // Its turn has come, or somebody ended its hold.
                    Ok(None) => end = end.min(wait.end_after(now.monotonic, Duration::ZERO)),
                    Err(_) => ask_again = Some(now.monotonic.saturating_add(ASK_AGAIN)),
                }
                continue;
            }
            // A queue looks for bans itself; a delay is slept through here.
            if !wait.after.is_zero()
                && let Some(left) = self.banned_for(query, set).await
            {
                if wait.is_too_long(now.monotonic, left.saturating_sub(wait.after)) {
                    return Ok(Waited::TooLong(left));
                }
                self.parts.store.end(id, Ending::Renew, now).await?;
                end = now.monotonic.saturating_add(left.min(BAN_CHECK));
                continue;
            }
            let finished = self.parts.store.end(id, Ending::Arrive, now).await?;
            let Some(finished) = finished else {
                return Ok(Waited::Arrived(HoldStatus::Expired));
            };
            match finished.wait {
                Some(left) if wait.is_too_long(now.monotonic, left) => {
                    return Ok(Waited::TooLong(left));
                }
                Some(left) => end = wait.end_after(now.monotonic, left),
                None => return Ok(Waited::Arrived(finished.status)),
            }
        }
    }

    /// Time until a call of the set could pass, if a key of it is banned.
    async fn banned_for(&self, query: &Query<'_>, set: &LimitSet<'_>) -> Option<Duration> {
        let current = self.peek_again(query, set).await?;
        let with_say = set.charges().iter().zip(&current);
        let banned = with_say.filter(|(charge, decision)| decision.banned && !charge.shadow);
        let waits = banned.filter_map(|(_, decision)| decision.retry_after());
        waits
            .map(|wait| match wait {
                RetryAfter::After(wait) => wait,
                RetryAfter::Never => BAN_CHECK,
            })
            .max()
    }

    /// Sleeps until `turn`, or until somebody ahead of `id` leaves, in this process or another.
    async fn wait_until(&self, id: &HoldId, turn: Monotonic) -> Wakeup {
        let mut here = pin!(self.parts.waiters.wait(id, turn, &self.parts.clock));
        let mut elsewhere = pin!(self.parts.store.wait_promoted(id));
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
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        check_length(&rules, query, &set, claim)?;
        let placed = self.parts.store.hold(&set, claim, now).await?;
        Ok(self.conclude_held(query, &set, &placed, Some(claim.id), Duration::ZERO, now))
    }

    /// Ends or renews a hold at a given instant; `None` if the id is not known.
    ///
    /// # Errors
    /// As [`Limiter::settle`].
    pub async fn end_at(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, AskError> {
        let finished = self.parts.store.end(id, ending, now).await?;
        if let Some(finished) = &finished {
            self.parts.waiters.wake(&finished.next);
            if let Some(descriptors) = finished.unsettled {
                return Err(AskError::Unsettled { descriptors });
            }
        }
        Ok(finished)
    }

    /// Sleeps until `end`. The caller is in no queue, so nothing wakes it earlier.
    pub(crate) async fn sleep_until(&self, id: &HoldId, end: Monotonic) {
        while self.parts.waiters.wait(id, end, &self.parts.clock).await != Wakeup::Due {}
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
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        check_length(&rules, query, &set, claim)?;
        let placed = self.parts.store.hold_local(&set, claim, now)?;
        Ok(self.conclude_held(query, &set, &placed, Some(claim.id), Duration::ZERO, now))
    }

    /// As [`Limiter::end_at`], on a store in this process.
    pub fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        let finished = self.parts.store.end_local(id, ending, now)?;
        self.parts.waiters.wake(&finished.next);
        Some(finished)
    }
}
