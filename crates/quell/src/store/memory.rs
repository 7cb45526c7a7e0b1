//! Memory store: states in this process, bounded in number, exact, and gone with the process.
//!
//! Keys are kept as fingerprints in an open table. A charge on one bucket is a compare-and-swap; a set of charges
//! locks the few slots around each of its keys, in order. States at rest are dropped bit by bit: a call that adds
//! a key checks a few others, and [`MemoryStore::sweep`] may be called from a timer.
//!
//! Above `max_keys` a new key shares one overflow state with the other new keys of its limit and shard (one of
//! 512): it may be refused early, but never gets past its limit. When there is room again, a new key starts with
//! the use of its overflow state.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::account::Account;
use quell_core::adjustment::adjust;
use quell_core::charge::{
    Charge, Charges, Entry, KeylessCharge, LimitSet, Operation, ban, decide_one, lift, refund,
};
use quell_core::claim::Claim;
use quell_core::decision::{Decision, Decisions, Outcome, RetryAfter};
use quell_core::end_hold::{Ending, forgive};
use quell_core::hold::{HoldId, MAX_HOLDS};
use quell_core::key::{Key, KeyName, shortened};
use quell_core::limit::{ActiveLimit, Limit, LimitId};
use quell_core::policy::Rung;
use quell_core::rule::Changes;
use quell_core::state::State;
use quell_core::time::{Monotonic, Now};

use crate::clock::{Clock, read_again};

use super::{
    Action, AdminStore, Answer, BanList, BanPage, BanPlace, BanSource, Banned, Finished, HoldStore,
    KeyView, LocalStore, Placed, Store, StoreResult,
};

mod arena;
mod ban_names;
#[cfg_attr(test, expect(clippy::modulo_one, reason = "a model has one part"))]
mod boxes;
mod chain;
mod fingerprint;
mod hold_index;
mod line;
mod memory_holds;
#[cfg(test)]
mod models;
mod registry;
mod set;
mod settled;
mod siphash;
mod spill;
mod state_table;
mod sync;
#[cfg_attr(test, expect(clippy::modulo_one, reason = "a model has one part"))]
mod table;
mod tickets;

pub use ban_names::MAX_NAMED_BANS;
use ban_names::{BanName, BanNames};
use fingerprint::Raw;
pub use fingerprint::{Fingerprint, HashKey, PrintHasher};
use hold_index::HoldIndex;
pub use hold_index::{MAX_IDS, RETENTION};
pub(crate) use line::FoundSlot;
use registry::Registry;
pub use settled::MAX_SETTLED;
use settled::SettledIds;
pub use state_table::StateTable;
use sync::Mutex;
use table::LoadedState;
pub(crate) use table::PrefetchedKey;
pub(crate) use table::{Keeper, LoadKey, Table};
pub use tickets::MemoryTicket;
use tickets::TicketIndex;

/// The default number of keys: when full, 0.4 GB of token or leaky buckets, or 1.3 to 1.6 GB of windows or logs.
pub const DEFAULT_MAX_KEYS: usize = 10_000_000;

/// The age that a clock reading may have when it is used for a decision: a thread may be paused in between. If a
/// refusal's wait is no longer than this, the clock is read again.
const TIME_SLICE: Duration = Duration::from_millis(10);

/// States in this process.
#[derive(Debug)]
pub struct MemoryStore {
    table: Arc<Table>,
    /// The same, for others.
    state_table: StateTable,
    registry: Registry,
    names: Mutex<BanNames>,
    holds: HoldIndex,
    settled: Mutex<SettledIds>,
    tickets: Arc<TicketIndex>,
    next_shard: AtomicUsize,
    /// The clock from which callers read, if known.
    clock: Option<Arc<dyn Clock>>,
}

/// A state in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Identifies the key, under the store's [`HashKey`].
    pub fingerprint: Fingerprint,
    /// True for an overflow state, shared by several keys.
    pub overflow: bool,
    /// State of the key.
    pub state: State,
    /// The key's bytes with long values shortened, if they are kept because of a ban.
    pub name: Option<Box<[u8]>>,
    /// Reason that an operator gave for the ban of the key.
    pub ban_reason: Option<Box<str>>,
}

impl MemoryStore {
    /// An empty store of at most [`DEFAULT_MAX_KEYS`] keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with(DEFAULT_MAX_KEYS, HashKey::random())
    }

    /// An empty store of at most `max_keys` keys (at least 1, at most 2^28) that hashes under `key`.
    #[must_use]
    pub fn with(max_keys: usize, key: HashKey) -> Self {
        let table = Arc::new(Table::new(max_keys, key));
        Self {
            state_table: StateTable::new(&table),
            table,
            registry: Registry::default(),
            names: Mutex::default(),
            holds: HoldIndex::new(),
            settled: Mutex::default(),
            tickets: Arc::default(),
            next_shard: AtomicUsize::new(0),
            clock: None,
        }
    }

    /// Keys that have a state of their own, whether at rest or not.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.keys()
    }

    /// The most keys that may have a state of their own.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.table.max_keys()
    }

    /// Overflow states in use. If there are any, the store is or was full.
    #[must_use]
    pub fn overflow_states(&self) -> usize {
        self.table.overflow_states()
    }

    /// The secret under which keys are hashed, for a snapshot.
    #[must_use]
    pub fn hash_key(&self) -> HashKey {
        self.table.hash_key()
    }

    /// Checks the next `shards` of [`MemoryStore::shard_count`] shards and drops states at rest. A lock is held
    /// for less than a microsecond at a time. Returns how many keys were dropped.
    pub fn sweep(&self, shards: usize, now: Now) -> usize {
        let keeper = Keeping { store: self, now };
        let mut gone = 0;
        for _ in 0..shards.min(self.table.parts()) {
            let index = self.next_shard.fetch_add(1, Ordering::Relaxed);
            if index.is_multiple_of(self.table.parts()) {
                self.forget_outlived(now);
                self.forget_names(now);
                self.settled.lock().forget(now.monotonic);
            }
            gone += self.table.sweep(index, now, &keeper);
        }
        gone
    }

    fn forget_outlived(&self, now: Now) {
        if !self.registry.limits().outlived(now).is_empty() {
            self.registry.change(|limits| limits.forget_outlived(now));
        }
    }

    /// Number of shards, for [`MemoryStore::export`].
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.table.parts()
    }

    /// Copies of the states in one shard that are not at rest; each is locked for a moment. A state that is moved
    /// meanwhile, to make room, may occur twice, the later copy last.
    #[must_use]
    pub fn export(&self, shard: usize, now: Now) -> Vec<Saved> {
        let states = self.table.export(shard, now, &Keeping { store: self, now });
        let limits = self.registry.limits();
        let names = self.names.lock();
        states
            .into_iter()
            .map(|(fingerprint, mut state, overflow)| {
                // The instants of changes are not kept.
                limits.follow(&mut state);
                let named = { state.ban.as_ref() }
                    .and_then(|ban| Some((names.get(&fingerprint)?, ban.until)));
                // The state was copied before: the name may be that of a later ban.
                let same = named.filter(|(named, until)| named.until == *until);
                Saved {
                    name: named.map(|(named, _)| named.name.clone()),
                    ban_reason: same.and_then(|(named, _)| named.reason.clone()),
                    fingerprint,
                    overflow,
                    state,
                }
            })
            .collect()
    }

    /// The limits of exported states.
    #[must_use]
    pub fn limits(&self) -> Vec<ActiveLimit> {
        self.registry.limits().all().cloned().collect()
    }

    /// Adds a snapshot: its limits, older ones first and with ids that this store has not seen, and its states,
    /// charged under them. Limits that are in force now take over at `now`, and limits that are in no rule any
    /// more count as dropped then.
    pub fn import(&self, limits: Vec<ActiveLimit>, states: Vec<Saved>, now: Now) {
        self.registry.change(|known| known.restore(limits, now));
        let keeper = Keeping { store: self, now };
        for saved in states {
            let fingerprint = saved.fingerprint.kept();
            if let Some(name) = saved.name {
                let reason = saved.ban_reason.as_deref();
                let name = (&*name, reason, Account::NONE);
                self.remember(fingerprint, name, &saved.state, now);
            }
            self.table
                .import(fingerprint, saved.state, saved.overflow, now, &keeper);
        }
    }

    /// `now`, or a later reading of its clock.
    fn read_again(&self, now: Now) -> Now {
        match &self.clock {
            Some(clock) => read_again(now, clock),
            None => now,
        }
    }

    /// Keeps the name of a key for as long as it is banned, why, and by whom. Call it while its state is locked.
    fn remember(
        &self,
        fingerprint: Fingerprint,
        (name, reason, account): (&[u8], Option<&str>, Account),
        state: &State,
        now: Now,
    ) {
        let mut names = self.names.lock();
        let Some(left) = state.banned_for(now.monotonic) else {
            names.remove(&fingerprint);
            return;
        };
        let ban = BanName {
            name: shortened(name, &format!("{:016x}", fingerprint.high)).into(),
            account,
            until: now.monotonic.saturating_add(left),
            reason: reason.map(Box::from),
        };
        names.insert(fingerprint, ban);
    }

    /// Time left of the ban of a named key; if it is not banned, its name is dropped.
    fn named_ban(&self, fingerprint: Fingerprint, now: Now) -> Option<Duration> {
        let keeper = Keeping { store: self, now };
        let mut left = None;
        self.table.with_state(fingerprint, now, &keeper, |state| {
            // A state under a removed limit counts as gone.
            let state = state.filter(|state| self.registry.limits().knows(state.limit));
            left = state.and_then(|state| state.banned_for(now.monotonic));
            if left.is_none() {
                // While the state is locked, so that no ban begins in between.
                self.names.lock().remove(&fingerprint);
            }
        });
        left
    }

    /// Reason that an operator gave for the ban of a key.
    fn ban_reason(&self, fingerprint: Fingerprint, now: Now) -> Option<Box<str>> {
        let names = self.names.lock();
        let ban = names.get(&fingerprint);
        let ban = ban.filter(|ban| ban.until > now.monotonic)?;
        Banned::reason_in(ban.reason.clone())
    }

    /// The keys with names behind a place in their list, the longest ban first.
    fn named_from(&self, place: BanPlace) -> Vec<(Monotonic, Fingerprint)> {
        let names = self.names.lock();
        let mut named: Vec<_> = names.iter().map(|(at, ban)| (ban.until, *at)).collect();
        drop(names);
        named.sort_unstable_by_key(|(until, at)| Reverse((*until, at.high, at.low)));
        let passed = match place {
            BanPlace::Start => 0,
            BanPlace::Behind { until, count } => {
                let later = named.partition_point(|(end, _)| end.as_nanos() > until);
                later.saturating_add(usize::try_from(count).unwrap_or(usize::MAX))
            }
            BanPlace::End => named.len(),
        };
        named.split_off(passed.min(named.len()))
    }

    /// Drops the names of bans that are over, and frees their memory.
    fn forget_names(&self, now: Now) {
        for (_, fingerprint) in self.named_from(BanPlace::Start) {
            self.named_ban(fingerprint, now);
        }
        self.names.lock().shrink();
    }

    /// The number of banned keys whose names are kept.
    #[must_use]
    pub fn named_bans(&self) -> usize {
        self.names.lock().len()
    }

    fn load_key<'k>(&self, key: Key<'k>, charge: &Charge<'_>) -> LoadKey<'k> {
        LoadKey {
            fingerprint: self.table.hash_key().of_bytes(key.as_bytes()),
            scope: key.scope(),
            limit: charge.active.id,
        }
    }

    /// Converts a loaded state to the limit of its charge.
    fn carry(&self, state: &mut State, charge: &Charge<'_>, now: Now) {
        if state.limit != charge.active.id {
            self.registry.limits().carry(state, charge, now);
        }
    }

    /// Makes sure that a state charged at `now` does not stay under a limit that was replaced since the caller
    /// read the clock.
    fn leave_replaced(&self, entry: &mut Entry<'_, '_>, read: Now, now: Now) {
        if self.registry.may_be_late(read.monotonic) {
            let limits = self.registry.limits();
            limits.leave_replaced(entry.state, entry.charge, now);
        }
    }

    /// Decides on a packed word in place, if possible.
    #[inline]
    fn charge_in_place(
        &self,
        key: &PrefetchedKey<'_>,
        charge: &Charge<'_>,
        operation: Operation,
        now: &mut Now,
    ) -> Option<Decision> {
        let (keyless, first) = (charge.keyless(), now.monotonic);
        let decided = self
            .table
            .decide_in_place(key, &keyless, operation, || first);
        let decision = decided?.decision();
        match decision.outcome {
            // Others that read the clock later may have charged the key before: the missing units may be those of
            // the time since this reading.
            Outcome::Deny(RetryAfter::After(wait)) if wait <= TIME_SLICE => {
                let later = self.read_again(*now);
                if later.monotonic.since(first) < wait {
                    return Some(decision);
                }
                if self.registry.may_be_late(first) {
                    return None;
                }
                *now = later;
                self.charge_in_place_at(key, &keyless, operation, later)
            }
            _ => Some(decision),
        }
    }

    /// The same at one instant, separate from the path of nearly all calls.
    #[cold]
    fn charge_in_place_at(
        &self,
        key: &PrefetchedKey<'_>,
        charge: &KeylessCharge<'_>,
        operation: Operation,
        now: Now,
    ) -> Option<Decision> {
        let at = || now.monotonic;
        let decided = self.table.decide_in_place(key, charge, operation, at);
        decided.map(|decided| decided.decision())
    }

    fn charge_one(
        &self,
        name: Key<'_>,
        charge: &Charge<'_>,
        account: Account,
        operation: Operation,
        now: &mut Now,
    ) -> Decision {
        let hash = charge.hash();
        let key = if hash.owner == self.table.owner() {
            let (high, low) = (hash.high, hash.low);
            self.table.prefetch_hashed(Fingerprint { high, low })
        } else {
            self.table.prefetch(&Raw(name.as_bytes()))
        };
        if let Some(decision) = self.charge_in_place(&key, charge, operation, now) {
            return decision;
        }
        let key = LoadKey {
            fingerprint: key.fingerprint,
            scope: name.scope(),
            limit: charge.active.id,
        };
        let keeper = Keeping {
            store: self,
            now: *now,
        };
        let (chains, mut held) = self.table.load(&key, operation, *now, &keeper);
        let read = *now;
        *now = self.read_again(*now);
        let now = *now;
        let keeper = Keeping { store: self, now };
        self.carry(&mut held.state, charge, now);
        let was_banned = held.state.banned_for(now.monotonic).is_some();
        let entry = &mut Entry {
            charge,
            state: &mut held.state,
        };
        let decision = decide_one(now, operation, entry);
        if operation == Operation::Acquire {
            self.leave_replaced(entry, read, now);
            if decision.banned && !was_banned {
                let cause = cause(charge, &held.state);
                let why = cause.as_deref();
                let name = (name.as_bytes(), why, account);
                self.remember(held.fingerprint, name, &held.state, now);
            }
            self.table.put_back(chains, held, now, &keeper);
        }
        decision
    }
}

/// The table's callbacks to the store while it holds a lock.
struct Keeping<'a> {
    store: &'a MemoryStore,
    now: Now,
}

impl Keeper for Keeping<'_> {
    fn with_limit<R>(&self, id: LimitId, act: impl FnOnce(Option<&Limit>) -> R) -> R {
        act(self.store.registry.limits().limit(id))
    }

    fn may_drop(&self, state: &State) -> bool {
        self.store.registry.limits().may_drop(state, self.now)
    }

    fn group(&self, limit: LimitId) -> u64 {
        self.store.registry.limits().group(limit)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalStore for MemoryStore {
    type Ticket = MemoryTicket;

    fn charge_local(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, MemoryTicket) {
        self.charge_now(set, now)
    }

    fn refund_local(&self, ticket: &MemoryTicket, now: Now) {
        self.refund_now(ticket, now);
    }

    fn decide_local(&self, set: &LimitSet<'_>, operation: Operation, mut now: Now) -> Decisions {
        match set.charges() {
            [] => Decisions::new(),
            [charge] => Decisions::from([self.charge_one(
                set.key(charge),
                charge,
                set.account(),
                operation,
                &mut now,
            )]),
            _ => self.charge_many(set, operation, now),
        }
    }

    fn hold_local(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.hold_now(set, claim, now)
    }

    fn end_local(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.end_now(id, ending, now)
    }
}

impl MemoryStore {
    // Always inlined, like everything between the limiter and one charge: an answer that is passed through
    // functions is copied each time, which costs a tenth of the instructions of `CL.THROTTLE`.
    #[inline(always)]
    fn decide_at(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
    ) -> StoreResult<Answer> {
        match charges {
            Charges::One(key, charge) => {
                let decision = self.charge_one(key, charge, Account::NONE, operation, now);
                Ok(Answer::from(Decisions::from([decision])))
            }
            Charges::Permits(set, id) if operation == Operation::Acquire => {
                let placed = self.hold_now(set, &Claim::plain(id), *now);
                placed.map(Answer::from)
            }
            Charges::Set(set) | Charges::Permits(set, _) => {
                Ok(Answer::from(self.decide_local(set, operation, *now)))
            }
        }
    }
}

impl Store for MemoryStore {
    type Lookup = ();

    fn state_table(&self) -> Option<&StateTable> {
        Some(&self.state_table)
    }

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        self.clock = Some(Arc::clone(clock));
    }

    fn most_holds(&self, _rung: Rung) -> usize {
        MAX_HOLDS
    }

    fn most_learned(&self, _rung: Rung) -> usize {
        MAX_HOLDS
    }

    #[inline(always)]
    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        (): &mut (),
    ) -> Option<Answer> {
        self.decide_at(charges, operation, now).ok()
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        mut now: Now,
    ) -> StoreResult<Answer> {
        self.decide_at(charges, operation, &mut now)
    }

    fn install(&self, changes: &Changes) {
        self.registry.change(|limits| {
            limits.add(&changes.added);
            limits.replace(&changes.replaced);
            limits.drop_all(&changes.dropped);
            limits.set_idle(&changes.idle);
            limits.remove(&changes.removed);
            if let Some(at) = changes.replaced.last().and_then(|latest| latest.at) {
                limits.forget_outlived(at);
            }
        });
    }
}

impl HoldStore for MemoryStore {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.hold_now(set, claim, now)
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        Ok(self.end_now(id, ending, now))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        Ok(self.advance_now(id, now))
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        let finished = self.end_now(id, ending, now);
        finished.map_or_else(Vec::new, |finished| finished.next)
    }
}

/// Cause of the ban of a state, if the charge's own limit has begun it.
fn cause(charge: &Charge<'_>, state: &State) -> Option<String> {
    let length = state.ban.as_ref()?.length;
    Banned::text_of(&charge.active.limit, length)
}

impl AdminStore for MemoryStore {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> StoreResult<usize> {
        let keeper = Keeping { store: self, now };
        let mut changed = 0;
        for charge in set.charges() {
            let key = set.key(charge);
            let load_key = self.load_key(key, charge);
            let (chains, mut held) = self.table.load(&load_key, Operation::Acquire, now, &keeper);
            let now = self.read_again(now);
            self.carry(&mut held.state, charge, now);
            let (limit, at) = (&charge.active.limit, charge.at(now));
            let mut why = None;
            changed += usize::from(match action {
                Action::Forgive => {
                    let used = !held.state.time_to_own_rest(limit, now).is_zero();
                    self.tickets.void(held.fingerprint);
                    forgive(&mut held.state, limit, &at);
                    used
                }
                Action::Lift => lift(&mut held.state, now),
                Action::Carry => false,
                Action::Refund => {
                    let state = &mut held.state;
                    refund(now, &mut Entry { charge, state })
                }
                Action::Adjust(adjustment) => {
                    let own = load_key.fingerprint;
                    let issued = adjustment.reservation;
                    let is_first = issued.is_none_or(|one| self.settled.lock().add(own, &one, now));
                    let state = &mut held.state;
                    is_first && adjust(now, &adjustment, &mut Entry { charge, state })
                }
                Action::Ban(length, reason) => {
                    why = reason;
                    ban(&mut held.state, limit, &at, length);
                    true
                }
            });
            // These leave bans and their reasons as they are.
            if !matches!(action, Action::Refund | Action::Adjust(_) | Action::Carry) {
                let name = (key.as_bytes(), why, set.account());
                self.remember(held.fingerprint, name, &held.state, now);
            }
            self.table.put_back(chains, held, now, &keeper);
        }
        Ok(changed)
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> StoreResult<Vec<KeyView>> {
        let keeper = Keeping { store: self, now };
        let charges = set.charges().iter();
        let of_key = charges.map(|charge| {
            let key = self.load_key(set.key(charge), charge);
            let (chains, mut held) = self.table.load(&key, Operation::Peek, now, &keeper);
            let now = self.read_again(now);
            drop(chains);
            self.carry(&mut held.state, charge, now);
            let ban = held.state.banned_for(now.monotonic);
            KeyView {
                holds: held.state.hold_views(&charge.active.limit, &charge.at(now)),
                ban_reason: ban.and_then(|_| self.ban_reason(held.fingerprint, now)),
            }
        });
        Ok(of_key.collect())
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> StoreResult<BanList> {
        let (mut found, mut count) = (BanList::new(), 0);
        let mut place = page.from.place(BanSource::Memory);
        for (until, fingerprint) in self.named_from(place) {
            if count == page.most {
                found.read_to(BanSource::Memory, place);
                return Ok(found);
            }
            let named = {
                let names = self.names.lock();
                let ban = names.get(&fingerprint);
                ban.and_then(|ban| Some((KeyName::parse(&ban.name)?, ban.reason.clone())))
            };
            let Some((key, reason)) = named else {
                continue;
            };
            let is_wanted = (page.wants)(&key.domain);
            let left = match is_wanted {
                true => self.named_ban(fingerprint, now),
                false => None,
            };
            // A name that was dropped is behind nobody.
            if left.is_some() || !is_wanted {
                place = place.behind(until.as_nanos());
            }
            if let Some(left) = left {
                count += 1;
                let ban = Banned::with_text(key, left, reason);
                found.push(BanSource::Memory, ban, place);
            }
        }
        found.read_to(BanSource::Memory, BanPlace::End);
        Ok(found)
    }

    async fn ban_count(&self, now: Now) -> StoreResult<usize> {
        let names = self.names.lock();
        let stand = names.iter().filter(|(_, ban)| ban.until > now.monotonic);
        Ok(stand.count())
    }
}
