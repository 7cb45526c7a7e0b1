//! Table: shards under locks, and the bound on how many keys there are.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use quell_core::state::State;

use super::fingerprint::{Fingerprint, HashKey};
use super::shard::{Shard, Written};

/// Shards: enough that growing one at 10 million keys moves 20,000 slots, well below a millisecond.
const SHARDS: usize = 512;

/// Slots looked at for a state at rest whenever a key is added.
const LOOK_PER_KEY: usize = 4;

/// Slots looked at under one lock by a sweep: a few microseconds.
const SWEEP_STEP: usize = 256;

/// Slots looked at before a key is sent to an overflow state.
const LOOK_WHEN_FULL: usize = 32;

/// All states.
#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    key: HashKey,
    max_keys: usize,
    keys: AtomicUsize,
    overflow: AtomicUsize,
}

/// A state on its way through a decision.
#[derive(Debug)]
pub(crate) struct Held {
    /// The state; to be changed in place.
    pub(crate) state: State,
    /// Under which it is stored: the key's own, or that of an overflow state.
    pub(super) fingerprint: Fingerprint,
    /// Where it was; another state's coming or going may have moved it since.
    place: Option<usize>,
    overflow: bool,
}

impl Held {
    /// Whether it is an overflow state, which several keys share.
    pub(super) const fn is_overflow(&self) -> bool {
        self.overflow
    }

    const fn new(state: State, fingerprint: Fingerprint, overflow: bool) -> Self {
        Self {
            state,
            fingerprint,
            place: None,
            overflow,
        }
    }
}

impl Table {
    pub(crate) fn new(max_keys: usize, key: HashKey) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            key,
            max_keys: max_keys.max(1),
            keys: AtomicUsize::new(0),
            overflow: AtomicUsize::new(0),
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(crate) const fn max_keys(&self) -> usize {
        self.max_keys
    }

    pub(super) fn overflow_states(&self) -> usize {
        self.overflow.load(Ordering::Relaxed)
    }

    pub(crate) const fn hash_key(&self) -> HashKey {
        self.key
    }

    pub(super) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn shard_of(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.low as usize % self.shards.len()
    }

    pub(super) fn lock_index(&self, index: usize) -> Option<MutexGuard<'_, Shard>> {
        self.shards.get(index).map(Mutex::lock)
    }

    pub(crate) fn lock(&self, fingerprint: Fingerprint) -> MutexGuard<'_, Shard> {
        self.shards[self.shard_of(fingerprint)].lock()
    }

    /// Loads the state of a key: its own, or what a new key starts with.
    ///
    /// With `copy` the stored state stays as it is; otherwise [`Table::store`] must follow.
    pub(crate) fn load(
        &self,
        shard: &mut Shard,
        key: LoadKey<'_>,
        rest: State,
        copy: bool,
        keeper: &impl Keeper,
    ) -> Held {
        if let Some(place) = shard.find(key.fingerprint) {
            let state = if copy {
                shard.read(place)
            } else {
                shard.take(place)
            };
            return Held {
                state,
                fingerprint: key.fingerprint,
                place: Some(place),
                overflow: shard.is_overflow(place),
            };
        }
        if !copy {
            self.sweep_shard(shard, LOOK_PER_KEY, |state| keeper.may_drop(state));
        }
        self.newcomer(shard, key, rest, copy, keeper)
    }

    fn newcomer(
        &self,
        shard: &mut Shard,
        key: LoadKey<'_>,
        rest: State,
        copy: bool,
        keeper: &impl Keeper,
    ) -> Held {
        if self.keys() >= self.max_keys && !copy {
            self.sweep_shard(shard, LOOK_WHEN_FULL, |state| keeper.may_drop(state));
        }
        let is_full = self.keys() >= self.max_keys;
        if !is_full && self.overflow_states() == 0 {
            return Held::new(rest, key.fingerprint, false);
        }
        let shared = self.overflow_of(key, keeper.group());
        let place = shard.find(shared);
        let state = place.map_or(rest, |place| shard.read(place));
        if is_full {
            Held {
                place,
                ..Held::new(state, shared, true)
            }
        } else {
            Held::new(state, key.fingerprint, false)
        }
    }

    /// The overflow state of a key: one per scope, group and shard. Rules' scopes begin with a byte
    /// that is never 0, so no key can have this fingerprint but by chance.
    fn overflow_of(&self, key: LoadKey<'_>, group: u32) -> Fingerprint {
        let shard = self.shard_of(key.fingerprint);
        let hashed = self.key.of(&(0_u8, key.scope, group, shard));
        Fingerprint {
            high: hashed.high,
            // Any number that leads to the same shard.
            low: u32::try_from(shard).unwrap_or(0),
        }
    }

    /// Takes out the state under a fingerprint, if there is one; [`Table::store`] must follow.
    pub(super) fn take(&self, shard: &mut Shard, fingerprint: Fingerprint) -> Option<Held> {
        let place = shard.find(fingerprint)?;
        let overflow = shard.is_overflow(place);
        Some(Held {
            place: Some(place),
            ..Held::new(shard.take(place), fingerprint, overflow)
        })
    }

    /// Writes back what was loaded.
    pub(crate) fn store(&self, shard: &mut Shard, held: Held) {
        let place = held
            .place
            .filter(|place| shard.holds(*place, held.fingerprint))
            .or_else(|| shard.find(held.fingerprint));
        match shard.put(place, held.fingerprint, held.state, held.overflow) {
            Written::Same => {}
            Written::Added => {
                self.counter(held.overflow).fetch_add(1, Ordering::Relaxed);
            }
            Written::Removed { overflow } => {
                self.counter(overflow).fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn counter(&self, overflow: bool) -> &AtomicUsize {
        if overflow { &self.overflow } else { &self.keys }
    }

    fn sweep_shard(
        &self,
        shard: &mut Shard,
        most: usize,
        may_drop: impl Fn(&State) -> bool,
    ) -> (usize, usize) {
        let (keys, overflow) = shard.sweep(most, may_drop);
        self.keys.fetch_sub(keys, Ordering::Relaxed);
        self.overflow.fetch_sub(overflow, Ordering::Relaxed);
        (keys, overflow)
    }

    /// Sweeps all of one shard, a step at a time; the lock is let go between steps.
    pub(super) fn sweep(&self, shard: usize, may_drop: impl Fn(&State) -> bool) -> usize {
        let shard = &self.shards[shard % self.shards.len()];
        let mut left = shard.lock().size();
        let mut gone = 0;
        while left > 0 {
            let step = left.min(SWEEP_STEP);
            let (keys, overflow) = self.sweep_shard(&mut shard.lock(), step, &may_drop);
            gone += keys;
            // What moved up into the place of a dropped state has not been looked at.
            left = left - step + keys + overflow;
        }
        gone
    }

    /// Copies of the states of one shard that `keep` says.
    pub(super) fn export(
        &self,
        shard: usize,
        keep: impl Fn(&State) -> bool,
    ) -> Vec<(Fingerprint, State, bool)> {
        let Some(shard) = self.lock_index(shard) else {
            return Vec::new();
        };
        shard.states().filter(|(_, state, _)| keep(state)).collect()
    }

    /// Adds a state of a snapshot.
    pub(super) fn import(&self, fingerprint: Fingerprint, state: State, overflow: bool) {
        let mut shard = self.lock(fingerprint);
        self.store(&mut shard, Held::new(state, fingerprint, overflow));
    }
}

/// Knows what the table does not: limits.
pub(crate) trait Keeper {
    /// Whether nothing would be lost with this state.
    fn may_drop(&self, state: &State) -> bool;

    /// Tells keys apart that are in one scope but under different limits: on one overflow state,
    /// each change from one limit to the other would cut what was used to the smaller one.
    fn group(&self) -> u32;
}

/// A key as the table sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadKey<'a> {
    /// What stands for the key.
    pub(crate) fingerprint: Fingerprint,
    /// What it has in common with the keys it may share an overflow state with.
    pub(crate) scope: &'a [u8],
}
