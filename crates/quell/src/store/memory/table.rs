//! Table: a hash table of chained cache lines, with a bound on its keys.
//!
//! A table that doubles stops all calls while it moves. Sharded tables that grow by a quarter stop fewer
//! calls for a shorter time. This table grows by one chain at a time (linear hashing, Litwin 1980).
//!
//! Let there be `n` chains, with `2^k <= n < 2^(k+1)`. A key's home is its hash modulo `2^(k+1)` if that
//! is below `n`, and its hash modulo `2^k` otherwise. So a new chain `n` takes about half the keys of
//! chain `n - 2^k`, and none of any other. That is one step under two locks, which moves some ten states
//! in a microsecond. A call that adds a key takes the next step if there are too many keys for the
//! chains. Nothing ever copies the whole table.
//!
//! The fast path finds a key without a lock and changes it with one compare-and-swap
//! ([`Table::decide_in_place`]). Everything else takes the slow path: lock the chains of all keys in
//! ascending order, load their states, decide, store them.

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
use super::line::{Content, FoundSlot, Line, PackedKey, Slot};
use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

mod load;
mod upkeep;

pub(crate) use load::{LoadKey, LoadedState};

/// Chains of an empty table. Also the number of parts in which the table is swept and exported: the
/// remainder of a key's home by this number never changes, so a key stays in its part.
const PARTS: usize = if cfg!(test) { 1 } else { 512 };

/// The largest `max_keys`: one key for each line that there can be.
const MAX_KEYS: usize = 1 << 28;

/// Number of attempts on the fast path while others write to the same line.
const TRIES: usize = if cfg!(test) { 2 } else { 64 };

/// Number of spill blocks of a chain that the fast path visits.
const DEPTH: usize = 16;

/// Packed states can represent instants down to this long before the first call. If the clock goes back
/// further, states take the slow path.
const BEFORE: Duration = Duration::from_hours(24);

/// The origin before the first call.
const NEVER: u64 = u64::MAX;

/// The states of all keys.
#[derive(Debug)]
pub(crate) struct Table {
    lines: Arena<Line>,
    /// Number of chains: an [`Extent`].
    extent: AtomicU64,
    /// The instant from which packed states count time; [`NEVER`] before the first call.
    origin: AtomicU64,
    key: HashKey,
    owner: u32,
    max_keys: usize,
    spare: Spare,
    boxes: Boxes,
    counts: KeyCounters,
    /// Locked while a chain is added; holds the states that move.
    moving: Mutex<Vec<Content>>,
}

/// Counters that change as keys come and go. On cache lines of their own, since every call reads the
/// fields beside them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct KeyCounters {
    keys: AtomicUsize,
    overflow: AtomicUsize,
    /// The chain to sweep next.
    hand: AtomicUsize,
}

/// A key's fingerprint, and its cache line, which is being prefetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchedKey<'t> {
    line: Option<&'t Line>,
    pub(crate) fingerprint: Fingerprint,
}

/// Limits as the table needs them; it does not store them.
pub(crate) trait Keeper {
    /// Passes the limit with this id to `act`; `None` if the limit is gone, and with it all states under
    /// it.
    fn with_limit<R>(&self, id: LimitId, act: impl FnOnce(Option<&Limit>) -> R) -> R;

    /// Returns true if dropping this state would lose nothing.
    fn may_drop(&self, state: &State) -> bool;

    /// A number that separates keys of one scope that are under different limits. If they shared an
    /// overflow state, each change from one limit to the other would cut the use to the smaller limit.
    /// The number must be the same after a restart, because snapshots have overflow states.
    fn group(&self, limit: LimitId) -> u64;
}

/// Locked chains, sorted by index.
#[derive(Debug)]
pub(crate) struct Chains<'t>(SmallVec<[(usize, Chain<'t>); 2]>);

impl<'t> Chains<'t> {
    fn get(&mut self, index: usize) -> Option<&mut Chain<'t>> {
        let place = self.0.binary_search_by_key(&index, |(index, _)| *index);
        self.0.get_mut(place.ok()?).map(|(_, chain)| chain)
    }
}

/// The number of chains, and the hash mask that follows from it, in one word: every call reads both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent(u64);

impl Extent {
    #[inline]
    const fn new(chains: usize) -> Self {
        // A one for each binary digit of the largest index. `| 1`, because `leading_zeros` of 0 is 64,
        // and a shift by 64 overflows.
        let mask = u64::MAX >> ((chains as u64 - 1) | 1).leading_zeros();
        Self(mask << 32 | chains as u64)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    const fn chains(self) -> usize {
        self.0 as u32 as usize
    }

    /// The index of a key's chain, by the upper half of its fingerprint.
    #[inline]
    fn home(self, high: u64) -> usize {
        let mask = self.0 >> 32;
        let wide = (high & mask) as usize;
        let narrow = (high & mask >> 1) as usize;
        // The branch predictor could not foresee this, so no branch.
        select_unpredictable(wide < self.chains(), wide, narrow)
    }
}

/// A number that no other table of this process has.
fn next_owner() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
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
            owner: next_owner(),
            max_keys: max_keys.clamp(1, MAX_KEYS),
            spare: Spare::default(),
            boxes: Boxes::default(),
            counts: KeyCounters::default(),
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

    /// The number of parts in which the table is swept and exported. A key stays in its part.
    pub(super) const fn parts(&self) -> usize {
        PARTS
    }

    #[cfg(test)]
    pub(super) fn chains(&self) -> usize {
        self.extent().chains()
    }

    #[inline]
    fn extent(&self) -> Extent {
        Extent(self.extent.load(Ordering::Acquire))
    }

    /// The instant from which packed states count time: a day before the first call.
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

    /// Hashes the key and prefetches its cache line. The lower half of the fingerprint is computed while
    /// the line arrives.
    ///
    /// Never inlined, so that `K::hash` has this one caller and is inlined into it.
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

    /// Prefetches the cache line of a key that is hashed already.
    #[inline]
    pub(crate) fn prefetch_hashed(&self, fingerprint: Fingerprint) -> PrefetchedKey<'_> {
        let line = self.lines.get(self.extent().home(fingerprint.high));
        if let Some(line) = line {
            line.fetch();
        }
        PrefetchedKey { line, fingerprint }
    }

    /// The table's number in this process.
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Decides a charge on the key's packed word, without a lock. `None` if the slow path has to: the
    /// key is new or was charged under another limit, or the limit is no simple bucket.
    ///
    /// A charge is one compare-and-swap on the key's own line; a refusal writes nothing. Everything that
    /// needs no state is computed while the line arrives. Each try reads `now` again. Between that and
    /// the swap other threads may charge at later instants. If the word has more use than is possible at
    /// `now`, the slow path decides.
    #[inline]
    pub(crate) fn decide_in_place<'l>(
        &self,
        key: &PrefetchedKey<'_>,
        charge: &KeylessCharge<'l>,
        operation: Operation,
        now: impl Fn() -> Monotonic,
    ) -> Option<PackedDecision<'l>> {
        let line = key.line?;
        let sought = PackedKey::new(key.fingerprint, charge.active.id);
        for _ in 0..TRIES {
            // If a packed word is found, the origin was set before.
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

    /// Looks for a state without a lock. The result is valid only if the glance is still current
    /// afterwards.
    #[inline]
    fn seek<'t>(
        &'t self,
        line: &'t Line,
        link: Option<usize>,
        sought: PackedKey,
    ) -> Option<(&'t Slot, u64)> {
        line.seek(sought)
            .or_else(|| self.seek_behind(link?, sought))
    }

    fn seek_behind(&self, mut link: usize, sought: PackedKey) -> Option<(&Slot, u64)> {
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

    /// Finds the slot of a key without a lock; `None` if there is none, or while others write to its line.
    #[inline]
    pub(crate) fn find_slot<'t>(&'t self, key: &PrefetchedKey<'t>) -> Option<FoundSlot<'t>> {
        let (line, key) = (key.line?, key.fingerprint);
        let glance = line.glance()?;
        let link = glance.link();
        let slot = line.find(key).or_else(|| self.find_behind(link?, key))?;
        FoundSlot::read(glance, slot)
    }

    fn find_behind(&self, mut link: usize, key: Fingerprint) -> Option<&Slot> {
        for _ in 0..DEPTH {
            let spill = self.spare.get(link)?;
            let found = spill.find(key);
            if found.is_some() {
                return found;
            }
            link = spill.next()?;
        }
        None
    }

    /// Drops the memo of a key with this upper half of its fingerprint. Whoever found its slot before writes none.
    pub(crate) fn drop_memo(&self, high: u64) {
        let chains = self.lock([Fingerprint { high, low: 0 }]);
        for (_, chain) in &chains.0 {
            chain.slots().for_each(|slot| slot.drop_memo_of(high));
        }
    }

    /// Drops the memos of all keys. Whoever found a slot before writes none.
    pub(crate) fn drop_memos(&self) {
        // States may move meanwhile, but only to chains that come later.
        let mut index = 0;
        while index < self.extent().chains() {
            if let Some(chain) = self.chain(index) {
                chain.slots().for_each(Slot::drop_memo);
            }
            index += 1;
        }
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
            // A chain that was added before the locks were taken may have got one of the keys. From here
            // on none can: adding one needs a lock that is held here.
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

    /// Returns true if a new key has to look at the overflow states first.
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
