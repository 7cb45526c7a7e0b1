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

mod share;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::algorithm::{At, Edges};
use quell_core::bucket_replay::charge_anyway;
use quell_core::charge::{Charge, Entry, Operation, decide};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::key::Key;
use quell_core::limit::{Limit, LimitId};
use quell_core::on_failure::OnFailure;
use quell_core::time::Now;
use tokio::time::Instant;

use self::share::{HeldShare, LocalShare};
use self::table::{MAX_BYTES, ShareTable};
use super::denial_cache::{AnswerTime, DenialCache, InFlightCharge};
use super::local_debt::{PaymentOrder, PaymentOutcome, PaymentStart};
use super::shared_limit::SharedLimit;
use crate::sync::Mutex;
use quell::clock::{Clock, read_again};

/// For how long a key stays on its share after its debt was repaid, so that the other nodes have repaid
/// theirs before the store admits any call: each looks for a lost store once a second.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);

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

impl LocalCharge<'_, '_> {
    /// The charge under this node's share of its limit.
    fn under_share(&self, cost: Cost) -> Charge<'_> {
        let mut under = Charge::alone(&self.limits.share, cost);
        under.shadow = self.charge.shadow;
        under.edges = self.charge.edges;
        under
    }
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
    table: Mutex<ShareTable>,
    limits: Mutex<HashMap<LimitId, Arc<SharedLimit>>>,
    /// Keys that go on by their share, and those that owe: read without the table's lock.
    active: AtomicUsize,
    /// Decisions in progress: each counts from before it reads which calls are in flight.
    deciding: AtomicUsize,
    owed: AtomicUsize,
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
    fn put_back(&self, table: &mut ShareTable, held: Vec<HeldShare>, operation: Operation) {
        if operation == Operation::Acquire {
            for (name, share) in held {
                table.put(name, share);
            }
        }
        self.counted(table);
    }

    fn counted(&self, table: &ShareTable) {
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
        table.note_answer(answer, now(), instant);
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
        true => local.under_share(Cost::new(u64::MAX).unwrap_or(local.charge.cost)),
        false => local.under_share(local.charge.cost),
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
