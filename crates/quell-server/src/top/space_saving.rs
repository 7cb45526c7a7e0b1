//! Space-Saving: the most frequent keys of a stream, in memory that does not grow (Metwally, Agrawal and
//! El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
//!
//! Simplest idea: a counter per key. It fails because callers choose the keys. Here are `k` counters. A
//! key that has one adds 1 to it. A key without one takes over the smallest counter, and goes on from its
//! count, which is then the counter's `error`: so often, at most, did the key come before.
//!
//! After `n` keys the counters add up to `n`, so the smallest is at most `n / k`. Hence a count is never
//! too small and at most `n / k` too large, and each key that came more than `n / k` times has a counter.
//!
//! Counters are kept in descending order. One that is to grow first changes places with the foremost of
//! the same count, so the order stays. A key that comes again and again costs one lookup and a binary
//! search.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::key_hash::KeyHash;
use crate::metrics::IdHasher;

/// At most `capacity` counters.
#[derive(Debug)]
pub(super) struct SpaceSaving<T> {
    capacity: usize,
    /// The largest first.
    counters: Vec<Counter<T>>,
    /// Place of each key's counter.
    places: HashMap<KeyHash, usize, BuildHasherDefault<IdHasher>>,
}

/// Count of a key.
#[derive(Clone, Debug)]
pub(super) struct Counter<T> {
    pub(super) key: KeyHash,
    /// At least as often as the key came.
    pub(super) count: u64,
    /// By how much the count is too large, at most.
    pub(super) error: u64,
    /// Record of the key since it has the counter.
    pub(super) item: T,
}

impl<T> SpaceSaving<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            counters: Vec::new(),
            places: HashMap::default(),
        }
    }

    /// Counts a key. Returns what is known of it, which `item` begins.
    pub(super) fn add(&mut self, key: KeyHash, item: impl FnOnce() -> T) -> Option<&mut T> {
        let last = self.counters.len();
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if last < self.capacity => {
                self.counters.push(Counter {
                    key,
                    count: 0,
                    error: 0,
                    item: item(),
                });
                self.places.insert(key, last);
                last
            }
            None => {
                let smallest = self.counters.last_mut()?;
                self.places.remove(&smallest.key);
                smallest.key = key;
                smallest.error = smallest.count;
                smallest.item = item();
                self.places.insert(key, last - 1);
                last - 1
            }
        };
        let place = self.grow(place)?;
        self.counters
            .get_mut(place)
            .map(|counter| &mut counter.item)
    }

    /// Adds 1 to the counter at `place`, which moves to where it then belongs.
    fn grow(&mut self, place: usize) -> Option<usize> {
        let count = self.counters.get(place)?.count;
        let front = self.counters.partition_point(|other| other.count > count);
        if let Some(counter) = self.counters.get_mut(place) {
            counter.count += 1;
        }
        if place != front {
            self.counters.swap(place, front);
            for moved in [place, front] {
                if let Some(counter) = self.counters.get(moved) {
                    self.places.insert(counter.key, moved);
                }
            }
        }
        Some(front)
    }

    /// Greatest count that a key without a counter can have.
    pub(super) fn floor(&self) -> u64 {
        let smallest = self.counters.get(self.capacity.saturating_sub(1));
        smallest.map_or(0, |counter| counter.count)
    }

    /// The counters, the largest first.
    pub(super) fn counters(&self) -> &[Counter<T>] {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use quell::store::memory::HashKey;

    use super::*;

    fn hash(key: u8) -> KeyHash {
        KeyHash::new(&[key], HashKey([1, 2]))
    }

    proptest! {
        /// Any stream: a few keys often and many seldom, in any order.
        #[test]
        fn counts_are_as_near_as_promised(
            capacity in 1_usize..20,
            keys in prop::collection::vec(prop_oneof![0_u8..4, 0_u8..=255], 0..600),
        ) {
            let mut sketch = SpaceSaving::new(capacity);
            let mut exact = HashMap::<u8, u64>::new();
            for (n, key) in (1_u64..).zip(&keys) {
                sketch.add(hash(*key), || *key);
                *exact.entry(*key).or_default() += 1;
                let most = n / capacity as u64;
                let counters = sketch.counters();
                prop_assert!(counters.len() <= capacity);
                prop_assert!(counters.is_sorted_by(|one, next| one.count >= next.count));
                prop_assert_eq!(counters.iter().map(|counter| counter.count).sum::<u64>(), n);
                prop_assert!(sketch.floor() <= most);
                for counter in counters {
                    let truth = exact[&counter.item];
                    prop_assert_eq!(counter.key, hash(counter.item));
                    prop_assert!(counter.error <= most);
                    prop_assert!((counter.count - counter.error..=counter.count).contains(&truth));
                }
                for (key, truth) in &exact {
                    let is_in = counters.iter().any(|counter| counter.item == *key);
                    prop_assert!(is_in || *truth <= sketch.floor(), "{} came {} times", key, truth);
                }
            }
        }
    }
}
