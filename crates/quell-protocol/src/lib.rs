//! Bytes to Quell's core types and back, for two wires: RESP (any Redis client) and HTTP.
//!
//! Nothing here opens a socket, waits, reads a clock or decides: bytes come in as a slice, a typed
//! request comes out; a verdict comes in, bytes come out. Every decoder has named bounds, and none
//! allocates more than a small multiple of the bytes that it was given.
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
//! HTTP: [`http::parse_query`] reads the body of `/v1/acquire` and `/v1/peek`, [`http::authorize`]
//! the headers of a gateway's question, [`http::VerdictBody`] is the answer's twin,
//! [`http::RateLimitItem`] writes the `RateLimit` fields and [`http::Problem`] what goes wrong.
//! [`query`] holds the bounds that both wires share, and [`escape_json`] makes JSON fit for a terminal.

mod escape;
pub mod http;
pub mod query;
pub mod resp;
mod rounding;

pub use escape::escape_json;
