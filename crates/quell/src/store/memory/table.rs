//! Table: chains of lines, and the bound on how many keys there are.
//!
//! A table that doubles stops everyone while it moves; a table per shard that grows by a quarter
//! stops fewer for less. This one grows by one chain at a time (linear hashing, Litwin 1980). With
//! `n` chains, `2^k <= n < 2^(k+1)`, a key's home is its hash modulo `2^(k+1)`, or modulo `2^k` where
//! that is not below `n`. So chain `n` takes over about half of chain `n - 2^k` and of no other, which
//! is one step under two locks: some ten states move, a microsecond. Whoever adds a key takes the
//! next step if there are too many keys for the chains; nothing is ever copied as a whole.
//!
//! A call finds its key without a lock and changes it with one compare-and-swap
//! ([`Table::decide_in_place`]). Whatever that cannot do takes the slow path: lock the chains of all
//! keys in ascending order, load states, decide, store them.

use std::hash::Hash;
use std::hint::select_unpredictable;
use std::time::Duration;

use quell_core::charge::{KeylessCharge, Operation};
use quell_core::limit::{Limit, LimitId};
use quell_core::packed::{PackedDecision, PreparedCharge};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now};
use smallvec::SmallVec;

use super::arena::Arena;
use super::boxes::Boxes;
use super::chain::{Chain, Spare};
use super::fingerprint::{Fingerprint, HashKey};
use super::line::{Content, Line, Slot, Sought};
use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

mod load;
mod upkeep;

pub(crate) use load::{LoadKey, LoadedState};

/// Chains of an empty table, and the number of parts in which it is swept and exported: a key's home
/// modulo this never changes.
const PARTS: usize = if cfg!(test) { 1 } else { 512 };

/// Keys at most: as many as there are lines for.
const MOST_KEYS: usize = 1 << 28;

/// Tries to decide without a lock while others write to the same line.
const TRIES: usize = if cfg!(test) { 2 } else { 64 };

/// Spills behind a line that are looked at without a lock.
const DEPTH: usize = 16;

/// How far before the first call packed states can reach: a clock may go back by this much before
/// states of then take the slow path.
const BEFORE: Duration = Duration::from_hours(24);

/// No call yet.
const NEVER: u64 = u64::MAX;

/// All states.
#[derive(Debug)]
pub(crate) struct Table {
    lines: Arena<Line>,
    /// How many chains there are: an [`Extent`].
    extent: AtomicU64,
    /// From where packed states count.
    origin: AtomicU64,
    key: HashKey,
    max_keys: usize,
    spare: Spare,
    boxes: Boxes,
    counts: Counts,
    /// Held by whoever makes a chain; what moves.
    moving: Mutex<Vec<Content>>,
}

/// What changes with the number of keys; apart from what every call reads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    keys: AtomicUsize,
    overflow: AtomicUsize,
    /// The chain that is swept next.
    hand: AtomicUsize,
}

/// A key's fingerprint, and its cache line, which is being prefetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchedKey<'t> {
    line: Option<&'t Line>,
    pub(crate) fingerprint: Fingerprint,
}

/// Knows what the table does not: limits.
pub(crate) trait Keeper {
    /// Shows a limit by its name; `None` if it is gone, and all state under it.
    fn with_limit<R>(&self, id: LimitId, act: impl FnOnce(Option<&Limit>) -> R) -> R;

    /// Whether nothing would be lost with this state.
    fn may_drop(&self, state: &State) -> bool;

    /// Tells keys apart that are in one scope but under different limits: on one overflow state,
    /// each change from one limit to the other would cut what was used to the smaller one. The same
    /// after a restart, which finds overflow states in a snapshot.
    fn group(&self, limit: LimitId) -> u64;
}

/// Chains under their locks, by number.
#[derive(Debug)]
pub(crate) struct Chains<'t>(SmallVec<[(usize, Chain<'t>); 2]>);

impl<'t> Chains<'t> {
    fn get(&mut self, index: usize) -> Option<&mut Chain<'t>> {
        let place = self.0.binary_search_by_key(&index, |(index, _)| *index);
        self.0.get_mut(place.ok()?).map(|(_, chain)| chain)
    }
}

/// How many chains there are, and the mask that follows from it: every call needs both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent(u64);

impl Extent {
    #[inline]
    const fn new(chains: usize) -> Self {
        // Ones, as many as the largest chain's number has digits; not 0, of which there are too many.
        let mask = u64::MAX >> ((chains as u64 - 1) | 1).leading_zeros();
        Self(mask << 32 | chains as u64)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    const fn chains(self) -> usize {
        self.0 as u32 as usize
    }

    /// The home of a key, by the upper half of its fingerprint.
    #[inline]
    fn home(self, high: u64) -> usize {
        let mask = self.0 >> 32;
        let wide = (high & mask) as usize;
        let narrow = (high & mask >> 1) as usize;
        // Which of the two it is cannot be foreseen.
        select_unpredictable(wide < self.chains(), wide, narrow)
    }
}

impl Table {
    pub(crate) fn new(max_keys: usize, key: HashKey) -> Self {
        let lines = Arena::default();
        lines.make(PARTS - 1);
        Self {
            lines,
            extent: AtomicU64::new(Extent::new(PARTS).0),
            origin: AtomicU64::new(NEVER),
            key,
            max_keys: max_keys.clamp(1, MOST_KEYS),
            spare: Spare::default(),
            boxes: Boxes::default(),
            counts: Counts::default(),
            moving: Mutex::default(),
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.counts.keys.load(Ordering::Relaxed)
    }

    pub(crate) const fn max_keys(&self) -> usize {
        self.max_keys
    }

    pub(super) fn overflow_states(&self) -> usize {
        self.counts.overflow.load(Ordering::Relaxed)
    }

    pub(crate) const fn hash_key(&self) -> HashKey {
        self.key
    }

    /// Parts in which the table is swept and exported; a key stays in its part.
    pub(super) const fn parts(&self) -> usize {
        PARTS
    }

    /// How many chains there are.
    #[cfg(test)]
    pub(super) fn chains(&self) -> usize {
        self.extent().chains()
    }

    #[inline]
    fn extent(&self) -> Extent {
        Extent(self.extent.load(Ordering::Acquire))
    }

    /// From where packed states count: a day before the first call.
    fn origin(&self, now: Now) -> Monotonic {
        let origin = self.origin.load(Ordering::Relaxed);
        if origin != NEVER {
            return Monotonic::from_nanos(origin);
        }
        let first = now.monotonic.saturating_sub(BEFORE).as_nanos();
        let set = self
            .origin
            .compare_exchange(NEVER, first, Ordering::Relaxed, Ordering::Relaxed);
        Monotonic::from_nanos(set.err().unwrap_or(first))
    }

    /// Says who a key is and asks for its line; the lower half of the fingerprint is worked out while
    /// that is on its way.
    ///
    /// Never inlined, so that this is the only caller of `K::hash`, and all of that is inlined here.
    #[inline(never)]
    pub(crate) fn prefetch<K: Hash + ?Sized>(&self, key: &K) -> PrefetchedKey<'_> {
        let half = self.key.half_of(key);
        let line = self.lines.get(self.extent().home(half.high));
        if let Some(line) = line {
            line.fetch();
        }
        PrefetchedKey {
            line,
            fingerprint: half.whole(),
        }
    }

    /// Decides a charge on the word where it lies; `None` if that takes the slow path: the key is new
    /// or was charged under another limit, or the limit is no simple bucket.
    ///
    /// A charge is one compare-and-swap on the key's own line, a refusal writes nothing. What can be
    /// worked out without the line is, while that is on its way. `now` is read anew for each try. Others
    /// may write to the line after that, at later instants: a use that then ends later than it can at
    /// `now` takes the slow path.
    #[inline]
    pub(crate) fn decide_in_place<'l>(
        &self,
        key: &PrefetchedKey<'_>,
        charge: &KeylessCharge<'l>,
        operation: Operation,
        now: impl Fn() -> Monotonic,
    ) -> Option<PackedDecision<'l>> {
        let line = key.line?;
        let sought = Sought::new(key.fingerprint, charge.active.id);
        for _ in 0..TRIES {
            // Where a word is, the origin is set.
            let origin = Monotonic::from_nanos(self.origin.load(Ordering::Relaxed));
            let prepared = PreparedCharge::new(now(), charge, origin)?;
            let Some(glance) = line.glance() else {
                std::hint::spin_loop();
                continue;
            };
            let (slot, word) = self.seek(line, glance.link(), sought)?;
            let decided = prepared.decide(operation, word)?;
            let stands = match decided.word {
                None => glance.still_stands(),
                Some(word) => glance.replace(slot, word),
            };
            if stands {
                return Some(decided);
            }
        }
        None
    }

    /// Looks for a state without a lock; what comes of it holds if the glance still stands after.
    #[inline]
    fn seek<'t>(
        &'t self,
        line: &'t Line,
        link: Option<usize>,
        sought: Sought,
    ) -> Option<(&'t Slot, u64)> {
        line.seek(sought)
            .or_else(|| self.seek_behind(link?, sought))
    }

    fn seek_behind(&self, mut link: usize, sought: Sought) -> Option<(&Slot, u64)> {
        for _ in 0..DEPTH {
            let spill = self.spare.get(link)?;
            let found = spill.seek(sought);
            if found.is_some() {
                return found;
            }
            link = spill.next()?;
        }
        None
    }

    /// Locks the chains of all fingerprints in ascending order, so that two sets cannot wait for
    /// each other.
    fn lock(&self, fingerprints: impl IntoIterator<Item = Fingerprint>) -> Chains<'_> {
        let all: SmallVec<[Fingerprint; 2]> = fingerprints.into_iter().collect();
        loop {
            let extent = self.extent();
            let homes = all.iter().map(|fingerprint| extent.home(fingerprint.high));
            let mut homes: SmallVec<[usize; 2]> = homes.collect();
            homes.sort_unstable();
            homes.dedup();
            let lock = |index: usize| self.chain(index).map(|chain| (index, chain));
            let chains = Chains(homes.iter().copied().filter_map(lock).collect());
            // A chain that was made meanwhile may have taken over one of the keys. From here on none
            // can: it would have to lock where they are.
            let now = self.extent();
            let is_locked = |fingerprint: &Fingerprint| {
                extent == now || homes.binary_search(&now.home(fingerprint.high)).is_ok()
            };
            if all.iter().all(is_locked) {
                return chains;
            }
        }
    }

    fn chain(&self, index: usize) -> Option<Chain<'_>> {
        let line = self.lines.get(index)?;
        Some(Chain::new(line.lock(), &self.spare))
    }

    fn find<'t>(&self, chains: &mut Chains<'t>, fingerprint: Fingerprint) -> Option<&'t Slot> {
        let chain = chains.get(self.extent().home(fingerprint.high))?;
        chain.find(fingerprint)
    }

    fn is_full(&self) -> bool {
        self.keys() >= self.max_keys
    }

    /// Whether new keys have to look at overflow states.
    fn is_crowded(&self) -> bool {
        self.is_full() || self.overflow_states() > 0
    }

    fn counter(&self, is_overflow: bool) -> &AtomicUsize {
        if is_overflow {
            &self.counts.overflow
        } else {
            &self.counts.keys
        }
    }
}
