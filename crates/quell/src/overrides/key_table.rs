//! Key table: what is stored for keys, by their fingerprints; an old copy stays as it was when the new one changes.
//!
//! Keys are spread over 16,384 blocks, which a change copies one by one. A block is a hash table of buckets with open
//! addressing. A bucket is one cache line of four slots, of which two are in use in the mean, so that six look-ups in
//! seven read one of them.
//!
//! A million keys are 35 MB, and what a look-up waits for is one line of it. So each block has a filter of its keys (Bloom
//! 1970, with two bits a key), in a line of its own: all of them are 1 MB. It spares that wait to 21 in 22 of the keys that
//! are not there; with twice as many keys to 6 in 7.

use std::array;
use std::sync::Arc;

use crate::store::memory::Fingerprint;

/// Number of rows of blocks, and of blocks in a row: of a million keys some 60 are in each block.
const SIDE: usize = 128;

/// Bits of a fingerprint that choose the block.
const BLOCK_BITS: u32 = 14;

/// Slots of a bucket.
const SLOTS: usize = 4;

/// Slots of a bucket that are in use, in the mean: with more, neighbours would have to be read; with fewer, less of each
/// cache line would be used.
const LOAD: usize = 2;

/// Bits of [`Fingerprint::low`] that are kept, its upper ones.
const LOW_BITS: u32 = 12;

/// Bits of a tag beside those of the fingerprint.
const NOTE_BITS: u32 = BLOCK_BITS - LOW_BITS;

const _: () = assert!(SIDE * SIDE == 1 << BLOCK_BITS);
const _: () = assert!(size_of::<Bucket<Arc<()>>>() == 64 && size_of::<Filter>() == 64);

/// A key in a table: 76 bits of its fingerprint, of which a tag has 62 and the place of its block the others. Any two of
/// 10^7 keys share them with a probability below 2^-30.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TableKey {
    high: u64,
    low: u32,
}

/// Values of 8 bytes with a note of two bits, by key.
#[derive(Clone)]
pub(super) struct KeyTable<V>(Arc<[Arc<Row<V>>; SIDE]>);

/// The blocks of a row. Apart from their filters, so that a look-up need not wait for one to find the other.
#[derive(Clone)]
struct Row<V> {
    filters: [Filter; SIDE],
    blocks: [Arc<[Bucket<V>]>; SIDE],
}

/// A block as it is changed.
struct Block<V> {
    buckets: Arc<[Bucket<V>]>,
    filter: Filter,
}

/// Two bits for each key.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Filter([u64; 8]);

/// A cache line of slots, of which those in use come first.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket<V>([Slot<V>; SLOTS]);

#[derive(Clone)]
struct Slot<V> {
    /// [`TableKey::tag`], and the note.
    tag: u64,
    value: Option<V>,
}

impl TableKey {
    pub(super) const fn new(fingerprint: Fingerprint) -> Self {
        Self {
            high: fingerprint.high,
            low: fingerprint.low >> (u32::BITS - LOW_BITS),
        }
    }

    /// The upper half of the fingerprint.
    pub(super) const fn high(self) -> u64 {
        self.high
    }

    /// All of it that the block does not say, and room for a note.
    fn tag(self) -> u64 {
        (self.high >> BLOCK_BITS << BLOCK_BITS) | (u64::from(self.low) << NOTE_BITS)
    }

    /// The place of its block.
    fn block(self) -> usize {
        usize::try_from(self.high % (1 << BLOCK_BITS)).unwrap_or(0)
    }

    /// The key with this tag in this block.
    fn from_tag(tag: u64, block: usize) -> Self {
        let low = (tag >> NOTE_BITS) % (1 << LOW_BITS);
        Self {
            high: (tag >> BLOCK_BITS << BLOCK_BITS) | block as u64,
            low: u32::try_from(low).unwrap_or(0),
        }
    }
}

impl Filter {
    /// The words of the two bits of a tag, each with its bit.
    #[inline]
    fn bits(tag: u64) -> [(usize, u64); 2] {
        /// Number of bits.
        const BITS: u64 = 8 * 64;
        [tag >> BLOCK_BITS, tag >> (BLOCK_BITS + 16)].map(|part| {
            let place = ((part & 0xffff) * BITS) >> 16;
            (usize::try_from(place / 64).unwrap_or(0), 1 << (place % 64))
        })
    }

    fn add(&mut self, tag: u64) {
        for (word, bit) in Self::bits(tag) {
            if let Some(word) = self.0.get_mut(word) {
                *word |= bit;
            }
        }
    }

    /// Returns false if no key with this tag was added.
    #[inline]
    fn may_have(&self, tag: u64) -> bool {
        let [one, other] =
            Self::bits(tag).map(|(word, bit)| self.0.get(word).map_or(0, |word| word & bit));
        (one != 0) & (other != 0)
    }
}

/// The first of so many buckets in which a key with this tag may be.
fn home(tag: u64, buckets: usize) -> usize {
    usize::try_from(((tag >> 32) * buckets as u64) >> 32).unwrap_or(0)
}

impl<V: Clone> KeyTable<V> {
    pub(super) fn new() -> Self {
        let empty: Arc<[Bucket<V>]> = Arc::from([]);
        let row = Arc::new(Row {
            filters: [Filter::default(); SIDE],
            blocks: array::from_fn(|_| Arc::clone(&empty)),
        });
        Self(Arc::new(array::from_fn(|_| Arc::clone(&row))))
    }

    #[inline]
    fn block(&self, key: TableKey) -> Option<(&Filter, &[Bucket<V>])> {
        let (row, place) = (key.block() / SIDE, key.block() % SIDE);
        let row = self.0.get(row)?;
        Some((row.filters.get(place)?, row.blocks.get(place)?))
    }

    /// What is stored for a key, and the note beside it.
    #[inline]
    pub(super) fn get(&self, key: TableKey) -> Option<(&V, u8)> {
        let ((filter, buckets), tag) = (self.block(key)?, key.tag());
        if !filter.may_have(tag) {
            return None;
        }
        let first = home(tag, buckets.len());
        let (before, after) = buckets.split_at_checked(first)?;
        for Bucket(slots) in after.iter().chain(before) {
            let is_sought = |slot: &&Slot<V>| (slot.tag ^ tag) >> NOTE_BITS == 0;
            if let Some(slot) = slots.iter().find(is_sought) {
                return slot.value.as_ref().map(|value| (value, slot.note()));
            }
            // A key moves on only from a bucket that is full.
            slots.last()?.value.as_ref()?;
        }
        None
    }

    /// Stores a value with a note for a key, or nothing any more.
    pub(super) fn set(&mut self, key: TableKey, value: Option<(V, u8)>) {
        let (place, tag) = (key.block(), key.tag());
        let own = value.map(|(value, note)| Slot {
            tag: tag | (u64::from(note) % (1 << NOTE_BITS)),
            value: Some(value),
        });
        let is_there = self.get(key).is_some();
        if own.is_none() && !is_there {
            return;
        }
        let rows = Arc::make_mut(&mut self.0);
        let Some(row) = rows.get_mut(place / SIDE).map(Arc::make_mut) else {
            return;
        };
        let (filter, buckets) = (
            row.filters.get_mut(place % SIDE),
            row.blocks.get_mut(place % SIDE),
        );
        if let (Some(filter), Some(buckets)) = (filter, buckets) {
            let before = Block {
                buckets: Arc::clone(buckets),
                filter: *filter,
            };
            let after = match own {
                Some(own) => before.with(own, is_there),
                None => before.without(tag),
            };
            (*filter, *buckets) = (after.filter, after.buckets);
        }
    }

    /// All keys with what is stored for them.
    pub(super) fn all(&self) -> impl Iterator<Item = (TableKey, &V, u8)> {
        let blocks = self.0.iter().flat_map(|row| row.blocks.iter()).enumerate();
        blocks.flat_map(|(place, buckets)| {
            let slots = buckets.iter().flat_map(Bucket::used);
            slots.filter_map(move |slot| {
                let key = TableKey::from_tag(slot.tag, place);
                Some((key, slot.value.as_ref()?, slot.note()))
            })
        })
    }

    /// The same keys with other values.
    pub(super) fn map(&self, change: impl Fn(&V) -> V) -> Self {
        let block = |buckets: &Arc<[Bucket<V>]>| -> Arc<[Bucket<V>]> {
            let buckets = buckets.iter().map(|Bucket(slots)| {
                Bucket(slots.clone().map(|slot| Slot {
                    value: slot.value.as_ref().map(&change),
                    ..slot
                }))
            });
            buckets.collect()
        };
        let rows = self.0.each_ref();
        let rows = rows.map(|row| {
            Arc::new(Row {
                filters: row.filters,
                blocks: row.blocks.each_ref().map(&block),
            })
        });
        Self(Arc::new(rows))
    }
}

impl<V: Clone> Block<V> {
    fn used(&self) -> usize {
        let all = self.buckets.iter();
        all.map(|bucket| bucket.used().count()).sum()
    }

    /// The same with a slot, in place of that of its key if there is one.
    fn with(&self, own: Slot<V>, is_there: bool) -> Self {
        let count = self.used() + usize::from(!is_there);
        let mut filter = self.filter;
        filter.add(own.tag);
        if count.div_ceil(LOAD) != self.buckets.len() {
            let others = self.buckets.iter().flat_map(Bucket::used);
            return Self {
                buckets: new_buckets(count, others.cloned().chain([own])),
                filter,
            };
        }
        let mut buckets: Arc<[Bucket<V>]> = self.buckets.iter().cloned().collect();
        if let Some(buckets) = Arc::get_mut(&mut buckets) {
            put(buckets, own);
        }
        Self { buckets, filter }
    }

    /// The same without the slot of a key that is there.
    fn without(&self, tag: u64) -> Self {
        let mut filter = Filter::default();
        let all = self.buckets.iter().flat_map(Bucket::used);
        let others = all.filter(|slot| (slot.tag ^ tag) >> NOTE_BITS != 0);
        let others = others.inspect(|slot| filter.add(slot.tag)).cloned();
        Self {
            buckets: new_buckets(self.used() - 1, others),
            filter,
        }
    }
}

/// Buckets for so many slots, with these of them.
fn new_buckets<V>(count: usize, slots: impl Iterator<Item = Slot<V>>) -> Arc<[Bucket<V>]> {
    let empty = std::iter::repeat_with(Bucket::empty);
    let mut buckets: Arc<[Bucket<V>]> = empty.take(count.div_ceil(LOAD)).collect();
    if let Some(buckets) = Arc::get_mut(&mut buckets) {
        slots.for_each(|slot| put(buckets, slot));
    }
    buckets
}

/// Puts a slot in place of that of its key, or into the first one that is free from its home on.
fn put<V>(buckets: &mut [Bucket<V>], own: Slot<V>) {
    let first = home(own.tag, buckets.len());
    for place in (first..buckets.len()).chain(0..first) {
        let Some(Bucket(slots)) = buckets.get_mut(place) else {
            return;
        };
        let is_for_it =
            |slot: &&mut Slot<V>| slot.value.is_none() || (slot.tag ^ own.tag) >> NOTE_BITS == 0;
        if let Some(slot) = slots.iter_mut().find(is_for_it) {
            *slot = own;
            return;
        }
    }
}

impl<V> Bucket<V> {
    fn empty() -> Self {
        Self(array::from_fn(|_| Slot {
            tag: 0,
            value: None,
        }))
    }

    fn used(&self) -> impl Iterator<Item = &Slot<V>> {
        self.0.iter().filter(|slot| slot.value.is_some())
    }
}

impl<V> Slot<V> {
    fn note(&self) -> u8 {
        u8::try_from(self.tag % (1 << NOTE_BITS)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys of few blocks and few homes, so that they meet.
    fn key() -> impl Strategy<Value = TableKey> {
        (0_u64..3, 0_u64..40, 0_u32..4).prop_map(|(block, upper, low)| {
            TableKey::new(Fingerprint {
                high: (upper << 59) | (upper << 20) | (block * 16_000),
                low: low << 20,
            })
        })
    }

    proptest! {
        #[test]
        fn same_as_a_map(steps in prop::collection::vec((key(), prop::option::of((0_u64..9, 0_u8..4))), 0..300)) {
            let mut table: KeyTable<Arc<u64>> = KeyTable::new();
            let mut model = BTreeMap::new();
            let mut copies = Vec::new();
            for (at, (key, value)) in steps.iter().enumerate() {
                if at % 50 == 0 {
                    copies.push((table.clone(), model.clone()));
                }
                table.set(*key, value.map(|(value, note)| (Arc::new(value), note)));
                match value {
                    Some(value) => model.insert((key.high, key.low), *value),
                    None => model.remove(&(key.high, key.low)),
                };
            }
            copies.push((table, model));
            for (table, model) in copies {
                for (key, _) in &steps {
                    let found = table.get(*key).map(|(value, note)| (**value, note));
                    prop_assert_eq!(found, model.get(&(key.high, key.low)).copied());
                }
                let doubled = table.map(|value| Arc::new(**value * 2));
                let all: BTreeMap<_, _> =
                    doubled.all().map(|(key, value, note)| ((key.high, key.low), (**value, note))).collect();
                let expected: BTreeMap<_, _> =
                    model.iter().map(|(key, (value, note))| (*key, (value * 2, *note))).collect();
                prop_assert_eq!(doubled.all().count(), expected.len());
                prop_assert_eq!(all, expected);
            }
        }
    }
}
