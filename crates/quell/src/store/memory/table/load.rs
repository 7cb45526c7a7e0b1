//! Load: takes states out of the table, under the locks of their chains, and stores them back.

use quell_core::charge::Operation;
use quell_core::limit::LimitId;
use quell_core::state::State;
use quell_core::time::Now;
use quell_core::usage::Usage;
use smallvec::SmallVec;

use super::{Chains, Extent, Keeper, PARTS, Table};
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::line::{Content, InSlot, Slot};
use crate::store::memory::sync::Ordering;

/// Chains that are checked before a key gets an overflow state.
const LOOK_WHEN_FULL: usize = 8;

/// A key in the form in which the table uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadKey<'a> {
    /// Identifies the key.
    pub(crate) fingerprint: Fingerprint,
    /// The scope within which it may share an overflow state with other keys.
    pub(crate) scope: &'a [u8],
    /// The limit that it is charged under.
    pub(crate) limit: LimitId,
}

/// A key with the overflow state that it may have to share.
#[derive(Clone, Copy, Debug)]
struct LookupKey {
    key: Fingerprint,
    limit: LimitId,
    overflow: Option<Fingerprint>,
}

impl LookupKey {
    fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> + use<> {
        [Some(self.key), self.overflow].into_iter().flatten()
    }
}

/// A state during a decision.
#[derive(Debug)]
pub(crate) struct LoadedState<'t> {
    /// The state; to be changed in place.
    pub(crate) state: State,
    /// The fingerprint under which it is stored: the key's own, or that of an overflow state.
    pub(in crate::store::memory) fingerprint: Fingerprint,
    slot: Option<&'t Slot>,
    is_overflow: bool,
}

impl LoadedState<'_> {
    /// A state that is not in the table yet, to be stored under the key's own fingerprint.
    const fn new(state: State, fingerprint: Fingerprint) -> Self {
        Self {
            state,
            fingerprint,
            slot: None,
            is_overflow: false,
        }
    }

    /// Returns true for an overflow state, which several keys share.
    pub(in crate::store::memory) const fn is_overflow(&self) -> bool {
        self.is_overflow
    }
}

impl Table {
    /// Loads the states of some keys under the locks of their chains: their own, or what new keys
    /// start with. States in boxes are copied.
    pub(crate) fn load_all(
        &self,
        keys: &[LoadKey<'_>],
        operation: Operation,
        now: Now,
        keeper: &impl Keeper,
    ) -> (Chains<'_>, Vec<LoadedState<'_>>) {
        loop {
            let wanted = keys
                .iter()
                .map(|key| self.want(key, operation, now, keeper));
            let wanted: SmallVec<[LookupKey; 2]> = wanted.collect();
            let mut chains = self.lock(wanted.iter().flat_map(LookupKey::fingerprints));
            let held = wanted.iter();
            let held = held.map(|wanted| self.take(&mut chains, wanted, false, now, keeper));
            if let Some(held) = held.collect() {
                return (chains, held);
            }
        }
    }

    /// [`Table::load_all`] of one key. Unless it is only asked about, [`Table::put_back`] must follow,
    /// since its state may have been moved out of a box.
    pub(crate) fn load(
        &self,
        key: &LoadKey<'_>,
        operation: Operation,
        now: Now,
        keeper: &impl Keeper,
    ) -> (Chains<'_>, LoadedState<'_>) {
        let is_moved = operation == Operation::Acquire;
        loop {
            let wanted = self.want(key, operation, now, keeper);
            let mut chains = self.lock(wanted.fingerprints());
            if let Some(held) = self.take(&mut chains, &wanted, is_moved, now, keeper) {
                return (chains, held);
            }
        }
    }

    /// Copies of states that are there, under the locks of all chains that they could be in: of each
    /// group of fingerprints the first that has one. [`Table::store`] writes one back.
    pub(in crate::store::memory) fn load_known<const N: usize>(
        &self,
        groups: &[[Fingerprint; N]],
        now: Now,
        keeper: &impl Keeper,
    ) -> (Chains<'_>, Vec<Option<LoadedState<'_>>>) {
        let mut chains = self.lock(groups.iter().flatten().copied());
        let held = groups.iter().map(|group| {
            let mut found = group.iter().filter_map(|fingerprint| {
                let slot = self.find(&mut chains, *fingerprint)?;
                Some(LoadedState {
                    state: self.read(slot, false, now, keeper)?,
                    fingerprint: *fingerprint,
                    slot: Some(slot),
                    is_overflow: slot.get().is_some_and(|content| content.is_shared),
                })
            });
            found.next()
        });
        let held = held.collect();
        (chains, held)
    }

    fn want(
        &self,
        key: &LoadKey<'_>,
        operation: Operation,
        now: Now,
        keeper: &impl Keeper,
    ) -> LookupKey {
        let mut wanted = LookupKey {
            key: key.fingerprint,
            limit: key.limit,
            overflow: None,
        };
        if self.is_crowded() {
            if operation == Operation::Acquire && self.is_full() && !self.contains(wanted.key) {
                self.sweep_some(LOOK_WHEN_FULL, now, keeper);
            }
            wanted.overflow = Some(self.overflow_of(key, keeper.group(key.limit)));
        }
        wanted
    }

    fn contains(&self, fingerprint: Fingerprint) -> bool {
        let mut chains = self.lock([fingerprint]);
        self.find(&mut chains, fingerprint).is_some()
    }

    /// The overflow state of a key: one per scope, group and part. Rules' scopes begin with a byte
    /// that is never 0, so no key can have this fingerprint but by chance.
    fn overflow_of(&self, key: &LoadKey<'_>, group: u64) -> Fingerprint {
        let part = Extent::new(PARTS).home(key.fingerprint.high);
        self.key.half_of(&(0_u8, key.scope, group, part)).whole()
    }

    /// Runs `act` on a copy of the state of one key; it cannot change meanwhile.
    pub(in crate::store::memory) fn with_state<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now,
        keeper: &impl Keeper,
        act: impl FnOnce(Option<State>) -> R,
    ) -> R {
        let mut chains = self.lock([fingerprint]);
        let slot = self.find(&mut chains, fingerprint);
        act(slot.and_then(|slot| self.read(slot, false, now, keeper)))
    }

    /// Adds a state from a snapshot.
    pub(in crate::store::memory) fn import(
        &self,
        fingerprint: Fingerprint,
        state: State,
        is_overflow: bool,
        now: Now,
        keeper: &impl Keeper,
    ) {
        let mut chains = self.lock([fingerprint]);
        let slot = self.find(&mut chains, fingerprint);
        let held = LoadedState {
            state,
            fingerprint,
            slot,
            is_overflow,
        };
        self.put_back(chains, held, now, keeper);
    }

    /// Takes one state; `None` if its chain became crowded since its place was determined.
    fn take<'t>(
        &self,
        chains: &mut Chains<'t>,
        wanted: &LookupKey,
        is_moved: bool,
        now: Now,
        keeper: &impl Keeper,
    ) -> Option<LoadedState<'t>> {
        let rest = || State::rest(wanted.limit);
        if let Some(slot) = self.find(chains, wanted.key) {
            let state = self.read(slot, is_moved, now, keeper);
            return Some(LoadedState {
                state: state.unwrap_or_else(rest),
                fingerprint: wanted.key,
                slot: Some(slot),
                is_overflow: slot.get().is_some_and(|content| content.is_shared),
            });
        }
        let Some(overflow) = wanted.overflow else {
            return (!self.is_crowded()).then(|| LoadedState::new(rest(), wanted.key));
        };
        let slot = self.find(chains, overflow);
        let is_full = self.is_full();
        let is_moved = is_moved && is_full;
        let state = slot.and_then(|slot| self.read(slot, is_moved, now, keeper));
        let state = state.unwrap_or_else(rest);
        if !is_full {
            return Some(LoadedState::new(state, wanted.key));
        }
        Some(LoadedState {
            state,
            fingerprint: overflow,
            slot,
            is_overflow: true,
        })
    }

    /// The state in a slot; `None` if its limit is gone.
    pub(super) fn read(
        &self,
        slot: &Slot,
        is_moved: bool,
        now: Now,
        keeper: &impl Keeper,
    ) -> Option<State> {
        let content = slot.get()?;
        let limit = content.limit;
        match content.held {
            InSlot::Packed(word) => keeper.with_limit(limit, |known| {
                let usage = known?.unpack(word, self.origin(now));
                Some(State {
                    usage,
                    ..State::rest(limit)
                })
            }),
            InSlot::Boxed(number) => self.boxes.with(number, |state| {
                if is_moved {
                    std::mem::replace(state, State::rest(limit))
                } else {
                    state.clone()
                }
            }),
        }
    }

    /// Writes back the one state that was loaded, under its lock; then makes room if it is new.
    pub(crate) fn put_back(
        &self,
        mut chains: Chains<'_>,
        held: LoadedState<'_>,
        now: Now,
        keeper: &impl Keeper,
    ) {
        let is_added = self.store(&mut chains, held, now, keeper);
        drop(chains);
        if is_added {
            self.make_way(now, keeper);
        }
    }

    /// Writes back loaded states. Returns whether one of them is new.
    pub(crate) fn store(
        &self,
        chains: &mut Chains<'_>,
        held: LoadedState<'_>,
        now: Now,
        keeper: &impl Keeper,
    ) -> bool {
        let before = held.slot.and_then(Slot::get);
        let is_rest = matches!(held.state.usage, Usage::Rest) && held.state.is_usage_alone();
        let in_box = match before {
            Some(Content {
                held: InSlot::Boxed(number),
                ..
            }) => Some(number),
            _ => None,
        };
        let Some(chain) = chains.get(self.extent().home(held.fingerprint.high)) else {
            return false;
        };
        if is_rest {
            if let Some(slot) = held.slot {
                self.remove(slot);
                chain.trim();
            }
            return false;
        }
        let limit = held.state.limit;
        let same = before.filter(|before| before.limit == limit);
        let memo = same.map(|before| before.memo);
        let word = keeper.with_limit(limit, |known| known?.pack(&held.state, self.origin(now)));
        let content = Content {
            fingerprint: held.fingerprint,
            limit,
            held: match (word, in_box) {
                (Some(word), _) => {
                    if let Some(number) = in_box {
                        self.boxes.release(number);
                    }
                    InSlot::Packed(word)
                }
                (None, Some(number)) => {
                    self.boxes.with(number, |state| *state = held.state);
                    InSlot::Boxed(number)
                }
                (None, None) => InSlot::Boxed(self.boxes.keep(held.fingerprint.low, held.state)),
            },
            is_shared: held.is_overflow,
            memo: memo.unwrap_or(0),
        };
        if let Some(slot) = held.slot {
            slot.set(Some(&content));
            return false;
        }
        let is_added = chain.insert(&content);
        if is_added {
            let counter = self.counter(held.is_overflow);
            counter.fetch_add(1, Ordering::Relaxed);
        }
        is_added
    }

    pub(super) fn remove(&self, slot: &Slot) {
        let Some(content) = slot.get() else {
            return;
        };
        if let InSlot::Boxed(number) = content.held {
            self.boxes.release(number);
        }
        slot.set(None);
        let counter = self.counter(content.is_shared);
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}
