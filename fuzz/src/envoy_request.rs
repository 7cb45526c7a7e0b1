//! Requests of Envoy: whatever the message, each of its descriptors is in one part, within the bounds of a query.

use prost::Message as _;
use quell_core::descriptor::Descriptor;
use quell_core::query_bounds::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_VALUE_BYTES};
use quell_core::rule::Reserve;
use quell_envoy::Request;
use quell_envoy::proto::RateLimitRequest;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(bytes: &[u8]) {
    let Ok(message) = RateLimitRequest::decode(bytes) else {
        return;
    };
    let reserve = Reserve::default();
    let read = [
        Request::read(&message, None),
        Request::read(&message, Some(&reserve)),
        Request::read_for_config(&message),
    ];
    for request in read.iter().flatten() {
        check(&message, request);
    }
}

fn check(message: &RateLimitRequest, request: &Request<'_>) {
    let mut places = Vec::new();
    for part in [&request.charged, &request.checked, &request.refunded] {
        places.extend_from_slice(part.places());
        let descriptors = part.query().map_or(&[][..], |query| query.descriptors());
        assert_eq!(descriptors.len(), part.places().len());
        assert!(
            descriptors
                .iter()
                .all(|one| one.entries().len() <= MAX_ENTRIES)
        );
        let mut values = descriptors.iter().flat_map(Descriptor::entries);
        assert!(values.all(|entry| entry.value.len() <= MAX_VALUE_BYTES));
    }
    places.extend_from_slice(&request.ignored);
    places.extend(request.own_limits.iter().map(|own| own.place));
    places.sort_unstable();
    assert!(places.is_sorted_by(|one, next| one < next));
    let settled = request.settled.len();
    assert_eq!(places.len() + settled, message.descriptors.len());
    assert!((1..=MAX_DESCRIPTORS).contains(&request.descriptors));
}
