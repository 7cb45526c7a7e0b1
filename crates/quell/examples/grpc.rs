//! tonic: two calls at once and one more a second for each API key, in front of a gRPC service.
//!
//! ```sh
//! cargo run -p quell --example grpc
//! grpcurl -plaintext -H 'x-api-key: k1' 127.0.0.1:3000 grpc.health.v1.Health/Check
//! ```
//!
//! A refused client gets the status `RESOURCE_EXHAUSTED` with a `RetryInfo`, which many clients obey by
//! themselves. The service is tonic's health service here; any other takes its place.

use std::error::Error;

use axum::http::HeaderName;
use quell::store::memory::MemoryStore;
use quell::tower::{Entries, LimitLayer};
use quell::{Limit, LimitError};
use tonic::transport::Server;

/// The limit, to be put in front of a server.
pub(crate) fn limits() -> Result<LimitLayer<MemoryStore>, LimitError> {
    let key = Entries::new().header("api_key", HeaderName::from_static("x-api-key"));
    LimitLayer::each("per-api-key", Limit::per_second(1).burst(2), key)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits()?).add_service(service);
    Ok(server.serve("127.0.0.1:3000".parse()?).await?)
}
