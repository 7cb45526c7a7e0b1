//! Holds by their ids: the keys of each hold, and its status.
//!
//! The holds themselves are in the states of their keys; this index only finds them. A record
//! outlives its hold for a while, so that a repeated call gets the same answer and changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::HoldId;
use quell_core::limit::LimitId;
use quell_core::ticket::Earlier;
use quell_core::time::Monotonic;

use super::fingerprint::Fingerprint;
use super::set::Touched;
use crate::store::{Counted, HoldStatus, HoldTotals, StoreError, StoreResult};

/// How long the id of an ended hold is remembered: longer than callers retry.
pub const RETENTION: Duration = Duration::from_secs(120);

/// The number of remembered ids, of existing and ended holds: about a hundred bytes each.
pub const MAX_IDS: usize = 1_000_000;

/// Parts, each with a lock of its own that is held while a hold is made or ended.
const PARTS: usize = 64;

/// All ids.
#[derive(Debug)]
pub(super) struct HoldIndex {
    parts: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

/// Some of the ids.
#[derive(Debug, Default)]
pub(super) struct Shard {
    records: HashMap<HoldId, Record>,
    /// When a record changes by itself.
    due: BTreeSet<(Monotonic, HoldId)>,
    totals: HoldTotals,
}

/// What is known about one id.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) status: HoldStatus,
    /// The states with this hold; none once it has ended.
    pub(super) places: Vec<HoldPlace>,
    /// The answer that was given.
    pub(super) decisions: Vec<Decision>,
    /// Whether its caller waits for its turn.
    pub(super) waits: bool,
    /// While the rest of its set is decided elsewhere and may still be refused: by what each of the places
    /// is restored then.
    pub(super) pending: Option<Vec<Option<Earlier>>>,
    /// How long it lasts once taken.
    pub(super) keep: Duration,
    /// When something happens to it by itself; set when it is inserted.
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
    /// Whether the cost is the caller's, and can be settled.
    pub(super) scales: bool,
    pub(super) is_permit: bool,
}

impl HoldIndex {
    pub(super) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// The part with `id`, brought to `now`.
    pub(super) fn lock(&self, id: &HoldId, now: Monotonic) -> MutexGuard<'_, Shard> {
        let hash = usize::try_from(self.hasher.hash_one(id) % PARTS as u64).unwrap_or(0);
        let mut part = self.parts[hash % PARTS].lock();
        part.settle(now);
        part
    }

    pub(super) fn totals(&self, now: Monotonic) -> HoldTotals {
        let mut all = HoldTotals::default();
        for part in &self.parts {
            let mut part = part.lock();
            part.settle(now);
            all = all.and(part.totals);
        }
        all
    }
}

impl Shard {
    pub(super) fn get(&mut self, id: &HoldId) -> Option<&mut Record> {
        self.records.get_mut(id)
    }

    /// Makes room for one more, if necessary by forgetting the hold that ended first.
    pub(super) fn make_room(&mut self) -> StoreResult<()> {
        while self.records.len() >= MAX_IDS / PARTS {
            let is_over = |(_, id): &&(Monotonic, HoldId)| {
                let record = self.records.get(id);
                record.is_none_or(|record| record.status != HoldStatus::Stands)
            };
            let Some(first) = self.due.iter().find(is_over).cloned() else {
                return Err(StoreError::TooManyHolds);
            };
            self.due.remove(&first);
            self.records.remove(&first.1);
        }
        Ok(())
    }

    /// Adds a hold that was made at `now` and must wait for `wait`.
    pub(super) fn insert(
        &mut self,
        id: HoldId,
        mut record: Record,
        now: Monotonic,
        wait: Duration,
    ) {
        record.due = now.saturating_add(wait.saturating_add(record.keep));
        self.due.insert((record.due, id.clone()));
        self.totals.add(record.counted());
        self.records.insert(id, record);
    }

    /// Records that a hold continues from `now` for its whole time, and no longer waits.
    pub(super) fn renew(&mut self, id: &HoldId, now: Monotonic) {
        if let Some(mut record) = self.take(id) {
            record.pending = None;
            record.waits = false;
            self.insert(id.clone(), record, now, Duration::ZERO);
        }
    }

    /// Removes a hold as if it had never existed.
    pub(super) fn take(&mut self, id: &HoldId) -> Option<Record> {
        let record = self.records.remove(id)?;
        self.due.remove(&(record.due, id.clone()));
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
        record.decisions = Vec::new();
        record.keep = RETENTION;
        // Without places it counts for nothing.
        self.insert(id.clone(), record, now, Duration::ZERO);
    }

    /// Ends what is due, and forgets holds that ended long ago.
    fn settle(&mut self, now: Monotonic) {
        while let Some((due, _)) = self.due.first()
            && *due <= now
        {
            let Some((due, id)) = self.due.pop_first() else {
                return;
            };
            let status = self.records.get(&id).map(|record| record.status);
            match status {
                Some(HoldStatus::Stands) => self.finish(&id, HoldStatus::Expired, due),
                _ => {
                    self.records.remove(&id);
                }
            }
        }
    }
}

impl HoldPlace {
    /// The place of a charge.
    pub(super) fn of(state: &Touched<'_>) -> Self {
        Self {
            own: state.own,
            charged: state.charged,
            limit: state.charge.active.id,
            cost: state.charge.cost,
            scales: !state.charge.counts_calls,
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
