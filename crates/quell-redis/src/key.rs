//! Names of keys in Redis.
//!
//! `quell:1:{` + 12 bytes for domain and rule + the captured values + `}`. The twelve bytes are the start
//! of SHA-256 of the key's scope, which no caller chooses: of 10,000 rules two share them with
//! probability 2^-70. Each value is written with its length; if it is longer than 64 bytes, 24 bytes of
//! the SHA-256 of the whole key replace it: 10^8 of those collide with probability 2^-139, and finding a
//! pair takes 2^96 tries.
//!
//! A cluster assigns slots by the text between the braces. There `}` is written `~-` and `~` is written
//! `~~`, so that all of it counts, whatever bytes the values have.
//!
//! If a domain keeps keys together (`colocate`), the text between the braces is the value that they share,
//! hashed if it is long; the twelve bytes and all values follow.
//!
//! The `1` is the version of names and states. Another format gets another number.

use quell_core::key::Key;
use sha2::{Digest, Sha256};

/// Prefix of all names in production.
pub(crate) const PREFIX: &str = "quell:1:";

/// The longest values that a name contains unhashed.
const LONGEST: usize = 64;

/// Marks a hash of values; no captured value begins with it.
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

    /// The name of the state of the key with these bytes, of which the first `scope` are its scope.
    pub(crate) fn of_parts(&self, bytes: &[u8], scope: usize) -> Vec<u8> {
        let (scope, values) = bytes.split_at_checked(scope).unwrap_or((bytes, &[]));
        let mut name = Vec::with_capacity(self.prefix.len() + values.len() + 24);
        name.extend_from_slice(&self.prefix);
        name.push(b'{');
        let scope = Sha256::digest(scope);
        let scope = scope.get(..12).unwrap_or(&scope);
        if let Some(together) = Key::from_parts(bytes, 0).together() {
            push_values(&mut name, together, together, push);
            name.push(b'}');
            name.extend_from_slice(scope);
            push_values(&mut name, values, bytes, Vec::extend_from_slice);
        } else {
            push(&mut name, scope);
            push_values(&mut name, values, bytes, push);
            name.push(b'}');
        }
        name
    }

    /// The name of the record of what was charged of the totals `id`, in the slot of the state with this
    /// `name`.
    pub(crate) fn totals(&self, name: &[u8], id: u128) -> Vec<u8> {
        let state = name.get(self.prefix.len()..).unwrap_or(name);
        [&self.prefix, b"paid:".as_slice(), state, &id.to_be_bytes()].concat()
    }

    /// The name of the record that the reservation `id` was settled, in the slot of the state with this `name`.
    pub(crate) fn settled(&self, name: &[u8], id: u128) -> Vec<u8> {
        let state = name.get(self.prefix.len()..).unwrap_or(name);
        [&self.prefix, b"done:".as_slice(), state, &id.to_be_bytes()].concat()
    }

    /// The name of an operator's reason for the ban in the state with this `name`, in the same slot.
    pub(crate) fn ban_reason(&self, name: &[u8]) -> Vec<u8> {
        let state = name.get(self.prefix.len()..).unwrap_or(name);
        [&self.prefix, b"why:".as_slice(), state].concat()
    }

    /// The name of the record of the hold `id`; on a cluster each slot with one of its states has a
    /// record, and `tag` names the slot.
    pub(crate) fn hold(&self, id: &[u8], tag: Option<u32>) -> Vec<u8> {
        [&self.prefix, b"id:".as_slice(), &between(tag), id].concat()
    }

    /// The name of the stream of holds whose turn may come sooner.
    pub(crate) fn turn_stream(&self, tag: Option<u32>) -> Vec<u8> {
        [&self.prefix, b"calls".as_slice(), &between(tag)].concat()
    }

    /// The name of the pointer of the hold `id`, on a cluster.
    pub(crate) fn pointer(&self, id: &[u8]) -> Vec<u8> {
        let mut name = [&self.prefix, b"at:{".as_slice()].concat();
        push(&mut name, id);
        name.push(b'}');
        name
    }

    /// The name of a key on which a server is tested: its `probe`, or the user's `rights`. No state has
    /// it: what follows the braces of a state's name is longer, or nothing.
    pub(crate) fn test_key(&self, tag: &str, test: &str) -> Vec<u8> {
        [&self.prefix, format!("{{{tag}}}{test}").as_bytes()].concat()
    }

    /// The name of the list of nodes that owe charges.
    pub(crate) fn owing(&self) -> Vec<u8> {
        [&self.prefix, b"owing".as_slice()].concat()
    }

    /// The names of the list of banned keys, and of how many each domain has there, in one slot. No state has
    /// them: between its braces, or behind them, it has at least twelve bytes.
    pub(crate) fn bans(&self) -> [Vec<u8>; 2] {
        [b"{bans}list".as_slice(), b"{bans}domains"].map(|name| [&self.prefix, name].concat())
    }
}

/// The part of a name that puts it into the slot that `tag` names.
fn between(tag: Option<u32>) -> Vec<u8> {
    tag.map_or_else(Vec::new, |tag| format!("{{{tag}}}").into_bytes())
}

/// Adds values, or a hash of `all` if they are long.
fn push_values(name: &mut Vec<u8>, values: &[u8], all: &[u8], push: fn(&mut Vec<u8>, &[u8])) {
    if values.len() <= LONGEST {
        push(name, values);
    } else {
        let digest = Sha256::digest(all);
        push(name, &[HASHED]);
        push(name, digest.get(..24).unwrap_or(&digest));
    }
}

/// Adds bytes between braces, escaped so that none of them closes the braces.
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

    #[test]
    fn keys_of_one_value_have_it_between_their_braces() {
        let part = |part: &[u8]| [&u32::try_from(part.len()).unwrap().to_be_bytes(), part].concat();
        // As `quell-core` writes a rule with `per: [user, tenant]` in a domain with
        // `colocate: tenant`.
        let key = |rule: &[u8], user: &[u8], tenant: &[u8]| {
            let marks: [&[u8]; 3] = [&[1], &[3, 1], &[0]];
            let scope = [
                b"r",
                part(b"d").as_slice(),
                &part(rule),
                marks[0],
                &part(b"user"),
                marks[1],
                &part(b"tenant"),
                marks[2],
            ]
            .concat();
            let values = [&[1], part(user).as_slice(), &[1], &part(tenant)].concat();
            let bytes = [scope.as_slice(), &values].concat();
            Names::new(PREFIX).of_parts(&bytes, scope.len())
        };
        let between = |name: &[u8]| {
            let close = name.iter().position(|byte| *byte == b'}').unwrap();
            name[..close].to_vec()
        };
        let long = [b'}'; 200];
        let mut names = BTreeSet::new();
        let mut slots = BTreeSet::new();
        for tenant in [b"acme".as_slice(), b"a}b", b"{", b"", &long] {
            for (rule, user) in [(b"r1", b"u1".as_slice()), (b"r1", b"u2"), (b"r2", &long)] {
                let name = key(rule, user, tenant);
                assert!(name.len() <= 215, "{}", name.len());
                slots.insert(between(&name));
                assert!(names.insert(name));
            }
        }
        assert_eq!((names.len(), slots.len()), (15, 5));
    }
}
