//! Recovery: the time after an outage in which a server of the store answers, and not every node has
//! paid yet.
//!
//! Of two nodes that each used their half apart, the first to find the store again would be admitted
//! the other half as well, if the second paid later. So for as long as nodes need to find a store and
//! to pay, limits that are shared go on by their shares, on every node that saw the outage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::local_share::RECOVERY;
use crate::link::Place;

/// Servers that were gone a moment ago.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    until: Mutex<Vec<(Arc<Place>, Instant)>>,
    is_any: AtomicBool,
}

impl Recovery {
    /// A server is gone at `now`.
    pub(super) fn gone(&self, place: &Arc<Place>, now: Instant) {
        let mut all = self.until.lock();
        all.retain(|(other, until)| !Arc::ptr_eq(other, place) && now < *until);
        all.push((Arc::clone(place), now + RECOVERY));
        self.is_any.store(true, Ordering::Release);
    }

    /// Whether a server may be one of them, without a look at the clock.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether a server was gone a moment ago.
    pub(super) fn has(&self, place: &Arc<Place>, now: Instant) -> bool {
        let all = self.until.lock();
        let mut all = all.iter();
        all.any(|(other, until)| Arc::ptr_eq(other, place) && now < *until)
    }

    /// Forgets those that have had their time; says whether some have not.
    pub(super) fn sweep(&self, now: Instant) -> bool {
        let mut all = self.until.lock();
        all.retain(|(_, until)| now < *until);
        self.is_any.store(!all.is_empty(), Ordering::Release);
        !all.is_empty()
    }
}
