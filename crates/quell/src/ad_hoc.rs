//! Limits that come with the call: each distinct one gets an id in the store.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::limit_error::LimitError;
use quell_core::rate::{MAX_PERIOD, Rate};
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now};

/// The number of distinct limits that are kept apart while they are in use. Real callers have a
/// handful; the bound keeps a caller that invents limits from filling memory. Above it a new one is
/// rounded down, see [`AdHocNumbers::rounded`], which can add at most 4,600 more.
const MAX_AD_HOC: usize = 65_536;

/// A search for idle limits that found too few is not repeated for this long.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// Greatest age of the record of a limit's last use while it is used through an [`AdHocMemo`]: writing it
/// each time would move its cache line from core to core.
const NOTE_EVERY: Duration = Duration::from_secs(1);

const NOTE_EVERY_NANOS: u64 = 1_000_000_000;

/// The first id of these limits; rules have the ids below it. Callers may invent limits until ids
/// wrap around, so an id is used again if no limit has it. That is 2^31 ids later, and everything
/// kept under the old one was swept long before.
const FIRST_ID: u32 = 1 << 31;

/// The last limit that came with a call: one memo per caller saves the lookup if the limit is the
/// same again, as it nearly always is.
#[derive(Debug, Default)]
pub struct AdHocMemo {
    last: Option<Arc<CachedLimit>>,
}

/// Limits by their numbers.
#[derive(Debug, Default)]
pub(crate) struct AdHocLimits {
    known: RwLock<HashMap<AdHocNumbers, Arc<CachedLimit>>>,
    /// Instant of the last search for idle limits, in nanoseconds; 0 for never.
    searched: AtomicU64,
    ids: Mutex<Ids>,
}

/// Ids for limits.
#[derive(Debug)]
struct Ids {
    next: u32,
    used: HashSet<u32>,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            next: FIRST_ID,
            used: HashSet::new(),
        }
    }
}

impl Ids {
    /// An id that no limit has. There are far more ids than limits.
    fn take(&mut self) -> LimitId {
        loop {
            let id = self.next;
            self.next = id.checked_add(1).unwrap_or(FIRST_ID);
            if self.used.insert(id) {
                return LimitId(id);
            }
        }
    }
}

/// The numbers of a call's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AdHocNumbers {
    count: u64,
    period: Duration,
    burst: u64,
}

impl AdHocNumbers {
    fn new(bucket: &TokenBucket) -> Self {
        Self {
            count: bucket.count,
            period: bucket.period,
            burst: bucket.burst.unwrap_or(bucket.count),
        }
    }

    /// The next lower limit of a small set: a burst that is a power of two, and one unit per a power
    /// of two of nanoseconds, or a power of two of units per nanosecond. It admits nothing that these numbers would refuse, and more than a
    /// quarter of what they admit.
    fn rounded(self) -> Self {
        let nanos = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        let interval = nanos.div_ceil(self.count.max(1));
        let interval = interval.checked_next_power_of_two().unwrap_or(u64::MAX);
        let per_nano = self.count.checked_div(nanos).unwrap_or(0).max(1);
        Self {
            count: 1 << per_nano.ilog2(),
            period: Duration::from_nanos(interval).min(MAX_PERIOD),
            burst: 1 << self.burst.max(1).ilog2(),
        }
    }

    fn limit(self) -> Result<Limit, LimitError> {
        let rate = Rate::new(self.count, self.period)?;
        Limit::token_bucket(rate).burst(self.burst).build()
    }
}

#[derive(Debug)]
pub(crate) struct CachedLimit {
    pub(crate) active: ActiveLimit,
    numbers: AdHocNumbers,
    /// In nanoseconds; up to [`NOTE_EVERY`] too early.
    last_used: AtomicU64,
    /// True if the limit was dropped, and the store told so.
    is_gone: AtomicBool,
}

impl CachedLimit {
    /// Returns true if all state under this limit is at rest: it was last used longer ago than any state
    /// lasts.
    fn is_idle(&self, now: Monotonic) -> bool {
        let last = Monotonic::from_nanos(self.last_used.load(Ordering::SeqCst));
        let lives = self.active.limit.full_refill();
        now.since(last) > lives.saturating_add(NOTE_EVERY)
    }

    /// Records a use of the limit; returns true if the limit is in force.
    ///
    /// The use is recorded before `is_gone` is read, and [`CachedLimit::give_up`] sets `is_gone` before it
    /// reads the use, both sequentially consistent: at least one of the two sees the other.
    #[inline]
    fn note_use(&self, now: Monotonic) -> bool {
        let now = now.as_nanos();
        let noted = self.last_used.load(Ordering::Relaxed);
        if now.abs_diff(noted) >= NOTE_EVERY_NANOS {
            self.last_used.store(now, Ordering::SeqCst);
        }
        !self.is_gone.load(Ordering::SeqCst)
    }

    /// Drops the limit unless it was used meanwhile. Returns whether it is dropped.
    fn give_up(&self, now: Monotonic) -> bool {
        self.is_gone.store(true, Ordering::SeqCst);
        let is_gone = self.is_idle(now);
        self.is_gone.store(is_gone, Ordering::SeqCst);
        is_gone
    }
}

impl AdHocLimits {
    /// [`AdHocLimits::get`] by way of a memo.
    ///
    /// # Errors
    /// As [`AdHocLimits::get`].
    #[inline]
    pub(crate) fn recall<'m>(
        &self,
        memo: &'m mut AdHocMemo,
        bucket: &TokenBucket,
        now: Now,
        most: impl FnOnce() -> u64,
        adopt: impl Fn(&Changes),
    ) -> Result<&'m CachedLimit, LimitError> {
        let numbers = AdHocNumbers::new(bucket);
        // A limit that was rounded down has other numbers and is looked up again each time, because
        // there may be room for the exact limit now.
        let is_same =
            |known: &Arc<CachedLimit>| known.numbers == numbers && known.note_use(now.monotonic);
        let last = match memo.last.take() {
            Some(known) if is_same(&known) => known,
            _ => self.get(bucket, now, most, adopt)?,
        };
        Ok(memo.last.insert(last))
    }

    /// The limit of this bucket, with its id; `adopt` is told of every change first. While too many
    /// limits are in use, a new one is rounded down. `most` is the largest that the store counts exactly.
    ///
    /// # Errors
    /// [`LimitError`] if the numbers are impossible, or too large for the store.
    pub(crate) fn get(
        &self,
        bucket: &TokenBucket,
        now: Now,
        most: impl FnOnce() -> u64,
        adopt: impl Fn(&Changes),
    ) -> Result<Arc<CachedLimit>, LimitError> {
        let mut numbers = AdHocNumbers::new(bucket);
        if let Some(known) = self.find(&numbers, now) {
            return Ok(known);
        }
        let mut limit = numbers.limit()?;
        if limit.max() > most() {
            return Err(LimitError::ManyUnitsShared);
        }
        if !self.has_room(now, &adopt) {
            numbers = numbers.rounded();
            if let Some(known) = self.find(&numbers, now) {
                return Ok(known);
            }
            limit = numbers.limit()?;
        }
        let mut known = self.known.write();
        let mut changes = Changes::default();
        let entry = known.entry(numbers).or_insert_with(|| {
            let active = ActiveLimit {
                id: self.ids.lock().take(),
                limit,
                since: now.monotonic,
                place: LimitPlace::NONE,
            };
            changes.added.push(active.clone());
            Arc::new(CachedLimit {
                active,
                numbers,
                last_used: AtomicU64::new(now.monotonic.as_nanos()),
                is_gone: AtomicBool::new(false),
            })
        });
        let entry = Arc::clone(entry);
        // Under the lock, so that no call charges under a limit that the store does not know.
        adopt(&changes);
        Ok(entry)
    }

    fn find(&self, numbers: &AdHocNumbers, now: Now) -> Option<Arc<CachedLimit>> {
        let known = self.known.read();
        let known = known.get(numbers)?;
        // It can only be dropped while the lock is held for writing, and then it is not in the table.
        known.note_use(now.monotonic).then(|| Arc::clone(known))
    }

    /// Returns true if one more limit can be kept apart, perhaps because others are idle by now. The search
    /// for those runs only now and then: a caller that invents limits must not make all others wait.
    fn has_room(&self, now: Now, adopt: impl Fn(&Changes)) -> bool {
        if self.known.read().len() < MAX_AD_HOC {
            return true;
        }
        let searched = self.searched.load(Ordering::Relaxed);
        let since = now.monotonic.as_nanos().abs_diff(searched);
        if searched != 0 && Duration::from_nanos(since) < SEARCH_EVERY {
            return false;
        }
        let now = now.monotonic;
        let at = now.as_nanos().max(1);
        self.searched.store(at, Ordering::Relaxed);
        let known = self.known.read();
        let idle = known.iter().filter(|(_, known)| known.is_idle(now));
        let idle: Vec<AdHocNumbers> = idle.map(|(numbers, _)| *numbers).collect();
        drop(known);
        let mut known = self.known.write();
        let mut changes = Changes::default();
        for numbers in idle {
            // It may have been used since.
            if let Entry::Occupied(entry) = known.entry(numbers)
                && entry.get().give_up(now)
            {
                let id = entry.remove().active.id;
                self.ids.lock().used.remove(&id.0);
                changes.removed.push(id);
            }
        }
        adopt(&changes);
        known.len() < MAX_AD_HOC
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids wrap around and skip those of limits in use.
    #[test]
    fn a_name_is_handed_out_again_when_nobody_has_it() {
        let limits = AdHocLimits::default();
        let id_of = |burst| {
            let bucket = Limit::per_minute(1).burst(burst);
            let known = limits.get(&bucket, Now::default(), || u64::MAX, |_| ());
            let known = known.unwrap();
            known.active.id.0
        };
        assert_eq!([id_of(1), id_of(2)], [FIRST_ID, FIRST_ID + 1]);
        limits.ids.lock().next = u32::MAX;
        assert_eq!([id_of(3), id_of(4)], [u32::MAX, FIRST_ID + 2]);
        assert_eq!(
            [id_of(1), id_of(3)],
            [FIRST_ID, u32::MAX],
            "they keep theirs"
        );
        limits.ids.lock().used.remove(&FIRST_ID);
        limits.ids.lock().next = FIRST_ID;
        assert_eq!(id_of(5), FIRST_ID);
    }
}
