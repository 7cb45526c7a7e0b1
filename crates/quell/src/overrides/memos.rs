//! Memos: what the overrides say of a key, noted beside its state in memory.
//!
//! A decision reads the state of its key in any case. The overrides of a million keys are many megabytes, so what a
//! look-up waits for is their memory. It therefore leaves a memo with the state: that nothing is stored for the key, or
//! that the numbers stored for it are those of the state's limit. The next look-up reads the memo, and of the overrides
//! nothing at all.
//!
//! A memo is true of the overrides in force as long as it is there:
//! 1. A change begins with a number of its own ([`StateTable::begin_change`]). Then it drops the memos of the keys that
//!    it changes, and after that it comes into force.
//! 2. A look-up finds the slot, looks the key up, and writes its memo only if the last change is that of its own
//!    overrides, and nothing was written to the slot's chain since. If the key's memo was dropped before the slot was
//!    found, the look-up sees the number of that change; if it was dropped after, the chain was written to.
//! 3. A state that goes to another limit loses its memo.
//!
//! Under other rules all that is stored may mean something else, so a change of the rules drops all memos.

use std::array;
use std::sync::Arc;

use quell_core::charge::KeyHash;
use quell_core::limit::LimitId;

use super::Stored;
use super::key_table::TableKey;
use crate::store::memory::{FoundSlot, PrefetchedKey, StateTable};

/// The memo of a key for which nothing is stored.
const NOTHING: u8 = 1;
/// The memo of a key for which the numbers of its state's limit are stored.
const NUMBERS: u8 = 2;

/// Places of limits, in so many parts of which a change copies one.
const PLACES: usize = 4_096;
const PARTS: usize = 64;

/// The memos of the keys of one store, as the overrides of one change know them.
#[derive(Clone)]
pub(super) struct Memos {
    states: StateTable,
    /// The number of the change.
    change: u64,
    numbers: NumbersByLimit,
}

/// Numbers by their limits: one for each place, which its limit's id chooses.
#[derive(Clone)]
struct NumbersByLimit(Arc<[Arc<Part>; PARTS]>);

type Part = [Option<(LimitId, Arc<Stored>)>; PLACES / PARTS];

/// The content of a memo.
pub(super) enum Recalled<'a> {
    /// Nothing is stored for the key.
    Nothing,
    /// These numbers are.
    Numbers(&'a Stored),
}

impl Memos {
    /// Memos beside these states, unless others have theirs there.
    pub(super) fn new(states: &StateTable) -> Option<Self> {
        states.claim_memos().then(|| Self {
            states: states.clone(),
            change: states.last_change(),
            numbers: NumbersByLimit::new(),
        })
    }

    /// Begins a change of single keys.
    pub(super) fn begin_change(&mut self) {
        self.change = self.states.begin_change();
    }

    /// Begins a change of the rules, with these numbers.
    pub(super) fn begin_rules<'s>(&mut self, numbers: impl Iterator<Item = &'s Arc<Stored>>) {
        self.begin_change();
        self.states.drop_memos();
        self.numbers = NumbersByLimit::new();
        numbers.for_each(|stored| self.numbers.add(stored));
    }

    /// Drops the memo of a key that a change concerns.
    pub(super) fn drop_memo(&self, key: TableKey) {
        self.states.drop_memo(key.high());
    }

    /// Adds numbers that keys may have from now on.
    pub(super) fn add(&mut self, stored: &Arc<Stored>) {
        self.numbers.add(stored);
    }

    /// Removes numbers that no key has any more.
    pub(super) fn remove(&mut self, stored: &Arc<Stored>) {
        self.numbers.remove(stored);
    }

    /// Hashes a key, and begins to fetch its state.
    #[inline]
    pub(super) fn prefetch(&self, key: &[u8]) -> PrefetchedKey<'_> {
        self.states.prefetch(key)
    }

    /// The hash of a key for the store of its state.
    #[inline]
    pub(super) fn hash(&self, key: &PrefetchedKey<'_>) -> KeyHash {
        self.states.key_hash(key)
    }

    /// The slot of a key; `None` if it has no state.
    #[inline]
    pub(super) fn find<'t>(&'t self, key: &PrefetchedKey<'t>) -> Option<FoundSlot<'t>> {
        self.states.find(key)
    }

    /// The memo of the key with this slot; `None` if it has none.
    #[inline]
    pub(super) fn recall(&self, found: &FoundSlot<'_>) -> Option<Recalled<'_>> {
        match found.memo() {
            NOTHING => Some(Recalled::Nothing),
            NUMBERS => self
                .numbers
                .get(found.limit())
                .map(|it| Recalled::Numbers(it)),
            _ => None,
        }
    }

    /// Notes with the slot of a key what was looked up after the slot was found.
    #[cold]
    pub(super) fn note(&self, found: FoundSlot<'_>, stored: Option<&Arc<Stored>>) {
        let is_limit = |stored: &Arc<Stored>| {
            let known = self.numbers.get(found.limit());
            known.is_some_and(|known| Arc::ptr_eq(known, stored))
        };
        if stored.is_none_or(is_limit) && self.states.last_change() == self.change {
            found.write_memo(if stored.is_some() { NUMBERS } else { NOTHING });
        }
    }
}

impl NumbersByLimit {
    fn new() -> Self {
        let part: Arc<Part> = Arc::new(array::from_fn(|_| None));
        Self(Arc::new(array::from_fn(|_| Arc::clone(&part))))
    }

    /// The part of a limit, and its place there.
    fn place(limit: LimitId) -> (usize, usize) {
        let place = limit.0 as usize % PLACES;
        (place / PARTS, place % PARTS)
    }

    #[inline]
    fn get(&self, limit: LimitId) -> Option<&Arc<Stored>> {
        let (part, place) = Self::place(limit);
        let (own, stored) = self.0.get(part)?.get(place)?.as_ref()?;
        (*own == limit).then_some(stored)
    }

    /// Adds numbers, unless their place is taken: what is there has memos.
    fn add(&mut self, stored: &Arc<Stored>) {
        let Some(limit) = stored.limit() else {
            return;
        };
        if let Some(place @ None) = self.get_mut(limit) {
            *place = Some((limit, Arc::clone(stored)));
        }
    }

    fn remove(&mut self, stored: &Arc<Stored>) {
        let limit = stored.limit();
        let is_there = |it: &Arc<Stored>| Arc::ptr_eq(it, stored);
        if let Some(limit) = limit
            && self.get(limit).is_some_and(is_there)
            && let Some(place) = self.get_mut(limit)
        {
            *place = None;
        }
    }

    fn get_mut(&mut self, limit: LimitId) -> Option<&mut Option<(LimitId, Arc<Stored>)>> {
        let (part, place) = Self::place(limit);
        let part = Arc::make_mut(&mut self.0).get_mut(part)?;
        Arc::make_mut(part).get_mut(place)
    }
}
