//! Fingerprint: 91 bits that identify a key.
//!
//! SipHash-1-3 under a secret key: an attacker cannot aim at a collision, and by chance any two of
//! 10^8 keys share 91 bits with probability below 2^-38 (n^2 / 2^92).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};

use super::line::KEPT;
use super::siphash::{HalfHash, SipHasher};

/// Identifies a key in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    /// The upper 64 bits; the last of them determine the key's place.
    pub high: u64,
    /// The lower 27 bits, and five that are zero.
    pub low: u32,
}

impl Fingerprint {
    /// The part of it that a table can keep.
    pub(super) const fn kept(self) -> Self {
        Self {
            high: self.high,
            low: self.low & KEPT,
        }
    }
}

/// A fingerprint is a hash already.
#[derive(Debug, Default)]
pub struct PrintHasher(u64);

impl Hasher for PrintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, high: u64) {
        self.0 = high;
    }

    fn write_u32(&mut self, _: u32) {}
}

/// The secret under which keys are hashed. Two stores with the same secret give a key the same
/// fingerprint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

impl HashKey {
    /// An unguessable secret, from the system's source of randomness.
    #[must_use]
    pub fn random() -> Self {
        let word = || RandomState::new().build_hasher().finish();
        Self([word(), word()])
    }

    /// The fingerprint of anything that can be hashed, its upper half first.
    #[inline]
    pub(super) fn half_of<K: Hash + ?Sized>(self, key: &K) -> Half {
        let mut hasher = SipHasher::new(self.0);
        key.hash(&mut hasher);
        let (high, rest) = hasher.first_word();
        Half { high, rest }
    }

    /// The fingerprint of a key's bytes.
    #[must_use]
    pub fn of_bytes(self, bytes: &[u8]) -> Fingerprint {
        self.half_of(&Raw(bytes)).whole()
    }
}

/// Bytes that are hashed without their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl Hash for Raw<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0);
    }
}

/// A fingerprint of which only the upper half is known, which determines the key's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    /// The upper 64 bits.
    pub(super) high: u64,
    rest: HalfHash,
}

impl Half {
    /// The fingerprint.
    #[inline]
    pub(super) const fn whole(self) -> Fingerprint {
        let whole = Fingerprint {
            high: self.high,
            low: (self.rest.second_word() >> 32) as u32,
        };
        whole.kept()
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}
