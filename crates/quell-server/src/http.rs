//! HTTP: the routes of each listener, and the answers where there is none.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use quell_protocol::http::{Problem, ProblemKind};

use crate::envoy;
use crate::shared::Shared;
use hold_routes::HoldAction;
use quell_host::candidate_routes::Candidacy;
use quell_host::console::host::Host;
use quell_host::detach::DetachOnDisconnect as _;
use quell_host::login;
use quell_host::{body, caller, reply, requests};

pub(crate) mod admin;
mod answer;
mod ask;
mod connection;
pub(crate) mod console;
mod fast_path;
mod health;
mod hold_list;
mod hold_routes;
mod metrics;
#[cfg(test)]
mod openapi;
mod origin;
pub(crate) mod override_routes;
mod rule_routes;
mod service;
mod stream;
pub(crate) mod top;
mod unread_body;

pub(crate) use ask::{jitter, unsupported};
pub(crate) use connection::{rejection, run};
pub(crate) use quell_host::caller::{Client, Purpose};
pub(crate) use quell_host::reply::no_tls;
pub(crate) use service::HttpService;

/// The routes of a listener.
fn router(shared: Arc<Shared>, purpose: Purpose) -> Router {
    let mut router = Router::new()
        .route("/openapi.json", get(openapi))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz));
    let has_config = shared.config.has_envoy_limits();
    if purpose.has_questions() {
        router = router.merge(questions());
        if has_config {
            router = router.merge(envoy::web::questions());
        }
    }
    if purpose.has_administration() && has_config {
        router = router.merge(envoy::web::administration());
    }
    let mut router = router.with_state(Arc::clone(&shared));
    if purpose == Purpose::RateLimitService {
        router = router.merge(envoy::routes(&shared));
    }
    if purpose.has_administration() {
        router = router.merge(administration(&shared));
        if shared.config.console {
            router = router.merge(console::routes(&shared));
        }
    }
    router
        .fallback(async move |request: Request| not_found(&request, purpose))
        .method_not_allowed_fallback(not_allowed)
}

fn questions() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/acquire", post(ask::acquire))
        .route("/v1/peek", post(ask::peek))
        .route("/v1/reserve", post(hold_routes::reserve))
        .route("/v1/settle", hold_routes::route(HoldAction::Settle))
        .route("/v1/cancel", hold_routes::route(HoldAction::Cancel))
        .route("/v1/release", hold_routes::route(HoldAction::Release))
        .route("/v1/renew", hold_routes::route(HoldAction::Renew))
        .route("/v1/authorize", any(ask::authorize))
}

/// The routes where people may log in.
fn administration(shared: &Arc<Shared>) -> Router {
    let host: Arc<dyn Host> = Arc::<Shared>::clone(shared);
    let rules: Arc<Shared> = Arc::clone(shared);
    let log_in = middleware::from_fn_with_state(Arc::clone(&host), login::log_in);
    Router::new()
        .route(
            "/v1/bans",
            get(admin::list_bans).post(admin::ban).delete(admin::lift),
        )
        .route("/v1/keys", delete(admin::forgive))
        .route("/v1/overrides/batch", post(override_routes::batch))
        .route("/v1/overrides/{domain}/{rule}", override_routes::key())
        .detach_on_disconnect()
        .route("/v1/overrides/changes", get(override_routes::changes))
        .route("/v1/overrides/{domain}", get(override_routes::list))
        .route("/v1/rules", get(rule_routes::rules))
        .route("/v1/holds", post(hold_list::list_holds))
        .route("/v1/top", get(top::top))
        .route("/metrics", get(metrics::metrics))
        .with_state(Arc::clone(shared))
        .merge(Candidacy::routes(host, rules))
        .route_layer(log_in)
}

/// The description of all routes, for programs. A test makes it of the types of bodies; others compare it with what
/// the server answers.
async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    reply::reply(StatusCode::OK, kind, include_str!("http/openapi.json"))
}

/// Whether a path is that of a list or a key of overrides.
fn is_of_overrides(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    parts.next() == Some("v1") && parts.next() == Some("overrides") && parts.next().is_some()
}

/// The answer to a path that this listener does not have. It tells nobody where the other listener is.
fn not_found(request: &Request, purpose: Purpose) -> Response {
    let path = request.uri().path();
    let is_administration = matches!(
        path,
        "/v1/rules"
            | "/v1/bans"
            | "/v1/keys"
            | "/v1/holds"
            | "/v1/top"
            | "/v1/candidate"
            | "/metrics"
            | console::HOME
    ) || is_of_overrides(path);
    let detail = match purpose {
        Purpose::Questions if is_administration => format!(
            "{path} is not answered here: this server has a listener of its own for administration \
             (--admin), so ask that one"
        ),
        Purpose::Administration => format!(
            "{path} is not answered here: this listener is for administration (--admin), and questions \
             are answered by the server's other one (--http)"
        ),
        Purpose::RateLimitService => format!(
            "{path} is not answered here: this listener is for Envoy's rate limit service (--envoy), and HTTP is \
             answered by the server's other one (--http)"
        ),
        _ => format!("there is nothing at {path}: /openapi.json lists what there is"),
    };
    reply::problem(&Problem::new(ProblemKind::NotFound, detail))
}

async fn not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let write = match path {
        "/v1/overrides/batch" => "POST",
        "/v1/overrides/changes" => "GET",
        path if is_of_overrides(path) && path.matches('/').count() == 4 => "GET, PUT or DELETE",
        "/v1/acquire" | "/v1/peek" | "/v1/reserve" | "/v1/settle" | "/v1/cancel"
        | "/v1/release" | "/v1/renew" | "/v1/holds" => "POST",
        "/v1/bans" | "/v1/candidate" => "GET, POST or DELETE",
        "/v1/keys" => "DELETE",
        _ => "GET",
    };
    let detail = format!(
        "{} is not answered at {path}: write {write}",
        request.method()
    );
    reply::problem(&Problem::new(ProblemKind::MethodNotAllowed, detail))
}
