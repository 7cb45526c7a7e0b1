//! Boxed: keys of which the script said lately that only the one that knows holds can decide them.
//!
//! Whoever asks about such a key asks the right script at once, so that it stays one trip. What is
//! remembered is a hint: if it is wrong the answer is the same and a little slower, and after a second
//! it is asked anew.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::answer::Reply;

/// How long a hint holds.
const LASTS: Duration = Duration::from_secs(1);

/// Keys with a hint at a time; more of them displace each other.
const PLACES: usize = 4_096;

/// Bits of a place that say until when, in milliseconds since the start.
const TIME_BITS: u32 = 40;

/// Hints, by a hash of all keys of a call.
#[derive(Debug)]
pub(crate) struct Boxed {
    /// Whether there ever was one: who never holds anything pays this look and no more.
    is_any: AtomicBool,
    places: Box<[AtomicU64]>,
    hasher: RandomState,
    start: Instant,
}

impl Boxed {
    pub(crate) fn new() -> Self {
        Self {
            is_any: AtomicBool::new(false),
            places: (0..PLACES).map(|_| AtomicU64::default()).collect(),
            hasher: RandomState::new(),
            start: Instant::now(),
        }
    }

    pub(crate) fn has(&self, keys: &[Vec<u8>]) -> bool {
        if !self.is_any.load(Ordering::Relaxed) {
            return false;
        }
        let (place, tag) = self.place(keys);
        let known = place.map_or(0, |place| place.load(Ordering::Relaxed));
        known >> TIME_BITS == tag && known & ((1 << TIME_BITS) - 1) > self.millis(Duration::ZERO)
    }

    pub(crate) fn add(&self, keys: &[Vec<u8>]) {
        self.is_any.store(true, Ordering::Relaxed);
        let (place, tag) = self.place(keys);
        if let Some(place) = place {
            let known = tag << TIME_BITS | self.millis(LASTS);
            place.store(known, Ordering::Relaxed);
        }
    }

    fn millis(&self, later: Duration) -> u64 {
        let millis = (self.start.elapsed() + later).as_millis();
        u64::try_from(millis).unwrap_or(0) & ((1 << TIME_BITS) - 1)
    }

    fn place(&self, keys: &[Vec<u8>]) -> (Option<&AtomicU64>, u64) {
        let hash = self.hasher.hash_one(keys);
        let index = usize::try_from(hash % PLACES as u64).unwrap_or(0);
        (self.places.get(index), hash >> TIME_BITS)
    }
}

/// Whether the script said that it does not know what a state holds.
pub(crate) fn is_boxed(reply: &Value) -> bool {
    Reply::of(reply).and_then(|mut reply| reply.number()) == Some(-2)
}
