//! HTTP: the routes, and the answers where there is none.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use quell_protocol::http::{Problem, ProblemKind};

use crate::shared::Shared;
use hold::Deed;

mod admin;
mod ask;
mod body;
mod caller;
mod connection;
mod direct;
mod health;
mod hold;
mod metrics;
mod origin;
mod reply;
mod rules;
mod stream;

pub(crate) use connection::{builder, run, sorry};

/// All routes.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/acquire", post(ask::acquire))
        .route("/v1/peek", post(ask::peek))
        .route("/v1/reserve", post(hold::reserve))
        .route("/v1/settle", hold::route(Deed::Settle))
        .route("/v1/cancel", hold::route(Deed::Cancel))
        .route("/v1/release", hold::route(Deed::Release))
        .route("/v1/renew", hold::route(Deed::Renew))
        .route("/v1/authorize", any(ask::authorize))
        .route("/v1/rules", get(rules::rules))
        .route(
            "/v1/bans",
            get(admin::list_bans).post(admin::ban).delete(admin::lift),
        )
        .route("/v1/keys", delete(admin::forgive))
        .route("/openapi.json", get(openapi))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(shared)
}

/// The description of all routes, for programs. It is written by hand; tests compare it with what the
/// server answers.
async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    reply::reply(StatusCode::OK, kind, include_str!("http/openapi.json"))
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    let detail = format!("there is nothing at {path}: /openapi.json lists what there is");
    reply::problem(&Problem::new(ProblemKind::NotFound, detail))
}

async fn not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let write = match path {
        "/v1/acquire" | "/v1/peek" | "/v1/reserve" | "/v1/settle" | "/v1/cancel"
        | "/v1/release" | "/v1/renew" => "POST",
        "/v1/bans" => "GET, POST or DELETE",
        "/v1/keys" => "DELETE",
        _ => "GET",
    };
    let detail = format!(
        "{} is not answered at {path}: write {write}",
        request.method()
    );
    reply::problem(&Problem::new(ProblemKind::MethodNotAllowed, detail))
}
