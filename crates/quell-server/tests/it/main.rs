//! The server over real sockets, on free ports.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod access;
mod admin;
mod authorize;
mod candidate;
mod certificates;
mod client_certificates;
mod console;
mod contract;
mod decision_log;
mod documented;
mod envoy;
mod envoy_config;
mod envoy_reflection;
mod envoy_reservations;
mod envoy_transport;
mod envoy_xds;
mod fleet;
mod hang_up;
mod harness;
mod holds;
mod hostile;
mod hostile_tls;
mod http2;
mod insiders;
mod life_of_a_request;
mod origin;
mod overload;
mod overrides;
mod passwords;
mod persistence;
mod pressure;
mod questions;
mod reload;
mod roles;
mod rungs;
mod shutdown;
mod slow;
mod tls;
mod top;
#[cfg(feature = "otel")]
mod traces;
mod unix;
mod wire;
