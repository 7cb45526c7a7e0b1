//! Hold keys: which keys the holds of this process charge, by their ids. What a hold costs in the end changes what
//! its keys have left, so refusals that are cached for them are forgotten then.
//!
//! An id that is not known here, or not any more, is one of other servers' for the cache: what it changes shows when
//! the cached refusals end.

use std::collections::HashMap;
use std::mem;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::denial_cache::CachedKey;

/// Ids in each of two halves; when one is full, the other is dropped: some 17 MB in all.
const IDS: usize = 65_536;

/// The keys of one hold.
type Keys = SmallVec<[CachedKey; 2]>;

/// The keys of holds, by the fingerprints of their ids.
#[derive(Debug, Default)]
pub(super) struct HoldKeys {
    halves: Mutex<[HashMap<CachedKey, Keys>; 2]>,
}

impl HoldKeys {
    /// Remembers the keys of a hold.
    pub(super) fn add(&self, id: CachedKey, keys: Keys) {
        if keys.is_empty() {
            return;
        }
        let mut halves = self.halves.lock();
        let [young, old] = &mut *halves;
        if young.len() >= IDS {
            *old = mem::take(young);
        }
        young.insert(id, keys);
    }

    /// The keys of a hold that ends: they are not remembered any more.
    pub(super) fn take(&self, id: CachedKey) -> Keys {
        let mut halves = self.halves.lock();
        let mut halves = halves.iter_mut();
        halves.find_map(|half| half.remove(&id)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ids_are_known_and_their_number_is_bounded() {
        let (holds, cache) = (HoldKeys::default(), super::super::DenialCache::new());
        let id = |number: usize| cache.print(&number.to_le_bytes());
        for number in 0..3 * IDS {
            holds.add(id(number), SmallVec::from_elem(id(number), 1));
        }
        let known = holds.halves.lock().iter().map(HashMap::len).sum::<usize>();
        assert_eq!(known, 2 * IDS);
        assert_eq!(holds.take(id(3 * IDS - 1)).len(), 1);
        assert!(holds.take(id(3 * IDS - 1)).is_empty(), "it has ended");
        assert!(holds.take(id(0)).is_empty(), "it is too long ago");
    }
}
