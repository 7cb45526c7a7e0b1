//! Request: a message of Envoy as what has to be charged, what is only checked, and limits that came with it.
//!
//! Envoy lets calls pass that its service cannot answer, so nothing that a visitor chooses may be a mistake: a value
//! that is too long is shortened.

use std::borrow::Cow;
use std::time::Duration;

use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::query_bounds::{
    MAX_VALUE_BYTES, QueryError, check_descriptors, check_domain, push_entry,
};
use quell_core::rule::Reserve;
use sha2::{Digest as _, Sha256};

use crate::config::unique_name;
use crate::proto::{self, RateLimitOverride, RateLimitRequest, RateLimitUnit};
use crate::reservation::UNRESERVED;

/// Bytes before the key of a limit that came with a descriptor, so that no key of `CL.THROTTLE` is the same by
/// accident.
const OWN_LIMIT: &[u8] = b"quell-envoy-own-limit\0";

/// Bytes that stay of each end of a long value; between them is the hash of the whole.
const KEPT: usize = (MAX_VALUE_BYTES - HASH) / 2;

/// Bytes of the hash.
const HASH: usize = 32;

/// Reason why a message is not answered. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The domain is empty.
    #[error(
        "rate limit domain must not be empty: write `domain` in the configuration of Envoy's rate limit filter"
    )]
    NoDomain,
    /// There is no descriptor.
    #[error(
        "rate limit descriptor list must not be empty: write `rate_limits` with actions on the route or virtual host"
    )]
    NoDescriptor,
    /// A query of Quell cannot have this.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The limit of a descriptor has no unit.
    #[error(
        "the limit of a descriptor has the unit {0}, which is none: write SECOND, MINUTE, HOUR, DAY, MONTH or YEAR"
    )]
    Unit(i32),
    /// The phase of a reservation is none.
    #[error(
        "the entry {0:?} is {1:?}, which is no phase of a reservation: write reserve, or settle with apply_on_stream_done"
    )]
    Phase(String, String),
    /// A descriptor with a limit of its own has a phase.
    #[error(
        "a descriptor with a limit of its own cannot reserve or settle: leave `limit` out where the actions say the \
        phase"
    )]
    ReservedLimit,
    /// The hits of a descriptor are to be taken back.
    #[error(
        "is_negative_hits is answered by limits of --envoy-config alone, which remember what they refused: reserve the \
        estimate and settle it with the true cost, by /v1/reserve and /v1/settle"
    )]
    NegativeHits,
}

/// A request of Envoy, read. Each of its descriptors is in one of the parts.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The domain.
    pub domain: &'a str,
    /// Number of descriptors.
    pub descriptors: usize,
    /// Descriptors with hits, which are charged together or not at all.
    pub charged: Part<'a>,
    /// Descriptors with 0 hits, which are only checked. With limits of a [config](crate::config) they are among those
    /// that are charged.
    pub checked: Part<'a>,
    /// Descriptors whose hits are given back.
    pub refunded: Part<'a>,
    /// Places of the descriptors that give nothing back: no hits, or those of a limit that came with them.
    pub ignored: Vec<usize>,
    /// Places of the descriptors that reserve, which are charged or checked.
    pub reserved: Vec<usize>,
    /// Descriptors that settle what others reserved.
    pub settled: Vec<SettledDescriptor<'a>>,
    /// Descriptors with a limit of their own, in their order.
    pub own_limits: Vec<OwnLimit>,
}

/// Some of the descriptors of a request, as a query.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    query: Query<'a>,
    /// Index of each of its descriptors in the request.
    places: Vec<usize>,
}

/// A descriptor that settles a reservation.
#[derive(Clone, Debug)]
pub struct SettledDescriptor<'a> {
    /// The descriptor, alone.
    pub query: Query<'a>,
    /// The true cost, in units.
    pub actual: u64,
    /// What it settles.
    pub id: &'a str,
}

/// A descriptor with a limit that came with it, which counts in place of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLimit {
    /// Its index in the request.
    pub place: usize,
    /// Key on which it counts: the domain and all entries.
    pub key: Vec<u8>,
    /// Its limit; `None` if it is 0, which always refuses.
    pub bucket: Option<TokenBucket>,
    /// The window of the limit.
    pub window: Duration,
    /// Units to charge; `None` if the limit is only checked.
    pub hits: Option<Cost>,
}

impl<'a> Part<'a> {
    fn new(domain: &'a str, descriptors: Vec<Descriptor<'a>>, places: Vec<usize>) -> Self {
        Self {
            query: Query::with_descriptors(domain, descriptors),
            places,
        }
    }

    /// The query; `None` if no descriptor is in this part.
    #[must_use]
    pub fn query(&self) -> Option<&Query<'a>> {
        (!self.places.is_empty()).then_some(&self.query)
    }

    /// The same, to add what else is known of the call.
    pub fn query_mut(&mut self) -> Option<&mut Query<'a>> {
        (!self.places.is_empty()).then_some(&mut self.query)
    }

    /// The index in the request of each descriptor of the query, in its order.
    #[must_use]
    pub fn places(&self) -> &[usize] {
        &self.places
    }
}

impl<'a> Request<'a> {
    /// Reads a message to a domain of rules, whose calls may reserve by these entries.
    ///
    /// # Errors
    /// [`RequestError`] for the first mistake.
    pub fn read(
        message: &'a RateLimitRequest,
        reserve: Option<&Reserve>,
    ) -> Result<Self, RequestError> {
        Self::read_for(message, false, reserve)
    }

    /// Reads a message to a domain of a [config](crate::config).
    ///
    /// # Errors
    /// [`RequestError`] for the first mistake.
    pub fn read_for_config(message: &'a RateLimitRequest) -> Result<Self, RequestError> {
        Self::read_for(message, true, None)
    }

    fn read_for(
        message: &'a RateLimitRequest,
        is_config: bool,
        reserve: Option<&Reserve>,
    ) -> Result<Self, RequestError> {
        let domain = message.domain.as_str();
        check_domain(domain).map_err(|error| match error {
            QueryError::EmptyDomain => RequestError::NoDomain,
            other => other.into(),
        })?;
        check_descriptors(message.descriptors.len()).map_err(|error| match error {
            QueryError::NoDescriptor => RequestError::NoDescriptor,
            other => other.into(),
        })?;
        let (mut own_limits, mut settled) = (Vec::new(), Vec::new());
        let (mut reserved, mut ignored) = (Vec::new(), Vec::new());
        let [mut charged, mut checked, mut refunded] = [(); 3].map(|()| (Vec::new(), Vec::new()));
        for (place, one) in message.descriptors.iter().enumerate() {
            if one.is_negative_hits && !is_config {
                return Err(RequestError::NegativeHits);
            }
            let hits = hits(message.hits_addend, one);
            let mut descriptor = descriptor(one, hits)?;
            match phase(one, reserve)? {
                Some(_) if one.limit.is_some() => return Err(RequestError::ReservedLimit),
                Some((Phase::Settle, id)) => {
                    settled.push(SettledDescriptor {
                        query: Query::with_descriptors(domain, vec![descriptor]),
                        actual: hits.map_or(0, Cost::get),
                        id,
                    });
                    continue;
                }
                Some((Phase::Reserve, _)) => reserved.push(place),
                None => {}
            }
            if one.is_negative_hits && (hits.is_none() || one.limit.is_some()) {
                ignored.push(place);
                continue;
            }
            if let Some(limit) = &one.limit {
                own_limits.push(OwnLimit::new(domain, place, &descriptor, limit, hits)?);
                continue;
            }
            let (descriptors, places) = match hits {
                _ if one.is_negative_hits => &mut refunded,
                None if !is_config => &mut checked,
                hits => {
                    descriptor.is_check = hits.is_none();
                    &mut charged
                }
            };
            descriptors.push(descriptor);
            places.push(place);
        }
        Ok(Self {
            domain,
            descriptors: message.descriptors.len(),
            charged: Part::new(domain, charged.0, charged.1),
            checked: Part::new(domain, checked.0, checked.1),
            refunded: Part::new(domain, refunded.0, refunded.1),
            ignored,
            reserved,
            settled,
            own_limits,
        })
    }
}

/// Whether a descriptor reserves or settles.
enum Phase {
    Reserve,
    Settle,
}

/// The phase of a descriptor, if it has one, and the reservation that it names.
fn phase<'a>(
    descriptor: &'a proto::Descriptor,
    reserve: Option<&Reserve>,
) -> Result<Option<(Phase, &'a str)>, RequestError> {
    let entry = |name: &str| {
        let mut entries = descriptor.entries.iter();
        let entry = entries.find(|entry| entry.key == *name)?;
        Some(entry.value.as_str())
    };
    let Some((reserve, phase)) = reserve.and_then(|one| Some((one, entry(&one.phase)?))) else {
        return Ok(None);
    };
    let id = entry(&reserve.id).unwrap_or(UNRESERVED);
    match phase {
        "reserve" => Ok(Some((Phase::Reserve, id))),
        "settle" => Ok(Some((Phase::Settle, id))),
        _ => {
            let (name, phase) = (reserve.phase.to_string(), phase.to_owned());
            Err(RequestError::Phase(name, phase))
        }
    }
}

/// Hits of a descriptor: its own, or those of the request, of which 0 is 1; `None` if it is to be checked alone.
fn hits(of_request: u32, descriptor: &proto::Descriptor) -> Option<Cost> {
    match &descriptor.hits_addend {
        Some(own) => Cost::new(own.value),
        None => Cost::new(u64::from(of_request.max(1))),
    }
}

fn descriptor(
    message: &proto::Descriptor,
    hits: Option<Cost>,
) -> Result<Descriptor<'_>, RequestError> {
    let mut descriptor = Descriptor::new();
    descriptor.cost = hits.unwrap_or(Cost::ONE);
    for (place, entry) in message.entries.iter().enumerate() {
        let (key, value) = (entry.key.as_str(), entry.value.as_bytes());
        let earlier = message.entries.iter().take(place);
        let name = match earlier.filter(|other| other.key == key).count() {
            0 => Cow::Borrowed(key),
            earlier => Cow::Owned(unique_name(key, earlier).to_string()),
        };
        push_entry(&mut descriptor, name, shortened(value))?;
    }
    Ok(descriptor)
}

/// A value within the bound of a query. A longer one keeps its ends, so that patterns for them match, and is another for
/// each value.
fn shortened(value: &[u8]) -> Cow<'_, [u8]> {
    if value.len() <= MAX_VALUE_BYTES {
        return value.into();
    }
    let (head, _) = value.split_at(KEPT);
    let (_, tail) = value.split_at(value.len() - KEPT);
    [head, &Sha256::digest(value), tail].concat().into()
}

impl OwnLimit {
    fn new(
        domain: &str,
        place: usize,
        descriptor: &Descriptor<'_>,
        limit: &RateLimitOverride,
        hits: Option<Cost>,
    ) -> Result<Self, RequestError> {
        let window = window(limit.unit).ok_or(RequestError::Unit(limit.unit))?;
        let count = u64::from(limit.requests_per_unit);
        Ok(Self {
            place,
            key: own_key(domain, descriptor),
            bucket: (count > 0).then(|| TokenBucket::new(count, window)),
            window,
            hits,
        })
    }
}

/// Length of a unit. A month has 30 days and a year 365, as in the reference.
fn window(unit: i32) -> Option<Duration> {
    const DAY: u64 = 86_400;
    let seconds = match RateLimitUnit::try_from(unit).ok()? {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
    };
    Some(Duration::from_secs(seconds))
}

/// The domain and the entries, each with its length before it, so that no two descriptors have one key.
fn own_key(domain: &str, descriptor: &Descriptor<'_>) -> Vec<u8> {
    let mut key = OWN_LIMIT.to_vec();
    let mut add = |bytes: &[u8]| {
        // No text is longer than `query_bounds` lets it be.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        key.extend_from_slice(&length.to_be_bytes());
        key.extend_from_slice(bytes);
    };
    add(domain.as_bytes());
    for entry in descriptor.entries() {
        add(entry.name.as_bytes());
        add(&entry.value);
    }
    key
}

#[cfg(test)]
mod tests {
    use quell_core::query_bounds::MAX_DESCRIPTORS;

    use super::*;
    use crate::proto::{Entry, UInt64Value};

    fn message(descriptors: Vec<proto::Descriptor>, hits_addend: u32) -> RateLimitRequest {
        RateLimitRequest {
            domain: "d".to_owned(),
            descriptors,
            hits_addend,
        }
    }

    fn entries(entries: &[(&str, &str)]) -> proto::Descriptor {
        let entries = entries.iter().map(|(key, value)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        });
        proto::Descriptor {
            entries: entries.collect(),
            ..proto::Descriptor::default()
        }
    }

    fn with_hits(hits: u64) -> proto::Descriptor {
        proto::Descriptor {
            hits_addend: Some(UInt64Value { value: hits }),
            ..entries(&[("user", "a")])
        }
    }

    fn limited(requests_per_unit: u32, unit: i32) -> proto::Descriptor {
        proto::Descriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit,
                unit,
            }),
            ..entries(&[("user", "a")])
        }
    }

    /// Case 17 of the reference: unset counts as the request's, which counts 0 as 1; 0 only checks.
    #[test]
    fn hits_are_the_descriptors_or_else_the_requests() {
        let descriptors = vec![with_hits(7), with_hits(0), entries(&[("user", "b")])];
        for (of_request, rest) in [(0, 1), (1, 1), (9, 9)] {
            let message = message(descriptors.clone(), of_request);
            let request = Request::read(&message, None).unwrap();
            let costs = |part: &Part<'_>| {
                let query = part.query().unwrap();
                let costs = query.descriptors().iter().map(|one| one.cost.get());
                (costs.collect::<Vec<_>>(), part.places().to_vec())
            };
            assert_eq!(costs(&request.charged), (vec![7, rest], vec![0, 2]));
            assert_eq!(costs(&request.checked), (vec![1], vec![1]));
            assert!(request.own_limits.is_empty());
        }
    }

    #[test]
    fn a_limit_of_its_own_stands_apart() {
        let message = message(vec![limited(5, 2), entries(&[]), limited(0, 1)], 3);
        let request = Request::read(&message, None).unwrap();
        assert_eq!(request.charged.places(), [1]);
        assert!(request.checked.query().is_none());
        let minute = Duration::from_secs(60);
        let [own, none] = request.own_limits.as_slice() else {
            panic!("{request:?}");
        };
        assert_eq!(own.bucket, Some(TokenBucket::new(5, minute)));
        assert_eq!((own.place, own.window), (0, minute));
        assert_eq!(own.hits, Cost::new(3));
        assert_eq!((none.place, none.bucket.is_none()), (2, true));
    }

    #[test]
    fn long_values_are_shortened_and_stay_apart() {
        let long = |middle: &str| {
            let value = "v".repeat(30_000);
            format!("/head{value}{middle}{value}tail")
        };
        let [one, other] = ["a", "b"].map(long);
        let read = |value: &str| {
            let message = message(vec![entries(&[("path", value)])], 0);
            let request = Request::read(&message, None).unwrap();
            let query = request.charged.query().unwrap();
            query.descriptors()[0].get("path").unwrap().to_vec()
        };
        let [one, other] = [one, other].map(|value| read(&value));
        assert_ne!(one, other);
        for value in [one, other] {
            assert_eq!(value.len(), MAX_VALUE_BYTES);
            assert!(value.starts_with(b"/head") && value.ends_with(b"tail"));
        }
        let whole = "v".repeat(MAX_VALUE_BYTES);
        assert_eq!(read(&whole), whole.as_bytes());
    }

    #[test]
    fn refunds_of_nothing_or_of_another_limit_give_nothing_back() {
        let refund = |one| proto::Descriptor {
            is_negative_hits: true,
            ..one
        };
        let descriptors = vec![
            refund(with_hits(0)),
            refund(limited(5, 2)),
            refund(with_hits(3)),
        ];
        let message = message(descriptors, 0);
        let request = Request::read_for_config(&message).unwrap();
        assert_eq!(request.ignored, [0, 1]);
        assert_eq!(request.refunded.places(), [2]);
        assert!(request.own_limits.is_empty() && request.charged.query().is_none());
    }

    /// The reference joins keys by `_`, so that (a, b_c) and (a_b, c) count together.
    #[test]
    fn different_entries_have_different_keys() {
        let keys = [
            [("a", "b_c")].as_slice(),
            &[("a_b", "c")],
            &[("a", "b"), ("c", "")],
            &[("a", ""), ("b", "c")],
        ];
        let keys = keys.map(|pairs| {
            let one = entries(pairs);
            own_key("d", &descriptor(&one, None).unwrap())
        });
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[place + 1..].contains(key), "{key:?}");
        }
        assert_ne!(
            own_key("d", &Descriptor::new()),
            own_key("e", &Descriptor::new())
        );
    }

    #[test]
    fn a_phase_says_whether_a_descriptor_reserves_or_settles() {
        let reserve = Reserve::default();
        let with_hits = |hits, pairs: &[(&str, &str)]| proto::Descriptor {
            hits_addend: Some(UInt64Value { value: hits }),
            ..entries(pairs)
        };
        let settle = ("phase", "settle");
        let descriptors = vec![
            with_hits(7, &[("user", "a"), ("phase", "reserve")]),
            with_hits(0, &[("user", "a"), ("phase", "reserve")]),
            with_hits(5, &[("user", "a"), ("reservation", "id"), settle]),
            with_hits(0, &[settle]),
            with_hits(3, &[("user", "a")]),
        ];
        let message = message(descriptors, 0);
        let request = Request::read(&message, Some(&reserve)).unwrap();
        assert_eq!(request.reserved, [0, 1]);
        assert_eq!(request.charged.places(), [0, 4]);
        assert_eq!(request.checked.places(), [1]);
        let settled = request.settled.iter().map(|one| (one.actual, one.id));
        let settled: Vec<_> = settled.collect();
        assert_eq!(settled, [(5, "id"), (0, UNRESERVED)]);
        // In a domain without `reserve` they are entries as any other.
        let plain = Request::read(&message, None).unwrap();
        assert_eq!(plain.charged.places(), [0, 2, 4]);
        assert!(plain.settled.is_empty() && plain.reserved.is_empty());
        let mut limited = limited(5, 2);
        limited.entries = entries(&[settle]).entries;
        for (descriptor, expected) in [
            (
                entries(&[("phase", "x")]),
                "which is no phase of a reservation: write reserve",
            ),
            (limited, "leave `limit` out"),
        ] {
            let message = self::message(vec![descriptor], 0);
            let error = Request::read(&message, Some(&reserve))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        let mut empty = message(vec![entries(&[])], 0);
        empty.domain.clear();
        let many = vec![entries(&[]); MAX_DESCRIPTORS + 1];
        let negative = proto::Descriptor {
            is_negative_hits: true,
            ..entries(&[("user", "a")])
        };
        for (message, expected) in [
            (empty, "rate limit domain must not be empty"),
            (
                message(vec![], 0),
                "rate limit descriptor list must not be empty",
            ),
            (message(many, 0), "more than 128 descriptors: write fewer"),
            (
                message(vec![entries(&[("", "a")])], 0),
                "an empty name: write",
            ),
            (message(vec![limited(5, 0)], 0), "write SECOND, MINUTE"),
            (
                message(vec![limited(5, 99)], 0),
                "the unit 99, which is none",
            ),
            (message(vec![negative], 0), "/v1/reserve and /v1/settle"),
        ] {
            let error = Request::read(&message, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
