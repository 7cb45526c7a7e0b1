//! Limits as a layer for axum, tonic and any other tower service (feature `tower`).
//!
//! Ten requests a second from each address, in an axum app:
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use quell::Limit;
//! use quell::tower::{Entries, LimitLayer, RemoteAddress};
//!
//! let address = RemoteAddress::of(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
//! let entries = Entries::new().remote_address(address);
//! let limits = LimitLayer::each("per-address", Limit::per_second(10).burst(20), entries)?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//! let app = app.into_make_service_with_connect_info::<SocketAddr>();
//! # drop(app);
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! [`LimitLayer::new`] takes a [`Limiter`](crate::Limiter) instead, so that rules from a file, many
//! limits at once and a shared store are one line away. [`Entries`] says how a request becomes a
//! query, [`RemoteAddress`] who is behind a proxy.
//!
//! What the layer does with each request, in this order:
//!
//! 1. It makes a query of the request's head and asks the limiter.
//! 2. A refusal is answered at once: 429 with `Retry-After`, the `RateLimit` fields and a problem
//!    document (RFC 9457); to gRPC, `RESOURCE_EXHAUSTED` with `RetryInfo`. The service never sees it.
//! 3. An allowed request waits as long as a leaky bucket says ([`LimitLayer::max_delay`]), and one
//!    that would be refused for its turn, if it may ([`LimitLayer::max_wait`]): first come, first
//!    served. A client that goes away meanwhile gives back its place and what was charged.
//! 4. The service runs with the [`Verdict`](crate::Verdict) among the request's extensions, as an
//!    `Arc<Verdict>`; its response gets the `RateLimit` fields, and the verdict too.
//! 5. If the store cannot tell, what [`OnFailure`] declares happens, and the verdict says `degraded`.
//!
//! What is charged is charged when the request comes. A cost that is known only afterwards is an
//! estimate then, and paid when it is known ([`LimitLayer::cost_after`]). Permits of `concurrency`
//! are held until the response's body has been sent, or is dropped because the client went away;
//! their lease is renewed until then. A limit that learns its ceiling (`adaptive`) hears that the
//! service was too busy from an error, from 503 and 504, and from gRPC's `UNAVAILABLE`,
//! `RESOURCE_EXHAUSTED` and `DEADLINE_EXCEEDED` where they come without a body; a client that goes
//! away before the response teaches it nothing.
//!
//! Waiting for a turn, giving back and paying later need a store with holds, as the one in memory
//! and those on Redis are. On another the layer sleeps for a delay all the same; the rest is a
//! failure that says so.
//!
//! Services that do not speak HTTP are limited by a [`CallLayer`].

mod address;
mod bill;
mod body;
mod call;
mod entries;
mod fields;
mod forwarded;
mod gate;
mod grpc;
mod layer;
mod path_pattern;
mod permit;
mod refusal;

pub use address::{ForwardedField, NetworkError, RemoteAddress, TrustedProxies};
pub use bill::Bill;
pub use body::LimitBody;
pub use call::{Answer, AsEstimated, CallError, CallLayer, CallService, CostAfter};
pub use entries::Entries;
pub use gate::{Failure, OnFailure};
pub use layer::{LimitFuture, LimitLayer, LimitService, Tell};
pub use path_pattern::PathPatternError;
pub use quell_core::path::{PathError, PathReading};
