//! Fingerprint: 93 bits that stand for a key.
//!
//! SipHash-1-3 under a secret key: nobody outside can aim at a collision, and by chance any two of
//! 10^8 keys share 93 bits with probability below 2^-40 (n^2 / 2^94).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};

use super::siphash::{Halfway, SipHasher};

/// What stands for a key in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    /// The upper 64 bits, of which the last say where the key lies.
    pub high: u64,
    /// The lower 29 bits, and three that are zero.
    pub low: u32,
}

/// Bits of [`Fingerprint::low`] that are kept; the table needs the others.
const KEPT: u32 = !0b111;

impl Fingerprint {
    /// What a table can keep of it.
    pub(super) const fn kept(self) -> Self {
        Self {
            high: self.high,
            low: self.low & KEPT,
        }
    }
}

/// The secret under which keys are hashed. Two stores with one secret give a key one fingerprint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

impl HashKey {
    /// A secret that nobody can guess, from the system's source of randomness.
    #[must_use]
    pub fn random() -> Self {
        let word = || RandomState::new().build_hasher().finish();
        Self([word(), word()])
    }

    /// The upper half of the fingerprint of anything that can be hashed.
    #[inline]
    pub(crate) fn half_of<K: Hash + ?Sized>(self, key: &K) -> Half {
        let mut hasher = SipHasher::new(self.0);
        key.hash(&mut hasher);
        Half::new(hasher)
    }

    /// The upper half of the fingerprint of a key's bytes.
    #[inline]
    pub(super) fn half_of_bytes(self, bytes: &[u8]) -> Half {
        let mut hasher = SipHasher::new(self.0);
        hasher.write(bytes);
        Half::new(hasher)
    }

    /// The fingerprint of anything that can be hashed.
    #[inline]
    pub(crate) fn of<K: Hash + ?Sized>(self, key: &K) -> Fingerprint {
        self.half_of(key).whole()
    }

    /// The fingerprint of a key's bytes.
    #[must_use]
    pub fn of_bytes(self, bytes: &[u8]) -> Fingerprint {
        self.half_of_bytes(bytes).whole()
    }
}

/// A fingerprint of which only the upper half is known: where the key lies is said, and its line can be
/// on the way while the lower half is worked out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    /// The upper 64 bits.
    pub(super) high: u64,
    rest: Halfway,
}

impl Half {
    #[inline]
    const fn new(hasher: SipHasher) -> Self {
        let (high, rest) = hasher.first_word();
        Self { high, rest }
    }

    /// The fingerprint.
    #[inline]
    pub(crate) const fn whole(self) -> Fingerprint {
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
