//! Key hash: a key as one can compare it and nothing else, in the decision log, `/v1/top` and traces. All
//! three have the same hash of the same key.

use std::fmt;
use std::hash::{Hash, Hasher};

use quell::store::memory::HashKey;
use siphasher::sip128::{Hasher128, SipHasher13};

/// Keeps these hashes apart from those in the store: who reads them learns none of these.
const APART: u64 = 0x6c6f_6720_6c69_6e65;

/// A keyed hash of a key's bytes. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u128);

impl KeyHash {
    /// The hash of `key` under the store's secret.
    pub(crate) fn new(key: &[u8], HashKey([first, second]): HashKey) -> Self {
        let mut hasher = SipHasher13::new_with_keys(first ^ APART, second.rotate_left(32) ^ APART);
        hasher.write(key);
        let hash = hasher.finish128();
        Self(u128::from(hash.h1) << 64 | u128::from(hash.h2))
    }
}

/// It is a keyed hash already, so half of it is enough.
impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::try_from(self.0 >> 64).unwrap_or_default());
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
