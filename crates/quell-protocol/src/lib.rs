//! Encoding and decoding of Quell's two protocols: RESP (any Redis client) and HTTP.
//!
//! Decoders turn bytes into typed requests, and encoders turn verdicts into bytes. Nothing here opens a
//! socket, waits, reads a clock or decides. Every decoder has named bounds, and allocates at most a
//! small multiple of its input.
//!
//! A RESP connection keeps one [`resp::Decoder`] and one [`resp::Protocol`]:
//!
//! ```
//! use quell_protocol::resp::{Command, Decoded, Decoder, Encoder, FrameLimits, Protocol};
//! let mut decoder = Decoder::new(FrameLimits::default());
//! let mut replies = Vec::new();
//! let input = b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n";
//! let Decoded::Command { args, length } = decoder.decode(input)? else { unreachable!() };
//! let mut encoder = Encoder::new(&mut replies, Protocol::Resp2);
//! match Command::parse(args) {
//!     Ok(Command::Ping(Some(message))) => encoder.bulk(message),
//!     Ok(_) => encoder.simple("OK"),
//!     Err(error) => error.write(&mut encoder),
//! }
//! assert_eq!((length, &replies[..]), (input.len(), &b"$2\r\nhi\r\n"[..]));
//! # Ok::<(), quell_protocol::resp::FrameError>(())
//! ```
//!
//! For HTTP:
//!
//! * [`http::parse_query`] reads the body of `/v1/acquire` and `/v1/peek`.
//! * [`http::authorize`] reads the headers of a gateway's request.
//! * [`http::VerdictBody`] is the JSON of a verdict.
//! * [`http::RateLimitItem`] writes the `RateLimit` fields.
//! * [`http::Problem`] is a problem document.
//!
//! [`quell_core::query_bounds`] has the bounds that both protocols share, and [`callers`] what a listener
//! bounds beside them.
//! [`escape_json`] makes JSON safe to print on a terminal, and [`printable`] any other text.

pub mod callers;
mod escape;
pub mod http;
pub mod resp;
mod rounding;

pub use escape::escape_json;
pub use quell_core::key::{is_printable, printable};

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
