//! Key names: what a state is called in Redis.
//!
//! `quell:1:{` + 12 bytes that stand for domain and rule + the captured values + `}`. The twelve
//! bytes begin SHA-256 of the key's scope, which nobody outside chooses: of 10,000 rules two share
//! them with probability 2^-70. Values stand as they are, each with its length, and where they are
//! longer than 64 bytes, 24 bytes of the SHA-256 of the whole key stand for them: 10^8 of those
//! collide with probability 2^-139, and to find a pair takes 2^96 tries.
//!
//! What stands between braces is what a cluster spreads keys by. `}` is written `~-` there, and `~`
//! is written `~~`, so that all of it counts whatever bytes the values are.
//!
//! The `1` is the version of names and states. Another format gets another number.

use quell_core::key::Key;
use sha2::{Digest, Sha256};

/// What all names begin with in production.
pub(crate) const PREFIX: &str = "quell:1:";

/// The longest values that stand in a name as they are.
const LONGEST: usize = 64;

/// Stands before a hash of values; no captured value begins with it.
const HASHED: u8 = 0xff;

/// Writes names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: Box<[u8]>,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.as_bytes().into(),
        }
    }

    /// The name of the state of `key`.
    pub(crate) fn of(&self, key: Key<'_>) -> Vec<u8> {
        self.of_parts(key.as_bytes(), key.scope().len())
    }

    /// The name of the state of the key that these bytes are, of which so many are its scope.
    pub(crate) fn of_parts(&self, bytes: &[u8], scope: usize) -> Vec<u8> {
        let (scope, values) = bytes.split_at_checked(scope).unwrap_or((bytes, &[]));
        let mut name = Vec::with_capacity(self.prefix.len() + values.len() + 24);
        name.extend_from_slice(&self.prefix);
        name.push(b'{');
        let digest = Sha256::digest(scope);
        push(&mut name, digest.get(..12).unwrap_or(&digest));
        if values.len() <= LONGEST {
            push(&mut name, values);
        } else {
            let digest = Sha256::digest(bytes);
            push(&mut name, &[HASHED]);
            push(&mut name, digest.get(..24).unwrap_or(&digest));
        }
        name.push(b'}');
        name
    }

    /// The name of the list of banned keys.
    pub(crate) fn bans(&self) -> Vec<u8> {
        [&self.prefix, b"bans".as_slice()].concat()
    }
}

fn push(name: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'}' => name.extend_from_slice(b"~-"),
            b'~' => name.extend_from_slice(b"~~"),
            byte => name.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_wherever_keys_do() {
        let names = Names::new(PREFIX);
        let long = vec![b'x'; 65];
        let longer = vec![b'x'; 66];
        let values: [&[u8]; 10] = [
            b"", b"}", b"~", b"~-", b"~~", b"}~", b"{a}", b"\xff\0", &long, &longer,
        ];
        let mut seen = BTreeSet::new();
        for scope in [b"rule-a", b"rule-b"] {
            for value in values {
                let bytes = [scope.as_slice(), value].concat();
                let name = names.of_parts(&bytes, scope.len());
                assert!(name.starts_with(b"quell:1:{") && name.ends_with(b"}"));
                assert_eq!(name.iter().filter(|byte| **byte == b'}').count(), 1);
                assert!(name.len() <= 9 + 2 * (12 + 64) + 1);
                assert!(seen.insert(name), "{scope:?} {value:?}");
            }
        }
    }
}
