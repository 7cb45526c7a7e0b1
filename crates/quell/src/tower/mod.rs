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
//! 3. An allowed request waits as long as a leaky bucket says ([`LimitLayer::max_delay`]).
//! 4. The service runs with the [`Verdict`](crate::Verdict) among the request's extensions, as an
//!    `Arc<Verdict>`; its response gets the `RateLimit` fields, and the verdict too.
//! 5. If the store cannot tell, what [`OnFailure`] declares happens, and the verdict says `degraded`.
//!
//! What is charged is charged when the request comes. A cost that is known only afterwards needs a
//! reservation, which the limiter does not have yet.
//!
//! Services that do not speak HTTP are limited by a [`CallLayer`].

mod address;
mod body;
mod call;
mod entries;
mod fields;
mod forwarded;
mod gate;
mod grpc;
mod layer;
mod path_pattern;
mod refusal;

pub use address::{ForwardedField, NetworkError, RemoteAddress, TrustedProxies};
pub use body::LimitBody;
pub use call::{Answer, CallError, CallLayer, CallService};
pub use entries::Entries;
pub use gate::{Failure, OnFailure};
pub use layer::{LimitFuture, LimitLayer, LimitService, Tell};
pub use path_pattern::PathPatternError;
