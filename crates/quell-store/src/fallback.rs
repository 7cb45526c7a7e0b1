//! Fallback: answers for the store while it is slow, gone or asked too often.
//!
//! ```text
//! charge --denial in the cache?-----> answer, no round trip
//!        --cached denial just over?-> a few callers probe, the others wait (see `stampede`)
//!        --store known to be gone?--> as declared, degraded
//!        --debt on the key?---------> repaid first
//!        --store just back?---------> the local share, where declared: if it refuses, degraded
//!        --store--------------------> answer, noted in the cache
//!               '---failure---------> as declared, degraded
//! ```
//!
//! The rule's `on_failure` declares the fallback: refuse, allow, or let each node use its share. Only
//! this module applies it. A refusal by the store never leads to the fallback, and every answer of the
//! fallback is marked as degraded.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use delegate::delegate;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::key::Key;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Now, Wall};
use tokio::time::Instant;

use crate::remote::{FailureKind, RemoteFailure, RemoteStore, SetFailure};
use quell::calendar::SystemCalendar;
use quell::clock::{Clock, read_again};
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, HoldStore, KeyView, LeaseStore, Paid,
    Store, StoreError, StoreResult, Totals,
};

mod background;
mod denial_cache;
mod fallback_holds;
mod hold_keys;
mod in_flight;
mod local_debt;
mod local_share;
mod look_up;
mod outage;
mod recovery;
mod refusal;
mod repay;
#[cfg(test)]
mod schedules;
mod shared_limit;
mod stampede;

use background::Background;
use denial_cache::DenialCache;
use hold_keys::HoldKeys;
use in_flight::InFlightSet;
use local_share::{LocalCharge, LocalShares};
pub use look_up::CacheLookup;
use outage::Outage;
pub use outage::StoreTrouble;
use recovery::Recovery;
use stampede::{ProbeAnswer, StampedeGate};

/// Number of times that a call repays debts of its keys before it continues with their shares, if these
/// admit more meanwhile.
const MAX_PAYMENTS: usize = 3;

/// The `retry_after` of declared refusals: a store that is back is found within this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A remote store that caches refusals, and answers as its rules declare while it cannot be asked.
///
/// Needs a tokio runtime with time. Clones share everything.
#[derive(Debug)]
pub struct FallbackStore<S: RemoteStore> {
    inner: Arc<Inner<S>>,
}

impl<S: RemoteStore> Clone for FallbackStore<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

#[derive(Debug)]
struct Inner<S: RemoteStore> {
    store: S,
    clock: Arc<dyn Clock>,
    denial_cache: DenialCache,
    hold_keys: HoldKeys,
    shares: LocalShares,
    outage: Outage,
    recovery: Recovery<S::Server>,
    calendar: SystemCalendar,
    /// Identifies this node for other nodes.
    node: u64,
    /// Task that looks for lost servers and repays debts.
    repaying: Background,
    fallbacks: [AtomicU64; 3],
    remembered: AtomicU64,
}

/// Counts of a [`FallbackStore`]'s answers without its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackNumbers {
    /// Sets that were refused from the cache.
    pub remembered: u64,
    /// Decisions on acquires by this node's share.
    pub shared: u64,
    /// Decisions on acquires that were refused because that was declared.
    pub denied: u64,
    /// Decisions on acquires that were allowed because that was declared.
    pub allowed: u64,
    /// Keys with a debt to the store.
    pub owed: usize,
    /// Units of debts that were sent to the store without an answer: it may have charged them, or not.
    pub unanswered: u64,
    /// True if callers get declared answers, or did in the last few seconds.
    pub is_degraded: bool,
    /// Bytes of keys that were used by shares: at most 64 MiB.
    pub share_bytes: usize,
}

impl<S: RemoteStore> FallbackStore<S> {
    /// Puts a fallback in front of `store`. The clock is `clock`, until a limiter is built on this store
    /// before it is cloned: then it is that of the limiter.
    #[must_use]
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                denial_cache: DenialCache::new(),
                hold_keys: HoldKeys::default(),
                shares: LocalShares::default(),
                outage: Outage::default(),
                recovery: Recovery::new(),
                calendar: SystemCalendar::default(),
                node: RandomState::new().hash_one(0_u8),
                repaying: Background::default(),
                fallbacks: Default::default(),
                remembered: AtomicU64::default(),
            }),
        }
    }

    /// The underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Reason why callers get declared answers, or would get them. If a caller got one in the last few
    /// seconds, this is the reason that it was given; otherwise every server of the store is asked to
    /// decide.
    pub async fn trouble(&self) -> Option<StoreTrouble> {
        let (outage, clock) = (&self.inner.outage, &self.inner.clock);
        if let Some(trouble) = outage.trouble() {
            return Some(trouble);
        }
        let checked = self.inner.store.check().await;
        let since = outage.tested(checked.is_ok(), clock.now().wall);
        let reason = checked.err()?.reason;
        since.map(|since| StoreTrouble { since, reason })
    }

    /// Sets the text that the log has, when an outage begins, about the answers of callers.
    pub fn describe_outage(&self, describe: impl Fn() -> String + Send + Sync + 'static) {
        self.inner.outage.describe(Box::new(describe));
    }

    /// Counts of answers given without the store.
    #[must_use]
    pub fn fallback_numbers(&self) -> FallbackNumbers {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [shared, denied, allowed] = &self.inner.fallbacks;
        FallbackNumbers {
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

impl<S: RemoteStore> Inner<S> {
    /// Asks the store. For a key whose cached refusal has ended, it may instead wait for the answer to
    /// another caller.
    async fn decide_through_gate(
        self: &Arc<Self>,
        stampede: &Arc<StampedeGate>,
        set: &LimitSet<'_>,
        operation: Operation,
        mut now: Now,
    ) -> StoreResult<Answer> {
        // The caller ahead gets its answer within this time, unless it is not polled.
        let end = Instant::now() + self.store.longest_call();
        let turn = loop {
            let turn = tokio::time::timeout_at(end, stampede.turn()).await;
            now = read_again(now, &*self.clock);
            if let Some(answer) = self.cached_denial(set, operation, now) {
                return Ok(answer);
            }
            match turn {
                Ok(None) => {}
                Ok(turn) => break turn,
                Err(_) => break None,
            }
        };
        let answer = self.decide_on_store(set, operation, now, None).await;
        if let Some(turn) = turn {
            turn.end(probe_answer(set, &answer));
        }
        answer
    }

    /// Asks the store. While one of its servers takes no writes (`refusal` says why), it is asked what is
    /// left: what it refuses is refused, and what a share admits begins with what it says to be left.
    async fn decide_on_store(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        refusal: Option<RemoteFailure>,
    ) -> StoreResult<Answer> {
        let writes = operation == Operation::Acquire;
        let mut refusal = refusal.or_else(|| self.write_refusal(set).filter(|_| writes));
        loop {
            let asked = match refusal {
                Some(_) => Operation::Peek,
                None => operation,
            };
            let in_flight = match self.prepare(set, None, asked, now).await {
                Ok(in_flight) => in_flight,
                Err(halt) => return self.answer_halted(set, operation, now, halt),
            };
            let undecided = match self.store.try_decide(set, asked, now).await {
                Ok(mut answer) => {
                    let decided = answer.store_time.unwrap_or_default();
                    in_flight.complete(set, &mut answer.decisions, now, decided);
                    match refusal {
                        Some(failure) if set.passes(&answer.decisions) => failure.into(),
                        _ => return Ok(answer),
                    }
                }
                Err(undecided) => {
                    // Otherwise the share would leave room for this call.
                    drop(in_flight);
                    let news = self.note_write_refusal(set, now, &undecided);
                    if asked == Operation::Acquire && news.is_some() {
                        refusal = news;
                        continue;
                    }
                    undecided
                }
            };
            return self.fall_back(set, operation, now, &FallbackReason::Failed(undecided));
        }
    }

    /// Returns true if this node never knew some key of a set, or has forgotten it.
    fn is_news(&self, set: &LimitSet<'_>, now: Now) -> bool {
        let (cache, now) = (&self.denial_cache, now.monotonic);
        let known = |charge: &Charge<'_>| cache.starting_point(set.key(charge), charge.active, now);
        set.charges().iter().any(|charge| known(charge).is_none())
    }

    fn server_of(&self, key: Key<'_>) -> S::Server {
        self.store.server_of(key.as_bytes(), key.scope().len())
    }

    /// The servers with the keys of a set.
    fn servers<'a>(&'a self, set: &'a LimitSet<'_>) -> impl Iterator<Item = S::Server> + 'a {
        let charges = set.charges().iter();
        charges.map(|charge| self.server_of(set.key(charge)))
    }

    /// Reason why a set whose limits are all shared charges nothing now, if one of its servers takes no
    /// writes.
    fn write_refusal(&self, set: &LimitSet<'_>) -> Option<RemoteFailure> {
        let refusal = self.recovery.refusal_of(self.servers(set));
        refusal.filter(|_| is_shared(set))
    }

    /// Remembers that servers take no writes: those that said so. Returns why the set is not charged, if
    /// it has keys that this node never heard of: its servers can be asked what is left of these.
    fn note_write_refusal(
        &self,
        set: &LimitSet<'_>,
        now: Now,
        undecided: &SetFailure,
    ) -> Option<RemoteFailure> {
        let SetFailure {
            failure,
            failed,
            uncertain,
        } = undecided;
        if failure.kind != FailureKind::TakesNoWrites {
            return None;
        }
        let servers: Vec<_> = self.servers(set).collect();
        for server in failed.iter().filter_map(|place| servers.get(*place)) {
            self.recovery.takes_no_writes(server, failure);
        }
        let is_askable = uncertain.is_empty() && self.is_news(set, now);
        self.write_refusal(set).filter(|_| is_askable)
    }

    /// Waits until the store can be asked about `set`, or returns why it is not. From then on its possible
    /// charge counts as in flight.
    async fn prepare(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        claim: Option<&Claim<'_>>,
        operation: Operation,
        now: Now,
    ) -> Result<InFlightSet<S>, Halt> {
        for _ in 0..MAX_PAYMENTS {
            // No call waits for a server that is gone; a separate task checks whether it is back.
            let instant = Instant::now().into_std();
            if let Some(reason) = self.store.gone_reason(set, claim, instant) {
                let failure = RemoteFailure::unreachable(&reason);
                return Err(Halt::FallBack(FallbackReason::Failed(failure.into())));
            }
            if let Err(failure) = self.repaid(set, now).await {
                // The set itself was not sent.
                return Err(Halt::FallBack(FallbackReason::Failed(failure.into())));
            }
            let in_flight = self.announce(set, operation, now)?;
            // A share that decides from now on takes these calls into account; one that decided before may
            // have a debt.
            if self.shares.is_idle() {
                return Ok(in_flight);
            }
            let is_capped = in_flight.is_capped() || self.recovering(set).is_empty();
            let mut charges = set.charges().iter();
            if is_capped && !charges.any(|charge| self.shares.owes(set.key(charge).as_bytes())) {
                return Ok(in_flight);
            }
        }
        Err(Halt::FallBack(FallbackReason::Recovering))
    }

    /// Counts what the store may charge for `set` as in flight. While other nodes may not have repaid debts for
    /// its keys, this node's shares must have room for it as well; `Halt` if they have none.
    fn announce(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> Result<InFlightSet<S>, Halt> {
        let (places, locals): (Vec<_>, Vec<_>) = self.recovering(set).into_iter().unzip();
        if locals.is_empty() {
            return Ok(InFlightSet::new(self, set, operation));
        }
        let announce = || InFlightSet::new(self, set, operation);
        let (cache, clock) = (&self.denial_cache, &*self.clock);
        let admitted = (self.shares).admit(&locals, operation, now, (cache, clock), announce);
        match admitted {
            Ok((in_flight, decisions)) => {
                let room = decisions.iter().map(|decision| decision.remaining);
                Ok(in_flight.beside(places.into_iter().zip(room).collect()))
            }
            Err(decisions) => Err(Halt::Refused(Box::new(Answer {
                places: (places.len() < set.charges().len()).then_some(places),
                degraded: true,
                ..Answer::from(decisions)
            }))),
        }
    }

    /// The charges of a set for which other nodes may not have repaid their debts, by their indices.
    fn recovering<'a, 'r>(&self, set: &'a LimitSet<'r>) -> Vec<(usize, LocalCharge<'a, 'r>)> {
        let has_servers = self.recovery.is_any();
        if !has_servers && self.shares.is_settled() {
            return Vec::new();
        }
        let now = Instant::now();
        let recovers = |key: Key<'_>| {
            self.shares.is_recovering(key.as_bytes(), now)
                || (has_servers && self.recovery.has(&self.server_of(key), now))
        };
        let charges = set.charges().iter().enumerate();
        let recovering = charges.filter_map(|(place, charge)| {
            let (key, on_failure) = (set.key(charge), charge.policy.on_failure?);
            let is_shared = matches!(on_failure, OnFailure::Share { .. });
            let local = (is_shared && recovers(key)).then(|| {
                let shares = &self.shares;
                shares.local_charge(key, charge, on_failure)
            });
            Some((place, local.flatten()?))
        });
        recovering.collect()
    }

    /// The answer to a set that does not go to the store.
    fn answer_halted(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        halt: Halt,
    ) -> StoreResult<Answer> {
        match halt {
            Halt::FallBack(reason) => self.fall_back(set, operation, now, &reason),
            Halt::Refused(answer) => {
                if operation == Operation::Acquire {
                    let [shared, ..] = &self.fallbacks;
                    let decided = u64::try_from(answer.decisions.len()).unwrap_or(u64::MAX);
                    shared.fetch_add(decided, Ordering::Relaxed);
                }
                self.degraded(&FallbackReason::Recovering.failure());
                Ok(*answer)
            }
        }
    }

    /// The declared answer for a store that cannot be asked.
    fn fall_back(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        reason: &FallbackReason,
    ) -> StoreResult<Answer> {
        if reason.failure().kind == FailureKind::Overloaded {
            // The store answers other calls, so it is not gone, and the declared answer does not apply.
            return Err(StoreError::Overloaded);
        }
        self.degraded(&reason.failure());
        self.fallback_answer(set, operation, now, reason)
    }

    fn fallback_answer(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
        reason: &FallbackReason,
    ) -> StoreResult<Answer> {
        let mut decisions: Vec<Option<Decision>> = Vec::with_capacity(set.charges().len());
        let mut locals = Vec::new();
        let mut counts = [0_u64; 3];
        let mut is_refused = false;
        for (place, charge) in set.charges().iter().enumerate() {
            let Some(on_failure) = charge.policy.on_failure else {
                let reason = reason.failure();
                return Err(StoreError::Unavailable(format!("{}: {reason}", self.store)));
            };
            let [shared, denied, allowed] = &mut counts;
            let local = self
                .shares
                .local_charge(set.key(charge), charge, on_failure);
            decisions.push(match (on_failure, local) {
                (OnFailure::Share { .. }, Some(mut local)) => {
                    *shared += 1;
                    local.may_be_charged = reason.may_be_charged(place);
                    locals.push(local);
                    None
                }
                (OnFailure::Allow, _) => {
                    *allowed += 1;
                    Some(allow(charge))
                }
                // A limit that cannot be shared admits nothing; rules files reject such a share.
                (OnFailure::Share { .. } | OnFailure::Deny, _) => {
                    *denied += 1;
                    is_refused |= !charge.shadow;
                    Some(deny(charge))
                }
            });
        }
        let mut asked = operation;
        if operation == Operation::Acquire {
            for (total, count) in self.fallbacks.iter().zip(counts) {
                total.fetch_add(count, Ordering::Relaxed);
            }
            if is_refused {
                asked = Operation::Peek;
            }
        }
        let mut shared = Vec::new();
        if !locals.is_empty() {
            let sources = (&self.denial_cache, &*self.clock);
            shared = self.shares.decide(&locals, asked, now, sources);
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

/// Reason why a set does not go to the store.
#[derive(Debug)]
enum Halt {
    /// The declared answer decides, for this reason.
    FallBack(FallbackReason),
    /// The store answers again, but this node's share has no room, and other nodes may not have repaid yet.
    Refused(Box<Answer>),
}

/// Reason why the store is not asked, or did not answer.
#[derive(Debug)]
enum FallbackReason {
    Failed(SetFailure),
    /// The store answers again, but nodes have not repaid yet.
    Recovering,
}

impl FallbackReason {
    fn failure(&self) -> RemoteFailure {
        match self {
            Self::Failed(undecided) => undecided.failure.clone(),
            Self::Recovering => RemoteFailure {
                kind: FailureKind::NotRun,
                reason: "it is back, and other servers may owe it what they let pass".to_owned(),
            },
        }
    }

    /// Returns true if the store may have made the charge at this index of the set.
    fn may_be_charged(&self, place: usize) -> bool {
        match self {
            Self::Failed(undecided) => undecided.uncertain.contains(&place),
            Self::Recovering => false,
        }
    }
}

/// Meaning of an answer for further sets like this one.
fn probe_answer(set: &LimitSet<'_>, answer: &StoreResult<Answer>) -> ProbeAnswer {
    let Some(answer) = answer.as_ref().ok().filter(|answer| !answer.degraded) else {
        return ProbeAnswer::Nothing;
    };
    let each = set.charges().iter().zip(&answer.decisions);
    let each = each.filter(|(charge, _)| !charge.shadow);
    let room = each.map(|(charge, decision)| match decision.outcome {
        Outcome::Allow => Some(decision.remaining / charge.cost.get()),
        Outcome::Deny(_) => None,
    });
    // A set is refused if any limit refuses it; `None` sorts first.
    room.min()
        .flatten()
        .map_or(ProbeAnswer::Refusal, ProbeAnswer::Room)
}

/// Returns true if every limit of a set uses shares while the store cannot be asked.
fn is_shared(set: &LimitSet<'_>) -> bool {
    let mut charges = set.charges().iter();
    charges.all(|charge| {
        let is_declared = matches!(charge.policy.on_failure, Some(OnFailure::Share { .. }));
        is_declared && charge.active.limit.lease().is_none()
    })
}

fn deny(charge: &Charge<'_>) -> Decision {
    Decision {
        outcome: Outcome::Deny(RetryAfter::After(RETRY_AFTER)),
        limit: charge.active.limit.max(),
        remaining: 0,
        reset_after: RETRY_AFTER,
        delay: Duration::ZERO,
        banned: false,
    }
}

fn allow(charge: &Charge<'_>) -> Decision {
    Decision {
        outcome: Outcome::Allow,
        remaining: charge.active.limit.max(),
        reset_after: Duration::ZERO,
        ..deny(charge)
    }
}

impl<S: RemoteStore> Store for FallbackStore<S> {
    type Lookup = CacheLookup;

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        // Clones share the clock: once there are some, it stays.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.clock = Arc::clone(clock);
        }
    }

    delegate! {
        to self.inner.store {
            fn install(&self, changes: &Changes);
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
            fn most_units(&self, rung: Rung) -> u64;
        }
    }

    /// Answers from cached refusals.
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut CacheLookup,
    ) -> Option<Answer> {
        let inner = &self.inner;
        let found = match charges {
            Charges::Set(set) if set.charges().is_empty() => return Some(Answer::default()),
            // A peek should show the current state, and permits come back, so the number of held ones is not cached.
            _ if operation == Operation::Peek => return None,
            Charges::Permits(..) => return None,
            Charges::One(key, charge) => inner.look_up_one(key, charge, *now),
            Charges::Set(set) => inner.look_up(set, *now),
        };
        match found {
            Ok(denial) => Some(denial),
            Err(gate) => {
                lookup.0 = Some(gate);
                None
            }
        }
    }

    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = StoreResult<Answer>> + Send {
        self.decide_after(charges, operation, now, CacheLookup::default())
    }

    async fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
        CacheLookup(found): CacheLookup,
    ) -> StoreResult<Answer> {
        let (inner, set) = (&self.inner, &*charges.set());
        if set.charges().is_empty() {
            return Ok(Answer::default());
        }
        match (charges, operation) {
            (Charges::Permits(_, id), Operation::Acquire) => {
                // Boxed, so that calls without holds do not carry room for it.
                let claim = Claim::plain(id);
                let placed = Box::pin(self.hold(set, &claim, now));
                Ok(placed.await?.into())
            }
            // A peek should show the current state. What asks the store is boxed, some 10 KB, so that what is answered
            // without is not moved with room for it.
            (_, Operation::Peek) => {
                Box::pin(inner.decide_on_store(set, operation, now, None)).await
            }
            _ => match found.map_or_else(|| inner.look_up(set, now), Err) {
                Ok(denial) => Ok(denial),
                Err(None) => Box::pin(inner.decide_on_store(set, operation, now, None)).await,
                Err(Some(gate)) => {
                    Box::pin(inner.decide_through_gate(&gate, set, operation, now)).await
                }
            },
        }
    }
}

impl<S: RemoteStore> AdminStore for FallbackStore<S> {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        let inner = &self.inner;
        if action == Action::Forgive {
            // The use during the outage is forgiven as well.
            for charge in set.charges() {
                inner.shares.forget(set.key(charge).as_bytes());
            }
        }
        let changed = inner.store.administer(set, action, now).await;
        for charge in set.charges().iter().filter(|_| changed.is_ok()) {
            inner.denial_cache.forget(set.key(charge));
        }
        changed.inspect_err(|error| inner.failed(error))
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let views = self.inner.store.view(set, now).await;
        views.inspect_err(|error| self.inner.failed(error))
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let bans = self.inner.store.ban_page(page, now).await;
        bans.inspect_err(|error| self.inner.failed(error))
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        self.inner.store.ban_count(now).await
    }
}

impl<S: RemoteStore> LeaseStore for FallbackStore<S> {
    async fn give_back(
        &self,
        set: &LimitSet<'_>,
        charged: Wall,
        until: Wall,
        now: Now,
    ) -> StoreResult<()> {
        let inner = &self.inner;
        let returned = inner.store.try_give_back(set, charged, until, now).await;
        for charge in set.charges().iter().filter(|_| returned.is_ok()) {
            inner.denial_cache.forget(set.key(charge));
        }
        returned.map_err(|failure| StoreError::Unavailable(failure.to_string()))
    }

    /// Charges what the total adds as a call of that cost would be charged: debts are repaid before, and
    /// while other nodes may not have repaid theirs, this node's share must have room for it.
    async fn sync(&self, set: &LimitSet<'_>, totals: &Totals, now: Now) -> StoreResult<Paid> {
        let inner = &self.inner;
        let unavailable = |reason: &dyn fmt::Display| {
            // Perhaps no caller is answered by the fallback, and nobody looks for the store.
            inner.keep_repaying();
            StoreError::Unavailable(reason.to_string())
        };
        let mut counted = set.clone();
        counted.set_cost(
            0,
            Cost::new(totals.total.saturating_sub(totals.base)).unwrap_or(Cost::ONE),
        );
        let in_flight = match inner.prepare(&counted, None, Operation::Acquire, now).await {
            Ok(in_flight) => in_flight,
            Err(Halt::FallBack(reason)) => return Err(unavailable(&reason.failure())),
            Err(Halt::Refused(_)) => {
                return Err(unavailable(&FallbackReason::Recovering.failure()));
            }
        };
        let paid = inner.store.try_sync(set, totals, now).await;
        let paid = paid.map_err(|failure| unavailable(&failure))?;
        let charged = paid.paid.saturating_sub(totals.base);
        in_flight.complete_total(set, &paid, charged, now);
        Ok(paid)
    }
}
