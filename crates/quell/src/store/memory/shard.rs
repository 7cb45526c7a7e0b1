//! Shard: one part of the table, an open table of 32-byte slots.
//!
//! The state of a bucket lies in its slot: 96 bits of fingerprint, 96 bits of TAT, the limit's name.
//! Every other state lies in a box beside the table. A shard grows by a quarter, so it is between
//! 70 % and 88 % full, and no growth moves more than one shard.

use quell_core::limit::LimitId;
use quell_core::state::{State, Usage};

use super::fingerprint::Fingerprint;

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    #[default]
    Empty,
    TokenBucket,
    LeakyBucket,
    /// `tat_low` is the index of a box.
    Boxed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    high: u64,
    tat_low: u64,
    low: u32,
    tat_high: u32,
    limit: u32,
    tag: Tag,
    overflow: bool,
}

/// At most this many slots of eight are in use.
const LOAD: usize = 7;

/// Smallest table that is made.
const FIRST: usize = 8;

/// One part of the table.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    slots: Vec<Slot>,
    used: usize,
    boxes: Vec<Option<Box<State>>>,
    free: Vec<u32>,
    hand: usize,
}

/// What writing a state back did to the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// As many as before.
    Same,
    /// One more.
    Added,
    /// One less, which was (not) an overflow state.
    Removed { overflow: bool },
}

impl Shard {
    /// Number of slots, empty ones included.
    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    /// Whether the slot at `index` is that of `fingerprint`.
    pub(super) fn holds(&self, index: usize, fingerprint: Fingerprint) -> bool {
        self.slots.get(index).is_some_and(|slot| {
            slot.tag != Tag::Empty && slot.high == fingerprint.high && slot.low == fingerprint.low
        })
    }

    /// The place of `fingerprint`, if it is there.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut index = home(fingerprint.high, self.slots.len());
        loop {
            let slot = self.slots.get(index)?;
            if slot.tag == Tag::Empty {
                return None;
            }
            if slot.high == fingerprint.high && slot.low == fingerprint.low {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    /// Takes the state at `index` out, to be written back at once; a boxed one is not copied.
    pub(super) fn take(&mut self, index: usize) -> State {
        let Some(slot) = self.slots.get(index).copied() else {
            return State::rest(LimitId(0));
        };
        if slot.tag == Tag::Boxed
            && let Some(state) = self
                .boxed(slot.tat_low)
                .and_then(|place| place.as_deref_mut())
        {
            return std::mem::replace(state, State::rest(LimitId(slot.limit)));
        }
        self.read(index)
    }

    /// Writes a state: at its place if it has one, at a new one if there is something to keep.
    pub(super) fn put(
        &mut self,
        place: Option<usize>,
        fingerprint: Fingerprint,
        state: State,
        overflow: bool,
    ) -> Written {
        let keep = !matches!(state.usage, Usage::Rest) || state.ban.is_some();
        match (place, keep) {
            (Some(index), true) => {
                self.write(index, state);
                Written::Same
            }
            (Some(index), false) => self.remove(index),
            (None, false) => Written::Same,
            (None, true) => {
                let index = self.insert(fingerprint, overflow);
                self.write(index, state);
                Written::Added
            }
        }
    }

    /// Looks at up to `most` slots from where it stopped last time, and drops those that `drop`
    /// says. Returns how many keys and overflow states went.
    pub(super) fn sweep(
        &mut self,
        most: usize,
        mut drop: impl FnMut(&State) -> bool,
    ) -> (usize, usize) {
        let mut gone = (0, 0);
        for _ in 0..most.min(self.slots.len()) {
            let index = self.hand % self.slots.len();
            let is_empty = self
                .slots
                .get(index)
                .is_none_or(|slot| slot.tag == Tag::Empty);
            if !is_empty && drop(&self.read(index)) {
                // What moves up into the hole is looked at next.
                match self.remove(index) {
                    Written::Removed { overflow: true } => gone.1 += 1,
                    _ => gone.0 += 1,
                }
            } else {
                self.hand = self.after(index);
            }
        }
        gone
    }

    /// Whether the state at `index` is an overflow state.
    pub(super) fn is_overflow(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.overflow)
    }

    /// All states with their fingerprints and whether they are overflow states.
    pub(super) fn states(&self) -> impl Iterator<Item = (Fingerprint, State, bool)> + '_ {
        let full = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.tag != Tag::Empty);
        full.map(|(index, slot)| {
            let fingerprint = Fingerprint {
                high: slot.high,
                low: slot.low,
            };
            (fingerprint, self.read(index), slot.overflow)
        })
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 >= self.slots.len() {
            0
        } else {
            index + 1
        }
    }

    fn boxed(&mut self, index: u64) -> Option<&mut Option<Box<State>>> {
        self.boxes.get_mut(usize::try_from(index).ok()?)
    }

    /// A copy of the state at `index`.
    pub(super) fn read(&self, index: usize) -> State {
        let Some(slot) = self.slots.get(index) else {
            return State::rest(LimitId(0));
        };
        let tat = u128::from(slot.tat_high) << 64 | u128::from(slot.tat_low);
        let usage = match slot.tag {
            Tag::Empty => Usage::Rest,
            Tag::TokenBucket => Usage::TokenBucket { tat },
            Tag::LeakyBucket => Usage::LeakyBucket { tat },
            Tag::Boxed => {
                let index = usize::try_from(slot.tat_low).unwrap_or(usize::MAX);
                let state = self.boxes.get(index).and_then(Option::as_deref);
                return state
                    .cloned()
                    .unwrap_or_else(|| State::rest(LimitId(slot.limit)));
            }
        };
        State {
            limit: LimitId(slot.limit),
            usage,
            ban: None,
        }
    }

    fn write(&mut self, index: usize, state: State) {
        let Some(slot) = self.slots.get(index).copied() else {
            return;
        };
        let in_slot = match (&state.usage, &state.ban) {
            (Usage::TokenBucket { tat }, None) => Some((Tag::TokenBucket, *tat)),
            (Usage::LeakyBucket { tat }, None) => Some((Tag::LeakyBucket, *tat)),
            _ => None,
        };
        let in_slot = in_slot.filter(|(_, tat)| tat >> 96 == 0);
        let limit = state.limit.0;
        let (tag, tat) = match (in_slot, slot.tag) {
            (Some(fits), Tag::Boxed) => {
                self.release(slot.tat_low);
                fits
            }
            (Some(fits), _) => fits,
            (None, Tag::Boxed) => {
                if let Some(place) = self.boxed(slot.tat_low) {
                    match place {
                        Some(old) => **old = state,
                        None => *place = Some(Box::new(state)),
                    }
                }
                (Tag::Boxed, u128::from(slot.tat_low))
            }
            (None, _) => (Tag::Boxed, u128::from(self.keep(state))),
        };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.tag = tag;
            slot.limit = limit;
            (slot.tat_low, slot.tat_high) = halves(tat);
        }
    }

    fn keep(&mut self, state: State) -> u32 {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.boxes.get_mut(index as usize)
        {
            *place = Some(Box::new(state));
            return index;
        }
        self.boxes.push(Some(Box::new(state)));
        u32::try_from(self.boxes.len() - 1).unwrap_or(u32::MAX)
    }

    fn release(&mut self, index: u64) {
        if let Some(place) = self.boxed(index) {
            *place = None;
            self.free.extend(u32::try_from(index).ok());
        }
    }

    /// Claims an empty slot for a fingerprint that is not there; the caller writes it at once.
    fn insert(&mut self, fingerprint: Fingerprint, overflow: bool) -> usize {
        if (self.used + 1) * 8 > self.slots.len() * LOAD {
            self.grow();
        }
        self.used += 1;
        let mut index = home(fingerprint.high, self.slots.len());
        while self
            .slots
            .get(index)
            .is_some_and(|slot| slot.tag != Tag::Empty)
        {
            index = self.after(index);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot {
                high: fingerprint.high,
                low: fingerprint.low,
                overflow,
                ..Slot::default()
            };
        }
        index
    }

    fn grow(&mut self) {
        let size = (self.slots.len() + self.slots.len() / 4).max(FIRST);
        let mut slots = Vec::new();
        slots.reserve_exact(size);
        slots.resize(size, Slot::default());
        for slot in self.slots.iter().filter(|slot| slot.tag != Tag::Empty) {
            let mut index = home(slot.high, size);
            while slots
                .get(index)
                .is_some_and(|other: &Slot| other.tag != Tag::Empty)
            {
                index = if index + 1 == size { 0 } else { index + 1 };
            }
            if let Some(place) = slots.get_mut(index) {
                *place = *slot;
            }
        }
        self.slots = slots;
        self.hand = 0;
    }

    /// Empties a slot and moves up what was pushed away by it.
    fn remove(&mut self, index: usize) -> Written {
        let size = self.slots.len();
        let Some(removed) = self.slots.get(index).copied() else {
            return Written::Same;
        };
        if removed.tag == Tag::Boxed {
            self.release(removed.tat_low);
        }
        self.used -= 1;
        let mut hole = index;
        let mut next = self.after(index);
        while let Some(slot) = self.slots.get(next).copied() {
            if slot.tag == Tag::Empty {
                break;
            }
            let wanted = home(slot.high, size);
            let pushed = (next + size - wanted) % size;
            if pushed >= (next + size - hole) % size {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = slot;
                }
                hole = next;
            }
            next = self.after(next);
        }
        if let Some(place) = self.slots.get_mut(hole) {
            *place = Slot::default();
        }
        Written::Removed {
            overflow: removed.overflow,
        }
    }
}

/// The lower 64 bits and the 32 above them.
#[expect(clippy::cast_possible_truncation, reason = "96 bits are cut in two")]
const fn halves(tat: u128) -> (u64, u32) {
    (tat as u64, (tat >> 64) as u32)
}

/// Where a fingerprint lies if nothing is in its way: its upper 32 bits, scaled to the table.
fn home(high: u64, size: usize) -> usize {
    (((high >> 32) * size as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn state(tat: u128) -> State {
        State {
            limit: LimitId(3),
            usage: Usage::TokenBucket { tat },
            ban: None,
        }
    }

    #[test]
    fn a_slot_is_32_bytes() {
        assert_eq!(size_of::<Slot>(), 32);
    }

    /// Few homes and many removals: everything collides, wraps around and moves up.
    #[test]
    fn behaves_like_a_map() {
        let mut shard = Shard::default();
        let mut model: HashMap<Fingerprint, State> = HashMap::new();
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..20_000_u64 {
            let fingerprint = Fingerprint {
                high: ((u64::MAX / 5) * random(6)).saturating_sub(random(40)),
                low: u32::try_from(random(3)).unwrap(),
            };
            let new = match random(4) {
                0 => State::rest(LimitId(3)),
                1 => state(u128::MAX - u128::from(step * 8 + random(8))),
                _ => state(u128::from(step * 8 + random(8))),
            };
            let place = shard.find(fingerprint);
            assert_eq!(
                place.is_some(),
                model.contains_key(&fingerprint),
                "step {step}"
            );
            shard.put(place, fingerprint, new.clone(), false);
            if new == State::rest(LimitId(3)) {
                model.remove(&fingerprint);
            } else {
                model.insert(fingerprint, new);
            }
            if step % 100 == 0 {
                let doomed = |state: &State| matches!(state.usage, Usage::TokenBucket { tat } if tat & 4 == 0);
                let mut dropped = Vec::new();
                shard.sweep(3, |state| {
                    let drop = doomed(state);
                    dropped.extend(drop.then(|| state.clone()));
                    drop
                });
                model.retain(|_, state| !dropped.contains(state));
            }
            assert_eq!(shard.used, model.len(), "step {step}");
            for (fingerprint, expected) in &model {
                let found = shard.find(*fingerprint).map(|index| shard.read(index));
                assert_eq!(found.as_ref(), Some(expected), "step {step}");
            }
        }
        assert!(shard.boxes.iter().flatten().count() <= model.len());
    }
}
