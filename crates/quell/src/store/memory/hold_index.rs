//! Holds by their ids: the keys of each hold, and its status.
//!
//! The holds themselves are in the states of their keys; this index only finds them. A record
//! outlives its hold for a while, so that a repeated call gets the same answer and changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quell_core::account::Account;
use quell_core::actual::CostOrigin;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::HoldId;
use quell_core::limit::LimitId;
use quell_core::ticket::Earlier;
use quell_core::time::Monotonic;

use super::fingerprint::Fingerprint;
use super::set::ChargedState;
use crate::portions::{Portion, Portions};
use crate::store::{Counted, HoldStatus, HoldTotals, StoreError, StoreResult};

/// Time for which the id of an ended hold is remembered: longer than callers retry.
pub const RETENTION: Duration = Duration::from_secs(120);

/// The number of remembered ids, of existing and ended holds: some 900 bytes each while the hold stands, with
/// its place in the state of a key. One domain, or one [`Account`], has at most half of what others leave of them.
pub const MAX_IDS: usize = 1_000_000;

/// Parts, each with a lock of its own that is held while a hold is made or ended.
const PARTS: usize = 64;

/// All ids.
#[derive(Debug)]
pub(super) struct HoldIndex {
    parts: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

/// Most ids that one call looks after beside its own, when many are due at the same instant.
const MAX_SETTLED: usize = 32;

/// Some of the ids.
#[derive(Debug, Default)]
pub(super) struct Shard {
    records: HashMap<HoldId, Record>,
    /// Instants at which records change by themselves.
    due: BTreeSet<(Monotonic, HoldId)>,
    portions: Portions<OwnIds>,
    totals: HoldTotals,
}

/// The ids of one domain or account.
#[derive(Debug, Default)]
struct OwnIds {
    all: usize,
    /// Records whose holds have ended, by the instant at which they are forgotten.
    ended: BTreeSet<(Monotonic, HoldId)>,
}

impl Portion for OwnIds {
    fn count(&self) -> usize {
        self.all
    }
}

/// Record of one id.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) status: HoldStatus,
    /// The states with this hold; none once it has ended.
    pub(super) places: Vec<HoldPlace>,
    /// A hash of each charge that it holds, in order, which tell whether the same claim is made again.
    pub(super) digests: Box<[u64]>,
    /// Account of the caller that made the hold.
    pub(super) account: Account,
    /// Number of descriptors of the hold, each of which is settled with a number of its own.
    pub(super) descriptors: usize,
    /// The answer that was given.
    pub(super) decisions: Vec<Decision>,
    /// True if the caller waits for its turn.
    pub(super) waits: bool,
    /// While the rest of its set is decided elsewhere and may still be refused: by what each of the places
    /// is restored then.
    pub(super) pending: Option<Vec<Option<Earlier>>>,
    /// The delay that follows its turn.
    pub(super) delay: Duration,
    /// Lifetime of the hold after that.
    pub(super) keep: Duration,
    /// Instant at which the record changes by itself; set when it is inserted.
    pub(super) due: Monotonic,
}

/// One state with a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldPlace {
    /// The key's own.
    pub(super) own: Fingerprint,
    /// The fingerprint it was charged under: the key's own, or that of the overflow state that it
    /// shared.
    pub(super) charged: Fingerprint,
    pub(super) limit: LimitId,
    pub(super) cost: Cost,
    /// Origin of the cost, of which a settlement corrects what descriptors cost.
    pub(super) origin: CostOrigin,
    pub(super) is_permit: bool,
}

impl HoldIndex {
    pub(super) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// A hash of a charge that a claim holds.
    pub(super) fn digest(&self, key: Fingerprint, cost: Cost, origin: CostOrigin) -> u64 {
        self.hasher.hash_one((key, cost, origin))
    }

    /// The part with `id`, in which that record is brought to `now`.
    pub(super) fn lock(&self, id: &HoldId, now: Monotonic) -> MutexGuard<'_, Shard> {
        let hash = usize::try_from(self.hasher.hash_one(id) % PARTS as u64).unwrap_or(0);
        let mut part = self.parts[hash % PARTS].lock();
        part.settle(now);
        part.settle_one(id, now);
        part
    }

    pub(super) fn totals(&self, now: Monotonic) -> HoldTotals {
        let mut all = HoldTotals::default();
        for part in &self.parts {
            // Others take the lock in between.
            while part.lock().settle(now) {}
            all = all.and(part.lock().totals);
        }
        all
    }
}

impl Shard {
    pub(super) fn get(&mut self, id: &HoldId) -> Option<&mut Record> {
        self.records.get_mut(id)
    }

    /// Makes room for `id`: its domain and its account have less ids than are left, or who has more forgets the
    /// one that ended first.
    pub(super) fn make_room(&mut self, id: &HoldId, account: Account) -> StoreResult<()> {
        let left = (MAX_IDS / PARTS).saturating_sub(self.records.len());
        if self.portions.have_room(id.domain(), account, left) {
            return Ok(());
        }
        let own = self.portions.larger(id.domain(), account);
        let first = own.and_then(|own| own.ended.first());
        let first = first.map(|(_, id)| id.clone());
        let forgotten = first.and_then(|first| self.take(&first));
        forgotten.map(|_| ()).ok_or(StoreError::TooManyHolds)
    }

    /// Adds a hold that was made at `now` and must wait for `wait`.
    pub(super) fn insert(
        &mut self,
        id: HoldId,
        mut record: Record,
        now: Monotonic,
        wait: Duration,
    ) {
        let stay = record.delay.saturating_add(record.keep);
        record.due = now.saturating_add(wait.saturating_add(stay));
        self.totals.add(record.counted());
        self.portions.change(id.domain(), record.account, |own| {
            own.all += 1;
            if record.status != HoldStatus::Stands {
                own.ended.insert((record.due, id.clone()));
            }
        });
        self.due.insert((record.due, id.clone()));
        self.records.insert(id, record);
    }

    /// Records that a hold continues from `now` for its whole time, and no longer waits.
    pub(super) fn renew(&mut self, id: &HoldId, now: Monotonic) {
        if let Some(mut record) = self.take(id) {
            record.pending = None;
            record.waits = false;
            record.delay = Duration::ZERO;
            self.insert(id.clone(), record, now, Duration::ZERO);
        }
    }

    /// Records that a hold has to wait for `wait` from `now` on.
    pub(super) fn postpone(&mut self, id: &HoldId, now: Monotonic, wait: Duration) {
        if let Some(record) = self.take(id) {
            self.insert(id.clone(), record, now, wait);
        }
    }

    /// Removes an id as if it had never existed.
    pub(super) fn take(&mut self, id: &HoldId) -> Option<Record> {
        let record = self.records.remove(id)?;
        let due = (record.due, id.clone());
        self.due.remove(&due);
        self.portions.change(id.domain(), record.account, |own| {
            own.all -= 1;
            own.ended.remove(&due);
        });
        self.totals.remove(record.counted());
        Some(record)
    }

    /// Records that a hold has ended.
    pub(super) fn finish(&mut self, id: &HoldId, status: HoldStatus, now: Monotonic) {
        let Some(mut record) = self.take(id) else {
            return;
        };
        self.totals.expired += u64::from(status == HoldStatus::Expired);
        record.status = status;
        record.waits = false;
        record.places = Vec::new();
        record.digests = Box::default();
        record.decisions = Vec::new();
        record.delay = Duration::ZERO;
        record.keep = RETENTION;
        // Without places it counts for nothing.
        self.insert(id.clone(), record, now, Duration::ZERO);
    }

    /// Ends some of what is due, and forgets holds that ended long ago. Returns whether there may be more.
    fn settle(&mut self, now: Monotonic) -> bool {
        for _ in 0..MAX_SETTLED {
            match self.due.first() {
                Some((due, id)) if *due <= now => {
                    let id = id.clone();
                    self.settle_one(&id, now);
                }
                _ => return false,
            }
        }
        true
    }

    /// Ends a hold that is due, and forgets one that ended long ago.
    fn settle_one(&mut self, id: &HoldId, now: Monotonic) {
        while let Some(record) = self.records.get(id)
            && record.due <= now
        {
            match (record.status, record.due) {
                (HoldStatus::Stands, due) => self.finish(id, HoldStatus::Expired, due),
                _ => drop(self.take(id)),
            }
        }
    }
}

impl HoldPlace {
    /// The place of a charge.
    pub(super) fn new(state: &ChargedState<'_>, origin: CostOrigin) -> Self {
        Self {
            own: state.own,
            charged: state.charged,
            limit: state.charge.active.id,
            cost: state.charge.cost,
            origin,
            is_permit: state.charge.active.limit.lease().is_some(),
        }
    }
}

impl Record {
    fn counted(&self) -> Counted {
        let permits = self.places.iter().filter(|place| place.is_permit);
        Counted {
            waits: self.waits,
            is_reservation: self.places.iter().any(|place| !place.is_permit),
            permits: permits.fold(0, |sum: u64, place| sum.saturating_add(place.cost.get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = MAX_IDS / PARTS;

    fn id(domain: &str, number: usize) -> HoldId {
        HoldId::new(domain, &number.to_string()).unwrap()
    }

    /// Adds holds of a domain that last for `keep`, as many as there is room for. Returns how many.
    fn fill(shard: &mut Shard, domain: &str, keep: Duration) -> usize {
        fill_as(shard, |_| domain.to_owned(), Account::NONE, keep)
    }

    /// The same by an account, in the domain of each number.
    fn fill_as(
        shard: &mut Shard,
        domain: impl Fn(usize) -> String,
        account: Account,
        keep: Duration,
    ) -> usize {
        let added = (0..MOST).take_while(|number| {
            let id = id(&domain(*number), *number);
            let has_room = shard.make_room(&id, account).is_ok();
            if has_room {
                let record = Record {
                    status: HoldStatus::Stands,
                    places: Vec::new(),
                    digests: Box::default(),
                    account,
                    descriptors: 1,
                    decisions: Vec::new(),
                    waits: false,
                    pending: None,
                    delay: Duration::ZERO,
                    keep,
                    due: Monotonic::ORIGIN,
                };
                shard.insert(id, record, Monotonic::ORIGIN, Duration::ZERO);
            }
            has_room
        });
        added.count()
    }

    #[test]
    fn a_domain_has_half_of_the_ids_that_others_leave() {
        let mut shard = Shard::default();
        let (day, now) = (Duration::from_secs(86_400), Monotonic::ORIGIN);
        let first = fill(&mut shard, "first", day);
        assert_eq!(first, MOST.div_ceil(2));
        let second = fill(&mut shard, "second", day);
        assert_eq!(second, (MOST - first).div_ceil(2));
        let other = id("first", MOST);
        assert!(
            shard.make_room(&other, Account::NONE).is_err(),
            "all of its holds stand"
        );
        assert!(shard.make_room(&id("third", 0), Account::NONE).is_ok());
        // The id of a hold that has ended makes place for another of its domain.
        shard.finish(&id("first", 7), HoldStatus::Settled, now);
        assert!(shard.get(&id("first", 7)).is_some());
        assert!(shard.make_room(&other, Account::NONE).is_ok());
        assert!(shard.get(&id("first", 7)).is_none());
        assert_eq!(shard.records.len(), first + second - 1);
    }

    /// A credential for fifty domains is one party, and two in one domain are two.
    #[test]
    fn an_account_has_half_of_the_ids_that_others_leave() {
        let (mut shard, account) = (Shard::default(), Account::new(7));
        let domain = |number: usize| format!("d{}", number % 50);
        let day = Duration::from_secs(86_400);
        let first = fill_as(&mut shard, domain, account, day);
        assert_eq!(first, MOST.div_ceil(2));
        let other = id("d51", MOST);
        assert!(shard.make_room(&other, account).is_err(), "a new domain");
        assert!(shard.make_room(&id("d1", MOST), Account::new(8)).is_ok());
        assert!(shard.make_room(&other, Account::NONE).is_ok());
        // One of its ids that has ended makes place, whatever domain that was in.
        shard.finish(&id("d7", 7), HoldStatus::Settled, Monotonic::ORIGIN);
        assert!(shard.make_room(&other, account).is_ok());
        assert!(shard.get(&id("d7", 7)).is_none());
        assert_eq!(shard.records.len(), first - 1);
    }

    /// However many holds end at one instant, a call ends a few of them beside its own.
    #[test]
    fn a_call_ends_few_holds_of_others() {
        let mut shard = Shard::default();
        let count = fill(&mut shard, "first", Duration::from_secs(1));
        let later = Monotonic::ORIGIN.saturating_add(Duration::from_secs(1));
        let standing = |shard: &Shard| {
            let all = shard.records.values();
            all.filter(|record| record.status == HoldStatus::Stands)
                .count()
        };
        assert!(shard.settle(later));
        assert_eq!(standing(&shard), count - MAX_SETTLED);
        let last = id("first", count - 1);
        shard.settle_one(&last, later);
        assert_eq!(
            shard.get(&last).map(|record| record.status),
            Some(HoldStatus::Expired)
        );
        while shard.settle(later) {}
        assert_eq!(standing(&shard), 0);
        assert_eq!(shard.totals.expired, count as u64);
        let much_later = later.saturating_add(RETENTION);
        while shard.settle(much_later) {}
        assert!(shard.records.is_empty() && shard.due.is_empty() && shard.portions.is_empty());
    }
}
