//! Limiter: answers queries by rules and a store.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::descriptor::Query;
use quell_core::hold::HoldId;
use quell_core::key::with_ad_hoc;
use quell_core::limit::ActiveLimit;
use quell_core::policy::Rung;
use quell_core::rule::{LimitIds, RuleSet};
use quell_core::time::{Now, Wall};
use quell_core::verdict::Verdict;

use crate::ad_hoc::{AdHocLimits, AdHocMemo, CachedLimit};
use crate::calendar::SystemCalendar;
use crate::clock::{Clock, SystemClock};
use crate::error::AskError;
use crate::hold_id::new_id;
use crate::observer::{Event, NoObserver, Observer};
use crate::store::memory::{MemoryStore, Saved};
use crate::store::{Answer, LocalStore, Placed, Store, StoreError};
use crate::waiters::Waiters;

mod change;

use change::Changing;
pub use change::OverrideList;

/// Answers queries: rules turn a query into a limit set, and a store charges all its limits or none.
///
/// ```
/// use quell::rule::{DomainRules, Rule};
/// use quell::store::memory::MemoryStore;
/// use quell::{Limit, Limiter, Query};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let checkouts = Rule::new("checkouts", Limit::per_minute(5))?.per("user");
/// limiter.set_rules(vec![DomainRules::new("shop", vec![checkouts])])?;
/// let verdict = limiter.try_acquire_local(&Query::new("shop").entry("user", "alice"))?;
/// assert_eq!(verdict.remaining, Some(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones are the same limiter.
#[derive(Debug)]
pub struct Limiter<S> {
    pub(crate) parts: Arc<Parts<S>>,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Parts<S> {
    pub(crate) store: S,
    pub(crate) rules: ArcSwap<RuleSet>,
    changing: Mutex<Changing>,
    ids: LimitIds,
    ad_hoc: AdHocLimits,
    pub(crate) calendar: SystemCalendar,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waiters: Waiters,
    observer: Arc<dyn Observer>,
}

/// A query that rules have resolved to its limits, and that the store could not answer at once.
#[derive(Debug)]
pub struct Plan<'r, S: Store> {
    operation: Operation,
    set: LimitSet<'r>,
    /// Id under which permits are held.
    id: Option<HoldId>,
    now: Now,
    lookup: S::Lookup,
}

/// A call with its own limit that the store could not answer at once.
#[derive(Debug)]
pub struct AdHocPlan<S: Store> {
    operation: Operation,
    active: ActiveLimit,
    cost: Cost,
    now: Now,
    lookup: S::Lookup,
}

impl<S: Store> AdHocPlan<S> {
    /// The operation that was asked for.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Instant of the first attempt of the call.
    #[must_use]
    pub const fn begun(&self) -> Now {
        self.now
    }
}

impl<S: Store> Plan<'_, S> {
    /// The operation that was asked for.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Instant of the query's first attempt.
    #[must_use]
    pub const fn begun(&self) -> Now {
        self.now
    }
}

/// Builds a [`Limiter`].
#[derive(Debug)]
pub struct LimiterBuilder<S> {
    store: S,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

impl<S: Store> LimiterBuilder<S> {
    /// Sets the clock; the system's by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the observer, which is told of every answer.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Builds the limiter, which has no rules yet.
    #[must_use]
    pub fn build(mut self) -> Limiter<S> {
        self.store.set_clock(&self.clock);
        let parts = Parts {
            store: self.store,
            rules: ArcSwap::default(),
            changing: Mutex::default(),
            ids: LimitIds::default(),
            ad_hoc: AdHocLimits::default(),
            calendar: SystemCalendar::default(),
            clock: self.clock,
            waiters: Waiters::default(),
            observer: self.observer,
        };
        Limiter {
            parts: Arc::new(parts),
        }
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter without rules, on the system's clock.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Returns a builder for a limiter on `store`.
    #[must_use]
    pub fn builder(store: S) -> LimiterBuilder<S> {
        LimiterBuilder {
            store,
            clock: Arc::new(SystemClock::new()),
            observer: Arc::new(NoObserver),
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.parts.rules.load_full()
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.parts.store
    }

    /// Reads both clocks, the monotonic and the wall clock.
    #[must_use]
    pub fn now(&self) -> Now {
        self.parts.clock.now()
    }

    /// Checks all limits of a query, and charges them if all allow.
    ///
    /// # Errors
    /// [`AskError`] if there is no such domain, or the store fails. A refusal is not an error.
    pub fn try_acquire(
        &self,
        query: &Query<'_>,
    ) -> impl Future<Output = Result<Verdict, AskError>> {
        self.ask_then(Operation::Acquire, query, None)
    }

    /// Checks all limits. Nothing is charged, and no refusal is counted.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub fn peek(&self, query: &Query<'_>) -> impl Future<Output = Result<Verdict, AskError>> {
        self.ask_then(Operation::Peek, query, None)
    }

    /// Does `operation` at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub fn ask(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> impl Future<Output = Result<Verdict, AskError>> {
        self.ask_then(operation, query, Some(now))
    }

    /// Does `operation` at a given instant, or when it is first polled. Nothing is nested here, since each future
    /// copies the verdict of the one inside, some 250 bytes; nor are a set and an answer moved.
    async fn ask_then(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Option<Now>,
    ) -> Result<Verdict, AskError> {
        let now = now.unwrap_or_else(|| self.now());
        let rules = self.parts.rules.load_full();
        let mut set = LimitSet::new();
        rules.resolve_into(query, now, &self.parts.calendar, &mut set);
        check_domain(&rules, query, &set)?;
        let id = permit_id(operation, query, &set);
        let charges = Charges::new(&set, id.as_ref());
        let (store, mut read, mut lookup) = (&self.parts.store, now, S::Lookup::default());
        {
            // Looked at where it is, and gone before the wait: else it would be moved into the future.
            let decided = store.decide_now(charges, operation, &mut read, &mut lookup);
            if let Some(answer) = &decided {
                return Ok(self.conclude(operation, query, &set, answer, id.as_ref(), now));
            }
        }
        let answer = store.decide_after(charges, operation, read, lookup).await?;
        Ok(self.conclude(operation, query, &set, &answer, id.as_ref(), now))
    }

    /// As [`Limiter::ask`], and returns the verdict on the whole query and one for each of its
    /// descriptors, in their order: that of the limits which apply to it. If a refusal that is
    /// remembered decides the query, the store is not asked about the other descriptors, so their
    /// verdicts have no decisions. The time is that of a shared store.
    ///
    /// # Errors
    /// As [`Limiter::ask`].
    pub async fn ask_each(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<(Verdict, Vec<Verdict>, Option<Wall>), AskError> {
        let rules = self.parts.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        let id = permit_id(operation, query, &set);
        let charges = Charges::new(&set, id.as_ref());
        let answer = self.parts.store.decide(charges, operation, now).await?;
        let verdict = self.conclude(operation, query, &set, &answer, id.as_ref(), now);
        let known = known(&set, answer.places.as_deref());
        let each = (0..query.descriptors().len()).map(|descriptor| Verdict {
            degraded: answer.degraded,
            ..known.combine_descriptor(descriptor, &answer.decisions)
        });
        Ok((verdict, each.collect(), answer.store_time))
    }

    /// Resolves a query to its limit set. The only step from query to charges.
    pub(crate) fn plan<'r>(
        &self,
        rules: &'r RuleSet,
        query: &Query<'_>,
        now: Now,
    ) -> Result<LimitSet<'r>, AskError> {
        let set = rules.resolve(query, now, &self.parts.calendar);
        check_domain(rules, query, &set)?;
        Ok(set)
    }

    pub(crate) fn conclude(
        &self,
        operation: Operation,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        answer: &Answer,
        id: Option<&HoldId>,
        now: Now,
    ) -> Verdict {
        let set = &*known(set, answer.places.as_deref());
        let mut verdict = set.combine(&answer.decisions);
        verdict.degraded = answer.degraded;
        verdict.id = id.filter(|_| answer.held).map(|id| id.name().into());
        self.observe(operation, query, set, &verdict, answer.store_time, now);
        verdict
    }

    /// Combines the decisions of a claim into a verdict, and reports it to the observer. `id` is the
    /// one under which the caller can end what is held.
    pub(crate) fn conclude_held(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        placed: &Placed,
        id: Option<&HoldId>,
        waited: Duration,
        now: Now,
    ) -> Verdict {
        let set = &*known(set, placed.places.as_deref());
        let verdict = Verdict {
            id: id.filter(|_| placed.held).map(|id| id.name().into()),
            waited,
            degraded: placed.degraded,
            ..set.combine(&placed.decisions)
        };
        self.observe(Operation::Acquire, query, set, &verdict, None, now);
        verdict
    }

    fn observe(
        &self,
        operation: Operation,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        verdict: &Verdict,
        store_time: Option<Wall>,
        now: Now,
    ) {
        self.parts.observer.observe(&Event::Query {
            now,
            operation,
            query,
            set,
            verdict,
            store_time,
        });
    }

    /// As [`Limiter::ask`] for one limit that the call itself specifies, on a key of any bytes. These
    /// keys never meet the keys of rules. If a key is next used with another limit, its use is carried
    /// over.
    ///
    /// While more than 65,536 different limits are in use, a new one is made stricter: its burst is
    /// rounded down to a power of two, and the nanoseconds between two units up to one. It may refuse
    /// early and never admits more than was asked for.
    ///
    /// # Errors
    /// [`AskError`] if the limit is impossible, or the store fails.
    pub async fn ask_ad_hoc(
        &self,
        operation: Operation,
        key: &[u8],
        bucket: &TokenBucket,
        cost: Cost,
        now: Now,
    ) -> Result<Decision, AskError> {
        let plan = self.plan_ad_hoc(operation, bucket, cost, now)?;
        self.ask_ad_hoc_planned(key, plan).await
    }

    /// The plan of a call with its own limit that the store has not been asked about.
    ///
    /// # Errors
    /// [`AskError::Impossible`] if the limit is impossible.
    pub fn plan_ad_hoc(
        &self,
        operation: Operation,
        bucket: &TokenBucket,
        cost: Cost,
        now: Now,
    ) -> Result<AdHocPlan<S>, AskError> {
        let mut memo = AdHocMemo::default();
        let known = self.recall(&mut memo, bucket, now)?;
        Ok(AdHocPlan {
            operation,
            active: known.active.clone(),
            cost,
            now,
            lookup: S::Lookup::default(),
        })
    }

    /// Asks the store about `key` with a wait, by this plan.
    ///
    /// # Errors
    /// [`AskError`] if the store fails. A refusal is not an error.
    pub async fn ask_ad_hoc_planned(
        &self,
        key: &[u8],
        plan: AdHocPlan<S>,
    ) -> Result<Decision, AskError> {
        let AdHocPlan {
            operation,
            active,
            cost,
            now,
            lookup,
        } = plan;
        let set = LimitSet::ad_hoc(key, &active, cost);
        let (store, charges) = (&self.parts.store, Charges::Set(&set));
        let answer = store.decide_after(charges, operation, now, lookup).await?;
        let Some(decision) = answer.decisions.first().copied() else {
            return Err(AskError::Store(StoreError::Unavailable(
                "it gave no decision".to_owned(),
            )));
        };
        self.parts.observer.observe(&Event::AdHoc {
            now,
            operation,
            key,
            decision: &decision,
            store_time: answer.store_time,
        });
        Ok(decision)
    }

    /// As [`Limiter::ask`], without waiting. If the store cannot answer at once, nothing is charged and
    /// `None` is returned.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn ask_at_once(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Option<Verdict>, AskError> {
        Ok(self
            .ask_or_plan(&self.parts.rules.load(), operation, query, now)?
            .ok())
    }

    /// As [`Limiter::ask_at_once`] under these rules, which [`Limiter::rules`] gave after `now` was read: a reload
    /// ends old limits at an instant after every call under the old rules. If the store cannot answer at once,
    /// [`Limiter::ask_planned`] goes on with the plan, and the rules are not resolved again.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn ask_or_plan<'r>(
        &self,
        rules: &'r RuleSet,
        operation: Operation,
        query: &Query<'_>,
        mut now: Now,
    ) -> Result<Result<Verdict, Plan<'r, S>>, AskError> {
        // As in `plan`, without a copy of the set.
        let mut set = LimitSet::new();
        rules.resolve_into(query, now, &self.parts.calendar, &mut set);
        check_domain(rules, query, &set)?;
        let id = permit_id(operation, query, &set);
        let charges = Charges::new(&set, id.as_ref());
        let (store, mut lookup) = (&self.parts.store, S::Lookup::default());
        let answer = store.decide_now(charges, operation, &mut now, &mut lookup);
        if let Some(answer) = answer {
            return Ok(Ok(self.conclude(
                operation,
                query,
                &set,
                &answer,
                id.as_ref(),
                now,
            )));
        }
        Ok(Err(Plan {
            operation,
            set,
            id,
            now,
            lookup,
        }))
    }

    /// Asks the store for `query`, whose plan this is, with a wait.
    ///
    /// # Errors
    /// [`AskError`] if the store fails. A refusal is not an error.
    pub async fn ask_planned(
        &self,
        query: &Query<'_>,
        plan: Plan<'_, S>,
    ) -> Result<Verdict, AskError> {
        let Plan {
            operation,
            set,
            id,
            now,
            lookup,
        } = plan;
        let (store, charges) = (&self.parts.store, Charges::new(&set, id.as_ref()));
        let answer = store.decide_after(charges, operation, now, lookup).await?;
        Ok(self.conclude(operation, query, &set, &answer, id.as_ref(), now))
    }

    /// As [`Limiter::ask_ad_hoc`], without waiting. If the store cannot answer at once, nothing is charged, and
    /// [`Limiter::ask_ad_hoc_planned`] goes on with the plan. A connection keeps one `memo` and passes it with each
    /// call, so that a repeated limit is found without a lookup.
    ///
    /// If the store reads the clock again, it writes the new reading to `now`. Calls of a pipeline share
    /// one reading, and must not decide earlier than the last charge.
    ///
    /// # Errors
    /// [`AskError::Impossible`] if the limit is impossible.
    pub fn ask_ad_hoc_or_plan(
        &self,
        operation: Operation,
        key: &[u8],
        bucket: &TokenBucket,
        cost: Cost,
        now: &mut Now,
        memo: &mut AdHocMemo,
    ) -> Result<Result<Decision, AdHocPlan<S>>, AskError> {
        let known = self.recall(memo, bucket, *now)?;
        let charge = Charge::alone(&known.active, cost);
        let mut lookup = S::Lookup::default();
        let answer = with_ad_hoc(key, |key| {
            let (store, charges) = (&self.parts.store, Charges::One(key, &charge));
            store.decide_now(charges, operation, now, &mut lookup)
        });
        let Some(decision) = answer.and_then(|answer| answer.decisions.first().copied()) else {
            return Ok(Err(AdHocPlan {
                operation,
                active: known.active.clone(),
                cost,
                now: *now,
                lookup,
            }));
        };
        self.parts.observer.observe(&Event::AdHoc {
            now: *now,
            operation,
            key,
            decision: &decision,
            store_time: None,
        });
        Ok(Ok(decision))
    }

    #[inline]
    fn recall<'m>(
        &self,
        memo: &'m mut AdHocMemo,
        bucket: &TokenBucket,
        now: Now,
    ) -> Result<&'m CachedLimit, AskError> {
        let most = || self.parts.store.most_units(Rung::Strict);
        let known = self
            .parts
            .ad_hoc
            .recall(memo, bucket, now, most, |changes| {
                self.parts.store.install(changes);
            });
        known.map_err(AskError::Impossible)
    }
}

impl<S: LocalStore> Limiter<S> {
    /// As [`Limiter::try_acquire`], on a store in this process. Needs no async runtime.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn try_acquire_local(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.ask_local(Operation::Acquire, query, self.now())
    }

    /// As [`Limiter::ask`], on a store in this process. Needs no async runtime.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn ask_local(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let rules = self.parts.rules.load();
        // As in `plan`, without a copy of the set.
        let mut set = LimitSet::new();
        rules.resolve_into(query, now, &self.parts.calendar, &mut set);
        check_domain(&rules, query, &set)?;
        if let Some(id) = permit_id(operation, query, &set) {
            let placed = self.parts.store.hold_local(&set, &Claim::plain(&id), now)?;
            return Ok(self.conclude_held(query, &set, &placed, Some(&id), Duration::ZERO, now));
        }
        let (decisions, degraded) = self.parts.store.answer_local(&set, operation, now);
        let mut verdict = set.combine(&decisions);
        verdict.degraded = degraded;
        self.observe(operation, query, &set, &verdict, None, now);
        Ok(verdict)
    }
}

impl Limiter<MemoryStore> {
    /// Imports a snapshot. Its limits get new ids.
    ///
    /// Call it after [`Limiter::set_rules`] and before the first query. A limit without a rule counts as
    /// dropped at `now`, and may come back within [`REMEMBERED`](quell_core::rule::REMEMBERED). A state
    /// whose limit is not among `limits` keeps only its use under other versions.
    pub fn restore(&self, limits: Vec<ActiveLimit>, states: Vec<Saved>, now: Now) {
        self.restore_into(&self.parts.store, limits, states, now);
    }
}

impl<S: Store> Limiter<S> {
    /// As [`Limiter::restore`], for a store type that may be one of several kinds. `memory` is the store
    /// inside.
    pub fn restore_into(
        &self,
        memory: &MemoryStore,
        mut limits: Vec<ActiveLimit>,
        mut states: Vec<Saved>,
        now: Now,
    ) {
        let mut renamed = std::collections::HashMap::new();
        limits.sort_by_key(|active| active.id);
        for active in &mut limits {
            let id = self.parts.ids.next_id();
            renamed.insert(active.id, id);
            active.id = id;
        }
        let unknown = self.parts.ids.next_id();
        states.retain_mut(|Saved { state, .. }| {
            let id = renamed.get(&state.limit).copied();
            state.limit = id.unwrap_or(unknown);
            id.is_some() || state.versions.is_some()
        });
        let _turn = self.parts.changing.lock();
        let mut rules = RuleSet::clone(&self.parts.rules.load());
        rules.remember(&limits, now);
        self.parts.rules.store(Arc::new(rules));
        memory.import(limits, states, now);
    }
}

/// Refuses a query of an unknown domain. If the set has charges, the domain exists, so that is checked
/// first.
#[inline]
fn check_domain(rules: &RuleSet, query: &Query<'_>, set: &LimitSet<'_>) -> Result<(), AskError> {
    if set.charges().is_empty() && !rules.has_domain(query.domain()) {
        return Err(AskError::UnknownDomain);
    }
    Ok(())
}

/// A new id for an acquire whose set has permits.
pub(crate) fn permit_id(
    operation: Operation,
    query: &Query<'_>,
    set: &LimitSet<'_>,
) -> Option<HoldId> {
    let holds = operation == Operation::Acquire && set.has_permits();
    holds.then(|| new_id(query.domain()))
}

/// The charges that an answer decided: all, or those at `places`.
pub(crate) fn known<'a, 'r>(
    set: &'a LimitSet<'r>,
    places: Option<&[usize]>,
) -> Cow<'a, LimitSet<'r>> {
    match places {
        None => Cow::Borrowed(set),
        Some(places) => {
            let mut kept = set.clone();
            kept.keep(places);
            Cow::Owned(kept)
        }
    }
}
