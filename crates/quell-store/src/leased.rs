//! Leased: decides in memory on units that this process charged on a shared store in advance, and on limits
//! that are synced, whose units it has charged afterwards.
//!
//! ```text
//! the set               decided by
//! all leased or synced  the hot keys, if all of them can; otherwise one request for each, then again
//! any other             the store, which charges the leased limits in the same call
//! ```
//!
//! A lease charges the state that strict calls charge, so it does not matter which of the two a call
//! takes, and sets that need the store anyway pay nothing for being leased. The arithmetic is
//! `quell-shares`' `lease`; `table` has the hot keys, and here are the tasks that ask the store.
//!
//! Units that callers no longer ask for are given back, every 100 ms, and all that is held by a process that leaves
//! ([`LeasedStore::leave`]). A return is sent once. What a synced key has admitted is charged at the latest 100
//! ms afterwards, whoever asks, and whatever rules are in force by then; while the store does not answer or its
//! limit has nothing left, it stays pending, and the key is not dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use delegate::delegate;
use futures_util::future::join_all;

use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::Decisions;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::key::Key;
use quell_core::limit::LimitId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::Now;
pub use quell_shares::audit::Excess;
use quell_shares::lease::DEMAND_INTERVAL;
pub use quell_shares::lease::LIFE;
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::split::OwnedSet;
use quell::clock::{Clock, read_again};
use quell::store::memory::Fingerprint;
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, Finished, HoldStore, KeyView,
    LeaseStore, Placed, Store, StoreError, StoreResult, Totals,
};

mod joint;
mod machine;
mod table;

use joint::JointCalls;
use machine::{Ask, StoreReply};
use table::{Attempt, LeaseDecision, LeaseTable, NewFlight, ReturnedUnits, set_of};

/// Returns that are under way at a time.
const MAX_RETURNS: usize = 64;

/// Interval at which a process that leaves repeats uncharged units to the store.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);

/// Number of times that a call waits for a lease before the store decides on it.
const MAX_WAITS: usize = 3;

/// A store that decides on leased limits in memory, and passes on everything else.
///
/// Needs a tokio runtime with time. Clones share everything.
#[derive(Clone, Debug)]
pub struct LeasedStore<S> {
    store: S,
    clock: Arc<dyn Clock>,
    leases: Arc<LeaseTable>,
    joint: Arc<JointCalls>,
}

/// Lookup of a [`LeasedStore`] for a call that [`Store::decide_now`] could not decide.
#[derive(Debug, Default)]
pub struct LeaseLookup<L> {
    /// True if leases were asked.
    was_asked: bool,
    /// The request that the call waits for.
    landing: Option<watch::Receiver<()>>,
    /// Lookup of the store, if the call waits for no request.
    store: L,
}

/// Counts of what leases have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseNumbers {
    /// Keys that have a place in the table.
    pub keys: usize,
    /// Units that this process holds now.
    pub held: u64,
    /// Units that this process has admitted, and the store is not known to have charged.
    pub pending: u64,
    /// Keys about which the store is being asked.
    pub asking: usize,
    /// Decisions from memory.
    pub decided: u64,
    /// Requests to the store for units, or to charge units.
    pub requests: u64,
    /// Units sent back to the store because nobody asked for them.
    pub returned: u64,
}

/// Returns true if a limit is leased or synced.
const fn is_leased(charge: &Charge<'_>) -> bool {
    charge.terms.is_some()
}

impl<S> LeasedStore<S> {
    /// Puts leases in front of `store`; `clock` is that of the limiter.
    #[must_use]
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            leases: Arc::new(LeaseTable::new()),
            joint: Arc::default(),
        }
    }

    /// The store that is charged.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Returns the counts of leases so far. Visits all of them.
    #[must_use]
    pub fn lease_numbers(&self) -> LeaseNumbers {
        self.leases.numbers(self.clock.monotonic())
    }

    /// By how much limits were exceeded, at most, since they came into force, as far as this process can judge
    /// it. Limits that were kept are left out.
    #[must_use]
    pub fn excesses(&self) -> HashMap<LimitId, Excess> {
        self.leases.excesses()
    }
}

impl<S: LeaseStore + Clone> LeasedStore<S> {
    /// Gives back what callers did not ask for in the last 200 ms, and has charged what was admitted. This is
    /// done every 100 ms while there are hot keys.
    pub async fn give_back_surplus(&self) {
        self.give_back(false).await;
    }

    /// Gives back all that is held, and has charged all that was admitted, for a process that leaves: no call
    /// should come any more. What the store does not take, or has no room for, in half a second is forfeited.
    pub async fn leave(&self) {
        let settles = async {
            while self.give_back(true).await > 0 {
                tokio::time::sleep(SETTLE_INTERVAL).await;
            }
        };
        // What is pending at the end is forgotten: at most what it may be exceeded by.
        let _ = tokio::time::timeout(LIFE, settles).await;
    }

    /// Returns how many units were not charged before.
    async fn give_back(&self, all: bool) -> u64 {
        let now = self.clock.now();
        let found = self.leases.give_back(now.monotonic, all);
        let syncs = found.syncs.into_iter();
        let syncs = syncs.map(|(flight, set)| self.launch(*flight, set, now));
        let syncs = syncs.collect::<Vec<_>>();
        for some in found.backs.chunks(MAX_RETURNS) {
            join_all(some.iter().map(|back| self.send_back(back, now))).await;
        }
        if all {
            join_all(syncs.into_iter().flatten()).await;
        }
        found.pending
    }

    async fn send_back(&self, back: &ReturnedUnits, now: Now) {
        let set = back.charged.as_set();
        let (Some(charge), Some(cost)) = (set.charges().first(), Cost::new(back.units.units))
        else {
            return;
        };
        let key = set.key(charge);
        let mut charge = charge.clone();
        charge.cost = cost;
        let (charged, until) = (back.units.charged, back.units.until);
        // It was written when the units were charged, and a return comes in time or not at all.
        charge.exists_until = Some(until);
        let set = LimitSet::from_key_bytes(key.as_bytes(), key.scope().len(), &charge);
        let sent = self.store.give_back(&set, charged, until, now).await;
        if sent.is_ok() {
            self.leases.returned(back);
        }
    }

    /// Starts the task that gives back what is not needed, unless it runs. It ends with the last lease.
    fn run_upkeep(&self, runtime: &tokio::runtime::Handle) {
        if self.leases.is_tended.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = self.clone();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(DEMAND_INTERVAL).await;
                this.give_back_surplus().await;
                let tended = &this.leases.is_tended;
                if this.leases.is_empty() {
                    tended.store(false, Ordering::SeqCst);
                    // A lease may have begun meanwhile, and found this task.
                    if this.leases.is_empty() || tended.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
            }
        });
    }

    /// Decides by leases, if all limits are leased. A call may be tried again. `None`: the call waits for `landing`, if
    /// that is set, or else the store decides. (An enum of the three would copy the answer once more.)
    #[inline]
    fn take(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        (now, is_again): (Now, bool),
        landing: &mut Option<watch::Receiver<()>>,
    ) -> Option<Answer> {
        if operation == Operation::Peek {
            return None;
        }
        let (key, charge) = match charges {
            Charges::One(key, charge) => (key, charge),
            Charges::Set(set) => match set.charges() {
                [charge] => (set.key(charge), charge),
                [_, ..] if set.charges().iter().all(is_leased) => {
                    return self.take_all(set, now, landing);
                }
                _ => return None,
            },
            Charges::Permits(..) => return None,
        };
        if !is_leased(charge) {
            return None;
        }
        let attempt = Attempt {
            now,
            clock: &*self.clock,
            is_alone: true,
            is_again,
        };
        match self.take_charge(self.leases.print(key), (key, charge), attempt) {
            LeaseDecision::Decided(decision) => Some(Answer::from(Decisions::from([decision]))),
            LeaseDecision::Wait(one) => {
                *landing = Some(one);
                None
            }
            LeaseDecision::Strict => None,
        }
    }

    /// All leases or none: what some of them allowed is given back if another does not.
    fn take_all(
        &self,
        set: &LimitSet<'_>,
        now: Now,
        landing: &mut Option<watch::Receiver<()>>,
    ) -> Option<Answer> {
        let attempt = Attempt {
            now,
            clock: &*self.clock,
            is_alone: false,
            // A call that waits counts again for the limit that it waits for: nobody knows which one that was.
            is_again: false,
        };
        let mut decisions = Decisions::new();
        let mut charged: SmallVec<[(Fingerprint, &Charge<'_>); 4]> = SmallVec::new();
        // What is answered if not all of them allow it: nothing, if the leases do not decide.
        let mut stopped: Option<Option<Answer>> = None;
        for (place, charge) in set.charges().iter().enumerate() {
            let key = set.key(charge);
            let print = self.leases.print(key);
            match self.take_charge(print, (key, charge), attempt) {
                LeaseDecision::Decided(decision) => {
                    if decision.outcome.is_allow() {
                        charged.push((print, charge));
                    } else if !charge.shadow {
                        let answer = Answer::from(Decisions::from([decision]));
                        stopped = Some(Some(Answer {
                            places: Some(vec![place]),
                            ..answer
                        }));
                    }
                    decisions.push(decision);
                }
                LeaseDecision::Wait(one) => (*landing, stopped) = (Some(one), Some(None)),
                LeaseDecision::Strict => stopped = Some(None),
            }
            if stopped.is_some() {
                break;
            }
        }
        let Some(stopped) = stopped else {
            for (print, charge) in charged {
                if matches!(charge.policy.rung, Rung::Synced(_)) {
                    self.leases.confirm(print, charge);
                }
            }
            return Some(Answer::from(decisions));
        };
        for (print, charge) in charged {
            self.leases.put_back(print, charge, now.monotonic);
        }
        stopped
    }

    #[inline]
    fn take_charge(
        &self,
        print: Fingerprint,
        (key, charge): (Key<'_>, &Charge<'_>),
        attempt: Attempt<'_>,
    ) -> LeaseDecision {
        let (taken, flight) = self.leases.take(print, (key, charge), attempt);
        if let Some(flight) = flight {
            self.send_request(*flight, (key, charge), attempt.now);
        } else if matches!(charge.policy.rung, Rung::Synced(_))
            && !self.leases.is_tended.load(Ordering::Relaxed)
            && matches!(taken, LeaseDecision::Decided(_))
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // What it admitted is charged, even if nobody asks again.
            self.run_upkeep(&runtime);
        }
        taken
    }

    #[cold]
    fn send_request(&self, flight: NewFlight, (key, charge): (Key<'_>, &Charge<'_>), now: Now) {
        let cost = match flight.0.ask {
            Ask::Units(request) => Cost::new(request.units),
            Ask::Totals(_) => Some(Cost::ONE),
        };
        match cost {
            Some(cost) => drop(self.launch(flight, Arc::new(set_of(key, charge, cost)), now)),
            None => self
                .leases
                .land(&flight.0, now.monotonic, StoreReply::Lost, None),
        }
    }

    /// Asks the store in a task of its own, so that it does not matter whether the caller waits. `None` if there
    /// is no runtime.
    fn launch(
        &self,
        (flight, landed): NewFlight,
        set: Arc<OwnedSet>,
        now: Now,
    ) -> Option<tokio::task::JoinHandle<()>> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let lost = StoreReply::Lost;
            self.leases.land(&flight, now.monotonic, lost, None);
            return None;
        };
        self.run_upkeep(&runtime);
        let this = self.clone();
        Some(runtime.spawn(async move {
            // If the runtime ends first, this counts as lost.
            let guard = scopeguard::guard((&this, &flight), |(this, flight)| {
                let now = this.clock.monotonic();
                this.leases.land(flight, now, StoreReply::Lost, None);
            });
            let mut asked = set.as_set();
            asked.set_exists_until(0, flight.exists_until);
            let outcome = match flight.ask {
                Ask::Units(_) => this.charge(&asked, now).await,
                Ask::Totals(request) => {
                    let totals = Totals {
                        id: u128::from(this.leases.process) << 64 | u128::from(flight.lease),
                        total: request.total,
                        base: request.base,
                    };
                    let paid = this.store.sync(&asked, &totals, now).await;
                    paid.map_or(StoreReply::Lost, StoreReply::Totals)
                }
            };
            drop(asked);
            let (this, flight) = scopeguard::ScopeGuard::into_inner(guard);
            let landed_at = this.clock.monotonic();
            this.leases.land(flight, landed_at, outcome, Some(set));
            drop(landed);
        }))
    }

    /// Charges units in advance.
    async fn charge(&self, set: &LimitSet<'_>, now: Now) -> StoreReply {
        let (charges, operation) = (Charges::Set(set), Operation::Acquire);
        let answer = self.store.decide(charges, operation, now).await;
        let granted = answer.ok().filter(|answer| !answer.degraded);
        let decision = granted.and_then(|answer| {
            let first = answer.decisions.first()?;
            Some(StoreReply::Units(*first, answer.store_time))
        });
        decision.unwrap_or(StoreReply::Lost)
    }
}

impl<S: LeaseStore + Clone> Store for LeasedStore<S> {
    type Lookup = LeaseLookup<S::Lookup>;

    /// Limits may change: what is held is forfeited, and what was admitted is charged all the same.
    fn install(&self, changes: &Changes) {
        self.leases.clear(changes, self.clock.monotonic());
        self.store.install(changes);
    }

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        self.clock = Arc::clone(clock);
        self.store.set_clock(clock);
    }

    fn has_leases(&self) -> bool {
        true
    }

    delegate! {
        to self.store {
            fn most_holds(&self, rung: Rung) -> usize;
            fn most_learned(&self, rung: Rung) -> usize;
            fn most_units(&self, rung: Rung) -> u64;
        }
    }

    #[inline]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut Self::Lookup,
    ) -> Option<Answer> {
        let decided = self.take(charges, operation, (*now, false), &mut lookup.landing);
        if decided.is_some() {
            return decided;
        }
        lookup.was_asked = true;
        if lookup.landing.is_some() {
            return None;
        }
        let store = &mut lookup.store;
        self.store.decide_now(charges, operation, now, store)
    }

    fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> impl Future<Output = StoreResult<Answer>> + Send {
        self.decide_after(charges, operation, now, LeaseLookup::default())
    }

    async fn decide_after(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
        lookup: Self::Lookup,
    ) -> StoreResult<Answer> {
        let LeaseLookup {
            was_asked,
            mut landing,
            store,
        } = lookup;
        if !was_asked
            && let Some(answer) = self.take(charges, operation, (now, false), &mut landing)
        {
            return Ok(answer);
        }
        // A set of several limits counts as asked for once more. With half the demand its keys would be leased later,
        // and forfeit more of what another limit refuses.
        if landing.is_none()
            && matches!(charges, Charges::Set(set) if set.charges().len() > 1)
            && let Some(answer) = self.take(charges, operation, (now, true), &mut landing)
        {
            return Ok(answer);
        }
        let mut waits = 0;
        while let Some(mut landed) = landing.take() {
            if waits == MAX_WAITS {
                // Boxed, so that calls that do not get here are not larger for it.
                let joint = Box::pin(self.decide_jointly(&charges.set())).await;
                if let Some(answer) = joint {
                    return Ok(answer);
                }
                now = read_again(now, &*self.clock);
                break;
            }
            waits += 1;
            // It is closed when the answer is there, whether it granted anything or not.
            while landed.changed().await.is_ok() {}
            now = read_again(now, &*self.clock);
            // The same call again, which does not count as asked for once more. What the last wait was for decides as
            // well: else a crowd above the limit would ask the store one by one.
            if let Some(answer) = self.take(charges, operation, (now, true), &mut landing) {
                return Ok(answer);
            }
        }
        let set = charges.set();
        if operation == Operation::Peek || !set.charges().iter().any(is_leased) {
            let answer = self.store.decide_after(charges, operation, now, store);
            return answer.await;
        }
        let proven = self.leases.proven(&set, now.monotonic);
        let charges = match (&proven, charges) {
            (Some(proven), Charges::Permits(_, id)) => Charges::Permits(proven, id),
            (Some(proven), _) => Charges::Set(proven),
            (None, _) => charges,
        };
        let answer = self.store.decide_after(charges, operation, now, store);
        let answer = answer.await?;
        if !answer.degraded && !answer.cached {
            let landed = self.clock.monotonic();
            self.leases.resume(&set, &answer, now.monotonic, landed);
        }
        Ok(answer)
    }
}

impl<S: HoldStore + LeaseStore + Clone> HoldStore for LeasedStore<S> {
    /// The store decides: a hold is no lease. It is told which keys are in use, as by [`Store::decide`].
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        let proven = self.leases.proven(set, now.monotonic);
        let set = proven.as_ref().unwrap_or(set);
        self.store.hold(set, claim, now).await
    }

    delegate! {
        to self.store {
            async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>>;
            async fn advance(&self, id: &HoldId, now: Now)
                -> StoreResult<Option<(Duration, Vec<HoldId>)>>;
            fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId>;
            fn fall_back(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now, error: StoreError)
                -> StoreResult<Placed>;
            async fn wait_promoted(&self, id: &HoldId);
        }
    }
}

impl<S: AdminStore + LeaseStore + Clone> AdminStore for LeasedStore<S> {
    /// Forfeits this process's leases on the keys and forgets what it knows of them, so that a ban or a
    /// fresh start shows here at once.
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        let changed = self.store.administer(set, action, now).await;
        for charge in set.charges() {
            self.leases.forget(set.key(charge), self.clock.monotonic());
        }
        changed
    }

    delegate! {
        to self.store {
            async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>>;
            async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList>;
            async fn ban_count(&self, now: Now) -> StoreResult<usize>;
        }
    }
}
