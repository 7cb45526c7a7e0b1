//! Requests of Envoy: whatever the message, each of its descriptors is in one part, within the bounds of a query.

use prost::Message as _;
use quell_core::query_bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};
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
    let read = [Request::read(&message), Request::read_for_config(&message)];
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
    }
    places.extend(request.own_limits.iter().map(|own| own.place));
    places.sort_unstable();
    assert!(places.iter().copied().eq(0..message.descriptors.len()));
    assert!((1..=MAX_DESCRIPTORS).contains(&request.descriptors));
}
