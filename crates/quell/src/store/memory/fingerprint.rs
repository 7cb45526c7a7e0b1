//! Fingerprint: 93 bits that stand for a key.
//!
//! SipHash-1-3 under a secret key: nobody outside can aim at a collision, and by chance any two of
//! 10^8 keys share 93 bits with probability below 2^-40 (n^2 / 2^94).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};

use super::siphash::SipHasher;

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

    /// The fingerprint of anything that can be hashed.
    #[inline]
    pub(crate) fn of<K: Hash + ?Sized>(self, key: &K) -> Fingerprint {
        let mut hasher = SipHasher::new(self.0);
        key.hash(&mut hasher);
        Self::finish(hasher)
    }

    /// The fingerprint of a key's bytes.
    #[must_use]
    pub fn of_bytes(self, bytes: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher::new(self.0);
        hasher.write(bytes);
        Self::finish(hasher)
    }

    #[inline]
    fn finish(hasher: SipHasher) -> Fingerprint {
        let [high, low] = hasher.finish128();
        let whole = Fingerprint {
            high,
            low: (low >> 32) as u32,
        };
        whole.kept()
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}
