//! Leased: decides in memory on units that this process charged on a shared store in advance.
//!
//! ```text
//! the set             decided by
//! all leased          the leases, if all of them can; otherwise one request for each, then again
//! any other           the store, which charges the leased limits in the same call
//! ```
//!
//! A lease charges the state that strict calls charge, so it does not matter which of the two a call
//! takes, and sets that need the store anyway pay nothing for being leased. The arithmetic is
//! `quell-shares`' `lease`; here are the table of hot keys, and the tasks that ask the store.
//!
//! What callers no longer ask for is given back, every 100 ms, and all that is held by a process that leaves
//! ([`LeasedStore::leave`]). A return is sent once.
//!
//! A key that is seldom asked for costs a byte of a sketch, shared with others. If it is asked for four
//! times in 100 ms, it gets a place in the table; if the table is full of busy keys, it stays strict.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use parking_lot::Mutex;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Decisions, Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::key::Key;
use quell_core::limit::LimitId;
use quell_core::over_admission::Supply;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::audit::KeyAudit;
pub use quell_shares::lease::LIFE;
use quell_shares::lease::{DEMAND_INTERVAL, Lease, MIN_CALLS, Request, Return, Step};
use smallvec::SmallVec;
use tokio::sync::watch;

use super::memory::{Fingerprint, HashKey, PrintHasher};
use super::split::OwnedSet;
use super::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, LeaseStore, Placed, Store,
    StoreError, StoreResult,
};
use crate::clock::{Clock, read_again};

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 64;

/// Keys with a lease in one shard: 16,384 in all, some 6 MB.
const MOST_LEASES: usize = 256;

/// Counters of the sketch in one shard: 128 KiB in all.
const COUNTERS: usize = 2_048;

/// A key that nobody asked for in this time gives up its place.
const IDLE: Duration = Duration::from_secs(1);

/// Returns that are under way at a time.
const MOST_RETURNS: usize = 64;

/// How often a call waits for a lease before the store decides on it.
const MAX_WAITS: usize = 3;

/// A store that decides on leased limits in memory, and passes on everything else.
///
/// Needs a tokio runtime with time. Clones share everything.
#[derive(Clone, Debug)]
pub struct LeasedStore<S> {
    store: S,
    clock: Arc<dyn Clock>,
    leases: Arc<LeaseTable>,
}

/// What leases have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseNumbers {
    /// Keys that have a place in the table.
    pub keys: usize,
    /// Units that this process holds now.
    pub held: u64,
    /// Decisions from leases.
    pub decided: u64,
    /// Requests to the store for units.
    pub requests: u64,
    /// Units sent back to the store because nobody asked for them.
    pub returned: u64,
    /// By how many units this process alone exceeded a limit with a rate, at most.
    pub excess: u64,
}

/// The leases of all hot keys.
struct LeaseTable {
    secret: HashKey,
    shards: Box<[Mutex<Shard>]>,
    /// Whether a task looks for units to give back.
    is_tended: AtomicBool,
}

/// The keys whose hashes select this shard.
#[derive(Default)]
struct Shard {
    leases: HashMap<Fingerprint, HotKey, BuildHasherDefault<PrintHasher>>,
    /// How often keys without a lease were asked for in this interval.
    sketch: Vec<u8>,
    begun: Monotonic,
    /// Numbers the leases, so that an answer never reaches another lease on its key.
    made: u64,
    decided: u64,
    requests: u64,
    returned: u64,
    excess: u64,
}

/// A key with a lease.
#[derive(Debug)]
struct HotKey {
    lease: Lease,
    number: u64,
    limit: LimitId,
    /// What callers were allowed here; `None` if the limit has no steady rate.
    audit: Option<KeyAudit>,
    /// What was last charged for it.
    charged: Option<Arc<OwnedSet>>,
    /// Closed when the answer of the store has come.
    landing: Option<watch::Receiver<()>>,
}

/// A request to the store.
#[derive(Clone, Copy, Debug)]
struct Flight {
    print: Fingerprint,
    lease: u64,
    request: Request,
}

/// Units of a lease to give back to the store.
#[derive(Debug)]
struct UnitsBack {
    print: Fingerprint,
    lease: u64,
    charged: Arc<OwnedSet>,
    units: Return,
}

/// A request that has to be sent. The sender is dropped when the answer has come.
type NewFlight = (Flight, watch::Sender<()>);

/// What a lease says to one charge.
enum Taken {
    Decided(Decision),
    Wait(watch::Receiver<()>),
    Strict,
}

/// What the leases say to a whole set.
enum SetTaken {
    Decided(Answer),
    Wait(watch::Receiver<()>),
    Strict,
}

impl std::fmt::Debug for LeaseTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseTable").finish_non_exhaustive()
    }
}

impl Shard {
    /// Whether a key that has no lease was asked for so often that it should have one.
    fn is_hot(&mut self, print: Fingerprint, now: Monotonic) -> bool {
        if self.sketch.is_empty() || now.since(self.begun) >= DEMAND_INTERVAL {
            self.sketch.clear();
            self.sketch.resize(COUNTERS, 0);
            self.begun = now;
        }
        let place = usize::try_from(print.high / SHARDS as u64 % COUNTERS as u64).unwrap_or(0);
        let Some(count) = self.sketch.get_mut(place) else {
            return false;
        };
        *count = count.saturating_add(1);
        u64::from(*count) >= MIN_CALLS
    }

    /// The lease of a key; `None` if the store is to decide on it.
    fn lease(
        &mut self,
        print: Fingerprint,
        charge: &Charge<'_>,
        now: Monotonic,
    ) -> Option<&mut HotKey> {
        let limit = charge.active.id;
        let is_there = self
            .leases
            .get(&print)
            .is_some_and(|hot| hot.limit == limit);
        if !is_there {
            self.leases.remove(&print);
            let Rung::Leased(policy) = charge.policy.rung else {
                return None;
            };
            if !self.is_hot(print, now) {
                return None;
            }
            if self.leases.len() >= MOST_LEASES {
                self.leases
                    .retain(|_, hot| hot.lease.is_asking() || hot.lease.idle(now) < IDLE);
            }
            if self.leases.len() >= MOST_LEASES {
                return None;
            }
            let terms = policy.terms(&charge.active.limit).ok()?;
            let audit = match terms.supply {
                Supply::Steady(units, time) => {
                    Some(KeyAudit::new(units, time, terms.max, DEMAND_INTERVAL, now))
                }
                _ => None,
            };
            let mut lease = Lease::new(terms, now);
            lease.warm(now, MIN_CALLS - 1, charge.cost.get());
            self.made += 1;
            let hot = HotKey {
                lease,
                number: self.made,
                limit,
                audit,
                charged: None,
                landing: None,
            };
            self.leases.insert(print, hot);
        }
        self.leases.get_mut(&print)
    }

    /// What the leases give back, all of it or what nobody asks for. Leases that nobody uses end.
    fn give_back(&mut self, now: Monotonic, all: bool, found: &mut Vec<UnitsBack>) {
        for (print, hot) in &mut self.leases {
            if let Some(audit) = &mut hot.audit {
                self.excess = self.excess.max(audit.judge(now));
            }
            for _ in 0..2 {
                let units = match all {
                    true => hot.lease.leave(now),
                    false => hot.lease.surplus(now),
                };
                let (Some(units), Some(charged)) = (units, &hot.charged) else {
                    break;
                };
                self.returned += units.units;
                found.push(UnitsBack {
                    print: *print,
                    lease: hot.number,
                    charged: Arc::clone(charged),
                    units,
                });
            }
        }
        self.leases
            .retain(|_, hot| hot.lease.is_asking() || hot.lease.idle(now) < IDLE);
    }
}

impl HotKey {
    const fn admitted(&mut self, cost: u64) {
        if let Some(audit) = &mut self.audit {
            audit.count(cost);
        }
    }
}

impl LeaseTable {
    fn shard(&self, print: Fingerprint) -> &Mutex<Shard> {
        let index = usize::try_from(print.high % SHARDS as u64).unwrap_or(0);
        &self.shards[index % SHARDS]
    }

    fn print(&self, key: Key<'_>) -> Fingerprint {
        self.secret.of_bytes(key.as_bytes())
    }

    /// Decides on one charge. If the store is to be asked for more, returns what.
    fn take(
        &self,
        print: Fingerprint,
        charge: &Charge<'_>,
        now: Monotonic,
    ) -> (Taken, Option<NewFlight>) {
        let mut shard = self.shard(print).lock();
        let shard = &mut *shard;
        let cost = charge.cost.get();
        let Some(hot) = shard.lease(print, charge, now) else {
            return (Taken::Strict, None);
        };
        let step = hot.lease.take(now, cost);
        let mut flight = None;
        let mut send = |hot: &mut HotKey, request| {
            let (landed, landing) = watch::channel(());
            hot.landing = Some(landing.clone());
            let lease = hot.number;
            let new = Flight {
                print,
                lease,
                request,
            };
            flight = Some((new, landed));
            landing
        };
        let taken = match step {
            Step::Allow { refill } => {
                hot.admitted(cost);
                if let Some(request) = refill {
                    send(hot, request);
                }
                Taken::Decided(decision(&hot.lease, charge, now, Outcome::Allow))
            }
            Step::Deny(wait) => {
                let outcome = Outcome::Deny(RetryAfter::After(wait));
                Taken::Decided(decision(&hot.lease, charge, now, outcome))
            }
            Step::Ask(request) => Taken::Wait(send(hot, request)),
            Step::Wait => match &hot.landing {
                Some(landing) => Taken::Wait(landing.clone()),
                None => Taken::Strict,
            },
            Step::Strict => Taken::Strict,
        };
        shard.decided += u64::from(matches!(taken, Taken::Decided(_)));
        shard.requests += u64::from(flight.is_some());
        (taken, flight)
    }

    /// Gives back what was taken at `now` for a set that is refused.
    fn put_back(&self, print: Fingerprint, charge: &Charge<'_>, now: Monotonic) {
        let mut shard = self.shard(print).lock();
        if let Some(hot) = shard.leases.get_mut(&print)
            && hot.limit == charge.active.id
        {
            hot.lease.put_back(now, charge.cost.get());
            if let Some(audit) = &mut hot.audit {
                audit.uncount(charge.cost.get());
            }
        }
    }

    /// The outcome of a request, and when the store decided; `None` if it was lost.
    fn land(
        &self,
        flight: &Flight,
        now: Monotonic,
        decision: Option<(&Decision, Option<Wall>)>,
        charged: Option<Arc<OwnedSet>>,
    ) {
        let mut shard = self.shard(flight.print).lock();
        let Some(hot) = shard.leases.get_mut(&flight.print) else {
            return;
        };
        if hot.number != flight.lease {
            return;
        }
        match decision {
            Some((decision, decided)) => {
                let number = flight.request.number;
                hot.lease.answer(now, number, decision, decided);
            }
            None => hot.lease.lost(now, flight.request.number),
        }
        hot.landing = None;
        hot.charged = charged.or(hot.charged.take());
    }

    /// The store has confirmed a return.
    fn returned(&self, back: &UnitsBack) {
        let mut shard = self.shard(back.print).lock();
        let hot = shard.leases.get_mut(&back.print);
        if let Some(hot) = hot.filter(|hot| hot.number == back.lease) {
            hot.lease.returned(back.units.number);
        }
    }

    fn is_empty(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| shard.lock().leases.is_empty())
    }

    /// The store decided on a call itself, and is not gone.
    fn resume(&self, set: &LimitSet<'_>, is_allowed: bool) {
        for charge in set.charges() {
            let print = self.print(set.key(charge));
            let mut shard = self.shard(print).lock();
            if let Some(hot) = shard.leases.get_mut(&print) {
                hot.lease.resume();
                if is_allowed {
                    hot.admitted(charge.cost.get());
                }
            }
        }
    }

    fn forget(&self, key: Key<'_>) {
        let print = self.print(key);
        self.shard(print).lock().leases.remove(&print);
    }

    fn clear(&self) {
        for shard in &self.shards {
            shard.lock().leases.clear();
        }
    }
}

/// The answer of a lease.
fn decision(lease: &Lease, charge: &Charge<'_>, now: Monotonic, outcome: Outcome) -> Decision {
    let remaining = lease.remaining(now);
    Decision {
        outcome,
        limit: charge.active.limit.max(),
        remaining: match outcome {
            Outcome::Allow => remaining,
            // Nothing as large passes before the wait is over.
            Outcome::Deny(_) => remaining.min(charge.cost.get() - 1),
        },
        reset_after: lease.reset_after(now),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// Whether a limit is decided from a lease.
const fn is_leased(charge: &Charge<'_>) -> bool {
    matches!(charge.policy.rung, Rung::Leased(_))
}

impl<S> LeasedStore<S> {
    /// Puts leases in front of `store`; `clock` is that of the limiter.
    #[must_use]
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            leases: Arc::new(LeaseTable {
                secret: HashKey::random(),
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                is_tended: AtomicBool::new(false),
            }),
        }
    }

    /// The store that is charged.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What leases have done so far. Visits all of them.
    #[must_use]
    pub fn lease_numbers(&self) -> LeaseNumbers {
        let now = self.clock.monotonic();
        let mut numbers = LeaseNumbers::default();
        for shard in &self.leases.shards {
            let shard = shard.lock();
            numbers.keys += shard.leases.len();
            numbers.decided += shard.decided;
            numbers.requests += shard.requests;
            numbers.returned += shard.returned;
            numbers.excess = numbers.excess.max(shard.excess);
            let held = shard.leases.values().map(|hot| hot.lease.held(now));
            numbers.held += held.sum::<u64>();
        }
        numbers
    }
}

impl<S: LeaseStore + Clone> LeasedStore<S> {
    /// Gives back what callers did not ask for in the last 200 ms. This is done every 100 ms while there
    /// are leases.
    pub async fn give_back_surplus(&self) {
        self.give_back(false).await;
    }

    /// Gives back all that is held, for a process that leaves: no call should come any more. What the store
    /// does not take in half a second is forfeited.
    pub async fn leave(&self) {
        self.give_back(true).await;
    }

    async fn give_back(&self, all: bool) {
        let now = self.clock.now();
        let mut found = Vec::new();
        for shard in &self.leases.shards {
            shard.lock().give_back(now.monotonic, all, &mut found);
        }
        for some in found.chunks(MOST_RETURNS) {
            join_all(some.iter().map(|back| self.send_back(back, now))).await;
        }
    }

    async fn send_back(&self, back: &UnitsBack, now: Now) {
        let set = back.charged.as_set();
        let (Some(charge), Some(cost)) = (set.charges().first(), Cost::new(back.units.units))
        else {
            return;
        };
        let key = set.key(charge);
        let mut charge = charge.clone();
        charge.cost = cost;
        let set = LimitSet::from_key_bytes(key.as_bytes(), key.scope().len(), &charge);
        let (charged, until) = (back.units.charged, back.units.until);
        let sent = self.store.give_back(&set, charged, until, now).await;
        if sent.is_ok() {
            self.leases.returned(back);
        }
    }

    /// Starts the task that gives back what is not needed, unless it runs. It ends with the last lease.
    fn tend(&self, runtime: &tokio::runtime::Handle) {
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

    /// Decides by leases, if all limits are leased.
    fn take(&self, charges: Charges<'_, '_>, operation: Operation, now: Now) -> SetTaken {
        if operation == Operation::Peek {
            return SetTaken::Strict;
        }
        match charges {
            Charges::One(key, charge) if is_leased(charge) => self.take_one(key, charge, now),
            Charges::Set(set)
                if !set.charges().is_empty() && set.charges().iter().all(is_leased) =>
            {
                match set.charges() {
                    [charge] => self.take_one(set.key(charge), charge, now),
                    _ => self.take_all(set, now),
                }
            }
            _ => SetTaken::Strict,
        }
    }

    fn take_one(&self, key: Key<'_>, charge: &Charge<'_>, now: Now) -> SetTaken {
        let print = self.leases.print(key);
        match self.take_charge(print, key, charge, now) {
            Taken::Decided(decision) => {
                SetTaken::Decided(Answer::from(Decisions::from([decision])))
            }
            Taken::Wait(landing) => SetTaken::Wait(landing),
            Taken::Strict => SetTaken::Strict,
        }
    }

    /// All leases or none: what some of them allowed is given back if another does not.
    fn take_all(&self, set: &LimitSet<'_>, now: Now) -> SetTaken {
        let mut decisions = Decisions::new();
        let mut charged: SmallVec<[(Fingerprint, &Charge<'_>); 4]> = SmallVec::new();
        let mut stopped = None;
        for (place, charge) in set.charges().iter().enumerate() {
            let key = set.key(charge);
            let print = self.leases.print(key);
            match self.take_charge(print, key, charge, now) {
                Taken::Decided(decision) => {
                    if decision.outcome.is_allow() {
                        charged.push((print, charge));
                    } else if !charge.shadow {
                        let answer = Answer::from(Decisions::from([decision]));
                        stopped = Some(SetTaken::Decided(Answer {
                            places: Some(vec![place]),
                            ..answer
                        }));
                    }
                    decisions.push(decision);
                }
                Taken::Wait(landing) => stopped = Some(SetTaken::Wait(landing)),
                Taken::Strict => stopped = Some(SetTaken::Strict),
            }
            if stopped.is_some() {
                break;
            }
        }
        let Some(stopped) = stopped else {
            return SetTaken::Decided(Answer::from(decisions));
        };
        for (print, charge) in charged {
            self.leases.put_back(print, charge, now.monotonic);
        }
        stopped
    }

    fn take_charge(
        &self,
        print: Fingerprint,
        key: Key<'_>,
        charge: &Charge<'_>,
        now: Now,
    ) -> Taken {
        let (taken, flight) = self.leases.take(print, charge, now.monotonic);
        if let Some(flight) = flight {
            self.send(flight, key, charge, now);
        }
        taken
    }

    /// Asks the store for units in a task of its own, so that it does not matter whether the caller waits.
    fn send(&self, (flight, landed): NewFlight, key: Key<'_>, charge: &Charge<'_>, now: Now) {
        let runtime = tokio::runtime::Handle::try_current();
        let (Ok(runtime), Some(cost)) = (runtime, Cost::new(flight.request.units)) else {
            return self.leases.land(&flight, now.monotonic, None, None);
        };
        self.tend(&runtime);
        let mut charge = charge.clone();
        charge.cost = cost;
        // A lease of a limit in shadow is charged like any other.
        charge.shadow = false;
        let set = LimitSet::from_key_bytes(key.as_bytes(), key.scope().len(), &charge);
        let (set, this) = (Arc::new(OwnedSet::new(&set)), self.clone());
        runtime.spawn(async move {
            // If the runtime ends first, this counts as lost.
            let guard = scopeguard::guard((&this, &flight), |(this, flight)| {
                this.leases.land(flight, this.clock.monotonic(), None, None);
            });
            let answer = this.ask(&set.as_set(), now).await;
            let (this, flight) = scopeguard::ScopeGuard::into_inner(guard);
            let granted = answer.ok().filter(|answer| !answer.degraded);
            let decision = granted.as_ref().and_then(|answer| {
                let first = answer.decisions.first()?;
                Some((first, answer.store_time))
            });
            let landed_at = this.clock.monotonic();
            this.leases.land(flight, landed_at, decision, Some(set));
            drop(landed);
        });
    }

    async fn ask(&self, set: &LimitSet<'_>, mut now: Now) -> StoreResult<Answer> {
        let (charges, operation) = (Charges::Set(set), Operation::Acquire);
        match self.store.decide_now(charges, operation, &mut now) {
            Some(answer) => Ok(answer),
            None => self.store.decide(charges, operation, now).await,
        }
    }
}

impl<S: LeaseStore + Clone> Store for LeasedStore<S> {
    /// Limits may change: what is held is forfeited.
    fn install(&self, changes: &Changes) {
        self.leases.clear();
        self.store.install(changes);
    }

    fn keep_time(&mut self, clock: &Arc<dyn Clock>) {
        self.clock = Arc::clone(clock);
        self.store.keep_time(clock);
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn most_holds(&self, rung: Rung) -> usize {
        self.store.most_holds(rung)
    }

    fn most_learned(&self, rung: Rung) -> usize {
        self.store.most_learned(rung)
    }

    #[inline]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Answer> {
        match self.take(charges, operation, *now) {
            SetTaken::Decided(answer) => Some(answer),
            SetTaken::Wait(_) => None,
            SetTaken::Strict => self.store.decide_now(charges, operation, now),
        }
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
    ) -> StoreResult<Answer> {
        for _ in 0..MAX_WAITS {
            match self.take(charges, operation, now) {
                SetTaken::Decided(answer) => return Ok(answer),
                SetTaken::Wait(mut landing) => {
                    // It is closed when the answer is there, whether it granted anything or not.
                    while landing.changed().await.is_ok() {}
                    now = read_again(now, &*self.clock);
                }
                SetTaken::Strict => break,
            }
        }
        let answer = self.store.decide(charges, operation, now).await?;
        if operation == Operation::Acquire && !answer.degraded {
            let set = charges.set();
            if set.charges().iter().any(is_leased) {
                self.leases.resume(&set, set.passes(&answer.decisions));
            }
        }
        Ok(answer)
    }
}

impl<S: HoldStore + LeaseStore + Clone> HoldStore for LeasedStore<S> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.store.hold(set, claim, now).await
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        self.store.end(id, ending, now).await
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        self.store.advance(id, now).await
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.store.abandon(id, ending, now)
    }

    fn fall_back(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
        error: StoreError,
    ) -> StoreResult<Placed> {
        self.store.fall_back(set, claim, now, error)
    }

    async fn wait_promoted(&self, id: &HoldId) {
        self.store.wait_promoted(id).await;
    }
}

impl<S: AdminStore + LeaseStore + Clone> AdminStore for LeasedStore<S> {
    /// What this process holds of the keys is forfeited, so that a ban or a fresh start shows here at once.
    async fn administer(&self, set: &LimitSet<'_>, action: Action, now: Now) -> StoreResult<usize> {
        let changed = self.store.administer(set, action, now).await;
        for charge in set.charges() {
            self.leases.forget(set.key(charge));
        }
        changed
    }

    async fn bans(&self, most: usize, now: Now) -> StoreResult<Vec<Banned>> {
        self.store.bans(most, now).await
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        self.store.ban_count(now).await
    }
}
