//! Bounds: requests of members, checked while they are still bytes.
//!
//! Decoded, a list of empty messages takes a hundred times the bytes that it came in, so the largest message would
//! take hundreds of megabytes before anybody could count what is in it. Here is counted first: how many there may be
//! of each list, and how long each text may be. What is not known is skipped, as decoding does.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use prost::Message;
use prost::bytes::Buf as _;
use quell_shares::plan::{MAX_LIMITS, MAX_MEMBERSHIPS, MAX_NAME};
use quell_shares::schedule::LEASE_STEPS;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::WireError;
use crate::call_report::{LONGEST_KEY, LONGEST_WHY, MAX_ANSWERS, MAX_EDGES, MAX_KEYS};
use crate::proto;

/// Requests longer than this are decoded one at a time, so that their costs do not add up.
const LARGE: usize = 64 * 1_024;

/// The most bytes of a character.
const CHARACTER: usize = 4;

/// The longest version of rules as text: a number of 20 digits, and 12 digits of a digest.
const VERSION: usize = 64;

/// The most entries of a key that is banned: each counts for at least so much of its length.
const MAX_ENTRIES: usize = LONGEST_KEY / 32;

/// A field that takes memory by its length.
#[derive(Clone, Copy)]
enum Field {
    /// A text or bytes, at most so many of them in a list, each at most so long.
    Text { most: usize, longest: usize },
    /// Messages, at most so many.
    Messages { most: usize, shape: MessageShape },
    /// Numbers, at most so many, packed or not.
    Numbers { most: usize },
}

/// The fields of a message that take memory, by their numbers.
type MessageShape = &'static [(u64, Field)];

const fn text(longest: usize) -> Field {
    Field::Text { most: 1, longest }
}

const fn one(shape: MessageShape) -> Field {
    Field::Messages { most: 1, shape }
}

const fn list(most: usize, shape: MessageShape) -> Field {
    Field::Messages { most, shape }
}

/// A message of nothing but numbers.
const FLAT: MessageShape = &[];
const LEASE: MessageShape = &[(1, one(FLAT))];
const KEPT: MessageShape = &[(2, one(FLAT)), (3, one(FLAT))];
const GIVEN_UP: MessageShape = &[(2, list(MAX_LIMITS, KEPT))];
const GROUPS: Field = Field::Text {
    most: MAX_MEMBERSHIPS,
    longest: MAX_NAME,
};
const JOIN: MessageShape = &[(4, GROUPS), (7, list(MAX_LIMITS, KEPT)), (8, one(GIVEN_UP))];
const LOAD: MessageShape = &[(6, one(FLAT))];
const HELD: MessageShape = &[
    (2, list(LEASE_STEPS, LEASE)),
    (3, one(FLAT)),
    (5, one(FLAT)),
    (7, one(FLAT)),
    (9, one(FLAT)),
];
const HELD_LIMITS: MessageShape = &[(1, list(MAX_LIMITS, HELD))];
const REPORT: MessageShape = &[(8, list(MAX_LIMITS, LOAD)), (9, one(HELD_LIMITS))];
const KEY: MessageShape = &[(1, text(LONGEST_KEY))];
const ANSWERS: MessageShape = &[(1, text(LONGEST_KEY))];
const CANDIDATE: MessageShape = &[(2, text(LONGEST_WHY * CHARACTER)), (7, list(MAX_KEYS, KEY))];
const RULES: MessageShape = &[
    (1, text(VERSION)),
    (2, text(VERSION)),
    (3, text(LONGEST_WHY * CHARACTER)),
    (4, one(CANDIDATE)),
    (5, list(MAX_ANSWERS, ANSWERS)),
];
const EDGES: Field = Field::Numbers { most: MAX_EDGES };
const COUNTS: Field = Field::Numbers {
    most: MAX_EDGES + 1,
};
const LATENCY: MessageShape = &[(1, EDGES), (2, COUNTS)];
const ENTRY: MessageShape = &[(1, text(LONGEST_KEY)), (2, text(LONGEST_KEY))];
const BAN: MessageShape = &[
    (1, text(LONGEST_KEY)),
    (2, text(LONGEST_KEY)),
    (3, list(MAX_ENTRIES, ENTRY)),
    (5, text(LONGEST_WHY * CHARACTER)),
];
const BANS: MessageShape = &[(1, list(MAX_KEYS, BAN))];
const SEEN: MessageShape = &[
    (1, one(LATENCY)),
    (2, list(MAX_KEYS, KEY)),
    (5, one(BANS)),
    (6, one(FLAT)),
];
const REQUEST: MessageShape = &[
    (1, one(JOIN)),
    (2, one(REPORT)),
    (3, one(FLAT)),
    (4, one(RULES)),
    (5, one(SEEN)),
];

/// Checks that the bytes of a request have no list and no text beyond its bound.
///
/// # Errors
/// [`WireError::Bytes`].
pub fn check_request(bytes: &[u8]) -> Result<(), WireError> {
    check(bytes, REQUEST).ok_or(WireError::Bytes)
}

/// Checks that these are the bytes of a message of this shape, within its bounds.
fn check(mut bytes: &[u8], shape: MessageShape) -> Option<()> {
    // How many there were of each field; no shape has as many.
    let mut counts = [0_usize; 8];
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let at = shape.iter().position(|(number, _)| *number == key >> 3);
        let field = at.and_then(|at| shape.get(at)).map(|(_, field)| *field);
        let body = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                None
            }
            1 => split(&mut bytes, 8).map(|_| None)?,
            5 => split(&mut bytes, 4).map(|_| None)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Some(split(&mut bytes, length)?)
            }
            _ => return None,
        };
        let Some((field, count)) = field.zip(at.and_then(|at| counts.get_mut(at))) else {
            continue;
        };
        let (more, most) = match (field, body) {
            (Field::Text { most, longest }, Some(body)) if body.len() <= longest => (1, most),
            (Field::Messages { most, shape }, Some(body)) => {
                check(body, shape)?;
                (1, most)
            }
            // Each number ends with the only byte of it that is so small.
            (Field::Numbers { most }, Some(body)) => {
                (body.iter().filter(|byte| **byte < 0x80).count(), most)
            }
            (Field::Numbers { most }, None) => (1, most),
            (Field::Text { .. } | Field::Messages { .. }, _) => return None,
        };
        *count += more;
        if *count > most {
            return None;
        }
    }
    Some(())
}

/// The number that the bytes begin with.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn split<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(first)
}

/// Message that the service reads.
pub trait Checked: Message + Default + Send + 'static {
    /// Checks its bytes before they are decoded.
    ///
    /// # Errors
    /// [`WireError`].
    fn check(bytes: &[u8]) -> Result<(), WireError>;
}

impl Checked for proto::Request {
    fn check(bytes: &[u8]) -> Result<(), WireError> {
        check_request(bytes)
    }
}

/// A node takes what its coordinator sends, within the size of a message.
impl Checked for proto::Response {
    fn check(_: &[u8]) -> Result<(), WireError> {
        Ok(())
    }
}

/// The codec of the service: what it reads is checked before it is decoded, and large messages are decoded one at a
/// time.
#[derive(Debug)]
pub struct CheckedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CheckedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Checked> Codec for CheckedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CheckedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CheckedDecoder(PhantomData)
    }
}

/// Decodes messages that are within their bounds.
#[derive(Debug)]
pub struct CheckedDecoder<U>(PhantomData<U>);

/// Held while a large message is decoded: some milliseconds, on a thread that would decode anyway.
static DECODING: Mutex<()> = Mutex::new(());

impl<U: Checked> Decoder for CheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        U::check(&bytes).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let lock = || DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        let _turn = (bytes.len() > LARGE).then(lock);
        let message = U::decode(bytes);
        let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::request::Kind;

    fn request(kind: Kind) -> proto::Request {
        proto::Request {
            kind: Some(kind),
            ..proto::Request::default()
        }
    }

    fn is_taken(request: &proto::Request) -> bool {
        check_request(&request.encode_to_vec()).is_ok()
    }

    fn right() -> Option<proto::Right> {
        Some(proto::Right {
            rate: u64::MAX,
            burst: u64::MAX,
        })
    }

    /// The largest report of a node that has as many limits as there may be.
    fn report(limits: u64) -> proto::Request {
        let lease = proto::Lease {
            right: right(),
            lasts_ns: u64::MAX,
        };
        let held = |limit| proto::Held {
            limit,
            leases: vec![lease; LEASE_STEPS],
            gap: right(),
            base_in_ns: u64::MAX,
            base: right(),
            base_for_ns: u64::MAX,
            floor: right(),
            floor_for_ns: Some(u64::MAX),
            whole: right(),
        };
        let load = |limit| proto::Load {
            limit,
            demand: u64::MAX,
            margin: u64::MAX,
            admitted: u64::MAX,
            denied: u64::MAX,
            totals: Some(proto::Totals {
                asked: u64::MAX,
                refused: u64::MAX,
                degraded: u64::MAX,
            }),
        };
        let held = proto::HeldLimits {
            limits: (1..=limits).map(held).collect(),
        };
        request(Kind::Report(proto::Report {
            loads: (1..=limits).map(load).collect(),
            held: Some(held),
            ..proto::Report::default()
        }))
    }

    #[test]
    fn the_largest_report_is_taken_and_nothing_larger() {
        let most = report(MAX_LIMITS as u64);
        assert!(is_taken(&most));
        let bytes = most.encoded_len();
        assert!(bytes < crate::wire::MAX_REQUEST, "{bytes}");
        assert!(!is_taken(&report(MAX_LIMITS as u64 + 1)));
    }

    /// Two bytes each, and a hundred when they are decoded.
    #[test]
    fn lists_of_nothing_are_counted_before_they_are_decoded() {
        let loads = |count| {
            request(Kind::Report(proto::Report {
                loads: vec![proto::Load::default(); count],
                ..proto::Report::default()
            }))
        };
        assert!(is_taken(&loads(MAX_LIMITS)) && !is_taken(&loads(MAX_LIMITS + 1)));
        let seen = |keys: usize, name: usize| proto::Request {
            seen: Some(proto::NodeSeen {
                refused: vec![
                    proto::CandidateKey {
                        name: vec![b'x'; name],
                        ..proto::CandidateKey::default()
                    };
                    keys
                ],
                ..proto::NodeSeen::default()
            }),
            ..proto::Request::default()
        };
        assert!(is_taken(&seen(MAX_KEYS, LONGEST_KEY)));
        assert!(!is_taken(&seen(MAX_KEYS + 1, 1)) && !is_taken(&seen(1, LONGEST_KEY + 1)));
        let knows = |known: usize| proto::Request {
            rules: Some(proto::RulesSeen {
                known: "7".repeat(known),
                ..proto::RulesSeen::default()
            }),
            ..proto::Request::default()
        };
        assert!(is_taken(&knows(VERSION)) && !is_taken(&knows(VERSION + 1)));
        let latency = |edges: usize| proto::Request {
            seen: Some(proto::NodeSeen {
                latency: Some(proto::Latency {
                    edges_ns: vec![u64::MAX; edges],
                    ..proto::Latency::default()
                }),
                ..proto::NodeSeen::default()
            }),
            ..proto::Request::default()
        };
        assert!(is_taken(&latency(MAX_EDGES)) && !is_taken(&latency(MAX_EDGES + 1)));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused_and_what_is_unknown_is_skipped() {
        for wrong in [
            &b"\x0a"[..],
            b"\x0a\x05x",
            b"\x0b",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x09\x01",
            // The end is missing within.
            b"\x22\x01\x08",
        ] {
            assert_eq!(check_request(wrong), Err(WireError::Bytes), "{wrong:?}");
        }
        // Field 15, of each kind.
        let unknown = b"\x78\x01\x79........\x7a\x01x\x7d....";
        assert_eq!(check_request(unknown), Ok(()));
        assert_eq!(check_request(b""), Ok(()));
        // A message that comes twice is merged, and its lists with it.
        let once = report(1).encode_to_vec();
        assert_eq!(
            check_request(&[once.clone(), once].concat()),
            Err(WireError::Bytes)
        );
    }
}
