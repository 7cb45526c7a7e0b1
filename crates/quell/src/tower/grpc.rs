//! gRPC: a refusal as a status in the head of a response without a body.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md> has the form ("trailers only");
//! `grpc-status-details-bin` is a `google.rpc.Status` whose one detail is a `google.rpc.RetryInfo`.
//! These are four small messages of Protocol Buffers, written by hand.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const RETRY_INFO: &[u8] = b"type.googleapis.com/google.rpc.RetryInfo";

/// Reason why a call does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The path is invalid.
    InvalidArgument = 3,
    /// A limit denies.
    ResourceExhausted = 8,
    /// This layer is not set up correctly.
    Internal = 13,
    /// The store cannot be asked, or too many calls wait.
    Unavailable = 14,
}

/// Returns true if the head of a response says that the service had no room or no time for the call:
/// `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED` or `UNAVAILABLE`.
pub(super) fn is_busy(headers: &HeaderMap) -> bool {
    let status = headers.get(STATUS).map(HeaderValue::as_bytes);
    matches!(status, Some(b"4" | b"8" | b"14"))
}

/// The content type of the answer, if the request is gRPC.
pub(super) fn content_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = headers.get(CONTENT_TYPE)?;
    value
        .as_bytes()
        .starts_with(b"application/grpc")
        .then_some(value)
}

/// Adds a status. `message` must be printable ASCII without `%`.
pub(super) fn add_status(
    code: Code,
    message: &'static str,
    wait: Option<Duration>,
    headers: &mut HeaderMap,
) {
    let number = code as u8;
    headers.insert(STATUS, u16::from(number).into());
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    let Some(wait) = wait else {
        return;
    };
    let details = STANDARD_NO_PAD.encode(status(number, message, wait));
    if let Ok(details) = HeaderValue::try_from(details) {
        headers.insert(DETAILS, details);
    }
}

/// `Status { code: 1, message: 2, details: [Any { type_url: 1, value: 2 }] = 3 }`
fn status(code: u8, message: &str, wait: Duration) -> Vec<u8> {
    let mut any = Vec::new();
    put_bytes(1, RETRY_INFO, &mut any);
    put_bytes(2, &retry_info(wait), &mut any);
    let mut status = Vec::new();
    put_number(1, u64::from(code), &mut status);
    put_bytes(2, message.as_bytes(), &mut status);
    put_bytes(3, &any, &mut status);
    status
}

/// `RetryInfo { retry_delay: Duration { seconds: 1, nanos: 2 } = 1 }`
fn retry_info(wait: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    put_number(1, wait.as_secs().min(MAX_SECONDS), &mut duration);
    put_number(2, u64::from(wait.subsec_nanos()), &mut duration);
    let mut info = Vec::new();
    put_bytes(1, &duration, &mut info);
    info
}

/// The longest `google.protobuf.Duration`: ten thousand years.
const MAX_SECONDS: u64 = 315_576_000_000;

/// A field of the type varint; 0 is left out.
fn put_number(field: u8, number: u64, message: &mut Vec<u8>) {
    if number > 0 {
        message.push(field << 3);
        put_varint(number, message);
    }
}

/// A field of the type bytes, text or message.
fn put_bytes(field: u8, bytes: &[u8], message: &mut Vec<u8>) {
    message.push(field << 3 | 2);
    put_varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX), message);
    message.extend_from_slice(bytes);
}

fn put_varint(mut number: u64, message: &mut Vec<u8>) {
    while number >= 0x80 {
        let [low, ..] = number.to_le_bytes();
        message.push(low | 0x80);
        number >>= 7;
    }
    let [low, ..] = number.to_le_bytes();
    message.push(low);
}
