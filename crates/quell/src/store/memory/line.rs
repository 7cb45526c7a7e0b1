//! Line: 128 bytes of the table, read without a lock and written under a lock of a few instructions.
//!
//! The simplest idea, a mutex per shard, makes every call write two more cache lines than the key's
//! own, and makes two threads on two keys wait for each other. Here the lock is a bit in the key's own
//! line:
//!
//! ```text
//! header: version 36 | link 27 | locked 1      then five slots of three words
//! slot:   upper 64 bits of the fingerprint | use | limit 32, lower 27 bits of the fingerprint, memo 2, kind 3
//! ```
//!
//! A reader takes the header, reads what it needs, and reads the header again: if it is the same and
//! not locked, nothing was written in between (a sequence lock). So a refusal, which changes nothing,
//! writes nothing. A writer does the same, but instead of the second read it sets the lock bit by a
//! compare-and-swap on the header it began with: success proves that what it read is still valid. It
//! stores one word and releases the header with the next version. Between the two there are only a few
//! instructions, however long the decision took.
//!
//! The version has 36 bits. For an error, a thread must be paused between its two reads while others
//! write to the same line exactly 2^36 times, which takes most of an hour.
//!
//! A line can be linked to a [`Spill`](super::spill::Spill), which is read and written under the line's
//! lock. Every word is an atomic, so a torn read is a wrong value that the second read detects, never
//! undefined behaviour.
//!
//! A memo is a note about the key for others, here the overrides. The table keeps it with the state, as long as the
//! limit stays the same.

use std::hint::select_unpredictable;

use prefetch_index::prefetch_index;
use quell_core::limit::LimitId;

use super::fingerprint::Fingerprint;
use super::sync::{AtomicU64, Ordering, fence, pause};

/// Slots of a line; fewer in a model, where every order of each further word is tried.
pub(super) const SLOTS: usize = if cfg!(test) { 2 } else { 5 };

/// The most lines, and the most spills: one less than fits into 27 bits.
pub(super) const MAX_LINES: usize = (1 << LINK_BITS) - 1;

const LOCKED: u64 = 1;
const LINK_BITS: u32 = 27;
const LINK_SHIFT: u32 = 1;
const LINK_MASK: u64 = ((1 << LINK_BITS) - 1) << LINK_SHIFT;
const NEXT_VERSION: u64 = 1 << (LINK_SHIFT + LINK_BITS);

/// The state is in a box; the word is its number.
const BOXED: u32 = 1;
/// The state is a bucket's, packed into the word.
const PACKED: u32 = 2;
/// Several keys share the state.
const SHARED: u32 = 4;
/// In use, with either kind.
const FULL: u32 = BOXED | PACKED;
const KIND: u32 = BOXED | PACKED | SHARED;

const MEMO_SHIFT: u32 = 3;
const MEMO: u32 = 0b11 << MEMO_SHIFT;
/// Bits of [`Fingerprint::low`] that a slot has.
pub(super) const KEPT: u32 = !(KIND | MEMO);

// A line of the product is two cache lines; loom's atomics are larger.
const _: () = assert!(cfg!(test) || size_of::<Line>() == 128);

/// A header and five slots; two neighbouring cache lines, which are fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Line {
    header: AtomicU64,
    slots: [Slot; SLOTS],
}

/// A place for one state.
#[derive(Debug, Default)]
pub(super) struct Slot {
    high: AtomicU64,
    word: AtomicU64,
    meta: AtomicU64,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) fingerprint: Fingerprint,
    pub(super) limit: LimitId,
    pub(super) held: InSlot,
    /// True for an overflow state, which several keys share.
    pub(super) is_shared: bool,
    pub(super) memo: u8,
}

/// Place of the usage in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InSlot {
    /// In the slot, packed under the limit.
    Packed(u64),
    /// In the box with this number.
    Boxed(u64),
}

/// The lower half of `meta`: kind, memo and lower bits of the fingerprint.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn lower(meta: u64) -> u32 {
    meta as u32
}

const fn limit_of(meta: u64) -> LimitId {
    LimitId((meta >> 32) as u32)
}

const fn memo_of(meta: u64) -> u8 {
    ((lower(meta) & MEMO) >> MEMO_SHIFT) as u8
}

const fn without_memo(meta: u64) -> u64 {
    meta & !(MEMO as u64)
}

const fn memo_bits(memo: u8) -> u32 {
    ((memo as u32) << MEMO_SHIFT) & MEMO
}

impl Slot {
    /// The content, if there is one.
    pub(super) fn get(&self) -> Option<Content> {
        let meta = self.meta.load(Ordering::Relaxed);
        let kind = lower(meta) & KIND;
        let word = self.word.load(Ordering::Relaxed);
        Some(Content {
            held: match kind & FULL {
                0 => return None,
                BOXED => InSlot::Boxed(word),
                _ => InSlot::Packed(word),
            },
            fingerprint: Fingerprint {
                high: self.high.load(Ordering::Relaxed),
                low: lower(meta) & KEPT,
            },
            limit: limit_of(meta),
            is_shared: kind & SHARED != 0,
            memo: memo_of(meta),
        })
    }

    /// Writes a content, or empties the slot. Only under the lock of the chain.
    pub(super) fn set(&self, content: Option<&Content>) {
        let Some(content) = content else {
            self.high.store(0, Ordering::Relaxed);
            self.meta.store(0, Ordering::Relaxed);
            return;
        };
        let (word, kind) = match content.held {
            InSlot::Packed(word) => (word, PACKED),
            InSlot::Boxed(number) => (number, BOXED),
        };
        let shared = if content.is_shared { SHARED } else { 0 };
        let low = (content.fingerprint.low & KEPT) | memo_bits(content.memo) | kind | shared;
        self.high.store(content.fingerprint.high, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        let meta = u64::from(content.limit.0) << 32 | u64::from(low);
        self.meta.store(meta, Ordering::Relaxed);
    }

    /// The word of the sought state, if it is here.
    #[inline]
    pub(super) fn word_of(&self, sought: PackedKey) -> Option<u64> {
        let is_here = self.high.load(Ordering::Relaxed) == sought.high
            && without_memo(self.meta.load(Ordering::Relaxed)) == sought.meta;
        is_here.then(|| self.word.load(Ordering::Relaxed))
    }

    /// Drops the memo of a key with this upper half of its fingerprint. Only under the lock of the chain.
    pub(super) fn drop_memo_of(&self, high: u64) {
        if self.high.load(Ordering::Relaxed) == high {
            self.drop_memo();
        }
    }

    /// Drops the memo. Only under the lock of the chain.
    pub(super) fn drop_memo(&self) {
        let meta = self.meta.load(Ordering::Relaxed);
        self.meta.store(without_memo(meta), Ordering::Relaxed);
    }

    /// Returns true if the state of `fingerprint` is here.
    #[inline]
    pub(super) fn holds(&self, fingerprint: Fingerprint) -> bool {
        let meta = lower(self.meta.load(Ordering::Relaxed));
        self.high.load(Ordering::Relaxed) == fingerprint.high
            && meta & KEPT == fingerprint.low
            && meta & FULL != 0
    }
}

/// A key's state, packed under a limit, as a slot would hold it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedKey {
    high: u64,
    meta: u64,
}

impl PackedKey {
    #[inline]
    pub(super) const fn new(fingerprint: Fingerprint, limit: LimitId) -> Self {
        Self {
            high: fingerprint.high,
            meta: (limit.0 as u64) << 32 | (fingerprint.low & KEPT | PACKED) as u64,
        }
    }
}

/// The header of a line as a reader found it, unlocked.
#[derive(Debug)]
pub(super) struct Glance<'a> {
    line: &'a Line,
    header: u64,
}

impl Glance<'_> {
    /// The linked spill.
    #[inline]
    pub(super) const fn link(&self) -> Option<usize> {
        link(self.header)
    }

    /// Returns true if nothing was written since.
    #[inline]
    pub(super) fn still_stands(&self) -> bool {
        // Earlier reads must not move after this.
        fence(Ordering::Acquire);
        self.line.header.load(Ordering::Relaxed) == self.header
    }

    /// Writes one word of the chain, if nothing was written since. Returns whether it did.
    #[inline]
    pub(super) fn replace(self, slot: &Slot, word: u64) -> bool {
        self.write(&slot.word, word)
    }

    #[inline]
    fn write(self, place: &AtomicU64, word: u64) -> bool {
        fence(Ordering::Acquire);
        let claim = self.line.header.compare_exchange(
            self.header,
            self.header | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claim.is_err() {
            return false;
        }
        // A reader of the word sees the lock bit or a later version.
        fence(Ordering::Release);
        place.store(word, Ordering::Relaxed);
        let next = self.header.wrapping_add(NEXT_VERSION);
        self.line.header.store(next, Ordering::Release);
        true
    }
}

/// The slot of a key as a reader found it, at one instant.
#[derive(Debug)]
pub(crate) struct FoundSlot<'a> {
    glance: Glance<'a>,
    slot: &'a Slot,
    meta: u64,
}

impl<'a> FoundSlot<'a> {
    /// `slot` as it is; `None` if something was written to its chain since the glance.
    #[inline]
    pub(super) fn read(glance: Glance<'a>, slot: &'a Slot) -> Option<Self> {
        let meta = slot.meta.load(Ordering::Relaxed);
        glance.still_stands().then_some(Self { glance, slot, meta })
    }

    /// The limit of the state.
    #[inline]
    pub(crate) const fn limit(&self) -> LimitId {
        limit_of(self.meta)
    }

    /// The memo, 0 if there is none.
    #[inline]
    pub(crate) const fn memo(&self) -> u8 {
        memo_of(self.meta)
    }

    /// Writes a memo of two bits, if nothing was written to the chain since the slot was found. Returns whether it did.
    pub(crate) fn write_memo(self, memo: u8) -> bool {
        let meta = without_memo(self.meta) | u64::from(memo_bits(memo));
        self.glance.write(&self.slot.meta, meta)
    }
}

impl Line {
    /// The slots.
    pub(super) const fn slots(&self) -> &[Slot; SLOTS] {
        &self.slots
    }

    /// The first slot with this upper half of a fingerprint.
    ///
    /// The processor can hardly ever predict which slot a key has, and a wrong prediction costs more
    /// than comparing all five.
    #[inline]
    fn slot_of(&self, high: u64) -> Option<&Slot> {
        let mut index = SLOTS;
        for (other, slot) in self.slots.iter().enumerate().rev() {
            let is_here = slot.high.load(Ordering::Relaxed) == high;
            index = select_unpredictable(is_here, other, index);
        }
        self.slots.get(index)
    }

    /// The slot of the sought state, and its word, if it is in this line. If two keys have the same upper 64 bits, all
    /// but one take the slow path.
    #[inline]
    pub(super) fn seek(&self, sought: PackedKey) -> Option<(&Slot, u64)> {
        let slot = self.slot_of(sought.high)?;
        // If its upper half has changed, the header has, too.
        let is_here = without_memo(slot.meta.load(Ordering::Relaxed)) == sought.meta;
        is_here.then(|| (slot, slot.word.load(Ordering::Relaxed)))
    }

    /// The slot of a key's state under whatever limit, if it is in this line.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        let slot = self.slot_of(fingerprint.high)?;
        slot.holds(fingerprint).then_some(slot)
    }

    /// Prefetches both halves and waits for neither. A load would do as well if the clock were not read
    /// next: according to our measurements, reading the processor's counter waits for the loads before
    /// it.
    #[inline]
    pub(super) fn fetch(&self) {
        prefetch_index(self.slots(), 0);
        prefetch_index(self.slots(), SLOTS - 1);
    }

    /// Begins to read; `None` while the line is being written.
    #[inline]
    pub(super) fn glance(&self) -> Option<Glance<'_>> {
        let header = self.header.load(Ordering::Acquire);
        (header & LOCKED == 0).then_some(Glance { line: self, header })
    }

    /// Locks the chain that begins with this line, if it is not locked.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let header = self.header.load(Ordering::Relaxed);
        if header & LOCKED != 0 {
            return None;
        }
        let claim = self.header.compare_exchange(
            header,
            header | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        claim.ok()?;
        fence(Ordering::Release);
        Some(Locked { line: self, header })
    }

    /// Locks the chain that begins with this line.
    ///
    /// Locks are held for well below a microsecond, unless their holder is paused: then the wait turns
    /// into yielding, and after that into short sleeps.
    pub(super) fn lock(&self) -> Locked<'_> {
        let mut tries = 0;
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            pause(tries);
            tries += 1;
        }
    }
}

/// The lock of a chain; when it is dropped, the next version begins.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    line: &'a Line,
    header: u64,
}

impl<'a> Locked<'a> {
    /// The first line.
    pub(super) const fn line(&self) -> &'a Line {
        self.line
    }

    /// The first spill.
    pub(super) const fn next(&self) -> Option<usize> {
        link(self.header)
    }

    /// Links the line to a spill.
    pub(super) fn set_next(&mut self, next: Option<usize>) {
        self.header = with_link(self.header, next);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let next = self.header.wrapping_add(NEXT_VERSION);
        self.line.header.store(next, Ordering::Release);
    }
}

/// Links are stored one higher: 0 means none.
#[inline]
const fn link(header: u64) -> Option<usize> {
    (((header & LINK_MASK) >> LINK_SHIFT) as usize).checked_sub(1)
}

const fn with_link(header: u64, next: Option<usize>) -> u64 {
    let link = match next {
        Some(index) => index as u64 + 1,
        None => 0,
    };
    header & !LINK_MASK | (link << LINK_SHIFT) & LINK_MASK
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;

    use super::*;

    const KEY: Fingerprint = Fingerprint {
        high: 7,
        low: 1 << 8,
    };

    fn content(word: u64) -> Content {
        Content {
            fingerprint: KEY,
            limit: LimitId(1),
            held: InSlot::Packed(word),
            is_shared: false,
            memo: 0,
        }
    }

    fn line_with(word: u64) -> Arc<Line> {
        let line = Line::default();
        line.slots()[0].set(Some(&content(word)));
        Arc::new(line)
    }

    /// Adds one to the word as a decision does, without a lock.
    fn add_in_place(line: &Line) -> bool {
        let Some(glance) = line.glance() else {
            return false;
        };
        line.seek(PackedKey::new(KEY, LimitId(1)))
            .is_some_and(|(slot, word)| glance.replace(slot, word + 1))
    }

    fn word(line: &Line) -> u64 {
        packed(&line.slots()[0])
    }

    fn packed(slot: &Slot) -> u64 {
        match slot.get().unwrap().held {
            InSlot::Packed(word) => word,
            InSlot::Boxed(_) => unreachable!("none is boxed here"),
        }
    }

    #[test]
    fn no_charge_in_place_is_lost() {
        loom::model(|| {
            let line = line_with(0);
            let other = Arc::clone(&line);
            let thread = loom::thread::spawn(move || u64::from(add_in_place(&other)));
            let mine = u64::from(add_in_place(&line));
            let theirs = thread.join().unwrap();
            assert_eq!(word(&line), mine + theirs);
            assert!(mine + theirs > 0, "one of two gets through");
        });
    }

    #[test]
    fn a_lock_and_a_charge_in_place_keep_out_of_each_others_way() {
        loom::model(|| {
            let line = line_with(0);
            let other = Arc::clone(&line);
            let thread = loom::thread::spawn(move || {
                let locked = other.try_lock()?;
                let slot = &locked.line().slots()[0];
                slot.set(Some(&content(word(&other) + 10)));
                Some(10)
            });
            let mine = u64::from(add_in_place(&line));
            let theirs = thread.join().unwrap().unwrap_or(0);
            assert_eq!(word(&line), theirs + mine);
            assert!(theirs + mine > 0, "one of two gets through");
        });
    }

    #[test]
    fn what_a_reader_makes_sure_of_was_there_at_one_time() {
        loom::model(|| {
            let line = line_with(1);
            line.slots()[1].set(Some(&content(1)));
            let other = Arc::clone(&line);
            let thread = loom::thread::spawn(move || {
                let locked = other.try_lock();
                for slot in &locked.unwrap().line().slots()[..2] {
                    slot.set(Some(&content(2)));
                }
            });
            if let Some(glance) = line.glance() {
                let words = [0, 1].map(|slot| packed(&line.slots()[slot]));
                if glance.still_stands() {
                    assert_eq!(words[0], words[1]);
                }
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_key_that_gave_up_its_slot_is_not_charged_in_it() {
        loom::model(|| {
            let line = line_with(0);
            let other = Arc::clone(&line);
            let thread = loom::thread::spawn(move || {
                let newcomer = Content {
                    fingerprint: Fingerprint { high: 9, ..KEY },
                    ..content(100)
                };
                let locked = other.try_lock();
                locked.is_some_and(|locked| {
                    locked.line().slots()[0].set(Some(&newcomer));
                    true
                })
            });
            let is_charged = add_in_place(&line);
            let is_taken = thread.join().unwrap();
            let expected = if is_taken { 100 } else { 1 };
            assert_eq!(word(&line), expected);
            assert!(is_taken || is_charged, "one of two gets through");
        });
    }

    #[test]
    fn links_survive_versions() {
        loom::model(|| {
            let line = Line::default();
            for next in [Some(0), Some(MAX_LINES - 1), None] {
                let mut locked = line.lock();
                locked.set_next(next);
                drop(locked);
                assert_eq!(line.glance().unwrap().link(), next);
                assert_eq!(line.lock().next(), next);
            }
        });
    }
}
