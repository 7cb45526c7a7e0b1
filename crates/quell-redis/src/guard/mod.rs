//! Guard: what stands between a server and a store that may be slow, gone, or asked too often.
//!
//! ```text
//! charge --remembered refusal?--> answer, no trip
//!        --refusal just over?---> one asks for all, see `crowd`
//!        --store thought gone?--> as declared, degraded
//!        --just back?-----------> by the share, where that is declared, degraded
//!        --something owed?------> paid first
//!        --store----------------> answer, noted
//!               '---failure-----> as declared, degraded
//! ```
//!
//! What is declared is the rule's `on_failure`: refuse, allow, or let each node use its share. This
//! is the only place that applies it. A refusal by the store never asks the fallback, and what the
//! fallback says always says that it is degraded.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell::clock::{Clock, read_again};
use quell::store::{Action, Answer, Banned, Finished, HoldTotals, Placed, Store, StoreError};
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::hold::{Claim, Ending, HoldId, MAX_SHARED_HOLDS, MAX_SHARED_LEARNED};
use quell_core::key::Key;
use quell_core::rule::{Changes, OnFailure};
use quell_core::time::{Monotonic, Now, Wall};

use crate::asked::SetFailure;
use crate::flow::PATIENCE;
use crate::link::{Failure, Place};
use crate::numbers::StoreNumbers;
use crate::store::RedisStore;
use crate::url::StoreUrl;

mod background;
mod crowd;
mod flights;
mod hold;
mod known;
mod local_share;
mod outage;
mod recovery;
mod refusal;
mod repay;
#[cfg(test)]
mod schedules;

use background::Background;
use crowd::{Crowd, CrowdNews};
use flights::Flights;
use known::{AnswerTime, Known};
use local_share::{How, LocalShares};
use outage::Outage;
use recovery::Recovery;

/// How often a call pays for its keys before it goes on by their shares, where these admit more meanwhile.
const MOST_PAYMENTS: usize = 3;

/// When to come back after a refusal that was declared: a store that is back is found within this.
const COME_BACK: Duration = Duration::from_secs(1);

/// A Redis store that remembers refusals, and answers as its rules declare while it cannot tell.
///
/// Needs a tokio runtime with time and I/O. Copies share everything.
#[derive(Clone, Debug)]
pub struct GuardedStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: RedisStore,
    clock: Arc<dyn Clock>,
    known: Known,
    shares: LocalShares,
    outage: Outage,
    recovery: Recovery,
    /// What other nodes know this one by.
    node: u64,
    /// Whether a task looks for what is gone and pays what is owed.
    repaying: Background,
    declared: [AtomicU64; 3],
    remembered: AtomicU64,
}

/// What a [`GuardedStore`] did so far without its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardNumbers {
    /// Sets that were refused from memory.
    pub remembered: u64,
    /// Decisions on acquires that were this node's own, by its share.
    pub shared: u64,
    /// Decisions on acquires that refused since that was declared.
    pub denied: u64,
    /// Decisions on acquires that allowed since that was declared.
    pub allowed: u64,
    /// Keys of which something is still to be charged to the store.
    pub owed: usize,
    /// Units that were owed and were sent to the store without an answer: it charged them, or not.
    pub unanswered: u64,
    /// Whether callers are answered by what is declared, or were in the last few seconds.
    pub is_degraded: bool,
    /// Bytes that keys take which were used by the share: at most 64 MiB.
    pub share_bytes: usize,
}

impl GuardedStore {
    /// Guards `store`; `clock` is that of the limiter.
    #[must_use]
    pub fn new(store: RedisStore, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                known: Known::new(),
                shares: LocalShares::default(),
                outage: Outage::default(),
                recovery: Recovery::default(),
                node: RandomState::new().hash_one(0_u8),
                repaying: Background::new(),
                declared: Default::default(),
                remembered: AtomicU64::default(),
            }),
        }
    }

    /// Where the store is; shows no password.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        self.inner.store.url()
    }

    /// Asks whether the store decides (see [`RedisStore::ping`]).
    ///
    /// # Errors
    /// [`Failure`] with what is known of the reason.
    pub async fn ping(&self) -> Result<(), Failure> {
        self.inner.store.ping().await
    }

    /// Why callers are answered by what is declared, or would be if there were any: what the last of
    /// them was told, if that was in the last few seconds, and else what every server of the store
    /// says when it is asked to decide.
    pub async fn failure(&self) -> Option<String> {
        match self.inner.outage.reason() {
            Some(reason) => Some(reason),
            None => self.ping().await.err().map(|failure| failure.to_string()),
        }
    }

    /// What somebody should change about the store (see [`RedisStore::warnings`]).
    ///
    /// # Errors
    /// [`Failure`] if a server of it does not answer.
    pub async fn warnings(&self) -> Result<Vec<String>, Failure> {
        self.inner.store.warnings().await
    }

    /// Calls to the store so far.
    #[must_use]
    pub fn store_numbers(&self) -> StoreNumbers {
        self.inner.store.numbers()
    }

    /// How many holds of this process there are (see [`RedisStore::hold_totals`]).
    pub async fn hold_totals(&self, now: Now) -> HoldTotals {
        self.inner.store.hold_totals(now).await
    }

    /// What was answered without it.
    #[must_use]
    pub fn guard_numbers(&self) -> GuardNumbers {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [shared, denied, allowed] = &self.inner.declared;
        GuardNumbers {
            remembered: read(&self.inner.remembered),
            shared: read(shared),
            denied: read(denied),
            allowed: read(allowed),
            owed: self.inner.shares.owed(),
            unanswered: self.inner.shares.unanswered(),
            is_degraded: self.inner.outage.is_on(),
            share_bytes: self.inner.shares.bytes(),
        }
    }
}

impl Inner {
    /// The refusal of `set` if some of its limits are known to refuse it.
    fn remembered(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Option<Answer> {
        // Who peeks wants to know how things are.
        if operation == Operation::Peek {
            return None;
        }
        let mut answer = Answer::default();
        let mut places = Vec::new();
        for (place, charge) in set.charges().iter().enumerate() {
            let key = set.key(charge);
            let refusal = match charge.shadow {
                true => None,
                false => self.known.refusal(key, charge, now.monotonic),
            };
            match refusal {
                Some(decision) => {
                    places.push(place);
                    answer.decisions.push(decision);
                }
                // A refusal by this limit would count towards a ban.
                None if charge.installed.limit.ban().is_some() => return None,
                None => {}
            }
        }
        if places.is_empty() {
            return None;
        }
        self.remembered.fetch_add(1, Ordering::Relaxed);
        answer.places = (places.len() < set.charges().len()).then_some(places);
        Some(answer)
    }

    /// Asks, or waits for what others are told who ask about a key that was refused until now.
    async fn ask_in_turn(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        mut now: Now,
    ) -> Result<Answer, StoreError> {
        let Some(crowd) = self.crowd(set, operation, now) else {
            return self.ask(set, operation, now).await;
        };
        // Whoever asks is answered within this, unless nobody polls it.
        let end = tokio::time::Instant::now() + self.store.timeout * (PATIENCE + 2);
        let turn = loop {
            let turn = tokio::time::timeout_at(end, crowd.turn()).await;
            now = read_again(now, &*self.clock);
            if let Some(answer) = self.remembered(set, operation, now) {
                return Ok(answer);
            }
            match turn {
                Ok(None) => {}
                Ok(turn) => break turn,
                Err(_) => break None,
            }
        };
        let answer = self.ask(set, operation, now).await;
        if let Some(turn) = turn {
            turn.end(heard(set, &answer));
        }
        answer
    }

    /// Those who ask about a key of `set` since its refusal is over.
    fn crowd(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Option<Arc<Crowd>> {
        if operation == Operation::Peek {
            return None;
        }
        let mut charges = set.charges().iter().filter(|charge| !charge.shadow);
        charges.find_map(|charge| self.known.crowd(set.key(charge), charge, now.monotonic))
    }

    async fn ask(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        // What it refuses is refused, though it takes no writes.
        let refusal = match operation {
            Operation::Acquire => self.refusal_of_writes(set),
            Operation::Peek => None,
        };
        let asked = match refusal {
            Some(_) => Operation::Peek,
            None => operation,
        };
        let flights = match self.ready(set, None, asked, now).await {
            Ok(flights) => flights,
            Err(unready) => return self.fall_back(set, operation, now, &unready),
        };
        match self.store.try_decide(set, asked, now).await {
            Ok((decisions, clock)) => {
                flights.land(set, &decisions, now, clock);
                if let Some(failure) = refusal.filter(|_| passes(set, &decisions)) {
                    return self.fall_back(set, operation, now, &Unready::Failed(failure.into()));
                }
                Ok(Answer {
                    decisions: decisions.into(),
                    store_time: Some(Wall::from_nanos(clock.saturating_mul(1_000))),
                    ..Answer::default()
                })
            }
            Err(undecided) => {
                // Who asks the share is not in its way.
                drop(flights);
                self.note_refusal_of_writes(set, &undecided.failure);
                self.fall_back(set, operation, now, &Unready::Failed(undecided))
            }
        }
    }

    /// Servers that have the keys of a set.
    fn places<'a>(&'a self, set: &'a LimitSet<'_>) -> impl Iterator<Item = Arc<Place>> + 'a {
        let charges = set.charges().iter();
        charges.map(|charge| {
            self.store
                .link
                .place_of(&self.store.names.of(set.key(charge)))
        })
    }

    /// Why a set that is shared as a whole charges nothing now, if one of its servers takes no writes.
    fn refusal_of_writes(&self, set: &LimitSet<'_>) -> Option<Failure> {
        let refusal = self.recovery.refusal_of(self.places(set));
        refusal.filter(|_| is_shared(set))
    }

    /// Remembers that a server takes no writes. Of several servers nobody knows which it was.
    fn note_refusal_of_writes(&self, set: &LimitSet<'_>, failure: &Failure) {
        if !failure.refuses_writes() {
            return;
        }
        let mut places = self.places(set);
        let Some(place) = places.next() else { return };
        if places.all(|other| Arc::ptr_eq(&other, &place)) {
            self.recovery.takes_no_writes(&place, failure);
        }
    }

    /// Waits until the store can be asked about `set`, or says why it is not. What it may charge counts
    /// as in flight from then on.
    async fn ready(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        operation: Operation,
        now: Now,
    ) -> Result<Flights, Unready> {
        for _ in 0..MOST_PAYMENTS {
            // Nobody waits for a server that is gone; a task of its own looks whether it is back.
            if let Some(reason) = self.store.gone(set, claim, Instant::now()) {
                return Err(Unready::Failed(Failure::Unreachable(reason).into()));
            }
            if self.is_recovering(set) {
                return Err(Unready::Recovering);
            }
            if let Err(failure) = self.repaid(set, now).await {
                // The set itself was not sent.
                return Err(Unready::Failed(failure.into()));
            }
            let flights = Flights::new(self, set, operation);
            // A share that decides from now on knows of them; one that did before may owe.
            if self.shares.is_idle() {
                return Ok(flights);
            }
            if self.is_recovering(set) {
                return Err(Unready::Recovering);
            }
            let mut charges = set.charges().iter();
            if !charges.any(|charge| self.shares.owes(set.key(charge).as_bytes())) {
                return Ok(flights);
            }
        }
        Err(Unready::Recovering)
    }

    /// Whether all of a set goes on by shares, since other nodes may not have paid for keys of it.
    fn is_recovering(&self, set: &LimitSet<'_>) -> bool {
        let has_places = self.recovery.is_any();
        if !has_places && self.shares.is_settled() {
            return false;
        }
        let now = Instant::now();
        let recovers = |charge: &Charge<'_>| {
            let key = set.key(charge);
            let place = || self.store.link.place_of(&self.store.names.of(key));
            self.shares.is_recovering(key.as_bytes(), now)
                || (has_places && self.recovery.has(&place(), now))
        };
        is_shared(set) && set.charges().iter().any(recovers)
    }

    /// Notes what the store said to a set, at `decided` by its clock; returns when that was heard.
    fn note(
        &self,
        set: &LimitSet<'_>,
        decisions: &[Decision],
        asked: Monotonic,
        decided: u64,
    ) -> Monotonic {
        let heard = self.clock.monotonic();
        let answered = AnswerTime {
            asked,
            heard,
            decided,
        };
        let each = set.charges().iter().zip(decisions);
        // Permits come back: how many are held is not remembered.
        let has_permits = |charge: &Charge<'_>| charge.installed.limit.lease().is_some();
        for (charge, decision) in each.filter(|(charge, _)| !has_permits(charge)) {
            let key = set.key(charge);
            self.known.note(key, charge, decision, answered);
        }
        heard
    }

    /// What is declared for a store that cannot tell.
    fn fall_back(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        unready: &Unready,
    ) -> Result<Answer, StoreError> {
        if unready.failure() == Failure::Overloaded {
            // It answers others, so it is not gone: nothing is declared for that.
            return Err(self.store.error(&Failure::Overloaded));
        }
        if !matches!(unready, Unready::Recovering) {
            self.recovery.owes();
        }
        self.degraded(&unready.failure());
        self.declared_for(set, operation, now, unready)
    }

    fn declared_for(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        unready: &Unready,
    ) -> Result<Answer, StoreError> {
        let mut decisions: Vec<Option<Decision>> = Vec::with_capacity(set.charges().len());
        let mut parts = Vec::new();
        let mut counts = [0_u64; 3];
        let mut is_refused = false;
        for (place, charge) in set.charges().iter().enumerate() {
            let Some(on_failure) = charge.on_failure else {
                return Err(self.store.error(&unready.failure()));
            };
            let [shared, denied, allowed] = &mut counts;
            let part = self.shares.part(set.key(charge), charge, on_failure);
            decisions.push(match (on_failure, part) {
                (OnFailure::Share { .. }, Some(mut part)) => {
                    *shared += 1;
                    part.may_be_charged = unready.may_be_charged(place);
                    parts.push(part);
                    None
                }
                (OnFailure::Allow, _) => {
                    *allowed += 1;
                    Some(allow(charge))
                }
                // A limit that cannot be shared admits nothing; rules files refuse such a share.
                (OnFailure::Share { .. } | OnFailure::Deny, _) => {
                    *denied += 1;
                    is_refused |= !charge.shadow;
                    Some(deny(charge))
                }
            });
        }
        let mut asked = operation;
        if operation == Operation::Acquire {
            for (total, count) in self.declared.iter().zip(counts) {
                total.fetch_add(count, Ordering::Relaxed);
            }
            if is_refused {
                asked = Operation::Peek;
            }
        }
        let mut shared = Vec::new();
        if !parts.is_empty() {
            let how = How {
                operation: asked,
                is_recovering: matches!(unready, Unready::Recovering),
            };
            let (known, clock) = (&self.known, &*self.clock);
            shared = self.shares.decide(&parts, how, now, known, clock);
        }
        let mut shared = shared.into_iter();
        let each = decisions.into_iter().zip(set.charges());
        let decisions = each.map(|(decision, charge)| {
            let decision = decision.or_else(|| shared.next());
            decision.unwrap_or_else(|| deny(charge))
        });
        Ok(Answer {
            decisions: decisions.collect(),
            degraded: true,
            ..Answer::default()
        })
    }
}

/// Why the store is not asked, or did not answer.
#[derive(Debug)]
enum Unready {
    Failed(SetFailure),
    /// It answers again, and other nodes may not have paid yet.
    Recovering,
}

impl Unready {
    fn failure(&self) -> Failure {
        match self {
            Self::Failed(undecided) => undecided.failure.clone(),
            Self::Recovering => Failure::Unreachable("it is back since a moment".to_owned()),
        }
    }

    /// Whether the store may have made the charge at this place of the set.
    fn may_be_charged(&self, place: usize) -> bool {
        match self {
            Self::Failed(undecided) => undecided.uncertain.contains(&place),
            Self::Recovering => false,
        }
    }
}

/// What an answer says of more sets like this one.
fn heard(set: &LimitSet<'_>, answer: &Result<Answer, StoreError>) -> CrowdNews {
    let Some(answer) = answer.as_ref().ok().filter(|answer| !answer.degraded) else {
        return CrowdNews::Nothing;
    };
    let each = set.charges().iter().zip(&answer.decisions);
    let each = each.filter(|(charge, _)| !charge.shadow);
    let room = each.map(|(charge, decision)| match decision.outcome {
        Outcome::Allow => Some(decision.remaining / charge.cost.get()),
        Outcome::Deny(_) => None,
    });
    // Refused by one is refused; `None` comes first.
    room.min()
        .flatten()
        .map_or(CrowdNews::Refusal, CrowdNews::Room)
}

/// Whether every limit of a set goes on by shares while the store cannot tell.
fn is_shared(set: &LimitSet<'_>) -> bool {
    let mut charges = set.charges().iter();
    charges.all(|charge| {
        let is_declared = matches!(charge.on_failure, Some(OnFailure::Share { .. }));
        is_declared && charge.installed.limit.lease().is_none()
    })
}

/// Whether all limits allow that have a say.
fn passes(set: &LimitSet<'_>, decisions: &[Decision]) -> bool {
    let mut each = set.charges().iter().zip(decisions);
    each.all(|(charge, said)| said.outcome.is_allow() || charge.shadow)
}

fn deny(charge: &Charge<'_>) -> Decision {
    Decision {
        outcome: Outcome::Deny(RetryAfter::After(COME_BACK)),
        limit: charge.installed.limit.max(),
        remaining: 0,
        reset_after: COME_BACK,
        delay: Duration::ZERO,
        banned: false,
    }
}

fn allow(charge: &Charge<'_>) -> Decision {
    let limit = charge.installed.limit.max();
    Decision {
        outcome: Outcome::Allow,
        limit,
        remaining: limit,
        reset_after: Duration::ZERO,
        delay: Duration::ZERO,
        banned: false,
    }
}

impl Store for GuardedStore {
    fn adopt(&self, changes: &Changes) {
        self.inner.store.adopt(changes);
    }

    /// Decides without remembered refusals, so that there is a decision on every charge.
    async fn charge(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Vec<Decision>, StoreError> {
        if set.charges().is_empty() {
            return Ok(Vec::new());
        }
        let answer = self.inner.ask(set, operation, now).await?;
        Ok(answer.decisions.into_vec())
    }

    async fn decide(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        if set.charges().is_empty() {
            return Ok(Answer::default());
        }
        match self.inner.remembered(set, operation, now) {
            Some(answer) => Ok(answer),
            None => self.inner.ask_in_turn(set, operation, now).await,
        }
    }

    fn decide_at_once(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Option<Answer> {
        if set.charges().is_empty() {
            return Some(Answer::default());
        }
        self.inner.remembered(set, operation, now)
    }

    fn charge_one_at_once(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Decision> {
        if operation == Operation::Peek {
            return None;
        }
        let decision = self.inner.known.refusal(key, charge, now.monotonic)?;
        self.inner.remembered.fetch_add(1, Ordering::Relaxed);
        Some(decision)
    }

    fn has_holds(&self) -> bool {
        self.inner.store.has_holds()
    }

    fn most_learned(&self) -> usize {
        MAX_SHARED_LEARNED
    }

    fn most_holds(&self) -> usize {
        MAX_SHARED_HOLDS
    }

    async fn hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, StoreError> {
        self.inner.hold(set, claim, now).await
    }

    async fn end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, StoreError> {
        self.inner.end(id, ending, now).await
    }

    async fn advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, StoreError> {
        self.inner.advance(id, now).await
    }

    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> Result<Placed, StoreError> {
        self.inner.fall_back_in_line(set, claim, now, error)
    }

    fn calls_across(&self) -> bool {
        true
    }

    async fn moved_up(&self, id: &HoldId) {
        self.inner.store.moved_up(id).await;
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.inner.store.abandon(id, ending, now)
    }

    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action,
        now: Now,
    ) -> Result<usize, StoreError> {
        let inner = &self.inner;
        if action == Action::Forgive {
            // What it used apart is forgiven as well.
            for charge in set.charges() {
                inner.shares.forget(set.key(charge).as_bytes());
            }
        }
        let changed = inner.store.administer(set, action, now).await;
        for charge in set.charges().iter().filter(|_| changed.is_ok()) {
            inner.known.forget(set.key(charge));
        }
        changed.inspect_err(|error| inner.failed(error))
    }

    async fn bans(&self, most: usize, now: Now) -> Result<Vec<Banned>, StoreError> {
        let bans = self.inner.store.bans(most, now).await;
        bans.inspect_err(|error| self.inner.failed(error))
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        self.inner.store.ban_count(now).await
    }
}
