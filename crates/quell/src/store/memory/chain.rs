//! Chain: the states whose keys have one home, in as many lines as they need, under one lock.
//!
//! Most chains are one line. What does not fit its five slots lies in spare lines behind it, which
//! go back to the others when they are empty.

use parking_lot::Mutex;

use super::arena::Arena;
use super::fingerprint::Fingerprint;
use super::line::{Content, Line, Locked, Slot};

/// Lines behind the first ones.
#[derive(Debug, Default)]
pub(super) struct Spare {
    lines: Arena,
    unused: Mutex<Unused>,
}

#[derive(Debug, Default)]
struct Unused {
    /// Lines from here on were never used.
    next: usize,
    returned: Vec<usize>,
}

impl Spare {
    /// The line of this number.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Line> {
        self.lines.get(index)
    }

    /// An empty line; `None` if as many are in use as can be linked to.
    fn take(&self) -> Option<(usize, &Line)> {
        let mut unused = self.unused.lock();
        let index = unused.returned.pop().unwrap_or(unused.next);
        let line = self.lines.make(index)?;
        unused.next = unused.next.max(index + 1);
        Some((index, line))
    }

    fn give_back(&self, index: usize) {
        self.unused.lock().returned.push(index);
    }
}

/// A chain under its lock. Slots stay where they are as long as it lasts.
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
        self.lines().find_map(|line| line.find(fingerprint))
    }

    /// All slots, empty ones included.
    pub(super) fn slots(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        self.lines().flat_map(Line::slots)
    }

    fn lines(&self) -> impl Iterator<Item = &'a Line> + use<'a> {
        let spare = self.spare;
        let mut next = self.first.next();
        let behind = std::iter::from_fn(move || {
            let line = spare.get(next?)?;
            next = line.next();
            Some(line)
        });
        std::iter::once(self.first.line()).chain(behind)
    }

    /// Puts a content that is not here into an empty slot. Says whether there was one to be had:
    /// there is, unless [`MAX_LINES`](super::line::MAX_LINES) are in use.
    pub(super) fn insert(&mut self, content: &Content) -> bool {
        let favourite = self.first.line().favourite(content.fingerprint);
        let mut slots = favourite.into_iter().chain(self.slots());
        let empty = slots.find(|slot| slot.get().is_none());
        if let Some(slot) = empty {
            slot.set(Some(content));
            return true;
        }
        let Some((index, line)) = self.spare.take() else {
            return false;
        };
        line.set_next(self.first.next());
        if let Some(slot) = line.slots().first() {
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

    /// Gives back the spare lines that are empty. To be called when slots were emptied, and not
    /// while they are walked: a line that was given back may be another chain's.
    pub(super) fn trim(&mut self) {
        let mut before: Option<&Line> = None;
        let mut next = self.first.next();
        while let Some(index) = next
            && let Some(line) = self.spare.get(index)
        {
            next = line.next();
            let is_empty = line.slots().iter().all(|slot| slot.get().is_none());
            if !is_empty {
                before = Some(line);
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
