//! Table: the hot keys of one process, each with the machine that decides on it.
//!
//! A key that is seldom asked for costs a byte of a sketch, shared with others. If it is asked for four
//! times in 100 ms, it gets a place in the table; if the table is full of busy keys, it stays strict.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::key::Key;
use quell_core::limit::LimitId;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::audit::{Excess, KeyAudit};
use quell_shares::lease::{DEMAND_INTERVAL, MIN_CALLS, Return};
use quell_shares::proof::Proof;
use quell_shares::synced::{SyncStep, SyncedKey};
use tokio::sync::watch;

use super::machine::{Ask, Machine, StoreReply};
use super::{LeaseNumbers, is_leased};
use crate::split::OwnedSet;
use quell::clock::{Clock, read_again};
use quell::store::Answer;
use quell::store::memory::{Fingerprint, HashKey, PrintHasher};

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 64;

/// Keys with a lease in one shard: 16,384 in all, some 20 MB and twice their keys.
const MAX_LEASES: usize = 256;

/// Bytes of a key that may have a lease, so that whoever chooses keys does not choose how much memory leases take.
/// Longer ones stay strict.
const LONGEST_KEY: usize = 1_024;

/// Counters of the sketch in one shard: 128 KiB in all.
const COUNTERS: usize = 2_048;

/// A key that nobody asked for in this time gives up its place.
const IDLE: Duration = Duration::from_secs(1);

/// The leases of all hot keys.
pub(super) struct LeaseTable {
    secret: HashKey,
    /// Names this process to the store.
    pub(super) process: u64,
    shards: Box<[Mutex<Shard>]>,
    /// True if a task looks for units to give back.
    pub(super) is_tended: AtomicBool,
}

/// The keys whose hashes select this shard.
#[derive(Default)]
struct Shard {
    leases: HashMap<Fingerprint, HotKey, BuildHasherDefault<PrintHasher>>,
    /// Number of requests for keys without a lease in this interval.
    sketch: Vec<u8>,
    begun: Monotonic,
    /// Numbers the leases, so that an answer never reaches another lease on its key.
    made: u64,
    decided: u64,
    requests: u64,
    returned: u64,
    /// The worst of each limit that was ever exceeded.
    excess: HashMap<LimitId, Excess>,
}

/// A key that is decided in memory.
#[derive(Debug)]
struct HotKey {
    machine: Machine,
    number: u64,
    /// Under which limit; `None` since rules were read.
    limit: Option<LimitId>,
    /// Calls that were allowed here, and requests to the store and its replies.
    audit: Box<KeyAudit>,
    /// Set that was last charged for the key, or is to be charged.
    charged: Option<Arc<OwnedSet>>,
    /// Proof of the instant until which its state is known to exist on the store.
    proof: Proof,
    /// Closed when the answer of the store has come.
    landing: Option<watch::Receiver<()>>,
}

/// A request to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) print: Fingerprint,
    pub(super) lease: u64,
    pub(super) ask: Ask,
    sent: Monotonic,
    /// Instant until which the store is known to have the key's state.
    pub(super) exists_until: Option<Wall>,
}

/// Units of a lease to give back to the store.
#[derive(Debug)]
pub(super) struct ReturnedUnits {
    pub(super) print: Fingerprint,
    pub(super) lease: u64,
    pub(super) charged: Arc<OwnedSet>,
    pub(super) units: Return,
}

/// A request that has to be sent. The sender is dropped when the answer has come.
pub(super) type NewFlight = (Flight, watch::Sender<()>);

/// Attempt at a charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    /// Reading of `clock` by the call.
    pub(super) now: Now,
    pub(super) clock: &'a dyn Clock,
    /// True if the charge is the whole set: no other limit has yet to decide.
    pub(super) is_alone: bool,
    /// True if the same call was tried before.
    pub(super) is_again: bool,
}

/// Decision of a lease on one charge.
pub(super) enum LeaseDecision {
    Decided(Decision),
    Wait(watch::Receiver<()>),
    Strict,
}

impl std::fmt::Debug for LeaseTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseTable").finish_non_exhaustive()
    }
}

impl Shard {
    /// Counts a request for a key without a lease; returns true if the key should have one. A call counts
    /// once.
    fn count_request(&mut self, print: Fingerprint, now: Monotonic, is_again: bool) -> bool {
        if self.sketch.is_empty() || now.since(self.begun) >= DEMAND_INTERVAL {
            self.sketch.clear();
            self.sketch.resize(COUNTERS, 0);
            self.begun = now;
        }
        let place = usize::try_from(print.high / SHARDS as u64 % COUNTERS as u64).unwrap_or(0);
        let Some(count) = self.sketch.get_mut(place) else {
            return false;
        };
        *count = count.saturating_add(u8::from(!is_again));
        u64::from(*count) >= MIN_CALLS
    }

    /// The hot key of a charge, newly made or of a limit that has changed; `None` if the store is to decide on it.
    #[cold]
    fn new_hot(
        &mut self,
        print: Fingerprint,
        (key, charge): (Key<'_>, &Charge<'_>),
        attempt: Attempt<'_>,
    ) -> Option<&mut HotKey> {
        let now = attempt.now.monotonic;
        let limit = Some(charge.active.id);
        let terms = charge.terms.copied();
        if let Some(hot) = self.leases.get_mut(&print) {
            if hot.limit.is_some() && matches!(hot.machine, Machine::Leased(_)) {
                hot.forget(&mut self.made, now);
            }
            let rung = charge.policy.rung;
            let goes_on = terms.is_some_and(|terms| hot.machine.change(rung, terms, now));
            if !goes_on && hot.machine.held_and_pending(now).1 > 0 {
                // What it admitted is charged first.
                return None;
            }
            if !goes_on {
                self.leases.remove(&print);
            }
        }
        let terms = terms.filter(|_| key.as_bytes().len() <= LONGEST_KEY)?;
        if !self.leases.contains_key(&print) {
            if !self.count_request(print, now, attempt.is_again) {
                return None;
            }
            if self.leases.len() >= MAX_LEASES {
                self.drop_idle(now);
            }
            if self.leases.len() >= MAX_LEASES {
                return None;
            }
            let machine = Machine::new(charge.policy.rung, terms, now, charge.cost.get())?;
            let audit = KeyAudit::new(&charge.active.limit, &terms, DEMAND_INTERVAL, now);
            self.made += 1;
            let hot = HotKey {
                machine,
                number: self.made,
                limit,
                audit: Box::new(audit),
                charged: None,
                proof: Proof::default(),
                landing: None,
            };
            self.leases.insert(print, hot);
        }
        let hot = self.leases.get_mut(&print)?;
        if hot.limit != limit {
            hot.audit.change(&charge.active.limit, &terms, now);
        }
        hot.limit = limit;
        if matches!(hot.machine, Machine::Synced(_)) {
            hot.charged = Some(Arc::new(set_of(key, charge, Cost::ONE)));
        }
        Some(hot)
    }

    /// Collects units that the hot keys give back, all of them or the idle ones, and uncharged units that
    /// the store is to charge. Keys that nobody uses lose their places.
    fn give_back(&mut self, now: Monotonic, all: bool, found: &mut DueUnits) {
        for (print, hot) in &mut self.leases {
            let excess = hot.audit.judge(now);
            if let Some(limit) = hot.limit.filter(|_| excess != Excess::default()) {
                let worst = self.excess.entry(limit).or_default();
                *worst = worst.max(excess);
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
                        hot.audit.given_back(units.units);
                        found.backs.push(ReturnedUnits {
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
                        let flight = hot.fly(*print, Ask::Totals(request), now);
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

/// Units of hot keys that are due at the store.
#[derive(Default)]
pub(super) struct DueUnits {
    pub(super) backs: Vec<ReturnedUnits>,
    pub(super) syncs: Vec<(Box<NewFlight>, Arc<OwnedSet>)>,
    /// Units that are not charged yet.
    pub(super) pending: u64,
}

/// The charge of one key, at this cost. One in shadow is charged like any other.
pub(super) fn set_of(key: Key<'_>, charge: &Charge<'_>, cost: Cost) -> OwnedSet {
    let mut charge = charge.clone();
    (charge.cost, charge.shadow) = (cost, false);
    let set = LimitSet::from_key_bytes(key.as_bytes(), key.scope().len(), &charge);
    OwnedSet::new(&set)
}

impl HotKey {
    /// The limit, or its state on the store, is not known to be the same. A lease is forfeited, but for what is on
    /// its way back; it gets another number, so that no answer under way reaches it.
    fn forget(&mut self, made: &mut u64, now: Monotonic) {
        (self.limit, self.proof) = (None, Proof::default());
        if let Machine::Leased(lease) = &mut self.machine {
            lease.renew(*lease.terms(), now);
            *made += 1;
            (self.number, self.charged, self.landing) = (*made, None, None);
        }
    }

    /// Something that the store is asked now.
    #[cold]
    fn fly(&mut self, print: Fingerprint, ask: Ask, now: Monotonic) -> Box<NewFlight> {
        let (landed, landing) = watch::channel(());
        self.landing = Some(landing);
        let flight = Flight {
            print,
            lease: self.number,
            ask,
            sent: now,
            exists_until: self.proof.until(now),
        };
        Box::new((flight, landed))
    }
}

impl LeaseTable {
    pub(super) fn new() -> Self {
        let secret = HashKey::random();
        Self {
            secret,
            process: secret.of_bytes(b"process").high,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            is_tended: AtomicBool::new(false),
        }
    }

    /// Returns the counts of leases so far. Visits all of them.
    pub(super) fn numbers(&self, now: Monotonic) -> LeaseNumbers {
        let mut numbers = LeaseNumbers::default();
        for shard in &self.shards {
            let shard = shard.lock();
            numbers.keys += shard.leases.len();
            numbers.decided += shard.decided;
            numbers.requests += shard.requests;
            numbers.returned += shard.returned;
            for hot in shard.leases.values() {
                let (held, pending) = hot.machine.held_and_pending(now);
                numbers.held += held;
                numbers.pending += pending;
                numbers.asking += usize::from(hot.machine.is_asking());
            }
        }
        numbers
    }

    /// The worst of each limit that was ever exceeded.
    pub(super) fn excesses(&self) -> HashMap<LimitId, Excess> {
        let mut all = HashMap::new();
        for shard in &self.shards {
            for (limit, excess) in &shard.lock().excess {
                let worst: &mut Excess = all.entry(*limit).or_default();
                *worst = worst.max(*excess);
            }
        }
        all
    }

    /// Returns the units of hot keys that are for the store, all of them or the due ones.
    pub(super) fn give_back(&self, now: Monotonic, all: bool) -> DueUnits {
        let mut found = DueUnits::default();
        for shard in &self.shards {
            shard.lock().give_back(now, all, &mut found);
        }
        found
    }

    fn shard(&self, print: Fingerprint) -> &Mutex<Shard> {
        let index = usize::try_from(print.high % SHARDS as u64).unwrap_or(0);
        &self.shards[index % SHARDS]
    }

    pub(super) fn print(&self, key: Key<'_>) -> Fingerprint {
        self.secret.of_bytes(key.as_bytes())
    }

    /// Decides on one charge. If the store is to be asked, returns what.
    #[inline]
    pub(super) fn take(
        &self,
        print: Fingerprint,
        (key, charge): (Key<'_>, &Charge<'_>),
        attempt: Attempt<'_>,
    ) -> (LeaseDecision, Option<Box<NewFlight>>) {
        let mut shard = self.shard(print).lock();
        let shard = &mut *shard;
        let cost = charge.cost.get();
        let hot = match shard.leases.get_mut(&print) {
            Some(hot) if hot.limit == Some(charge.active.id) => hot,
            _ => match shard.new_hot(print, (key, charge), attempt) {
                Some(hot) => hot,
                None => return (LeaseDecision::Strict, None),
            },
        };
        let now = match hot.machine.ends_with_window() {
            true => read_again(attempt.now, attempt.clock).monotonic,
            false => attempt.now.monotonic,
        };
        let (step, ask) = hot.machine.take(now, cost, attempt.is_again);
        let flight = ask.map(|ask| hot.fly(print, ask, now));
        let decided =
            |outcome| LeaseDecision::Decided(decision(&hot.machine, charge, now, outcome));
        let taken = match (step, &hot.landing) {
            (SyncStep::Allow, _) => decided(Outcome::Allow),
            (SyncStep::Deny(wait), _) => decided(Outcome::Deny(RetryAfter::After(wait))),
            (SyncStep::Wait, Some(landing)) => LeaseDecision::Wait(landing.clone()),
            (SyncStep::Wait, None) | (SyncStep::Strict, _) => LeaseDecision::Strict,
        };
        if step == SyncStep::Allow {
            hot.audit.count(cost);
            if !attempt.is_alone {
                hot.machine.set_aside(cost);
            }
        }
        shard.decided += u64::from(matches!(taken, LeaseDecision::Decided(_)));
        shard.requests += u64::from(flight.is_some());
        (taken, flight)
    }

    /// Gives back what was taken at `now` for a set that is refused.
    pub(super) fn put_back(&self, print: Fingerprint, charge: &Charge<'_>, now: Monotonic) {
        let mut shard = self.shard(print).lock();
        let Some(hot) = shard.leases.get_mut(&print) else {
            return;
        };
        let is_current = hot.limit == Some(charge.active.id);
        // What is charged afterwards is charged under whatever limit there is then.
        if is_current || matches!(charge.policy.rung, Rung::Synced(_)) {
            hot.machine.put_back(now, charge.cost.get());
            hot.audit.uncount(charge.cost.get());
        }
    }

    /// The whole set is allowed of which this was taken.
    pub(super) fn confirm(&self, print: Fingerprint, charge: &Charge<'_>) {
        let mut shard = self.shard(print).lock();
        if let Some(hot) = shard.leases.get_mut(&print) {
            hot.machine.confirm(charge.cost.get());
        }
    }

    /// The outcome of what the store was asked.
    pub(super) fn land(
        &self,
        flight: &Flight,
        now: Monotonic,
        landed: StoreReply,
        charged: Option<Arc<OwnedSet>>,
    ) {
        let mut shard = self.shard(flight.print).lock();
        let Some(hot) = shard.leases.get_mut(&flight.print) else {
            return;
        };
        if hot.number != flight.lease {
            return;
        }
        let is_current = |set: &Arc<OwnedSet>| {
            let set = set.as_set();
            let charge = set.charges().first();
            charge.is_some_and(|charge| Some(charge.active.id) == hot.limit)
        };
        let charged = charged.filter(is_current);
        let said = match &landed {
            StoreReply::Units(decision, Some(decided)) => Some((*decision, *decided)),
            StoreReply::Totals(paid) => Some((paid.next, paid.store_time)),
            // A denial that was kept in this process, or no answer.
            StoreReply::Units(_, None) | StoreReply::Lost => None,
        };
        if let Some((decision, decided)) = said {
            hot.proof.note(now, &decision, decided);
            if charged.is_some() {
                hot.audit.observe(flight.sent, now, &decision);
            }
        }
        match (&landed, flight.ask) {
            (StoreReply::Units(decision, _), Ask::Units(request))
                if decision.outcome.is_allow() =>
            {
                hot.audit.charged(request.units);
            }
            (StoreReply::Totals(paid), Ask::Totals(request)) => hot.audit.paid(&request, paid.paid),
            _ => {}
        }
        hot.machine.land(now, flight.ask, landed);
        hot.landing = None;
        if let Some(charged) = charged {
            hot.charged = Some(charged);
        }
    }

    /// The store has confirmed a return.
    pub(super) fn returned(&self, back: &ReturnedUnits) {
        let mut shard = self.shard(back.print).lock();
        let hot = shard.leases.get_mut(&back.print);
        if let Some(hot) = hot.filter(|hot| hot.number == back.lease)
            && let Machine::Leased(lease) = &mut hot.machine
        {
            lease.returned(back.units.number);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| shard.lock().leases.is_empty())
    }

    /// The set, with what is known of its keys' states on the store; `None` if that is nothing.
    pub(super) fn proven<'r>(&self, set: &LimitSet<'r>, now: Monotonic) -> Option<LimitSet<'r>> {
        let mut proven = None;
        for (place, charge) in set.charges().iter().enumerate() {
            if !is_leased(charge) {
                continue;
            }
            let print = self.print(set.key(charge));
            let shard = self.shard(print).lock();
            let hot = shard.leases.get(&print);
            let hot = hot.filter(|hot| hot.limit == Some(charge.active.id));
            if let Some(until) = hot.and_then(|hot| hot.proof.until(now)) {
                let proven = proven.get_or_insert_with(|| set.clone());
                proven.set_exists_until(place, Some(until));
            }
        }
        proven
    }

    /// The store decided on a call itself that was sent at `sent`, and is not gone.
    pub(super) fn resume(
        &self,
        set: &LimitSet<'_>,
        answer: &Answer,
        sent: Monotonic,
        now: Monotonic,
    ) {
        let is_allowed = set.passes(&answer.decisions);
        let is_whole = answer.places.is_none();
        for (place, charge) in set.charges().iter().enumerate() {
            let print = self.print(set.key(charge));
            let mut shard = self.shard(print).lock();
            if let Some(hot) = shard.leases.get_mut(&print) {
                let decision = answer.decisions.get(place).filter(|_| is_whole);
                hot.machine.resume((sent, now), charge.cost.get(), decision);
                // The time of a set may be that of another key's server.
                let decided = answer.store_time.filter(|_| set.charges().len() == 1);
                if let Some((decision, decided)) = decision.zip(decided) {
                    hot.proof.note(now, decision, decided);
                    if hot.limit == Some(charge.active.id) {
                        hot.audit.observe(sent, now, decision);
                    }
                }
                if is_allowed {
                    hot.audit.count_strict(sent, charge.cost.get());
                }
            }
        }
    }

    /// The largest cost that would pass, as far as the machine of a hot key knows.
    pub(super) fn remaining(&self, print: Fingerprint, now: Monotonic) -> Option<u64> {
        let shard = self.shard(print).lock();
        let hot = shard.leases.get(&print)?;
        Some(hot.machine.remaining(now))
    }

    /// The state of a key was changed by hand.
    pub(super) fn forget(&self, key: Key<'_>, now: Monotonic) {
        let print = self.print(key);
        let mut shard = self.shard(print).lock();
        let shard = &mut *shard;
        if let Some(hot) = shard.leases.get_mut(&print) {
            hot.forget(&mut shard.made, now);
        }
    }

    /// Limits have changed.
    pub(super) fn clear(&self, changes: &Changes, now: Monotonic) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let shard = &mut *shard;
            let replaced = changes.replaced.iter().map(|replaced| replaced.from);
            for limit in replaced.chain(changes.removed.iter().copied()) {
                shard.excess.remove(&limit);
            }
            for hot in shard.leases.values_mut() {
                hot.forget(&mut shard.made, now);
            }
        }
    }
}

/// The answer of a hot key.
#[inline]
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
