//! Chain: the states whose keys have the same home, in a line and as many spills as they need, under
//! one lock.
//!
//! Most chains are one line. States that do not fit into its five slots are in spills after it, which
//! are returned when they are empty.

use super::arena::Arena;
use super::fingerprint::Fingerprint;
use super::line::{Content, Locked, Slot};
use super::spill::Spill;
use super::sync::Mutex;

/// The spills of all chains.
#[derive(Debug, Default)]
pub(super) struct Spare {
    spills: Arena<Spill>,
    unused: Mutex<Unused>,
}

#[derive(Debug, Default)]
struct Unused {
    /// Spills from this number on were never used.
    next: usize,
    returned: Vec<usize>,
}

impl Spare {
    /// The spill with this number.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Spill> {
        self.spills.get(index)
    }

    /// An empty spill; `None` if all linkable spills are in use.
    fn take(&self) -> Option<(usize, &Spill)> {
        let mut unused = self.unused.lock();
        let index = unused.returned.pop().unwrap_or(unused.next);
        let spill = self.spills.make(index)?;
        unused.next = unused.next.max(index + 1);
        Some((index, spill))
    }

    fn give_back(&self, index: usize) {
        self.unused.lock().returned.push(index);
    }
}

/// A locked chain. Slots keep their places while it exists.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    first: Locked<'a>,
    spare: &'a Spare,
}

impl<'a> Chain<'a> {
    pub(super) const fn new(first: Locked<'a>, spare: &'a Spare) -> Self {
        Self { first, spare }
    }

    /// The slot of `fingerprint`, if its state is here.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<&'a Slot> {
        self.slots().find(|slot| slot.holds(fingerprint))
    }

    /// All slots, including empty ones.
    pub(super) fn slots(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let spare = self.spare;
        let mut next = self.first.next();
        let behind = std::iter::from_fn(move || {
            let spill = spare.get(next?)?;
            next = spill.next();
            Some(spill)
        });
        let first = self.first.line().slots().iter();
        first.chain(behind.flat_map(Spill::slots))
    }

    /// Puts a content that is not in the chain into an empty slot. Returns whether there was one,
    /// which is the case unless [`MAX_LINES`](super::line::MAX_LINES) are in use.
    pub(super) fn insert(&mut self, content: &Content) -> bool {
        if let Some(slot) = self.slots().find(|slot| slot.get().is_none()) {
            slot.set(Some(content));
            return true;
        }
        let Some((index, spill)) = self.spare.take() else {
            return false;
        };
        spill.set_next(self.first.next());
        if let Some(slot) = spill.slots().first() {
            slot.set(Some(content));
        }
        self.first.set_next(Some(index));
        true
    }

    /// Moves all contents out.
    pub(super) fn drain_into(&mut self, contents: &mut Vec<Content>) {
        for slot in self.slots() {
            contents.extend(slot.get());
            slot.set(None);
        }
        self.trim();
    }

    /// Returns the empty spills. Call it after slots were emptied, and not during a walk: a returned
    /// spill may belong to another chain.
    pub(super) fn trim(&mut self) {
        let mut before: Option<&Spill> = None;
        let mut next = self.first.next();
        while let Some(index) = next
            && let Some(spill) = self.spare.get(index)
        {
            next = spill.next();
            let is_empty = spill.slots().iter().all(|slot| slot.get().is_none());
            if !is_empty {
                before = Some(spill);
                continue;
            }
            match before {
                None => self.first.set_next(next),
                Some(before) => before.set_next(next),
            }
            self.spare.give_back(index);
        }
    }
}
