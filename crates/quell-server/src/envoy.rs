//! Envoy: its rate limit service, version 3, on a listener of its own (`--envoy`).
//!
//! A call passes what every request over HTTP/2 passes: bounds of connections, heads, bodies and streams, budgets,
//! and credentials, which Envoy sends as `initial_metadata`. Its body is read whole before tonic sees it.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::Version;
use axum::middleware::{self, Next};
use axum::response::Response;
use quell_envoy::proto::RateLimitServiceServer;
use quell_host::body;
use quell_host::caller::{Client, caller};
use quell_host::console::host::Host as _;
use quell_host::reply::{self, Endless};
use quell_protocol::http::{Problem, ProblemKind};
use tonic::Status;
use tonic_health::pb::health_server::HealthServer;

use crate::access::{Denied, Role};
use crate::shared::Shared;

mod health;
mod service;

use health::ServiceHealth;
use service::RateLimits;

/// The method of gRPC whose answer goes on for as long as its client listens.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The routes of the listener that no other listener has.
pub(crate) fn routes(shared: &Arc<Shared>) -> Router {
    let longest = shared.config.max_body_bytes;
    let limits = RateLimitServiceServer::new(RateLimits(Arc::clone(shared)));
    let health = HealthServer::new(ServiceHealth(Arc::clone(shared)));
    let known = middleware::from_fn(authenticated);
    let whole = middleware::from_fn_with_state(Arc::clone(shared), whole);
    Router::new()
        .route_service(
            "/envoy.service.ratelimit.v3.RateLimitService/{method}",
            limits.max_decoding_message_size(longest),
        )
        .route_layer(known)
        .route_service(
            "/grpc.health.v1.Health/{method}",
            health.max_decoding_message_size(longest),
        )
        .route_layer(whole)
}

/// Refuses a caller that may not ask, before its body is read.
async fn authenticated(request: HttpRequest, next: Next) -> Response {
    match caller(&request, Role::Ask) {
        Ok(_) => next.run(request).await,
        Err(error) => denied(error).into_http(),
    }
}

/// Passes a request on once its body is there.
async fn whole(State(shared): State<Arc<Shared>>, request: HttpRequest, next: Next) -> Response {
    if request.version() < Version::HTTP_2 {
        let detail = "gRPC is answered over HTTP/2 alone: write `http2_protocol_options: {}` for the cluster of Envoy, \
                      or speak gRPC";
        return reply::problem(&Problem::new(ProblemKind::InvalidRequest, detail));
    }
    let (head, body) = request.into_parts();
    let client = head.extensions.get::<Client>();
    let bounds = shared.bodies(shared.config.max_body_bytes);
    let read = match body::read(body, client, bounds).await {
        Ok(read) => read,
        Err(problem) => return status(&problem).into_http(),
    };
    let is_endless = head.uri.path() == WATCH;
    let request = HttpRequest::from_parts(head, Body::from(Bytes::from_owner(read)));
    let mut response = next.run(request).await;
    if is_endless {
        response.extensions_mut().insert(Endless);
    }
    response
}

/// What a caller is told that may not ask.
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
