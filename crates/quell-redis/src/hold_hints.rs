//! Hints which keys need the hold script, so that calls on them take one round trip.
//!
//! The script for rates refuses a state with holds; the caller then asks the hold script, and for a
//! second further calls on the same keys go there directly. A wrong hint costs a little time and changes
//! no answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::answer::Reply;

/// How long a hint holds.
const TTL: Duration = Duration::from_secs(1);

/// Keys with a hint at a time; more of them displace each other.
const SLOTS: usize = 4_096;

/// Bits of a place that say until when, in milliseconds since the start.
const TIME_BITS: u32 = 40;

/// Hints, by a hash of all keys of a call.
#[derive(Debug)]
pub(crate) struct HoldHints {
    /// Whether there ever was one: who never holds anything pays this look and no more.
    is_any: AtomicBool,
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    start: Instant,
}

impl HoldHints {
    pub(crate) fn new() -> Self {
        Self {
            is_any: AtomicBool::new(false),
            slots: (0..SLOTS).map(|_| AtomicU64::default()).collect(),
            hasher: RandomState::new(),
            start: Instant::now(),
        }
    }

    pub(crate) fn has(&self, keys: &[Vec<u8>]) -> bool {
        if !self.is_any.load(Ordering::Relaxed) {
            return false;
        }
        let (slot, tag) = self.slot(keys);
        let hint = slot.map_or(0, |slot| slot.load(Ordering::Relaxed));
        hint >> TIME_BITS == tag && hint & ((1 << TIME_BITS) - 1) > self.millis(Duration::ZERO)
    }

    pub(crate) fn add(&self, keys: &[Vec<u8>]) {
        self.is_any.store(true, Ordering::Relaxed);
        let (slot, tag) = self.slot(keys);
        if let Some(slot) = slot {
            let hint = tag << TIME_BITS | self.millis(TTL);
            slot.store(hint, Ordering::Relaxed);
        }
    }

    fn millis(&self, later: Duration) -> u64 {
        let millis = (self.start.elapsed() + later).as_millis();
        u64::try_from(millis).unwrap_or(0) & ((1 << TIME_BITS) - 1)
    }

    fn slot(&self, keys: &[Vec<u8>]) -> (Option<&AtomicU64>, u64) {
        let hash = self.hasher.hash_one(keys);
        let index = usize::try_from(hash % SLOTS as u64).unwrap_or(0);
        (self.slots.get(index), hash >> TIME_BITS)
    }
}

/// Whether the script said that it does not know what a state holds.
pub(crate) fn needs_hold_script(reply: &Value) -> bool {
    Reply::of(reply).and_then(|mut reply| reply.number()) == Some(-2)
}
