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
//! `quell-shares`' `lease`; here are the table of hot keys, and the tasks that ask the store.
//!
//! What callers no longer ask for is given back, every 100 ms, and all that is held by a process that leaves
//! ([`LeasedStore::leave`]). A return is sent once. What a synced key has admitted is charged at the latest 100
//! ms afterwards, whoever asks, and whatever rules are in force by then; while the store does not answer or its
//! limit has nothing left, it stays pending, and the key is not dropped.
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
use quell_core::time::{Monotonic, Now};
use quell_shares::audit::KeyAudit;
pub use quell_shares::lease::LIFE;
use quell_shares::lease::{DEMAND_INTERVAL, MIN_CALLS, Return};
use quell_shares::synced::{SyncStep, SyncedKey};
use smallvec::SmallVec;
use tokio::sync::watch;

use super::memory::{Fingerprint, HashKey, PrintHasher};
use super::split::OwnedSet;
use super::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, LeaseStore, Placed, Store,
    StoreError, StoreResult, Totals,
};
use crate::clock::{Clock, read_again};

mod machine;

use machine::{Ask, Landed, Machine};

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

/// How long a process that leaves waits before it tells the store again what is not charged.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);

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
    /// Units that this process has admitted, and the store is not known to have charged.
    pub pending: u64,
    /// Decisions from memory.
    pub decided: u64,
    /// Requests to the store for units, or to charge units.
    pub requests: u64,
    /// Units sent back to the store because nobody asked for them.
    pub returned: u64,
    /// By how many units this process alone exceeded a limit with a rate, at most.
    pub excess: u64,
}

/// The leases of all hot keys.
struct LeaseTable {
    secret: HashKey,
    /// Names this process to the store.
    process: u64,
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

/// A key that is decided in memory.
#[derive(Debug)]
struct HotKey {
    machine: Machine,
    number: u64,
    /// Under which limit; `None` since rules were read.
    limit: Option<LimitId>,
    /// What callers were allowed here; `None` if the limit has no steady rate.
    audit: Option<KeyAudit>,
    /// What was last charged for it, or is to be charged.
    charged: Option<Arc<OwnedSet>>,
    /// Closed when the answer of the store has come.
    landing: Option<watch::Receiver<()>>,
}

/// A request to the store.
#[derive(Clone, Copy, Debug)]
struct Flight {
    print: Fingerprint,
    lease: u64,
    ask: Ask,
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

    /// The hot key of a charge; `None` if the store is to decide on it.
    fn hot(
        &mut self,
        print: Fingerprint,
        (key, charge): (Key<'_>, &Charge<'_>),
        now: Monotonic,
    ) -> Option<&mut HotKey> {
        let limit = Some(charge.active.id);
        if self
            .leases
            .get(&print)
            .is_some_and(|hot| hot.limit == limit)
        {
            return self.leases.get_mut(&print);
        }
        let terms = charge.policy.rung.terms(&charge.active.limit)?.ok();
        if let Some(hot) = self.leases.get_mut(&print) {
            let goes_on = terms.is_some_and(|terms| hot.machine.change(charge.policy.rung, terms));
            if !goes_on && hot.machine.held_and_pending(now).1 > 0 {
                // What it admitted is charged first.
                return None;
            }
            if !goes_on {
                self.leases.remove(&print);
            }
        }
        let terms = terms?;
        if !self.leases.contains_key(&print) {
            if !self.is_hot(print, now) {
                return None;
            }
            if self.leases.len() >= MOST_LEASES {
                self.drop_idle(now);
            }
            if self.leases.len() >= MOST_LEASES {
                return None;
            }
            let machine = Machine::new(charge.policy.rung, terms, now, charge.cost.get())?;
            self.made += 1;
            let hot = HotKey {
                machine,
                number: self.made,
                limit,
                audit: None,
                charged: None,
                landing: None,
            };
            self.leases.insert(print, hot);
        }
        let hot = self.leases.get_mut(&print)?;
        hot.limit = limit;
        hot.audit = match terms.supply {
            Supply::Steady(units, time) => {
                Some(KeyAudit::new(units, time, terms.max, DEMAND_INTERVAL, now))
            }
            _ => None,
        };
        if matches!(hot.machine, Machine::Synced(_)) {
            hot.charged = Some(Arc::new(set_of(key, charge, Cost::ONE)));
        }
        Some(hot)
    }

    /// What the hot keys give back, all of it or what nobody asks for, and what the store is to be told of units
    /// that are not charged. Keys that nobody uses lose their places.
    fn give_back(&mut self, now: Monotonic, all: bool, found: &mut Found) {
        for (print, hot) in &mut self.leases {
            if let Some(audit) = &mut hot.audit {
                self.excess = self.excess.max(audit.judge(now));
            }
            let number = hot.number;
            match (&mut hot.machine, &hot.charged) {
                (Machine::Leased(lease), Some(charged)) => {
                    for _ in 0..2 {
                        let units = match all {
                            true => lease.leave(now),
                            false => lease.surplus(now),
                        };
                        let Some(units) = units else { break };
                        self.returned += units.units;
                        found.backs.push(UnitsBack {
                            print: *print,
                            lease: number,
                            charged: Arc::clone(charged),
                            units,
                        });
                    }
                }
                (Machine::Synced(key), Some(charged)) => {
                    found.pending += key.pending();
                    let charged = Arc::clone(charged);
                    let request = match all {
                        true => SyncedKey::leave(key, now),
                        false => key.due(now),
                    };
                    if let Some(request) = request {
                        self.requests += 1;
                        let flight = hot.fly(*print, Ask::Totals(request));
                        found.syncs.push((flight, charged));
                    }
                }
                (_, None) => {}
            }
        }
        self.drop_idle(now);
    }

    fn drop_idle(&mut self, now: Monotonic) {
        self.leases
            .retain(|_, hot| hot.machine.is_busy() || hot.machine.idle(now) < IDLE);
    }
}

/// What hot keys have for the store.
#[derive(Default)]
struct Found {
    backs: Vec<UnitsBack>,
    syncs: Vec<(NewFlight, Arc<OwnedSet>)>,
    /// Units that are not charged yet.
    pending: u64,
}

/// The charge of one key, at this cost. One in shadow is charged like any other.
fn set_of(key: Key<'_>, charge: &Charge<'_>, cost: Cost) -> OwnedSet {
    let mut charge = charge.clone();
    (charge.cost, charge.shadow) = (cost, false);
    let set = LimitSet::from_key_bytes(key.as_bytes(), key.scope().len(), &charge);
    OwnedSet::new(&set)
}

impl HotKey {
    const fn admitted(&mut self, cost: u64) {
        if let Some(audit) = &mut self.audit {
            audit.count(cost);
        }
    }

    /// Something that the store is asked now.
    fn fly(&mut self, print: Fingerprint, ask: Ask) -> NewFlight {
        let (landed, landing) = watch::channel(());
        self.landing = Some(landing);
        let lease = self.number;
        (Flight { print, lease, ask }, landed)
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

    /// Decides on one charge, alone or of a set whose other limits have yet to decide. If the store is to be
    /// asked, returns what.
    fn take(
        &self,
        print: Fingerprint,
        (key, charge): (Key<'_>, &Charge<'_>),
        now: Monotonic,
        is_alone: bool,
    ) -> (Taken, Option<NewFlight>) {
        let mut shard = self.shard(print).lock();
        let shard = &mut *shard;
        let cost = charge.cost.get();
        let Some(hot) = shard.hot(print, (key, charge), now) else {
            return (Taken::Strict, None);
        };
        let (step, ask) = hot.machine.take(now, cost);
        let flight = ask.map(|ask| hot.fly(print, ask));
        let decided = |outcome| Taken::Decided(decision(&hot.machine, charge, now, outcome));
        let taken = match (step, &hot.landing) {
            (SyncStep::Allow, _) => decided(Outcome::Allow),
            (SyncStep::Deny(wait), _) => decided(Outcome::Deny(RetryAfter::After(wait))),
            (SyncStep::Wait, Some(landing)) => Taken::Wait(landing.clone()),
            (SyncStep::Wait, None) | (SyncStep::Strict, _) => Taken::Strict,
        };
        if step == SyncStep::Allow {
            hot.admitted(cost);
            if !is_alone {
                hot.machine.set_aside(cost);
            }
        }
        shard.decided += u64::from(matches!(taken, Taken::Decided(_)));
        shard.requests += u64::from(flight.is_some());
        (taken, flight)
    }

    /// Gives back what was taken at `now` for a set that is refused.
    fn put_back(&self, print: Fingerprint, charge: &Charge<'_>, now: Monotonic) {
        let mut shard = self.shard(print).lock();
        let Some(hot) = shard.leases.get_mut(&print) else {
            return;
        };
        let is_current = hot.limit == Some(charge.active.id);
        // What is charged afterwards is charged under whatever limit there is then.
        if is_current || matches!(charge.policy.rung, Rung::Synced(_)) {
            hot.machine.put_back(now, charge.cost.get());
        }
        if let Some(audit) = hot.audit.as_mut().filter(|_| is_current) {
            audit.uncount(charge.cost.get());
        }
    }

    /// The whole set is allowed of which this was taken.
    fn confirm(&self, print: Fingerprint, charge: &Charge<'_>) {
        let mut shard = self.shard(print).lock();
        if let Some(hot) = shard.leases.get_mut(&print) {
            hot.machine.confirm(charge.cost.get());
        }
    }

    /// The outcome of what the store was asked.
    fn land(
        &self,
        flight: &Flight,
        now: Monotonic,
        landed: Landed,
        charged: Option<Arc<OwnedSet>>,
    ) {
        let mut shard = self.shard(flight.print).lock();
        let Some(hot) = shard.leases.get_mut(&flight.print) else {
            return;
        };
        if hot.number != flight.lease {
            return;
        }
        hot.machine.land(now, flight.ask, landed);
        hot.landing = None;
        let is_current = |set: &Arc<OwnedSet>| {
            let set = set.as_set();
            let charge = set.charges().first();
            charge.is_some_and(|charge| Some(charge.active.id) == hot.limit)
        };
        if let Some(charged) = charged.filter(is_current) {
            hot.charged = Some(charged);
        }
    }

    /// The store has confirmed a return.
    fn returned(&self, back: &UnitsBack) {
        let mut shard = self.shard(back.print).lock();
        let hot = shard.leases.get_mut(&back.print);
        if let Some(hot) = hot.filter(|hot| hot.number == back.lease)
            && let Machine::Leased(lease) = &mut hot.machine
        {
            lease.returned(back.units.number);
        }
    }

    fn is_empty(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| shard.lock().leases.is_empty())
    }

    /// The store decided on a call itself that was sent then, and is not gone.
    fn resume(&self, set: &LimitSet<'_>, answer: &Answer, sent: Monotonic) {
        let is_allowed = set.passes(&answer.decisions);
        let is_whole = answer.places.is_none();
        for (place, charge) in set.charges().iter().enumerate() {
            let print = self.print(set.key(charge));
            let mut shard = self.shard(print).lock();
            if let Some(hot) = shard.leases.get_mut(&print) {
                let decision = answer.decisions.get(place).filter(|_| is_whole);
                hot.machine.resume(sent, decision);
                if is_allowed {
                    hot.admitted(charge.cost.get());
                }
            }
        }
    }

    /// The state of a key was changed by hand.
    fn forget(&self, key: Key<'_>) {
        let print = self.print(key);
        let mut shard = self.shard(print).lock();
        let hot = shard.leases.get_mut(&print);
        match hot.filter(|hot| matches!(hot.machine, Machine::Synced(_))) {
            Some(hot) => hot.limit = None,
            None => drop(shard.leases.remove(&print)),
        }
    }

    /// Limits have changed.
    fn clear(&self) {
        for shard in &self.shards {
            shard.lock().leases.retain(|_, hot| {
                hot.limit = None;
                matches!(hot.machine, Machine::Synced(_))
            });
        }
    }
}

/// The answer of a hot key.
fn decision(machine: &Machine, charge: &Charge<'_>, now: Monotonic, outcome: Outcome) -> Decision {
    let remaining = machine.remaining(now);
    Decision {
        outcome,
        limit: charge.active.limit.max(),
        remaining: match outcome {
            Outcome::Allow => remaining,
            // Nothing as large passes before the wait is over.
            Outcome::Deny(_) => remaining.min(charge.cost.get() - 1),
        },
        reset_after: machine.reset_after(now),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// Whether a limit is leased or synced.
const fn is_leased(charge: &Charge<'_>) -> bool {
    matches!(charge.policy.rung, Rung::Leased(_) | Rung::Synced(_))
}

impl<S> LeasedStore<S> {
    /// Puts leases in front of `store`; `clock` is that of the limiter.
    #[must_use]
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        let secret = HashKey::random();
        Self {
            store,
            clock,
            leases: Arc::new(LeaseTable {
                secret,
                process: secret.of_bytes(b"process").high,
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
            for hot in shard.leases.values() {
                let (held, pending) = hot.machine.held_and_pending(now);
                numbers.held += held;
                numbers.pending += pending;
            }
        }
        numbers
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
        let mut found = Found::default();
        for shard in &self.leases.shards {
            shard.lock().give_back(now.monotonic, all, &mut found);
        }
        let syncs = found.syncs.into_iter();
        let syncs = syncs.map(|(flight, set)| self.launch(flight, set, now));
        let syncs = syncs.collect::<Vec<_>>();
        for some in found.backs.chunks(MOST_RETURNS) {
            join_all(some.iter().map(|back| self.send_back(back, now))).await;
        }
        if all {
            join_all(syncs.into_iter().flatten()).await;
        }
        found.pending
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
        match self.take_charge(print, key, charge, now, true) {
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
            match self.take_charge(print, key, charge, now, false) {
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
            for (print, charge) in charged {
                if matches!(charge.policy.rung, Rung::Synced(_)) {
                    self.leases.confirm(print, charge);
                }
            }
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
        is_alone: bool,
    ) -> Taken {
        let (taken, flight) = self
            .leases
            .take(print, (key, charge), now.monotonic, is_alone);
        match flight {
            Some(flight) => {
                let set = match flight.0.ask {
                    Ask::Units(request) => Cost::new(request.units),
                    Ask::Totals(_) => Some(Cost::ONE),
                };
                let set = set.map(|cost| Arc::new(set_of(key, charge, cost)));
                match set {
                    Some(set) => drop(self.launch(flight, set, now)),
                    None => self
                        .leases
                        .land(&flight.0, now.monotonic, Landed::Lost, None),
                }
            }
            // What it admitted is charged, even if nobody asks again.
            None if matches!(charge.policy.rung, Rung::Synced(_))
                && !self.leases.is_tended.load(Ordering::Relaxed)
                && matches!(taken, Taken::Decided(_)) =>
            {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    self.tend(&runtime);
                }
            }
            None => {}
        }
        taken
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
            let lost = Landed::Lost;
            self.leases.land(&flight, now.monotonic, lost, None);
            return None;
        };
        self.tend(&runtime);
        let this = self.clone();
        Some(runtime.spawn(async move {
            // If the runtime ends first, this counts as lost.
            let guard = scopeguard::guard((&this, &flight), |(this, flight)| {
                let now = this.clock.monotonic();
                this.leases.land(flight, now, Landed::Lost, None);
            });
            let outcome = match flight.ask {
                Ask::Units(_) => this.charge(&set.as_set(), now).await,
                Ask::Totals(request) => {
                    let totals = Totals {
                        id: u128::from(this.leases.process) << 64 | u128::from(flight.lease),
                        total: request.total,
                        base: request.base,
                    };
                    let paid = this.store.sync(&set.as_set(), &totals, now).await;
                    paid.map_or(Landed::Lost, Landed::Totals)
                }
            };
            let (this, flight) = scopeguard::ScopeGuard::into_inner(guard);
            let landed_at = this.clock.monotonic();
            this.leases.land(flight, landed_at, outcome, Some(set));
            drop(landed);
        }))
    }

    /// Charges units in advance.
    async fn charge(&self, set: &LimitSet<'_>, now: Now) -> Landed {
        let answer = self.ask(set, now).await;
        let granted = answer.ok().filter(|answer| !answer.degraded);
        let decision = granted.and_then(|answer| {
            let first = answer.decisions.first()?;
            Some(Landed::Units(*first, answer.store_time))
        });
        decision.unwrap_or(Landed::Lost)
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
    /// Limits may change: what is held is forfeited, and what was admitted is charged all the same.
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
                self.leases.resume(&set, &answer, now.monotonic);
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
    /// What this process holds of the keys is forfeited, and what it knows of them forgotten, so that a ban or a
    /// fresh start shows here at once.
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
