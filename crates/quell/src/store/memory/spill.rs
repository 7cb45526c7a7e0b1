//! Spill: 64 bytes after a full line, for two more states.
//!
//! A chain has four keys on average, and one in six is longer than its line; most of those by one
//! key or two. So a spill is half as large as a line: the memory that this saves buys more lines,
//! and more keys are found in their line.
//!
//! Spills have no lock of their own; they are read and written under the lock of their chain's
//! line.

use super::fingerprint::Fingerprint;
use super::line::{PackedKey, Slot};
use super::sync::{AtomicU64, Ordering};

/// A link and two slots; one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Spill {
    /// The number of the next spill plus one; 0 means none.
    next: AtomicU64,
    slots: [Slot; 2],
}

impl Spill {
    /// The slots.
    pub(super) const fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slot of the sought state, and its word, if it is here.
    #[inline]
    pub(super) fn seek(&self, sought: PackedKey) -> Option<(&Slot, u64)> {
        let mut slots = self.slots.iter();
        slots.find_map(|slot| slot.word_of(sought).map(|word| (slot, word)))
    }

    /// The slot of a key's state under whatever limit, if it is here.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        let mut slots = self.slots.iter();
        slots.find(|slot| slot.holds(fingerprint))
    }

    /// The next spill; read it only under the lock of the chain, or between two reads of the
    /// header.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it was an index")]
    pub(super) fn next(&self) -> Option<usize> {
        (self.next.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Links this spill to another.
    pub(super) fn set_next(&self, next: Option<usize>) {
        let next = next.map_or(0, |index| index as u64 + 1);
        self.next.store(next, Ordering::Relaxed);
    }
}
