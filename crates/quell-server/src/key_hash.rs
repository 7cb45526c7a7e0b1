//! Key hash: a key as one can compare it and nothing else, in the decision log, `/v1/top`, the console and
//! traces. All of them have the same hash of the same key.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quell::store::memory::HashKey;
use quell_core::key::{masked, shortened};
use siphasher::sip128::{Hasher128, SipHasher13};

/// Naming of callers' keys in lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyNaming {
    /// The store's secret.
    pub(crate) secret: HashKey,
    /// True if a hash stands in place of a key: the operator wants the values of callers nowhere.
    pub(crate) is_hashed: bool,
}

impl KeyNaming {
    /// The hash of a key, as lists and the decision log show it.
    pub(crate) fn hash(self, key: &[u8]) -> KeyHash {
        KeyHash::new(key, self.secret)
    }

    /// The bytes of a key as lists have them: without most of what is long in it, or without its values.
    pub(crate) fn name(self, key: &[u8], hash: KeyHash) -> Arc<[u8]> {
        let mark = hash.to_string();
        match self.is_hashed {
            true => Arc::from(masked(key, &mark)),
            false => Arc::from(&*shortened(key, mark.get(..16).unwrap_or_default())),
        }
    }
}

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
