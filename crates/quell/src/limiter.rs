//! Limiter: rules and a store, one answer per query.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::descriptor::Query;
use quell_core::hold::{Claim, HoldId};
use quell_core::key::with_ad_hoc;
use quell_core::limit::{ActiveLimit, LimitError};
use quell_core::rule::{Changes, DomainRules, Effect, LimitIds, RuleSet};
use quell_core::time::{Now, Wall};
use quell_core::verdict::Verdict;

use crate::ad_hoc::{AdHocLimits, AdHocMemo, Known};
use crate::calendar::{SystemCalendar, check_zone};
use crate::clock::{Clock, SystemClock};
use crate::error::{AskError, RulesError};
use crate::hold_calls::{Placement, has_permits, new_id};
use crate::observer::{Event, NoObserver, Observer};
use crate::store::memory::{MemoryStore, Saved};
use crate::store::{Answer, LocalStore, Store, StoreError};
use crate::waiters::Waiters;

/// Rules and a store: answers queries, all limits of one charged or none.
///
/// ```
/// use quell::store::memory::MemoryStore;
/// use quell::{Limiter, Query};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// limiter.set_rules(Vec::new())?;
/// let answer = limiter.try_acquire_local(&Query::new("shop").entry("user", "alice"));
/// assert!(answer.is_err(), "there is no domain `shop` yet");
/// # Ok::<(), quell::RulesError>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S> {
    pub(crate) store: S,
    pub(crate) rules: ArcSwap<RuleSet>,
    /// Those that were in force before, kept until the next reload: else the last answer that began
    /// with them would have to free them all.
    last_rules: Mutex<Arc<RuleSet>>,
    ids: LimitIds,
    ad_hoc: AdHocLimits,
    pub(crate) calendar: SystemCalendar,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waiters: Waiters,
    observer: Arc<dyn Observer>,
}

/// Puts a [`Limiter`] together.
#[derive(Debug)]
pub struct LimiterBuilder<S> {
    store: S,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

impl<S: Store> LimiterBuilder<S> {
    /// Takes another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Tells every answer to `observer`.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// The limiter, without rules yet.
    #[must_use]
    pub fn build(mut self) -> Limiter<S> {
        self.store.keep_time(&self.clock);
        Limiter {
            store: self.store,
            rules: ArcSwap::default(),
            last_rules: Mutex::default(),
            ids: LimitIds::default(),
            ad_hoc: AdHocLimits::default(),
            calendar: SystemCalendar::default(),
            clock: self.clock,
            waiters: Waiters::default(),
            observer: self.observer,
        }
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter without rules, on the system's clock.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// Begins to put a limiter together.
    #[must_use]
    pub fn builder(store: S) -> LimiterBuilder<S> {
        LimiterBuilder {
            store,
            clock: Arc::new(SystemClock::new()),
            observer: Arc::new(NoObserver),
        }
    }

    /// Brings rules into force in place of those that are, at this instant. What was used
    /// stays; rules that are gone forget their state, unless they come back within minutes
    /// ([`REMEMBERED`](quell_core::rule::REMEMBERED)).
    ///
    /// # Errors
    /// [`RulesError`] if a rule cannot be followed; the rules in force stay as they are.
    pub fn set_rules(&self, domains: Vec<DomainRules>) -> Result<(), RulesError> {
        self.replace_rules(domains, || self.now())
    }

    /// [`Limiter::set_rules`] at a given instant, before which all calls under the old rules were made.
    ///
    /// # Errors
    /// As [`Limiter::set_rules`].
    pub fn set_rules_at(&self, domains: Vec<DomainRules>, now: Now) -> Result<(), RulesError> {
        self.replace_rules(domains, || now)
    }

    fn replace_rules(
        &self,
        domains: Vec<DomainRules>,
        now: impl Fn() -> Now,
    ) -> Result<(), RulesError> {
        check(&domains, &self.store)?;
        // The lock keeps two reloads apart; answers go on with the rules that they began with.
        let mut last = self.last_rules.lock();
        let (next, changes) = self.rules.load().reload(domains, now(), &self.ids);
        let (arriving, mut leaving) = split(changes);
        self.store.install(&arriving);
        *last = self.rules.swap(Arc::new(next));
        // Whoever still charges under the old rules has read the clock before this.
        let at = now();
        leaving
            .replaced
            .iter_mut()
            .for_each(|one| one.at = Some(at));
        leaving.dropped.iter_mut().for_each(|one| one.at = at);
        self.store.install(&leaving);
        Ok(())
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        self.rules.load_full()
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Both clocks now.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Asks, and charges if all limits allow.
    ///
    /// # Errors
    /// [`AskError`] if there is no such domain, or the store cannot tell. A refusal is no error.
    pub async fn try_acquire(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.ask(Operation::Acquire, query, self.now()).await
    }

    /// Asks only: nothing is charged, and no refusal is counted.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn peek(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.ask(Operation::Peek, query, self.now()).await
    }

    /// Asks at a given instant.
    ///
    /// # Errors
    /// As [`Limiter::try_acquire`].
    pub async fn ask(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let rules = self.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        self.ask_set(operation, query, &set, now).await
    }

    /// [`Limiter::ask`] with the verdict on the whole query, and one for each of its descriptors, in
    /// their order. Where a refusal that a store remembers decides alone, nothing is known of descriptors
    /// beside it: their verdicts have no decisions.
    ///
    /// # Errors
    /// As [`Limiter::ask`].
    pub async fn ask_each(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<(Verdict, Vec<Verdict>), AskError> {
        let rules = self.rules.load_full();
        let set = self.plan(&rules, query, now)?;
        let id = permit_id(operation, query, &set);
        let charges = Charges::of(&set, id.as_ref());
        let answer = self.decide(charges, operation, now).await?;
        let verdict = self.conclude(operation, query, &set, &answer, id.as_ref(), now);
        let known = known(&set, &answer);
        let each = (0..query.descriptors().len()).map(|descriptor| Verdict {
            degraded: answer.degraded,
            ..known.combine_descriptor(descriptor, &answer.decisions)
        });
        Ok((verdict, each.collect()))
    }

    /// What a query charges under the rules that are in force.
    pub(crate) fn plan<'r>(
        &self,
        rules: &'r RuleSet,
        query: &Query<'_>,
        now: Now,
    ) -> Result<LimitSet<'r>, AskError> {
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(rules, query, &set)?;
        Ok(set)
    }

    pub(crate) async fn ask_set(
        &self,
        operation: Operation,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let id = permit_id(operation, query, set);
        let charges = Charges::of(set, id.as_ref());
        let answer = self.decide(charges, operation, now).await?;
        Ok(self.conclude(operation, query, set, &answer, id.as_ref(), now))
    }

    /// The store's answer, waited for if it has to be.
    pub(crate) async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
    ) -> Result<Answer, StoreError> {
        match self.store.decide_now(charges, operation, &mut now) {
            Some(answer) => Ok(answer),
            None => self.store.decide(charges, operation, now).await,
        }
    }

    fn conclude(
        &self,
        operation: Operation,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        answer: &Answer,
        id: Option<&HoldId>,
        now: Now,
    ) -> Verdict {
        let set = &*known(set, answer);
        let mut verdict = set.combine(&answer.decisions);
        verdict.degraded = answer.degraded;
        verdict.id = id.filter(|_| answer.held).map(|id| id.name().into());
        self.observe(operation, query, set, &verdict, answer.store_time, now);
        verdict
    }

    /// The verdict on what is held under an id.
    pub(crate) fn conclude_held(
        &self,
        query: &Query<'_>,
        set: &LimitSet<'_>,
        held: Placement,
        now: Now,
    ) -> Verdict {
        let verdict = Verdict {
            id: held.id,
            waited: held.waited,
            degraded: held.degraded,
            ..set.combine(&held.decisions)
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
        self.observer.observe(&Event::Query {
            now,
            operation,
            query,
            set,
            verdict,
            store_time,
        });
    }

    /// Asks about a limit that comes with the call, on a key of any bytes. Such keys share nothing
    /// with those of rules. Another limit on the same key takes over what was used.
    ///
    /// While more than 65,536 different limits are in use, a new one is rounded down: its burst, and
    /// the nanoseconds between two units up, to a power of two. It may refuse early, and admits no
    /// more.
    ///
    /// # Errors
    /// [`AskError`] if the limit is impossible, or the store cannot tell.
    pub async fn ask_ad_hoc(
        &self,
        operation: Operation,
        key: &[u8],
        bucket: &TokenBucket,
        cost: Cost,
        now: Now,
    ) -> Result<Decision, AskError> {
        let mut memo = AdHocMemo::default();
        let known = self.recall(&mut memo, bucket, now)?;
        let set = LimitSet::ad_hoc(key, &known.active, cost);
        let answer = self.decide(Charges::Set(&set), operation, now).await?;
        let Some(decision) = answer.decisions.first().copied() else {
            return Err(AskError::Store(StoreError::Unavailable(
                "it gave no decision".to_owned(),
            )));
        };
        self.observer.observe(&Event::AdHoc {
            now,
            operation,
            key,
            decision: &decision,
            store_time: answer.store_time,
        });
        Ok(decision)
    }

    /// [`Limiter::ask`] without waiting; `None`, and nothing is charged, if the store cannot answer
    /// at once.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn ask_at_once(
        &self,
        operation: Operation,
        query: &Query<'_>,
        mut now: Now,
    ) -> Result<Option<Verdict>, AskError> {
        let rules = self.rules.load();
        // As in `plan`: a set is some 300 bytes, and would be copied out of its result.
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(&rules, query, &set)?;
        let id = permit_id(operation, query, &set);
        let charges = Charges::of(&set, id.as_ref());
        let answer = self.store.decide_now(charges, operation, &mut now);
        let conclude = |answer| self.conclude(operation, query, &set, &answer, id.as_ref(), now);
        Ok(answer.map(conclude))
    }

    /// [`Limiter::ask_ad_hoc`] without waiting; `None`, and nothing is charged, if the store cannot
    /// answer at once. A caller keeps one `memo` and passes it each time.
    ///
    /// Where the store reads the clock again, `now` is that reading from then on: calls that share one
    /// go on from there, or they would seem to come before what was charged last.
    ///
    /// # Errors
    /// [`AskError::Impossible`] if the limit is impossible.
    pub fn ask_ad_hoc_at_once(
        &self,
        operation: Operation,
        key: &[u8],
        bucket: &TokenBucket,
        cost: Cost,
        now: &mut Now,
        memo: &mut AdHocMemo,
    ) -> Result<Option<Decision>, AskError> {
        let known = self.recall(memo, bucket, *now)?;
        let charge = Charge::alone(&known.active, cost);
        let answer = with_ad_hoc(key, |key| {
            let charges = Charges::One(key, &charge);
            self.store.decide_now(charges, operation, now)
        });
        let decision = answer.and_then(|answer| answer.decisions.first().copied());
        if let Some(decision) = &decision {
            self.observer.observe(&Event::AdHoc {
                now: *now,
                operation,
                key,
                decision,
                store_time: None,
            });
        }
        Ok(decision)
    }

    #[inline]
    fn recall<'m>(
        &self,
        memo: &'m mut AdHocMemo,
        bucket: &TokenBucket,
        now: Now,
    ) -> Result<&'m Known, AskError> {
        let known = self
            .ad_hoc
            .recall(memo, bucket, now, |changes| self.store.install(changes));
        known.map_err(AskError::Impossible)
    }
}

impl<S: LocalStore> Limiter<S> {
    /// [`Limiter::try_acquire`] without a runtime, on a store in this process.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn try_acquire_local(&self, query: &Query<'_>) -> Result<Verdict, AskError> {
        self.ask_local(Operation::Acquire, query, self.now())
    }

    /// [`Limiter::ask`] without a runtime, on a store in this process.
    ///
    /// # Errors
    /// [`AskError::UnknownDomain`] if there is no such domain.
    pub fn ask_local(
        &self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, AskError> {
        let rules = self.rules.load();
        // As in `plan`: a set is some 300 bytes, and would be copied out of its result.
        let set = rules.resolve(query, now, &self.calendar);
        check_domain(&rules, query, &set)?;
        if let Some(id) = permit_id(operation, query, &set) {
            let placed = self.store.hold_local(&set, &Claim::plain(&id), now)?;
            return Ok(self.conclude_held(query, &set, Placement::of(placed, id), now));
        }
        let decisions = self.store.decide_local(&set, operation, now);
        let verdict = set.combine(&decisions);
        self.observe(operation, query, &set, &verdict, None, now);
        Ok(verdict)
    }
}

impl Limiter<MemoryStore> {
    /// Takes over what a snapshot holds; its limits get names of this limiter.
    ///
    /// To be called after the rules came into force and before the first query. A limit that no rule
    /// has counts as dropped at `now`: it may come back for
    /// [`REMEMBERED`](quell_core::rule::REMEMBERED). Of states under limits that are not among `limits`
    /// stays what was used under others.
    pub fn restore(&self, limits: Vec<ActiveLimit>, states: Vec<Saved>, now: Now) {
        self.restore_into(&self.store, limits, states, now);
    }
}

impl<S: Store> Limiter<S> {
    /// [`Limiter::restore`] where the store is one of several kinds; `memory` is the one it is.
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
            let id = self.ids.next_id();
            renamed.insert(active.id, id);
            active.id = id;
        }
        let unknown = self.ids.next_id();
        states.retain_mut(|Saved { state, .. }| {
            let id = renamed.get(&state.limit).copied();
            state.limit = id.unwrap_or(unknown);
            id.is_some() || state.versions.is_some()
        });
        let _turn = self.last_rules.lock();
        let mut rules = RuleSet::clone(&self.rules.load());
        rules.remember(&limits, now);
        self.rules.store(Arc::new(rules));
        memory.import(limits, states, now);
    }
}

/// Refuses a query of a domain that is not there; where there is a charge, there is one.
#[inline]
fn check_domain(rules: &RuleSet, query: &Query<'_>, set: &LimitSet<'_>) -> Result<(), AskError> {
    if set.charges().is_empty() && !rules.has_domain(query.domain()) {
        return Err(AskError::UnknownDomain);
    }
    Ok(())
}

/// The id under which an acquire holds permits, if there are any.
fn permit_id(operation: Operation, query: &Query<'_>, set: &LimitSet<'_>) -> Option<HoldId> {
    let holds = operation == Operation::Acquire && has_permits(set);
    holds.then(|| new_id(query.domain()))
}

/// The part of a set that an answer is about.
fn known<'a, 'r>(set: &'a LimitSet<'r>, answer: &Answer) -> Cow<'a, LimitSet<'r>> {
    match &answer.places {
        None => Cow::Borrowed(set),
        Some(places) => {
            let mut kept = set.clone();
            kept.keep(places);
            Cow::Owned(kept)
        }
    }
}

/// What a store must hear before the new rules are in force, and what after: a limit that is on its
/// way out may be charged until the swap.
fn split(mut changes: Changes) -> (Changes, Changes) {
    let leaving = Changes {
        replaced: changes.replaced.clone(),
        dropped: std::mem::take(&mut changes.dropped),
        removed: std::mem::take(&mut changes.removed),
        ..Changes::default()
    };
    changes.replaced.iter_mut().for_each(|one| one.at = None);
    (changes, leaving)
}

/// Refuses rules with limits that cannot be followed on this machine, or by this store.
fn check<S: Store>(domains: &[DomainRules], store: &S) -> Result<(), RulesError> {
    for DomainRules { domain, rules } in domains {
        for rule in rules {
            let overrides = rule.overrides.iter().map(|entry| &entry.effect);
            for effect in overrides.chain([&rule.effect]) {
                if let Effect::Limit(limit) = effect {
                    let is_above = |most: usize| limit.max() > most as u64;
                    let checked = if limit.is_learned() && store.most_learned() == 0 {
                        Err(LimitError::LearnsNothing)
                    } else if limit.is_learned() && is_above(store.most_learned()) {
                        Err(LimitError::LargeCeilingShared)
                    } else if limit.lease().is_some() && store.most_holds() == 0 {
                        Err(LimitError::HoldsNothing)
                    } else if limit.lease().is_some() && is_above(store.most_holds()) {
                        Err(LimitError::ManyPermitsShared)
                    } else {
                        check_zone(limit)
                    };
                    checked.map_err(|error| RulesError {
                        domain: Arc::clone(domain),
                        rule: Arc::clone(&rule.name),
                        error,
                    })?;
                }
            }
        }
    }
    Ok(())
}
