//! Upkeep: how the table grows, drops states at rest, and exports its content.

use quell_core::state::State;
use quell_core::time::Now;

use super::{Extent, Keeper, PARTS, Table};
use crate::store::memory::chain::Chain;
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::line::{Content, InSlot, Line, Slot};
use crate::store::memory::sync::Ordering;

/// Load above which the next chain is made, in quarters of a key per chain: chains are between 2 and 8 keys
/// long, a tenth of the keys are in spills, and a key costs 39 bytes.
const QUARTER_KEYS_PER_CHAIN: usize = 15;

/// Chains made per new key: more than are needed to keep up.
const STEPS_PER_KEY: usize = 2;

/// Chains checked for states at rest whenever a key is added.
const LOOK_PER_KEY: usize = 1;

impl Table {
    /// The work that comes with a new key: checks a few other keys, and makes more chains if there
    /// are too few. Do not call it under a lock of this table.
    pub(crate) fn make_way(&self, now: Now, keeper: &impl Keeper) {
        self.sweep_some(LOOK_PER_KEY, now, keeper);
        for _ in 0..STEPS_PER_KEY {
            if self.keys() * 4 <= self.extent().chains() * QUARTER_KEYS_PER_CHAIN {
                return;
            }
            // Another thread is doing it.
            let Some(mut moving) = self.moving.try_lock() else {
                return;
            };
            self.grow(&mut moving);
        }
    }

    /// Makes one more chain. `moving` is empty before and after, and its lock keeps other threads
    /// from doing it too.
    fn grow(&self, moving: &mut Vec<Content>) {
        let size = self.extent().chains();
        let extent = Extent::new(size + 1);
        if self.lines.make(size).is_none() {
            return;
        }
        // In ascending order; no other thread knows the second chain.
        let Some(mut from) = self.chain(size - (1 << size.ilog2())) else {
            return;
        };
        let Some(mut to) = self.chain(size) else {
            return;
        };
        from.drain_into(moving);
        for content in moving.drain(..) {
            // The content of one chain's line fits into the lines of two.
            if extent.home(content.fingerprint.high) == size {
                to.insert(&content);
            } else {
                from.insert(&content);
            }
        }
        self.extent.store(extent.0, Ordering::Release);
    }

    /// Checks the next few chains and drops states at rest; locked chains are skipped.
    pub(super) fn sweep_some(&self, most: usize, now: Now, keeper: &impl Keeper) {
        for _ in 0..most {
            // Not modulo the size, because the size changes: each new chain would throw a counter
            // that is never reset back by as many places as it has made rounds, and it would get
            // stuck.
            let mut index = self.counts.hand.fetch_add(1, Ordering::Relaxed);
            if index >= self.extent().chains() {
                index = 0;
                self.counts.hand.store(1, Ordering::Relaxed);
            }
            let line = self.lines.get(index);
            let locked = line.and_then(Line::try_lock);
            if let Some(locked) = locked {
                let mut chain = Chain::new(locked, &self.spare);
                self.sweep_chain(&mut chain, now, keeper);
            }
        }
    }

    fn sweep_chain(&self, chain: &mut Chain<'_>, now: Now, keeper: &impl Keeper) -> usize {
        let mut gone = 0;
        for slot in chain.slots() {
            if let Some(content) = slot.get()
                && self.may_drop(&content, slot, now, keeper)
            {
                self.remove(slot);
                gone += usize::from(!content.is_shared);
            }
        }
        chain.trim();
        gone
    }

    fn may_drop(&self, content: &Content, slot: &Slot, now: Now, keeper: &impl Keeper) -> bool {
        match content.held {
            InSlot::Boxed(number) => {
                let may_drop = self.boxes.with(number, |state| keeper.may_drop(state));
                may_drop.unwrap_or(true)
            }
            InSlot::Packed(_) => {
                let state = self.read(slot, false, now, keeper);
                state.is_none_or(|state| keeper.may_drop(&state))
            }
        }
    }

    /// Sweeps all of one part, a chain at a time. Returns how many keys were dropped.
    pub(in crate::store::memory) fn sweep(
        &self,
        part: usize,
        now: Now,
        keeper: &impl Keeper,
    ) -> usize {
        let chains = (part % PARTS..self.extent().chains()).step_by(PARTS);
        let swept = chains.filter_map(|index| self.chain(index));
        swept
            .map(|mut chain| self.sweep_chain(&mut chain, now, keeper))
            .sum()
    }

    /// Copies of the states of one part that are not at rest, and whether each is an overflow state.
    pub(in crate::store::memory) fn export(
        &self,
        part: usize,
        now: Now,
        keeper: &impl Keeper,
    ) -> Vec<(Fingerprint, State, bool)> {
        let mut states = Vec::new();
        // Up to the current end when it is reached: states that a new chain takes over move further
        // up in the same part.
        let mut index = part;
        while index < self.extent().chains()
            && let Some(chain) = self.chain(index)
        {
            for slot in chain.slots() {
                if let Some(content) = slot.get()
                    && let Some(state) = self.read(slot, false, now, keeper)
                    && !keeper.may_drop(&state)
                {
                    states.push((content.fingerprint, state, content.is_shared));
                }
            }
            index += PARTS;
        }
        states
    }
}
