//! Envoy: its rate limit service, version 3, on a listener of its own (`--envoy`).
//!
//! A call passes what every request over HTTP/2 passes: bounds of connections, heads, bodies and streams, budgets,
//! and credentials, which Envoy sends as `initial_metadata`. Its body is read whole, but for [`reflection`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::Version;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::post;
use quell_host::body::{self, BufferedBody};
use quell_host::caller::Client;
use quell_host::console::host::Host as _;
use quell_host::reply::{self, Endless};
use quell_protocol::http::{Problem, ProblemKind};
use tonic::Status;
use tonic_health::pb::health_server::HealthServer;

use crate::access::{ClientCertificate, Denied};
use crate::config::Config;
use crate::http::jitter;
use crate::shared::Shared;

mod config;
mod health;
pub(crate) mod late_settlements;
mod reflection;
mod reservations;
mod service;
mod statistics;
pub(crate) mod statsd;
pub(crate) mod web;
pub(crate) mod xds;

use health::ServiceHealth;
pub(crate) use late_settlements::LateSettlements;
pub(crate) use reservations::ReservationSigner;
pub(crate) use statistics::Statistics;
pub(crate) use xds::XdsLimits;

/// The method of gRPC whose answer goes on for as long as its client listens.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Bytes of a message that are always read: the bound of most gRPC servers.
const LONGEST_MESSAGE: usize = 4 << 20;

/// The routes of the listener that no other listener has.
pub(crate) fn routes(shared: &Arc<Shared>) -> Router {
    let longest = shared.config.max_body_bytes;
    let health = HealthServer::new(ServiceHealth(Arc::clone(shared)));
    let whole = middleware::from_fn_with_state(Arc::clone(shared), whole);
    Router::new()
        .route_service(
            "/grpc.health.v1.Health/{method}",
            health.max_decoding_message_size(longest),
        )
        .route_layer(whole)
        .route(service::METHOD, post(service::should_rate_limit))
        .with_state(Arc::clone(shared))
        .merge(reflection::routes(shared))
}

/// Age at which a connection is told to end, up to a tenth more or less, so that not all come back at once.
pub(crate) fn connection_age(config: &Config) -> Option<Duration> {
    let age = config.envoy_max_connection_age?;
    Some(age - age / 10 + jitter(age / 5))
}

/// Refuses a client whose certificate has none of the names of `envoy_client`, if there are any.
pub(crate) fn check_client(
    config: &Config,
    certificate: Option<&ClientCertificate>,
) -> Option<Response> {
    let known = &config.envoy_client;
    let is_known = |name: &str| known.iter().any(|known| known == name);
    let is_any = is_known("*");
    if known.is_empty() || certificate.is_some_and(|shown| is_any || shown.names().any(is_known)) {
        return None;
    }
    let text = "this listener is for clients with a certificate that it knows: show one whose name is in envoy_client";
    Some(Status::unauthenticated(text).into_http())
}

/// Refuses a call that is not gRPC.
fn check_version(request: &HttpRequest) -> Result<(), Box<Problem>> {
    if request.version() < Version::HTTP_2 {
        let detail = "gRPC is answered over HTTP/2 alone: write `http2_protocol_options: {}` for the cluster of Envoy, \
                      or speak gRPC";
        let problem = Problem::new(ProblemKind::InvalidRequest, detail);
        return Err(Box::new(problem));
    }
    Ok(())
}

/// Reads the body of a call.
async fn read(request: HttpRequest, shared: &Shared) -> Result<(Parts, BufferedBody), Response> {
    check_version(&request).map_err(|problem| reply::problem(&problem))?;
    let (head, body) = request.into_parts();
    let client = head.extensions.get::<Client>();
    // Envoy lets a call pass that is refused here, and a visitor's header fields can be long.
    let bounds = shared.bodies(shared.config.max_body_bytes.max(LONGEST_MESSAGE));
    match body::read(body, client, bounds).await {
        Ok(read) => Ok((head, read)),
        Err(problem) => Err(status(&problem).into_http()),
    }
}

/// Passes a request on once its body is there.
async fn whole(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> Response {
    let (head, body) = match read(request, &shared).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let is_endless = head.uri.path() == WATCH;
    let request = HttpRequest::from_parts(head, Body::from(Bytes::from_owner(body)));
    let mut response = next.run(request).await;
    if is_endless {
        response.extensions_mut().insert(Endless);
    }
    response
}

/// The refusal of a caller that may not ask.
fn denied(error: Denied) -> Status {
    status(&Box::<Problem>::from(error))
}

/// A problem as gRPC says it. An answer that a rule declares for a store that is gone is none of these: it is an
/// answer.
fn status(problem: &Problem) -> Status {
    let text = problem.detail.as_deref().unwrap_or(&problem.title);
    match problem.status {
        401 => Status::unauthenticated(text),
        403 => Status::permission_denied(text),
        404 => Status::not_found(text),
        408 => Status::deadline_exceeded(text),
        400..=499 => Status::invalid_argument(text),
        501 => Status::failed_precondition(text),
        503 if problem.kind == ProblemKind::TemporarilyReduced.uri() => Status::unavailable(text),
        503 => Status::resource_exhausted(text),
        _ => Status::internal(text),
    }
}
