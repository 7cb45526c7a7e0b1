//! Web: the pages that envoyproxy/ratelimit has beside its service, where its files are served.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use quell_core::rule::Selector;
use quell_envoy::config::Tree;
use quell_envoy::json;
use quell_envoy::proto::Code;
use quell_host::body;
use quell_host::caller::{Client, caller};
use quell_host::console::host::Host as _;
use quell_host::reply::{self, RouteResult};

use super::service::RateLimits;
use crate::access::Role;
use crate::shared::Shared;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The routes for callers: `/json` and `/healthcheck`.
pub(crate) fn questions() -> Router<Arc<Shared>> {
    Router::new()
        .route("/json", post(ask))
        .route("/healthcheck", get(health))
}

/// The routes for operators: `/rlconfig` and `/stats`.
pub(crate) fn administration() -> Router<Arc<Shared>> {
    Router::new()
        .route("/rlconfig", get(limits))
        .route("/stats", get(statistics))
}

fn text(status: StatusCode, text: impl Into<String>) -> Response {
    reply::reply(status, TEXT, text.into())
}

/// Answers a question in JSON: 200 or 429, and 400 to any mistake.
async fn ask(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    let caller = caller(&request, Role::Ask)?;
    let (head, body) = request.into_parts();
    let client = head.extensions.get::<Client>();
    let bounds = shared.bodies(shared.config.max_body_bytes);
    let body = body::read(body, client, bounds).await?;
    let message = match json::read_request(&body.bytes) {
        Ok(message) => message,
        Err(mistake) => return Ok(text(StatusCode::BAD_REQUEST, mistake + "\n")),
    };
    let context = shared.context(&head.headers);
    let answer = match RateLimits(&shared).answer(&message, &caller, context).await {
        Ok(answer) => answer,
        Err(status) => {
            let mistake = format!("{}\n", status.message());
            return Ok(text(StatusCode::BAD_REQUEST, mistake));
        }
    };
    let status = match answer.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let kind = HeaderValue::from_static("application/json");
    Ok(reply::reply(status, kind, json::write_response(&answer)))
}

/// Tells whether calls should be sent here.
async fn health(State(shared): State<Arc<Shared>>) -> Response {
    match shared.is_ready() {
        true => text(StatusCode::OK, "OK"),
        false => text(StatusCode::INTERNAL_SERVER_ERROR, "not ready\n"),
    }
}

/// Lists the limits in force.
async fn limits(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    caller(&request, Role::Read)?.check_whole()?;
    let rules = shared.limiter.rules();
    let trees = rules.domains().filter_map(|domain| rules.selector(domain));
    let trees = trees.filter_map(Selector::get::<Tree>);
    let all: String = trees.map(ToString::to_string).collect();
    Ok(text(StatusCode::OK, all))
}

/// Lists the statistics, under their names for statsd.
async fn statistics(State(shared): State<Arc<Shared>>, request: Request) -> RouteResult {
    caller(&request, Role::Metrics)?.check_whole()?;
    let all = shared.envoy.all();
    let lines = all.iter().map(|(name, count)| format!("{name}: {count}\n"));
    Ok(text(StatusCode::OK, lines.collect::<String>()))
}
