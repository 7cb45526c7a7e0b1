//! Floor: the least that a decision on a key can cost here. It is not a usable limiter: it keeps 64
//! bits of a key, cannot grow, forgets nothing, and answers only allowed or not. Its entries are as
//! large as Quell's.
//!
//! It comes with two hashes: one that is only keyed, and the one that Quell promises, 91 bits that an
//! attacker cannot aim at. The difference between them is the price of that promise alone. The second
//! also comes with its slot prefetched before the clock is read, as in Quell.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use foldhash::quality::RandomState;
use prefetch_index::prefetch_index;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Answer;
use super::rivals::{Rival, numbers};

/// Computes a key's place in the table, and further bits of the key that are stored.
pub(super) trait KeyHash: Debug + Default + Sync {
    fn of(&self, key: &str) -> (u64, u64);
}

impl KeyHash for RandomState {
    fn of(&self, key: &str) -> (u64, u64) {
        (self.hash_one(key), 0)
    }
}

/// SipHash-1-3 with 128 bits, of which 29 are stored next to the limit.
#[derive(Debug)]
pub(super) struct Unaimable(SipHasher13);

impl Default for Unaimable {
    fn default() -> Self {
        let word = || RandomState::default().hash_one(0);
        Self(SipHasher13::new_with_keys(word(), word()))
    }
}

impl KeyHash for Unaimable {
    fn of(&self, key: &str) -> (u64, u64) {
        let mut hasher = self.0;
        hasher.write(key.as_bytes());
        hasher.write_u8(0xff);
        let hash = hasher.finish128();
        (hash.h1, hash.h2 >> 35)
    }
}

/// 24 bytes: which key, until when its burst is used up, and under which limit.
#[derive(Debug, Default)]
struct Slot {
    hash: AtomicU64,
    tat: AtomicU64,
    limit: AtomicU64,
}

/// An open table that is twice as large as its keys need. `AHEAD`: reading the processor's counter
/// waits for the loads before it, so the slot is only prefetched when the clock is read.
#[derive(Debug)]
pub(super) struct Floor<H, const AHEAD: bool = false> {
    slots: Box<[Slot]>,
    shift: u32,
    hasher: H,
    clock: quanta::Clock,
    origin: quanta::Instant,
    interval: u64,
    full: u64,
}

impl<H: KeyHash, const AHEAD: bool> Rival for Floor<H, AHEAD> {
    fn new(answer: Answer, keys: usize) -> Result<Self> {
        let (burst, period) = numbers(answer);
        let slots = (keys * 2).next_power_of_two().max(2);
        let clock = quanta::Clock::new();
        let interval = u64::try_from(period.as_nanos())?;
        Ok(Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            shift: 64 - slots.trailing_zeros(),
            hasher: H::default(),
            origin: clock.now(),
            clock,
            interval,
            full: interval * u64::from(burst),
        })
    }

    fn ask(&self, key: &String) -> bool {
        // 0 marks an empty slot.
        let (hash, more) = self.hasher.of(key);
        let hash = hash | 1;
        let (now, tat) = if AHEAD {
            prefetch_index(&self.slots, (hash >> self.shift) as usize);
            let now = self.now();
            (now, &self.slot(hash, more).tat)
        } else {
            let tat = &self.slot(hash, more).tat;
            (self.now(), tat)
        };
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

impl<H, const AHEAD: bool> Floor<H, AHEAD> {
    /// Nanoseconds since this was made.
    fn now(&self) -> u64 {
        let since = self.clock.now().duration_since(self.origin);
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }

    fn slot(&self, hash: u64, limit: u64) -> &Slot {
        let mut index = (hash >> self.shift) as usize;
        loop {
            let slot = &self.slots[index & (self.slots.len() - 1)];
            let seen = slot.hash.load(Ordering::Relaxed);
            if seen == hash && slot.limit.load(Ordering::Relaxed) == limit {
                return slot;
            }
            if seen == 0 {
                let claim =
                    slot.hash
                        .compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
                if claim.is_ok() || claim == Err(hash) {
                    slot.limit.store(limit, Ordering::Relaxed);
                    return slot;
                }
            }
            index += 1;
        }
    }
}
