//! Reservation: the signed token that the service issues for an estimate, and gets back when its stream ends.
//!
//! Envoy keeps what the service answers as dynamic metadata with the stream, and hands it back with the last call. So
//! the token is all that is kept of a reservation: any server with the same key can settle it, and no number of streams
//! is too many.
//!
//! ```text
//! version 1 | estimate 8 | instant 8 | nonce 8 | 4 for each key that was charged | MAC 16, in base64url
//! MAC: HMAC-SHA-256 of all before it, the domain and the descriptor without phase and id
//! ```
//!
//! The first of several keys signs, and all of them verify, so that a key can be replaced while streams are open.
//!
//! A token of one tenant settles nothing of another, since the descriptor is under the MAC. A key that is not in it,
//! because its rule is newer than the reservation or was in shadow and full, was not charged the estimate, and is
//! charged the true cost. Several descriptors of one call have one token each, with a dot between.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use quell_core::adjustment::{Adjustment, IssuedReservation};
use quell_core::descriptor::Descriptor;
use quell_core::key::Key;
use quell_core::query_bounds::MAX_DESCRIPTORS;
use quell_core::rule::Reserve;
use quell_core::time::Wall;
use sha2::{Digest as _, Sha256};

/// The answer to a call that was refused; with it the last call of its stream settles nothing.
pub const REFUSED: &str = "refused";

/// What Envoy's configuration says for a call that the service did not answer.
pub const UNRESERVED: &str = "unreserved";

const VERSION: u8 = 1;

/// Bytes before the keys.
const HEAD: usize = 25;

const KEY: usize = 4;

const MAC: usize = 16;

/// Begins what is signed, so that a signature of something else is none of a reservation.
const CONTEXT: &[u8] = b"quell-envoy-reservation\0";

/// The keys of reservations, of which the first signs. Servers of one store share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationKeys {
    signs: ReservationKey,
    others: Vec<ReservationKey>,
}

#[derive(Clone)]
struct ReservationKey {
    digest: [u8; 32],
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for ReservationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReservationKey(..)")
    }
}

impl PartialEq for ReservationKey {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for ReservationKey {}

/// What a call was charged by its estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Units of the estimate.
    pub estimate: u64,
    /// Instant of the charge, by the clock of the store.
    pub charged: Wall,
    /// The keys that were charged.
    keys: Vec<[u8; KEY]>,
    /// The name of the reservation: its MAC.
    id: u128,
}

/// What the last call of a stream settles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settles {
    /// Nothing: the call was refused.
    Refused,
    /// The call was not reserved.
    Unreserved,
    /// The token is not one of ours, or of another call.
    Unverified,
    /// A reservation.
    Issued(Reservation),
}

impl ReservationKeys {
    /// The keys of secrets, of which the first signs.
    #[must_use]
    pub fn new<'s>(first: &[u8], others: impl IntoIterator<Item = &'s [u8]>) -> Self {
        Self {
            signs: ReservationKey::new(first),
            others: others.into_iter().map(ReservationKey::new).collect(),
        }
    }

    /// Signs a reservation of `estimate` units for a descriptor, charged at an instant on these keys. `nonce` is random.
    #[must_use]
    pub fn issue<'k>(
        &self,
        call: (&str, &Descriptor<'_>, &Reserve),
        (estimate, charged): (u64, Wall),
        keys: impl Iterator<Item = Key<'k>>,
        nonce: u64,
    ) -> String {
        let mut token = vec![VERSION];
        for number in [estimate, charged.as_nanos(), nonce] {
            token.extend_from_slice(&number.to_be_bytes());
        }
        keys.for_each(|key| token.extend_from_slice(&fingerprint(key)));
        let mac = of_token(self.signs.of_call(call), &token)
            .finalize()
            .into_bytes();
        token.extend_from_slice(mac.get(..MAC).unwrap_or_default());
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Reads what a call says that it settles, by the tokens among which its own is. Each key takes a hash of the call,
    /// and one of each token.
    #[must_use]
    pub fn read(&self, call: (&str, &Descriptor<'_>, &Reserve), id: &str) -> Settles {
        match id {
            REFUSED => Settles::Refused,
            UNRESERVED => Settles::Unreserved,
            _ => {
                let mut keys = std::iter::once(&self.signs).chain(&self.others);
                let issued = keys.find_map(|key| {
                    let mac = key.of_call(call);
                    // A call has no more of them: each is a hash, and a stranger may have written the text.
                    let mut tokens = id.split('.').take(MAX_DESCRIPTORS);
                    tokens.find_map(|token| verify(&mac, token))
                });
                issued.map_or(Settles::Unverified, Settles::Issued)
            }
        }
    }
}

impl ReservationKey {
    /// The key of a secret.
    fn new(secret: &[u8]) -> Self {
        let digest = Sha256::digest([CONTEXT, secret].concat()).into();
        // A block of SHA-256: shorter keys of HMAC are filled with zeros.
        let mut key = [0; 64];
        for (to, from) in key.iter_mut().zip::<[u8; 32]>(digest) {
            *to = from;
        }
        let mac = Hmac::new(&key.into());
        Self { digest, mac }
    }

    /// The code of a call, to which a token is added.
    fn of_call(
        &self,
        (domain, descriptor, reserve): (&str, &Descriptor<'_>, &Reserve),
    ) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        add(&mut mac, domain.as_bytes());
        let entries = descriptor.entries().iter();
        let own = |name: &str| *name != *reserve.phase && *name != *reserve.id;
        let mut entries: Vec<_> = entries
            .filter(|entry| own(&entry.name))
            .map(|entry| (entry.name.as_bytes(), &*entry.value))
            .collect();
        entries.sort_unstable();
        for (name, value) in entries {
            add(&mut mac, name);
            add(&mut mac, value);
        }
        mac
    }
}

/// Adds a part with its length before it, so that no two calls have one text.
fn add(mac: &mut Hmac<Sha256>, part: &[u8]) {
    mac.update(&(part.len() as u64).to_be_bytes());
    mac.update(part);
}

fn of_token(mut of_call: Hmac<Sha256>, token: &[u8]) -> Hmac<Sha256> {
    add(&mut of_call, token);
    of_call
}

fn verify(of_call: &Hmac<Sha256>, token: &str) -> Option<Reservation> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    let (signed, mac) = bytes.split_last_chunk::<MAC>()?;
    let (head, keys) = signed.split_first_chunk::<HEAD>()?;
    let (numbers, _) = head.get(1..)?.as_chunks::<8>();
    let (keys, rest) = keys.as_chunks::<KEY>();
    if head.first() != Some(&VERSION) || !rest.is_empty() {
        return None;
    }
    of_token(of_call.clone(), signed)
        .verify_truncated_left(mac)
        .ok()?;
    Some(Reservation {
        estimate: u64::from_be_bytes(*numbers.first()?),
        charged: Wall::from_nanos(u64::from_be_bytes(*numbers.get(1)?)),
        keys: keys.to_vec(),
        id: u128::from_be_bytes(*mac),
    })
}

impl Reservation {
    /// What a key is adjusted by, if the call cost `actual` units, and its rules give back for `ttl`.
    #[must_use]
    pub fn adjustment(&self, key: Key<'_>, actual: u64, ttl: Duration) -> Adjustment {
        let is_charged = self.keys.contains(&fingerprint(key));
        let (estimate, charged) = match is_charged {
            true => (self.estimate, self.charged),
            // Long ago: nothing is given back of it.
            false => (0, Wall::ORIGIN),
        };
        Adjustment {
            difference: difference(actual, estimate),
            reservation: Some(IssuedReservation {
                id: self.id,
                charged,
                ttl,
            }),
        }
    }
}

/// `actual` less `estimate`, saturating.
#[must_use]
pub fn difference(actual: u64, estimate: u64) -> i64 {
    let difference = i128::from(actual) - i128::from(estimate);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// Names a key among those of one descriptor.
fn fingerprint(key: Key<'_>) -> [u8; KEY] {
    let digest = Sha256::digest(key.as_bytes());
    let mut bytes = [0; KEY];
    for (to, from) in bytes.iter_mut().zip(digest) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use quell_core::time::Now;

    use super::*;

    fn descriptor(entries: &[(&'static str, &'static str)]) -> Descriptor<'static> {
        let mut descriptor = Descriptor::new();
        for (name, value) in entries {
            descriptor.push(*name, *value);
        }
        descriptor
    }

    fn key(bytes: &[u8]) -> Key<'_> {
        Key::from_parts(bytes, 0)
    }

    fn keys(first: &[u8], others: &[&'static [u8]]) -> ReservationKeys {
        ReservationKeys::new(first, others.iter().copied())
    }

    fn issued() -> (ReservationKeys, Reserve, String) {
        let (signs, reserve) = (keys(b"secret", &[]), Reserve::default());
        let call = descriptor(&[("tenant", "acme"), ("phase", "reserve")]);
        let charge = (1_000, Wall::from_nanos(7_000));
        let charged = [key(b"k1"), key(b"k2")].into_iter();
        let token = signs.issue(("llm", &call, &reserve), charge, charged, 5);
        (signs, reserve, token)
    }

    #[test]
    fn a_token_settles_the_call_that_it_was_issued_for() {
        let (signs, reserve, token) = issued();
        assert!(token.len() <= 80, "{token}");
        // In any order, and beside tokens of other descriptors.
        let call = descriptor(&[
            ("reservation", "x"),
            ("phase", "settle"),
            ("tenant", "acme"),
        ]);
        for id in [
            token.clone(),
            format!("AAAA.{token}"),
            format!("{token}.AAAA"),
        ] {
            let Settles::Issued(reservation) = signs.read(("llm", &call, &reserve), &id) else {
                panic!("{id}");
            };
            assert_eq!(
                (reservation.estimate, reservation.charged.as_nanos()),
                (1_000, 7_000)
            );
            let of = |name, actual| reservation.adjustment(key(name), actual, reserve.ttl);
            for name in [b"k1", b"k2"] {
                let known = of(name, 400).reservation.unwrap();
                assert_eq!(of(name, 400).difference, -600);
                assert_eq!(known.charged.as_nanos(), 7_000);
            }
            let other = of(b"k3", 400);
            assert_eq!(other.difference, 400);
            let since = Now::from_nanos(u64::MAX)
                .wall
                .since(other.reservation.unwrap().charged);
            assert!(since > reserve.ttl);
        }
    }

    #[test]
    fn nothing_else_is_a_reservation() {
        let (signs, reserve, token) = issued();
        let call = descriptor(&[("tenant", "acme")]);
        let read = |id: &str| signs.read(("llm", &call, &reserve), id);
        assert_eq!(read("refused"), Settles::Refused);
        assert_eq!(read("unreserved"), Settles::Unreserved);
        for id in ["", ".", "x", "refused.", &token[..40], &format!("{token}A")] {
            assert_eq!(read(id), Settles::Unverified, "{id}");
        }
        for place in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[place] = if other[place] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(read(&other), Settles::Unverified, "{other}");
        }
        let others = [
            ("llm", descriptor(&[("tenant", "other")])),
            ("llm", descriptor(&[("tenant", "acme"), ("user", "ann")])),
            ("llm", descriptor(&[])),
            ("lln", descriptor(&[("tenant", "acme")])),
        ];
        for (domain, call) in &others {
            let read = signs.read((domain, call, &reserve), &token);
            assert_eq!(read, Settles::Unverified, "{domain} {call:?}");
        }
    }

    #[test]
    fn the_first_key_signs_and_all_of_them_verify() {
        let (_, reserve, token) = issued();
        let call = descriptor(&[("tenant", "acme")]);
        let is_known = |keys: &ReservationKeys| {
            let read = keys.read(("llm", &call, &reserve), &token);
            matches!(read, Settles::Issued(_))
        };
        assert!(is_known(&keys(b"other", &[b"third", b"secret"])));
        assert!(!is_known(&keys(b"other", &[b"third"])));
        let signed = keys(b"other", &[b"secret"]).issue(
            ("llm", &call, &reserve),
            (1, Wall::ORIGIN),
            [].into_iter(),
            0,
        );
        let read = keys(b"secret", &[]).read(("llm", &call, &reserve), &signed);
        assert_eq!(read, Settles::Unverified);
        assert_ne!(keys(b"a", &[b"b"]), keys(b"b", &[b"a"]));
    }

    #[test]
    fn no_more_tokens_are_looked_at_than_a_call_has() {
        let (signs, reserve, token) = issued();
        let call = descriptor(&[("tenant", "acme")]);
        for (before, is_found) in [(MAX_DESCRIPTORS - 1, true), (MAX_DESCRIPTORS, false)] {
            let id = "AAAA.".repeat(before) + &token;
            let read = signs.read(("llm", &call, &reserve), &id);
            assert_eq!(matches!(read, Settles::Issued(_)), is_found, "{before}");
        }
    }

    #[test]
    fn differences_saturate() {
        assert_eq!(difference(0, u64::MAX), i64::MIN);
        assert_eq!(difference(u64::MAX, 0), i64::MAX);
        assert_eq!(difference(7, 9), -2);
    }
}
