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
//! let address = RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
//! let entries = Entries::new().remote_address(address);
//! let limits = LimitLayer::each("per-address", Limit::per_second(10).burst(20), entries)?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//! let app = app.into_make_service_with_connect_info::<SocketAddr>();
//! # drop(app);
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! For rules from a file, many limits at once, or a shared store, pass a [`Limiter`](crate::Limiter) to
//! [`LimitLayer::new`] instead. [`Entries`] says how a request becomes a query, and [`RemoteAddress`]
//! finds the client's address behind proxies.
//!
//! What the layer does with each request, in this order:
//!
//! 1. It makes a query of the request's head and asks the limiter.
//! 2. A refusal is answered at once: 429 with `Retry-After`, the `RateLimit` fields and a problem
//!    document (RFC 9457); to gRPC, `RESOURCE_EXHAUSTED` with `RetryInfo`. The service never sees it.
//! 3. If a leaky bucket asks for a delay, the request sleeps ([`LimitLayer::max_delay`]). If it would be
//!    refused but may wait ([`LimitLayer::max_wait`]), it waits for its turn, first come, first served. If
//!    the client goes away meanwhile, its place and its charge are given back.
//! 4. The service runs with the [`Verdict`](crate::Verdict) among the request's extensions, as an
//!    `Arc<Verdict>`; its response gets the `RateLimit` fields, and the verdict too.
//! 5. If the store fails, the call is refused, or passes if the layer says [`LimitLayer::allow_on_failure`]; the verdict says `degraded`.
//!
//! Limits are charged when the request comes. If a cost is known only afterwards, an estimate is charged
//! first and settled when the cost is known ([`LimitLayer::cost_after`]).
//!
//! Permits of `concurrency` are held until the response's body has been sent, or was dropped because the
//! client went away. Their lease is renewed until then. A limit with `adaptive` takes these as a sign
//! that the service was too busy: an error, 503 and 504, and gRPC's `UNAVAILABLE`, `RESOURCE_EXHAUSTED`
//! and `DEADLINE_EXCEEDED` without a body. A client that goes away before the response does not count.
//!
//! Waiting for a turn, giving back and settling need a store with holds; those in memory and on Redis
//! have them. On another store the layer only sleeps for delays, and answers the rest with an error that
//! says so.
//!
//! Services that do not speak HTTP are limited by a [`CallLayer`].

mod address;
mod bill;
mod body;
mod call;
mod entries;
mod fields;
mod gate;
mod grpc;
mod layer;
mod path_pattern;
mod permit;
mod refusal;

pub use address::{ForwardedField, NetworkError, RemoteAddress, TrustedProxies};
pub use bill::Bill;
pub use body::LimitBody;
pub use call::{AsEstimated, CallError, CallLayer, CallOutcome, CallService, CostAfter};
pub use entries::Entries;
pub use gate::Failure;
pub use layer::{LimitFuture, LimitLayer, LimitService, SendFields};
pub use path_pattern::PathPatternError;
pub use quell_core::path::{PathError, PathReading};
