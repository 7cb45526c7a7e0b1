//! Settled: ids of reservations that were settled, so that settling one again changes nothing.

use std::collections::{HashMap, VecDeque};

use quell_core::adjustment::IssuedReservation;
use quell_core::time::Monotonic;
use quell_core::time::Now;

use super::fingerprint::Fingerprint;

/// The number of remembered ids, some 100 bytes each: as many as 8,738 a second for the 120 s of a reservation. Beyond
/// it the oldest is forgotten, and settling that one again would adjust its key again.
pub const MAX_SETTLED: usize = 1 << 20;

/// An id on the key that it adjusted.
type SettledId = (Fingerprint, u128);

/// Ids that were settled lately.
#[derive(Debug, Default)]
pub(super) struct SettledIds {
    until: HashMap<SettledId, Monotonic>,
    /// In the order in which they were added.
    order: VecDeque<(SettledId, Monotonic)>,
}

impl SettledIds {
    /// Adds an id on a key. Returns false if it is there already.
    pub(super) fn add(&mut self, key: Fingerprint, issued: &IssuedReservation, now: Now) -> bool {
        let (id, now) = ((key, issued.id), now.monotonic);
        if self.until.get(&id).is_some_and(|until| *until > now) {
            return false;
        }
        self.forget(now);
        let until = now.saturating_add(issued.ttl);
        self.until.insert(id, until);
        self.order.push_back((id, until));
        true
    }

    /// Forgets the oldest ids, as far as their time is over or there are too many.
    pub(super) fn forget(&mut self, now: Monotonic) {
        while let Some((id, until)) = self.order.front()
            && (*until <= now || self.order.len() >= MAX_SETTLED)
        {
            // The same id may be there again.
            if self.until.get(id) == Some(until) {
                self.until.remove(id);
            }
            self.order.pop_front();
        }
        if self.order.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_core::time::Wall;

    use super::*;
    use crate::store::memory::HashKey;

    #[test]
    fn as_many_are_remembered_as_there_may_be() {
        let mut settled = SettledIds::default();
        let now = Now::from_nanos(1_000);
        let key = HashKey::random().of_bytes(b"k");
        let issued = |id| IssuedReservation {
            id,
            charged: Wall::ORIGIN,
            ttl: Duration::from_secs(120),
        };
        for id in 0..=MAX_SETTLED as u128 {
            assert!(settled.add(key, &issued(id), now));
        }
        assert_eq!(settled.until.len(), MAX_SETTLED);
        assert!(settled.add(key, &issued(0), now), "the oldest is forgotten");
        assert!(!settled.add(key, &issued(7), now));
        let later = now.monotonic.saturating_add(Duration::from_secs(120));
        settled.forget(later);
        assert!(settled.until.is_empty() && settled.order.is_empty());
    }
}
