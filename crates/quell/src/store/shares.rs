//! Shares: decides in memory on limits of which this process has a part, as a node of a fleet.
//!
//! ```text
//! the set               decided by
//! no shares             the other store in this process
//! one limit of a fleet  its share: a lookup and a compare-and-swap, no lock
//! any other             all shares are looked at; if none refuses, the other store is charged; if that
//!                       passes, the shares are; whoever was charged gives back if a later one refuses
//! ```
//!
//! The parts come from an agent (`quell-fleet`), which replaces their schedules while calls go on. A share
//! is found by the bytes of its key. The agent knows limits by their names, the rules by their keys:
//! [`Shares`] joins both.
//!
//! Nothing queues for a share, because it may move to another node at any time: a call that does not fit is
//! refused at once, however long it would wait. A call that queues for another limit of its set has charged
//! the share when it began to wait, and that stays if it leaves. What was reserved could not be given back
//! either, so a set with a shared limit makes no reservation.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::claim::Claim;
use quell_core::decision::{Decision, Decisions, Outcome, RetryAfter};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::key::Key;
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now};
use quell_shares::cell::{self, Cell, Held};
use quell_shares::plan::MICRO;

use super::memory::{Fingerprint, HashKey, MemoryStore, PrintHasher};
use super::{
    Action, AdminStore, Answer, Banned, Charges, Finished, HoldStore, HoldView, LocalStore, Placed,
    Store, StoreError, StoreResult, put_holds,
};
use crate::clock::Clock;

/// When to ask again where no schedule says: shares move within three reports of the nodes.
const ASK_AGAIN: Duration = Duration::from_secs(1);

const NO_RESERVATION: StoreError = StoreError::Unable(
    "a limit that a fleet shares (rung: shares) makes no reservations, because its units could not be given \
     back: charge the cost at once, or write another rung",
);

const NO_WAITING: StoreError = StoreError::Unable(
    "a call cannot wait for limits of this server, of the store and of a fleet (rung: shares) at once: ask \
     without waiting",
);

const NO_ACTION: StoreError = StoreError::Unable(
    "a key of a limit that a fleet shares (rung: shares) is never banned or forgiven on one node: change the \
     rule",
);

/// The part of one limit that this process has.
#[derive(Debug)]
pub struct Share {
    cell: Arc<Cell>,
    /// Until then a coordinator has granted it, in nanoseconds.
    granted_until: AtomicU64,
    /// Micro-units since they were last read.
    admitted: AtomicU64,
    denied: AtomicU64,
    degraded: AtomicU64,
}

/// Micro-units that calls asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareCounts {
    /// Admitted.
    pub admitted: u64,
    /// Refused.
    pub denied: u64,
    /// Of both, what was answered while no coordinator granted the share.
    pub degraded: u64,
}

impl Share {
    /// The share that follows a cell's schedule.
    #[must_use]
    pub const fn new(cell: Arc<Cell>) -> Self {
        Self {
            cell,
            granted_until: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
        }
    }

    /// Says until when a coordinator has granted it. Answers after that are `degraded`.
    pub fn set_granted_until(&self, instant: Monotonic) {
        self.granted_until
            .store(instant.as_nanos(), Ordering::Relaxed);
    }

    /// What calls have asked for since this was last called.
    #[must_use]
    pub fn take_counts(&self) -> ShareCounts {
        ShareCounts {
            admitted: self.admitted.swap(0, Ordering::Relaxed),
            denied: self.denied.swap(0, Ordering::Relaxed),
            degraded: self.degraded.swap(0, Ordering::Relaxed),
        }
    }

    /// Units that a call could take now.
    #[must_use]
    pub fn remaining(&self, now: Monotonic) -> u64 {
        self.cell.remaining(now) / MICRO
    }

    fn is_granted(&self, now: Monotonic) -> bool {
        now.as_nanos() < self.granted_until.load(Ordering::Relaxed)
    }

    /// Decides on a charge. Returns whether the answer is degraded, too.
    #[inline]
    fn take(&self, charge: &Charge<'_>, now: Monotonic) -> (Decision, bool) {
        let cost = micro(charge);
        let answer = self.cell.try_take(now, cost);
        let counter = match answer.outcome {
            Outcome::Allow => &self.admitted,
            Outcome::Deny(_) => &self.denied,
        };
        counter.fetch_add(cost, Ordering::Relaxed);
        let degraded = !self.is_granted(now);
        self.count_degraded(cost, degraded);
        (decision(&answer, charge), degraded)
    }

    #[inline]
    fn count_degraded(&self, cost: u64, degraded: bool) {
        if degraded {
            self.degraded.fetch_add(cost, Ordering::Relaxed);
        }
    }
}

/// The cost of a charge in micro-units.
const fn micro(charge: &Charge<'_>) -> u64 {
    charge.cost.get().saturating_mul(MICRO)
}

fn decision(answer: &cell::Answer, charge: &Charge<'_>) -> Decision {
    let limit = &charge.active.limit;
    let (most, cost) = (limit.max(), charge.cost.get());
    let remaining = (answer.remaining / MICRO).min(most);
    let (outcome, remaining) = match answer.outcome {
        Outcome::Allow => (Outcome::Allow, remaining),
        Outcome::Deny(wait) => {
            let wait = match wait {
                _ if cost > most => RetryAfter::Never,
                // The schedule allows it never, but another one will come.
                RetryAfter::Never => RetryAfter::After(ASK_AGAIN),
                RetryAfter::After(wait) => RetryAfter::After(wait.max(Duration::from_nanos(1))),
            };
            (Outcome::Deny(wait), remaining.min(cost - 1))
        }
    };
    Decision {
        outcome,
        limit: most,
        remaining,
        reset_after: answer.reset_after.unwrap_or_else(|| limit.full_refill()),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// The answer of a node that has no share.
fn without_share(charge: &Charge<'_>) -> Decision {
    let nothing = cell::Answer {
        outcome: Outcome::Deny(RetryAfter::Never),
        burst: 0,
        remaining: 0,
        reset_after: None,
    };
    decision(&nothing, charge)
}

type Table = HashMap<Fingerprint, Arc<Share>, BuildHasherDefault<PrintHasher>>;

/// The shares of this process, by the keys of its rules. Clones are the same.
#[derive(Clone, Debug)]
pub struct Shares {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    secret: HashKey,
    table: ArcSwap<Table>,
    parts: Mutex<Parts>,
}

/// What the table is made of.
#[derive(Debug, Default)]
struct Parts {
    /// The names of limits, by the fingerprints of their keys.
    names: BTreeMap<Fingerprint, Arc<str>>,
    shares: BTreeMap<Arc<str>, Arc<Share>>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                secret: HashKey::random(),
                table: ArcSwap::default(),
                parts: Mutex::default(),
            }),
        }
    }
}

impl Shares {
    /// No shares yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the keys of the rules, each with the name of its limit
    /// ([`Rule::shared_limits`](quell_core::rule::Rule::shared_limits)).
    pub fn set_keys<'k>(&self, keys: impl IntoIterator<Item = (&'k [u8], Arc<str>)>) {
        let keys = keys.into_iter();
        let names = keys.map(|(key, name)| (self.inner.secret.of_bytes(key), name));
        let mut parts = self.inner.parts.lock();
        parts.names = names.collect();
        self.join(&parts);
    }

    /// Sets the shares, by the names of their limits.
    pub fn set_shares(&self, shares: BTreeMap<Arc<str>, Arc<Share>>) {
        let mut parts = self.inner.parts.lock();
        parts.shares = shares;
        self.join(&parts);
    }

    fn join(&self, parts: &Parts) {
        let share = |(key, name): (&Fingerprint, &Arc<str>)| {
            let share = parts.shares.get(name)?;
            Some((*key, Arc::clone(share)))
        };
        let table: Table = parts.names.iter().filter_map(share).collect();
        self.inner.table.store(Arc::new(table));
    }

    /// Calls `with` with the share of a key.
    #[inline]
    fn with<R>(&self, key: Key<'_>, with: impl FnOnce(Option<&Arc<Share>>) -> R) -> R {
        let print = self.inner.secret.of_bytes(key.as_bytes());
        with(self.inner.table.load().get(&print))
    }

    fn find(&self, key: Key<'_>) -> Option<Arc<Share>> {
        self.with(key, |share| share.cloned())
    }

    /// Whether a share of the set is missing, or no coordinator grants it.
    fn is_degraded(&self, set: &LimitSet<'_>, now: Monotonic) -> bool {
        let mut shared = set.charges().iter().filter(|charge| is_shared(charge));
        shared.any(|charge| {
            self.with(set.key(charge), |share| {
                share.is_none_or(|share| !share.is_granted(now))
            })
        })
    }

    /// Decides on one share. Returns whether the answer is degraded, too.
    #[inline]
    fn decide_one(
        &self,
        key: Key<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: Monotonic,
    ) -> (Decisions, bool) {
        let (decision, degraded) = self.with(key, |share| match share {
            Some(share) => match operation {
                Operation::Acquire => share.take(charge, now),
                Operation::Peek => {
                    let answer = share.cell.peek(now, micro(charge));
                    (decision(&answer, charge), !share.is_granted(now))
                }
            },
            None => (without_share(charge), true),
        });
        (Decisions::from([decision]), degraded)
    }
}

/// Whether a fleet shares the limit of a charge.
const fn is_shared(charge: &Charge<'_>) -> bool {
    matches!(charge.policy.rung, Rung::Shares(_))
}

fn has_shared(set: &LimitSet<'_>) -> bool {
    set.charges().iter().any(is_shared)
}

/// A store in this process that decides on limits of a fleet by shares, and leaves all others to `L`.
#[derive(Debug)]
pub struct SharesStore<L = MemoryStore> {
    local: L,
    shares: Shares,
    /// The clock from which callers read, if known.
    clock: Option<Arc<dyn Clock>>,
}

/// Charges that can be given back. Once it is dropped they are final.
#[derive(Debug)]
pub struct SharesTicket<T> {
    local: Option<T>,
    taken: Mutex<Vec<Taken>>,
}

/// A charge on a share. It counts as admitted when it is final, so that a count never has to be taken back:
/// the report that it was in may be gone.
#[derive(Debug)]
struct Taken {
    share: Arc<Share>,
    cost: u64,
    degraded: bool,
    held: Option<Held>,
}

impl Taken {
    fn put_back(mut self, now: Monotonic) {
        if let Some(held) = self.held.take()
            && !self.share.cell.put_back(now, held)
        {
            self.count();
        }
    }

    fn count(&self) {
        self.share.admitted.fetch_add(self.cost, Ordering::Relaxed);
        self.share.count_degraded(self.cost, self.degraded);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.share.cell.keep(held);
            self.count();
        }
    }
}

/// What shares answered to charges.
struct Take {
    decisions: Vec<Decision>,
    taken: Vec<Taken>,
}

/// A set, some of whose limits a fleet shares.
struct Parted<'a, 'r> {
    set: &'a LimitSet<'r>,
    /// The charges that are not shared, and their indices in the whole set.
    others: LimitSet<'r>,
    places: Vec<usize>,
    /// The indices of the others, with their shares.
    shared: Vec<(usize, Option<Arc<Share>>)>,
}

impl<'a, 'r> Parted<'a, 'r> {
    fn of(set: &'a LimitSet<'r>, shares: &Shares) -> Self {
        let charges = || set.charges().iter().enumerate();
        let others = charges().filter(|(_, charge)| !is_shared(charge));
        let places: Vec<usize> = others.map(|(place, _)| place).collect();
        let shared = charges().filter(|(_, charge)| is_shared(charge));
        let shared = shared.map(|(place, charge)| (place, shares.find(set.key(charge))));
        let shared = shared.collect();
        let mut others = set.clone();
        others.keep(&places);
        Self {
            set,
            others,
            places,
            shared,
        }
    }

    fn charge(&self, place: usize) -> Option<&'a Charge<'r>> {
        self.set.charges().get(place)
    }

    fn peek(&self, now: Monotonic) -> Vec<Decision> {
        let peek = |(place, share): &(usize, Option<Arc<Share>>)| {
            let charge = self.charge(*place)?;
            Some(match share {
                Some(share) => decision(&share.cell.peek(now, micro(charge)), charge),
                None => without_share(charge),
            })
        };
        self.shared.iter().filter_map(peek).collect()
    }

    /// Whether no share refuses, apart from those of limits in shadow.
    fn pass(&self, decisions: &[Decision]) -> bool {
        let mut each = self.shared.iter().zip(decisions);
        each.all(|((place, _), decision)| {
            let is_shadow = self.charge(*place).is_some_and(|charge| charge.shadow);
            decision.outcome.is_allow() || is_shadow
        })
    }

    /// Charges the shares.
    ///
    /// # Errors
    /// One refuses. What others gave is to be put back.
    fn take(&self, now: Monotonic) -> Result<Take, Take> {
        let mut decisions = Vec::with_capacity(self.shared.len());
        let mut taken = Vec::with_capacity(self.shared.len());
        for (place, share) in &self.shared {
            let Some(charge) = self.charge(*place) else {
                continue;
            };
            let Some(share) = share else {
                decisions.push(without_share(charge));
                continue;
            };
            let cost = micro(charge);
            let (answer, held) = share.cell.try_hold(now, cost);
            decisions.push(decision(&answer, charge));
            if let Some(held) = held {
                taken.push(Taken {
                    share: Arc::clone(share),
                    cost,
                    degraded: !share.is_granted(now),
                    held: Some(held),
                });
            }
        }
        let passes = self.pass(&decisions);
        let take = Take { decisions, taken };
        if passes { Ok(take) } else { Err(take) }
    }

    /// The decisions of a set that was refused, after what was taken is put back: a share that
    /// refused has still refused, whatever it would answer now.
    fn after_refusal(&self, refused: &[Decision], now: Monotonic) -> Vec<Decision> {
        let both = self.peek(now).into_iter().zip(refused);
        both.map(|(seen, refused)| match refused.outcome {
            Outcome::Allow => seen,
            Outcome::Deny(_) => *refused,
        })
        .collect()
    }

    /// Counts what was asked for, of the shares that refuse.
    fn count_refusals(&self, decisions: &[Decision], now: Monotonic) {
        for ((place, share), decision) in self.shared.iter().zip(decisions) {
            let cost = self.charge(*place).map_or(0, micro);
            if let (Some(share), false) = (share, decision.outcome.is_allow()) {
                share.denied.fetch_add(cost, Ordering::Relaxed);
                share.count_degraded(cost, !share.is_granted(now));
            }
        }
    }

    /// The decisions of both parts, in the set's order.
    fn merge(&self, shared: &[Decision], others: &[Decision]) -> Decisions {
        let shared = self.shared.iter().map(|(place, _)| place).zip(shared);
        let all = self.places.iter().zip(others).chain(shared);
        let mut all: Vec<(usize, Decision)> = all.map(|(place, one)| (*place, *one)).collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, decision)| decision).collect()
    }
}

impl<L> SharesStore<L> {
    /// Puts shares in front of a store in this process.
    pub const fn new(local: L, shares: Shares) -> Self {
        Self {
            local,
            shares,
            clock: None,
        }
    }

    /// The store for all other limits.
    pub const fn local(&self) -> &L {
        &self.local
    }

    /// The shares.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// `now`, or a later reading of its clock.
    fn later(&self, now: Monotonic) -> Monotonic {
        let clock = self.clock.as_ref();
        clock.map_or(now, |clock| clock.monotonic().max(now))
    }

    /// Puts charges back, by a reading of the clock after them: by an earlier one a bucket that is full by
    /// now would seem to have room.
    fn put_back(&self, taken: Vec<Taken>, now: Monotonic) {
        let now = self.later(now);
        taken.into_iter().for_each(|taken| taken.put_back(now));
    }
}

impl<L: LocalStore> SharesStore<L> {
    /// Decides a set with several limits, all or nothing.
    #[cold]
    fn charge_parts(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, SharesTicket<L::Ticket>) {
        let parts = Parted::of(set, &self.shares);
        let nothing = SharesTicket {
            local: None,
            taken: Mutex::default(),
        };
        let refused = |shared: &[Decision]| {
            parts.count_refusals(shared, now.monotonic);
            let others = self.local.decide_local(&parts.others, Operation::Peek, now);
            parts.merge(shared, &others)
        };
        let seen = parts.peek(now.monotonic);
        if !parts.pass(&seen) {
            return (refused(&seen), nothing);
        }
        let (others, ticket) = self.local.charge_local(&parts.others, now);
        if !parts.others.passes(&others) {
            return (parts.merge(&seen, &others), nothing);
        }
        match parts.take(now.monotonic) {
            Ok(Take { decisions, taken }) => {
                parts.count_refusals(&decisions, now.monotonic);
                let ticket = SharesTicket {
                    local: Some(ticket),
                    taken: Mutex::new(taken),
                };
                (parts.merge(&decisions, &others), ticket)
            }
            Err(Take { decisions, taken }) => {
                self.local.refund_local(&ticket, now);
                self.put_back(taken, now.monotonic);
                let shared = parts.after_refusal(&decisions, now.monotonic);
                (refused(&shared), nothing)
            }
        }
    }

    fn decide_set(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Answer {
        let (decisions, degraded) = self.answer_local(set, operation, now);
        Answer {
            degraded,
            ..Answer::from(decisions)
        }
    }

    /// Holds the other part of a set. The shares are charged for good: nobody waits for them, and nothing
    /// of them is given back later.
    fn hold_parts(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        if claim.hold.is_some() {
            return Err(NO_RESERVATION);
        }
        let parts = Parted::of(set, &self.shares);
        let is_empty = parts.others.charges().is_empty();
        if claim.wait.is_some() && claim.pending.is_some() && !is_empty {
            // The part of the fleet could not be given back together with the others.
            return Err(NO_WAITING);
        }
        let placed = |decisions: Decisions, others: Placed| Placed {
            decisions: decisions.into_vec(),
            degraded: self.shares.is_degraded(set, now.monotonic),
            ..others
        };
        let refused = |shared: &[Decision]| {
            parts.count_refusals(shared, now.monotonic);
            let others = self.local.decide_local(&parts.others, Operation::Peek, now);
            placed(parts.merge(shared, &others), Placed::default())
        };
        let seen = parts.peek(now.monotonic);
        if !parts.pass(&seen) {
            return Ok(refused(&seen));
        }
        let others = match is_empty {
            true => Placed::default(),
            false => self.local.hold_local(&parts.others, claim, now)?,
        };
        let passes = others.repeated || parts.others.passes(&others.decisions);
        if others.repeated || !passes {
            return Ok(placed(parts.merge(&seen, &others.decisions), others));
        }
        match parts.take(now.monotonic) {
            Ok(Take { decisions, taken }) => {
                parts.count_refusals(&decisions, now.monotonic);
                // The charges are final.
                drop(taken);
                Ok(placed(parts.merge(&decisions, &others.decisions), others))
            }
            Err(Take { decisions, taken }) => {
                if others.held {
                    self.local.end_local(claim.id, Ending::Cancel, now);
                }
                self.put_back(taken, now.monotonic);
                Ok(refused(&parts.after_refusal(&decisions, now.monotonic)))
            }
        }
    }
}

impl<L: LocalStore> Store for SharesStore<L> {
    fn install(&self, changes: &Changes) {
        self.local.install(changes);
    }

    fn keep_time(&mut self, clock: &Arc<dyn Clock>) {
        self.clock = Some(Arc::clone(clock));
        self.local.keep_time(clock);
    }

    fn most_holds(&self, rung: Rung) -> usize {
        self.local.most_holds(rung)
    }

    fn most_learned(&self, rung: Rung) -> usize {
        self.local.most_learned(rung)
    }

    fn has_shares(&self) -> bool {
        true
    }

    #[inline]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Answer> {
        match charges {
            Charges::One(key, charge) if is_shared(charge) => {
                let shares = &self.shares;
                let (decisions, degraded) =
                    shares.decide_one(key, charge, operation, now.monotonic);
                Some(Answer {
                    degraded,
                    ..Answer::from(decisions)
                })
            }
            Charges::Set(set) | Charges::Permits(set, _) if has_shared(set) => match charges {
                Charges::Permits(_, id) if operation == Operation::Acquire => self
                    .hold_parts(set, &Claim::plain(id), *now)
                    .ok()
                    .map(Answer::from),
                _ => Some(self.decide_set(set, operation, *now)),
            },
            _ => self.local.decide_now(charges, operation, now),
        }
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
    ) -> StoreResult<Answer> {
        if let Some(answer) = self.decide_now(charges, operation, &mut now) {
            return Ok(answer);
        }
        match charges {
            Charges::Permits(set, id) if has_shared(set) => {
                Ok(self.hold_parts(set, &Claim::plain(id), now)?.into())
            }
            _ => self.local.decide(charges, operation, now).await,
        }
    }
}

impl<L: LocalStore> LocalStore for SharesStore<L> {
    type Ticket = SharesTicket<L::Ticket>;

    #[inline]
    fn answer_local(
        &self,
        set: &LimitSet<'_>,
        operation: Operation,
        now: Now,
    ) -> (Decisions, bool) {
        match set.charges() {
            [charge] if is_shared(charge) => {
                let key = set.key(charge);
                self.shares
                    .decide_one(key, charge, operation, now.monotonic)
            }
            _ => {
                let degraded = self.is_degraded(set, now);
                (self.decide_local(set, operation, now), degraded)
            }
        }
    }

    fn decide_local(&self, set: &LimitSet<'_>, operation: Operation, now: Now) -> Decisions {
        if !has_shared(set) {
            return self.local.decide_local(set, operation, now);
        }
        if operation == Operation::Peek {
            let parts = Parted::of(set, &self.shares);
            let others = self.local.decide_local(&parts.others, operation, now);
            return parts.merge(&parts.peek(now.monotonic), &others);
        }
        self.charge_parts(set, now).0
    }

    fn charge_local(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, Self::Ticket) {
        if has_shared(set) {
            return self.charge_parts(set, now);
        }
        let (decisions, ticket) = self.local.charge_local(set, now);
        let ticket = SharesTicket {
            local: Some(ticket),
            taken: Mutex::default(),
        };
        (decisions, ticket)
    }

    /// What came from a share is given back if the bucket was certainly never full in between; if not, it
    /// counts as used.
    fn refund_local(&self, ticket: &Self::Ticket, now: Now) {
        if let Some(local) = &ticket.local {
            self.local.refund_local(local, now);
        }
        let taken = std::mem::take(&mut *ticket.taken.lock());
        self.put_back(taken, now.monotonic);
    }

    fn hold_local(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        match has_shared(set) {
            true => self.hold_parts(set, claim, now),
            false => self.local.hold_local(set, claim, now),
        }
    }

    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.local.end_local(id, ending, now)
    }

    fn is_degraded(&self, set: &LimitSet<'_>, now: Now) -> bool {
        self.shares.is_degraded(set, now.monotonic)
    }
}

impl<L: LocalStore> HoldStore for SharesStore<L> {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        match has_shared(set) {
            true => self.hold_parts(set, claim, now),
            false => self.local.hold(set, claim, now).await,
        }
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        self.local.end(id, ending, now).await
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        self.local.advance(id, now).await
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        self.local.abandon(id, ending, now)
    }
}

impl<L: LocalStore + AdminStore> AdminStore for SharesStore<L> {
    async fn administer(&self, set: &LimitSet<'_>, action: Action, now: Now) -> StoreResult<usize> {
        if !set.charges().is_empty() && set.charges().iter().all(is_shared) {
            return Err(NO_ACTION);
        }
        let others = Parted::of(set, &self.shares).others;
        self.local.administer(&others, action, now).await
    }

    async fn holds(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<Vec<HoldView>>> {
        let Parted { others, places, .. } = Parted::of(set, &self.shares);
        let mut all = vec![Vec::new(); set.charges().len()];
        put_holds(&mut all, &places, self.local.holds(&others, now).await?);
        Ok(all)
    }

    async fn bans(&self, most: usize, now: Now) -> StoreResult<Vec<Banned>> {
        self.local.bans(most, now).await
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        self.local.ban_count(now).await
    }
}
