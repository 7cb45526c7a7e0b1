//! Local share: what this node admits by itself while the store is gone.
//!
//! A key starts with the store's last answer, divided by the number of nodes (see `denial_cache`), and
//! from then on has this node's share of the limit. Two things are kept for it: the state that decides,
//! and the debt (see `local_debt`), which is charged to the store when it answers again. The table has
//! the full key, since the store has to be told which key to charge.
//!
//! The store may still admit calls that are in flight when a share begins: the share leaves room for
//! their units, and is charged whatever the store then reports as charged.
//!
//! The deciding state stays in the table throughout, so that calls during repayment see what was used.
//! When the store has been charged for all of it, the store decides, and the share must have room as well
//! until [`RECOVERY`] is over ([`LocalShares::admit`]). Then the share is dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::algorithm::{At, Edges};
use quell_core::bucket_replay::{charge_anyway, state_with_use};
use quell_core::charge::{Charge, Entry, Operation, ban, decide, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::key::Key;
use quell_core::limit::{Limit, LimitId};
use quell_core::on_failure::OnFailure;
use quell_core::state::State;
use quell_core::time::Now;
use tokio::time::Instant;

use super::denial_cache::{AnswerTime, DenialCache, InFlightCharge, LastAnswer};
use super::local_debt::{LocalDebt, PaymentOrder, PaymentOutcome, PaymentStart};
use super::shared_limit::SharedLimit;
use crate::sync::Mutex;
use quell::clock::{Clock, read_again};

/// For how long a key stays on its share after its debt was repaid, so that the other nodes have repaid
/// theirs before the store admits any call: each looks for a lost store once a second.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);

/// The most bytes of keys with a state of their own. Above that, new keys of a rule share
/// [`OVERFLOW_STATES`], and what those admit is not charged to the store.
const MAX_BYTES: usize = 64 * 1_024 * 1_024;

/// The number of states that keys without room share, per rule.
const OVERFLOW_STATES: u64 = 64;

/// Takes the place of a captured value; those begin with another byte.
const OVERFLOW: u8 = 0xff;

/// Bytes of a key in addition to its name and its states: its share with the allocator's overhead, a slot
/// of the table just after it grew, and the pointers and counts of its name.
const OVERHEAD: usize = size_of::<LocalShare>() + 16 + 64 + 32 + 32;

/// The number of precomputed shares of limits; further ones are computed each time.
const MAX_LIMITS: usize = 4_096;

/// A charge that this node decides by itself.
#[derive(Debug)]
pub(super) struct LocalCharge<'a, 'r> {
    pub(super) key: Key<'a>,
    pub(super) charge: &'a Charge<'r>,
    pub(super) limits: Arc<SharedLimit>,
    /// True if the store may have made this charge already: then it is not owed.
    pub(super) may_be_charged: bool,
}

/// The store's answer to a call, for one key.
#[derive(Debug)]
pub(super) struct AnsweredCharge<'a, 'r> {
    pub(super) key: Key<'a>,
    /// `None` if it could charge nothing that a share must take into account.
    pub(super) flight: Option<&'a InFlightCharge>,
    pub(super) charge: &'a Charge<'r>,
    pub(super) decision: &'a Decision,
    pub(super) answered: AnswerTime,
    /// Units charged.
    pub(super) units: u64,
    /// True if the share had to have room for the charge as well.
    pub(super) is_beside: bool,
}

/// Units that this node has admitted of each key.
#[derive(Debug, Default)]
pub(super) struct LocalShares {
    table: Mutex<Table>,
    limits: Mutex<HashMap<LimitId, Arc<SharedLimit>>>,
    /// Keys that go on by their share, and those that owe: read without the table's lock.
    active: AtomicUsize,
    /// Decisions in progress: each counts from before it reads which calls are in flight.
    deciding: AtomicUsize,
    owed: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    shares: HashMap<Arc<[u8]>, Box<LocalShare>>,
    /// Keys with a debt that must be repaid.
    due: VecDeque<Arc<[u8]>>,
    bytes: usize,
    owed: usize,
    settled: usize,
    payments: u64,
    /// Units of payments that were sent and not answered.
    unanswered: u64,
    /// True if some keys share states.
    has_overflowed: bool,
    /// True if other nodes have not repaid yet.
    waits_for_others: bool,
    /// True if a server was gone a moment ago, or takes no writes.
    is_recovering: bool,
}

/// A share that is out of the table, and its name there.
type HeldShare = (Arc<[u8]>, Box<LocalShare>);

/// Units that this node has admitted of one key.
#[derive(Clone, Debug)]
struct LocalShare {
    limits: Arc<SharedLimit>,
    /// The state that decides.
    state: State,
    /// The store's answer with which the share began.
    began_with: Option<LastAnswer>,
    /// Admitted units that the store has not charged yet.
    debt: LocalDebt,
    /// Until when the key needs room in its share beside the store, once the store decides again.
    recovers_until: Option<Instant>,
    /// True if the store decides the key again. If it fails again, the deciding state starts anew from its
    /// last answer.
    is_settled: bool,
    /// The length of the key's scope in bytes; `None` for a state of several keys, which is never repaid.
    scope: Option<u32>,
    /// True if the key is in the queue of those to be paid.
    is_queued: bool,
}

impl LocalShare {
    /// A share that begins with the store's last answer, less this many units that it may have charged
    /// since.
    fn new(
        local: &LocalCharge<'_, '_>,
        uncertain: u64,
        denial_cache: &DenialCache,
        now: Now,
    ) -> Self {
        let limits = Arc::clone(&local.limits);
        let share = &limits.share;
        let last = denial_cache.starting_point(local.key, local.charge.active, now.monotonic);
        let used = last.map_or(0, |last| {
            let left = last.left / u64::from(limits.nodes.get());
            share.limit.max().saturating_sub(left)
        });
        let used = used.saturating_add(uncertain);
        let mut state = state_with_use(share, used, local.charge, now);
        if let Some(left) = last.and_then(|last| last.ban) {
            ban(&mut state, &share.limit, &local.charge.at(now), left);
        }
        // An unknown key may be fully used.
        let rests_after = local.charge.active.limit.full_refill();
        let rests = last.map_or_else(|| now.monotonic.saturating_add(rests_after), |l| l.rest);
        Self {
            state,
            began_with: last.map(|last| last.noted),
            debt: LocalDebt::new(&limits, rests),
            limits,
            recovers_until: None,
            is_settled: false,
            scope: u32::try_from(local.key.scope().len()).ok(),
            is_queued: false,
        }
    }

    /// Converts the share to another limit, for example after a change of rules.
    fn adopt_limit(&mut self, local: &LocalCharge<'_, '_>, now: Now) {
        if Arc::ptr_eq(&self.limits, &local.limits) {
            return;
        }
        let from = std::mem::replace(&mut self.limits, Arc::clone(&local.limits));
        let to = &self.limits;
        let at = local.charge.at(now);
        self.state.carry(&from.share.limit, &to.share, &at);
        self.debt.carry(&from, to, &at);
    }

    /// Starts again after the store has failed once more.
    fn resume(&mut self, local: &LocalCharge<'_, '_>, denial_cache: &DenialCache, now: Now) {
        let at = local.charge.at(now);
        let (uncertain, units) = self.debt.take_uncertain(&self.limits, &at);
        *self = Self {
            scope: self.scope,
            is_queued: self.is_queued,
            ..Self::new(local, units, denial_cache, now)
        };
        self.debt.uncertain = uncertain;
    }

    /// The store has failed again after it decided beside this share: what it said last to be used counts as well,
    /// whoever used it. A call in flight may be part of that and count twice; without it, it might not count.
    fn join(&mut self, local: &LocalCharge<'_, '_>, denial_cache: &DenialCache, now: Now) {
        let mut fresh = Self::new(local, 0, denial_cache, now);
        let left = |share: &mut Self| {
            let charge = &under(local, Cost::ONE);
            let state = &mut share.state;
            decide_one(now, Operation::Peek, &mut Entry { charge, state }).remaining
        };
        let missing = left(self).saturating_sub(left(&mut fresh));
        let at = local.charge.at(now);
        charge_anyway(&self.limits.share.limit, &mut self.state, missing, &at);
    }

    fn is_recovering(&self, now: Instant, waits_for_others: bool) -> bool {
        self.recovers_until
            .is_some_and(|until| waits_for_others || now < until)
    }

    /// Returns true if the share is no longer needed.
    fn is_over(&self, now: Now) -> bool {
        let rests = || {
            let limit = &self.limits.share.limit;
            self.state.time_to_rest(limit, now).is_zero()
        };
        let is_known = self.is_settled && self.debt.is_certain();
        !self.debt.owes() && (is_known || rests())
    }

    fn bytes(&self, name: &[u8]) -> usize {
        OVERHEAD + name.len() + self.state.heap_bytes() + self.debt.heap_bytes()
    }
}

impl Table {
    /// A share is changed by taking it out and putting it back under one lock.
    fn take(&mut self, name: &[u8]) -> Option<(Arc<[u8]>, Box<LocalShare>)> {
        let (name, share) = self.shares.remove_entry(name)?;
        self.bytes = self.bytes.saturating_sub(share.bytes(&name));
        self.owed = self.owed.saturating_sub(usize::from(share.debt.owes()));
        self.settled = self.settled.saturating_sub(usize::from(share.is_settled));
        Some((name, share))
    }

    fn put(&mut self, name: Arc<[u8]>, mut share: Box<LocalShare>) {
        if share.debt.is_due && !share.is_queued {
            share.is_queued = true;
            self.due.push_back(Arc::clone(&name));
        }
        self.bytes = self.bytes.saturating_add(share.bytes(&name));
        self.owed += usize::from(share.debt.owes());
        self.settled += usize::from(share.is_settled);
        self.shares.insert(name, share);
    }

    /// Drops shares that are no longer needed, and frees their memory. If there is no room at all, this
    /// includes keys that the store decides again.
    fn sweep(&mut self, now: Now, instant: Instant, is_full: bool) {
        let (mut freed, mut settled) = (0, 0);
        self.shares.retain(|name, share| {
            let has_recovered = share.recovers_until.is_some_and(|until| instant >= until)
                && !self.waits_for_others
                && !self.is_recovering;
            share.is_settled |= has_recovered && !share.debt.owes();
            let is_over = share.is_over(now) || (is_full && share.is_settled);
            freed += if is_over { share.bytes(name) } else { 0 };
            settled += usize::from(share.is_settled && !is_over);
            !is_over
        });
        (self.bytes, self.settled) = (self.bytes.saturating_sub(freed), settled);
        self.has_overflowed &= self.shares.values().any(|share| share.scope.is_none());
        self.shrink();
    }

    /// Frees memory that is no longer needed, a part at a time.
    fn shrink(&mut self) {
        if self.shares.len() < self.shares.capacity() / 4 {
            self.shares.shrink_to(self.shares.len() * 2);
        }
        if self.due.len() < self.due.capacity() / 4 {
            self.due.shrink_to(self.due.len() * 2);
        }
    }

    /// The name under which the use of `key` is kept, and whether other keys share it. It must not be one
    /// that another key of the same set has taken.
    fn name(
        &mut self,
        key: Key<'_>,
        now: Now,
        most: usize,
        is_taken: impl Fn(&[u8]) -> bool,
    ) -> (Arc<[u8]>, bool) {
        if let Some((name, _)) = self.shares.get_key_value(key.as_bytes()) {
            return (Arc::clone(name), false);
        }
        let bytes = OVERHEAD + key.as_bytes().len();
        let has_room = |table: &Self| table.bytes.saturating_add(bytes) <= most;
        if has_room(self) && !self.has_overflowed {
            return (key.as_bytes().into(), false);
        }
        let number = key.as_bytes().iter().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        let shared = |step: u64| {
            let number = number.wrapping_add(step) % OVERFLOW_STATES;
            [key.scope(), &[OVERFLOW], &number.to_be_bytes()].concat()
        };
        let mut free = (0..OVERFLOW_STATES).map(shared);
        let Some(shared) = free.find(|name| !is_taken(name)) else {
            return (key.as_bytes().into(), false);
        };
        let shared: Arc<[u8]> = shared.into();
        // At most once per shared state: it exists from then on, until it is at rest.
        if !self.shares.contains_key(&shared) {
            if !has_room(self) {
                self.sweep(now, Instant::now(), true);
            }
            if has_room(self) {
                return (key.as_bytes().into(), false);
            }
        }
        self.has_overflowed = true;
        (shared, true)
    }

    /// Takes out the shares of these keys; for a peek copies of them.
    fn hold(
        &mut self,
        locals: &[LocalCharge<'_, '_>],
        operation: Operation,
        denial_cache: &DenialCache,
        now: Now,
    ) -> Vec<HeldShare> {
        let mut held: Vec<HeldShare> = Vec::with_capacity(locals.len());
        for local in locals {
            let is_taken = |name: &[u8]| held.iter().any(|(other, _)| **other == *name);
            let (name, is_shared) = self.name(local.key, now, MAX_BYTES, is_taken);
            let found = match operation {
                Operation::Peek => self.shares.get(&name).cloned(),
                Operation::Acquire => self.take(&name).map(|(_, share)| share),
            };
            let mut share =
                found.unwrap_or_else(|| LocalShare::new(local, 0, denial_cache, now).into());
            if is_shared {
                share.scope = None;
            }
            share.adopt_limit(local, now);
            if share.is_settled {
                share.resume(local, denial_cache, now);
            }
            held.push((name, share));
        }
        held
    }

    /// The store answered a call on a key that a share may decide.
    fn answered(&mut self, answer: &AnsweredCharge<'_, '_>, now: Now, instant: Instant) {
        let (key, units) = (answer.key.as_bytes(), answer.units);
        let waits = self.waits_for_others;
        let share = self.shares.get(key).filter(|share| !share.is_settled);
        let Some(goes_on) = share
            .map(|share| share.debt.owes() || share.is_recovering(instant, waits))
            .map(|goes_on| goes_on || answer.is_beside)
        else {
            return;
        };
        if (goes_on && units == 0) || share.is_some_and(|share| share.scope.is_none()) {
            return;
        }
        let Some((name, mut share)) = self.take(key) else {
            return;
        };
        if goes_on {
            // An earlier decision of the store is already included in the answer with which the share
            // began.
            let noted = LastAnswer::new(answer.decision, answer.answered);
            let first = share.began_with;
            if !first.is_some_and(|first| noted.is_before(&first)) {
                let (limit, at) = (&share.limits.share.limit, answer.charge.at(now));
                charge_anyway(limit, &mut share.state, units, &at);
            }
            self.put(name, share);
        } else if !share.debt.is_certain() {
            share.is_settled = true;
            self.put(name, share);
        }
        self.shrink();
    }
}

impl LocalShares {
    /// This node's part of a charge's limit; `None` if it is not shared, or the share would be nothing.
    pub(super) fn local_charge<'a, 'r>(
        &self,
        key: Key<'a>,
        charge: &'a Charge<'r>,
        on_failure: OnFailure,
    ) -> Option<LocalCharge<'a, 'r>> {
        let OnFailure::Share { nodes } = on_failure else {
            return None;
        };
        let whole = charge.active;
        let mut all = self.limits.lock();
        let ready = all.get(&whole.id);
        let ready = ready.filter(|limits| limits.nodes == nodes && limits.whole == *whole);
        let limits = match ready {
            Some(limits) => Arc::clone(limits),
            None => {
                let limits = Arc::new(SharedLimit::new(whole, nodes)?);
                if all.len() >= MAX_LIMITS {
                    all.clear();
                }
                all.insert(whole.id, Arc::clone(&limits));
                limits
            }
        };
        Some(LocalCharge {
            key,
            charge,
            limits,
            may_be_charged: false,
        })
    }

    /// Decides the parts of a set, all or nothing.
    pub(super) fn decide(
        &self,
        locals: &[LocalCharge<'_, '_>],
        operation: Operation,
        now: Now,
        (denial_cache, clock): (&DenialCache, &dyn Clock),
    ) -> Vec<Decision> {
        // A call that is sent later sees this, or is seen below.
        self.deciding.fetch_add(1, Ordering::AcqRel);
        let _deciding = scopeguard::guard((), |()| {
            self.deciding.fetch_sub(1, Ordering::AcqRel);
        });
        let mut table = self.table.lock();
        let now = read_again(now, clock);
        let is_full = table.bytes >= MAX_BYTES;
        let mut held = table.hold(locals, operation, denial_cache, now);
        for ((_, share), local) in held.iter_mut().zip(locals) {
            if share.recovers_until.take().is_some() {
                share.join(local, denial_cache, now);
            }
        }
        let refused = refused_for_calls_in_flight(locals, &held, denial_cache, now, is_full);
        let decisions =
            refused.unwrap_or_else(|| decide_held(locals, &mut held, operation, now, is_full));
        self.put_back(&mut table, held, operation);
        decisions
    }

    /// Admits a call if the shares of these keys, on which the store decides again, have room for it beside
    /// the calls that are in flight. If so, `announce` runs before any other call is tried: it counts this
    /// one as in flight. Returns what the shares say of the call; `Err` if they refuse it. Nothing is
    /// charged.
    pub(super) fn admit<T>(
        &self,
        locals: &[LocalCharge<'_, '_>],
        operation: Operation,
        now: Now,
        (denial_cache, clock): (&DenialCache, &dyn Clock),
        announce: impl FnOnce() -> T,
    ) -> Result<(T, Vec<Decision>), Vec<Decision>> {
        let mut table = self.table.lock();
        let now = read_again(now, clock);
        let is_full = table.bytes >= MAX_BYTES;
        let mut held = table.hold(locals, operation, denial_cache, now);
        for (_, share) in &mut held {
            share.recovers_until.get_or_insert_with(Instant::now);
        }
        let refused = refused_for_calls_in_flight(locals, &held, denial_cache, now, is_full);
        let peek = |held: &mut [_]| decide_held(locals, held, Operation::Peek, now, is_full);
        let decisions = refused.unwrap_or_else(|| peek(&mut held));
        let announced = passes(locals, &decisions).then(announce);
        self.put_back(&mut table, held, operation);
        match announced {
            Some(announced) => Ok((announced, decisions)),
            None => Err(decisions),
        }
    }

    /// Puts shares back, unless they are copies.
    fn put_back(&self, table: &mut Table, held: Vec<HeldShare>, operation: Operation) {
        if operation == Operation::Acquire {
            for (name, share) in held {
                table.put(name, share);
            }
        }
        self.counted(table);
    }

    fn counted(&self, table: &Table) {
        let active = table.shares.len().saturating_sub(table.settled);
        self.active.store(active, Ordering::Release);
        self.owed.store(table.owed, Ordering::Release);
    }

    /// The number of keys with a debt to the store.
    pub(super) fn owed(&self) -> usize {
        self.owed.load(Ordering::Acquire)
    }

    /// Units of payments so far that were sent and not answered.
    pub(super) fn unanswered(&self) -> u64 {
        self.table.lock().unanswered
    }

    /// The bytes of all keys here.
    pub(super) fn bytes(&self) -> usize {
        self.table.lock().bytes
    }

    /// The bytes that the tables have allocated, used or not.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        let table = self.table.lock();
        let share = size_of::<(Arc<[u8]>, Box<LocalShare>)>() + 1;
        let limit = size_of::<(LimitId, Arc<SharedLimit>)>() + 1;
        let due = table.due.capacity() * size_of::<Arc<[u8]>>();
        table.shares.capacity() * share + due + self.limits.lock().capacity() * limit
    }

    /// Returns true if no key is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.table.lock().shares.is_empty()
    }

    /// Returns true if the store decides all keys, and nothing is owed.
    pub(super) fn is_settled(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    /// Returns true if `key` was repaid so recently that others may not have repaid yet: it needs room in
    /// its share.
    pub(super) fn is_recovering(&self, key: &[u8], now: Instant) -> bool {
        let table = self.table.lock();
        let share = table.shares.get(key);
        share.is_some_and(|share| share.is_recovering(now, table.waits_for_others))
    }

    /// Records whether other nodes have not repaid yet; if so, keys that were repaid here stay on their
    /// shares.
    pub(super) fn wait_for_others(&self, waits: bool) {
        self.table.lock().waits_for_others = waits;
    }

    /// Forgets the use of a key.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut table = self.table.lock();
        table.take(key);
        table.shrink();
        self.counted(&table);
    }

    /// Returns true if no share decides or is in force: calls are answered by the store alone.
    pub(super) fn is_idle(&self) -> bool {
        self.deciding.load(Ordering::Acquire) == 0 && self.is_settled()
    }

    /// Returns true if `key` has a debt.
    pub(super) fn owes(&self, key: &[u8]) -> bool {
        let table = self.table.lock();
        let share = table.shares.get(key);
        share.is_some_and(|share| share.debt.owes())
    }

    /// Records that the store answered a call, and charged `units` to its key. A share without a debt is
    /// then only needed for uncertain units; any other continues, less what was charged.
    pub(super) fn complete(
        &self,
        denial_cache: &DenialCache,
        answer: &AnsweredCharge<'_, '_>,
        now: impl FnOnce() -> Now,
        instant: Instant,
    ) {
        let AnsweredCharge { key, charge, .. } = *answer;
        let (decision, answered) = (answer.decision, answer.answered);
        let note = |is_alone: bool| {
            let may_complete = || !is_alone || self.is_idle();
            match answer.flight {
                Some(flight) => {
                    denial_cache.complete(flight, charge, decision, answered, may_complete)
                }
                None if is_alone => {
                    denial_cache.note(key, charge, decision, answered);
                    may_complete()
                }
                None => true,
            }
        };
        if note(true) {
            return;
        }
        let mut table = self.table.lock();
        note(false);
        table.answered(answer, now(), instant);
        self.counted(&table);
    }

    /// Starts to repay the debt of `key`, unless another caller does.
    pub(super) fn begin(
        &self,
        key: &[u8],
        now: Now,
        edges: impl Fn(&Limit) -> Option<Edges>,
    ) -> PaymentStart {
        let mut table = self.table.lock();
        match table.shares.get(key) {
            Some(share) if share.debt.owes() => {}
            _ => return PaymentStart::Nothing,
        }
        let Some((key, mut share)) = table.take(key) else {
            return PaymentStart::Nothing;
        };
        table.payments += 1;
        let at = |limit: &Limit| At {
            edges: edges(limit),
            ..At::plain(now)
        };
        let ban = share.state.banned_for(now.monotonic);
        let (limits, scope) = (&share.limits, share.scope);
        let begun = (share.debt).begin(table.payments, &key, scope, limits, ban, at);
        table.put(key, share);
        self.counted(&table);
        begun
    }

    /// Records the outcome of a payment.
    pub(super) fn finish(&self, order: &PaymentOrder, outcome: &PaymentOutcome, now: Now) {
        let mut table = self.table.lock();
        let Some((key, mut share)) = table.take(&order.key) else {
            return;
        };
        if share.debt.finish(&share.limits, order, outcome, now) {
            match outcome {
                // Later payments of the same outage do not restart the time.
                PaymentOutcome::Made(_) => {
                    let until = || Instant::now() + RECOVERY;
                    share.recovers_until.get_or_insert_with(until);
                }
                PaymentOutcome::Unknown => {
                    table.unanswered = table.unanswered.saturating_add(order.units);
                }
                PaymentOutcome::Unpaid => {}
            }
        }
        table.put(key, share);
        self.counted(&table);
    }

    /// Number of keys that wait to be repaid.
    pub(super) fn due(&self) -> usize {
        self.table.lock().due.len()
    }

    /// The next key to repay, with the length of its scope.
    pub(super) fn next_due(&self) -> Option<(Arc<[u8]>, usize)> {
        let mut table = self.table.lock();
        while let Some(name) = table.due.pop_front() {
            let Some(share) = table.shares.get_mut(&name) else {
                continue;
            };
            share.is_queued = false;
            if share.debt.is_due {
                return Some((name, share.scope.map_or(0, |scope| scope as usize)));
            }
        }
        None
    }

    /// Queues a key again after its turn.
    pub(super) fn requeue(&self, key: &[u8]) {
        let mut table = self.table.lock();
        if let Some((name, share)) = table.take(key) {
            table.put(name, share);
        }
    }

    /// Drops shares that are no longer needed. While any server is recovering, no share is dropped: calls
    /// for its keys use shares, and would start new ones.
    pub(super) fn sweep(&self, now: Now, instant: Instant, is_recovering: bool) {
        let mut table = self.table.lock();
        table.is_recovering = is_recovering;
        table.sweep(now, instant, false);
        self.counted(&table);
        if table.shares.is_empty() {
            *self.limits.lock() = HashMap::new();
        }
    }
}

fn passes(locals: &[LocalCharge<'_, '_>], decisions: &[Decision]) -> bool {
    let mut each = locals.iter().zip(decisions);
    each.all(|(local, decision)| decision.outcome.is_allow() || local.charge.shadow)
}

/// The refusal of a set that would pass without the units of calls in flight, which the store may admit.
/// Nothing is charged, and no refusal counts towards a ban.
fn refused_for_calls_in_flight(
    locals: &[LocalCharge<'_, '_>],
    held: &[HeldShare],
    denial_cache: &DenialCache,
    now: Now,
    is_full: bool,
) -> Option<Vec<Decision>> {
    let in_flight = locals.iter();
    let in_flight = in_flight.map(|local| denial_cache.in_flight(local.key));
    let in_flight: Vec<u64> = in_flight.collect();
    if in_flight.iter().all(|units| *units == 0) {
        return None;
    }
    let peek = |held: &mut [_]| decide_held(locals, held, Operation::Peek, now, is_full);
    if !passes(locals, &peek(&mut held.to_vec())) {
        return None;
    }
    let mut held = held.to_vec();
    for (((_, share), local), units) in held.iter_mut().zip(locals).zip(in_flight) {
        if units > 0 {
            let at = local.charge.at(now);
            charge_anyway(&share.limits.share.limit, &mut share.state, units, &at);
        }
    }
    let decisions = peek(&mut held);
    (!passes(locals, &decisions)).then_some(decisions)
}

fn decide_held(
    locals: &[LocalCharge<'_, '_>],
    held: &mut [HeldShare],
    operation: Operation,
    now: Now,
    is_full: bool,
) -> Vec<Decision> {
    let has_no_room = |local: &LocalCharge<'_, '_>| is_full && local.limits.grows();
    let has_say = |local: &LocalCharge<'_, '_>| !local.charge.shadow;
    let is_stopped = locals
        .iter()
        .any(|local| has_no_room(local) && has_say(local));
    let operation = match is_stopped {
        true => Operation::Peek,
        false => operation,
    };
    let charges = locals.iter().map(|local| match has_no_room(local) {
        // In shadow it is not charged, like a cost that does not fit.
        true => under(local, Cost::new(u64::MAX).unwrap_or(local.charge.cost)),
        false => under(local, local.charge.cost),
    });
    let charges: Vec<Charge<'_>> = charges.collect();
    let is_banned = |share: &LocalShare| share.state.banned_for(now.monotonic).is_some();
    let was_banned: Vec<bool> = held.iter().map(|(_, share)| is_banned(share)).collect();
    let mut entries: Vec<Entry<'_, '_>> = charges
        .iter()
        .zip(held.iter_mut())
        .map(|(charge, (_, share))| Entry {
            charge,
            state: &mut share.state,
        })
        .collect();
    let mut decisions = decide(now, operation, &mut entries);
    let is_charged = passes(locals, &decisions) && operation == Operation::Acquire;
    let each = held.iter_mut().zip(locals).zip(&mut decisions);
    for ((((_, share), local), decision), was_banned) in each.zip(was_banned) {
        if decision.banned && !was_banned {
            share.debt.has_banned = true;
            share.debt.is_due = true;
        }
        if is_charged && decision.outcome.is_allow() {
            let at = local.charge.at(now);
            let units = local.charge.cost.get();
            if local.may_be_charged {
                share.debt.add_uncertain(&local.limits, units, &at);
            } else {
                share.debt.add(&local.limits, units, &at);
                share.debt.is_due = share.scope.is_some();
            }
        }
        if has_no_room(local) {
            *decision = super::deny(local.charge);
        }
    }
    decisions
}

/// The charge under a node's share of its limit.
fn under<'a>(local: &'a LocalCharge<'_, '_>, cost: Cost) -> Charge<'a> {
    let mut under = Charge::alone(&local.limits.share, cost);
    under.shadow = local.charge.shadow;
    under.edges = local.charge.edges;
    under
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two keys of one set must not share a state: each would be charged to a copy of it.
    #[test]
    fn keys_of_one_set_share_no_state() {
        let mut table = Table::default();
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        for user in 0..OVERFLOW_STATES {
            let key = format!("rule{user}");
            let key = Key::of_parts(key.as_bytes(), 4);
            let is_taken = |name: &[u8]| names.iter().any(|other| **other == *name);
            let (name, is_shared) = table.name(key, Now::from_nanos(0), 0, is_taken);
            assert!(is_shared && !is_taken(&name), "{user}");
            names.push(name);
        }
    }
}
