//! Floor: the least that a decision on a key can cost here. Not a limiter to use: it keeps 64 bits
//! of a key, cannot grow, forgets nothing, and says allowed or not. Its entries are of Quell's size.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use foldhash::quality::RandomState;

use super::Answer;
use super::rivals::{Rival, numbers};

/// 24 bytes: who, until when its burst is used, and under which limit.
#[derive(Debug, Default)]
struct Slot {
    hash: AtomicU64,
    tat: AtomicU64,
    limit: AtomicU64,
}

/// The number of the one limit there is.
const LIMIT: u64 = 0;

/// An open table that is twice as large as its keys need.
#[derive(Debug)]
pub(super) struct Floor {
    slots: Box<[Slot]>,
    shift: u32,
    hasher: RandomState,
    clock: quanta::Clock,
    origin: quanta::Instant,
    interval: u64,
    full: u64,
}

impl Rival for Floor {
    fn new(answer: Answer, keys: usize) -> Result<Self> {
        let (burst, period) = numbers(answer);
        let slots = (keys * 2).next_power_of_two().max(2);
        let clock = quanta::Clock::new();
        let interval = u64::try_from(period.as_nanos())?;
        Ok(Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            shift: 64 - slots.trailing_zeros(),
            hasher: RandomState::default(),
            origin: clock.now(),
            clock,
            interval,
            full: interval * u64::from(burst),
        })
    }

    fn ask(&self, key: &String) -> bool {
        // 0 is an empty slot.
        let hash = self.hasher.hash_one(key.as_str()) | 1;
        let tat = &self.slot(hash).tat;
        let since = self.clock.now().duration_since(self.origin);
        let now = since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos());
        let mut seen = tat.load(Ordering::Relaxed);
        loop {
            let new = seen.max(now) + self.interval;
            if new - now > self.full {
                return false;
            }
            match tat.compare_exchange_weak(seen, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => seen = other,
            }
        }
    }
}

impl Floor {
    fn slot(&self, hash: u64) -> &Slot {
        let mut index = (hash >> self.shift) as usize;
        loop {
            let slot = &self.slots[index & (self.slots.len() - 1)];
            let seen = slot.hash.load(Ordering::Relaxed);
            if seen == hash && slot.limit.load(Ordering::Relaxed) == LIMIT {
                return slot;
            }
            if seen == 0 {
                let claim =
                    slot.hash
                        .compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
                if claim.is_ok() || claim == Err(hash) {
                    return slot;
                }
            }
            index += 1;
        }
    }
}
