//! Console: pages for people, at `/console`, where administration is.
//!
//! A page asks for what a route of `/v1` asks for, through the same functions, and has the same roles. A
//! person logs in with a password and gets a signed cookie (`session`); a token or a certificate counts as
//! everywhere. Pages work without scripts; with them, `live` sends what changes. What strangers wrote is
//! escaped by the templates.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use quell_protocol::http::{Problem, ProblemKind};
use tokio::sync::Semaphore;

use super::caller::Client;
use super::reply;
use crate::access::{Caller, Grant};
use crate::shared::Shared;
use page::PageError;
use session::Sessions;

mod assets;
mod keys;
mod live;
mod overview;
mod page;
mod proposal;
mod rules;
mod session;
mod sign_in;

/// Pages that are kept up to date at a time. Each takes some kilobytes, and a list of keys a second.
const MOST_LIVE: usize = 64;

/// The overview.
pub(super) const HOME: &str = "/console";
/// Longest form, in bytes, but for that with rules.
const MOST_FORM: usize = 16 * 1_024;

const LOGIN: &str = "/console/login";

/// Everything comes from this server, and nothing is inline.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Fields of every answer, unless the page says otherwise.
const FIELDS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // With `no-referrer` browsers send no origin with a form.
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
];

/// What the pages of one server share.
#[derive(Debug)]
struct Console {
    shared: Arc<Shared>,
    sessions: Sessions,
    live: Arc<Semaphore>,
}

/// The routes of the console.
pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let console = Arc::new(Console {
        shared: Arc::clone(shared),
        sessions: Sessions::new(),
        live: Arc::new(Semaphore::new(MOST_LIVE)),
    });
    let guard = middleware::from_fn_with_state(Arc::clone(&console), guard);
    Router::new()
        .route(HOME, get(overview::page))
        .route(keys::PATH, get(keys::page).post(keys::act))
        .route(rules::PATH, get(rules::page))
        .route(rules::EDIT, get(rules::edit).post(rules::propose))
        .route("/console/rules/check", post(rules::check))
        .route("/console/live", get(live::stream))
        .route("/console/history.json", get(live::history))
        .route(LOGIN, get(sign_in::page).post(sign_in::log_in))
        .route("/console/logout", post(sign_in::log_out))
        .route("/console/assets/{name}", get(assets::asset))
        .route_layer(guard)
        .with_state(console)
}

/// Refuses what another site's page sent, says who the caller is, and adds the fields of every answer.
async fn guard(State(console): State<Arc<Console>>, mut request: Request, next: Next) -> Response {
    let is_page = request.method() == Method::GET;
    let is_safe = is_page || request.method() == Method::HEAD;
    let is_fragment = request.headers().contains_key("hx-request");
    let answer = if is_safe || is_same_origin(&request) {
        console.recognise(&mut request);
        next.run(request).await
    } else {
        let detail = "a page of another site may have sent this: use the forms of the console";
        PageError::from(Problem::new(ProblemKind::Forbidden, detail)).into_response()
    };
    let mut answer = match answer.status() {
        StatusCode::UNAUTHORIZED if is_page && !is_fragment => redirect(LOGIN),
        _ => answer,
    };
    let is_stranger = answer.status() == StatusCode::UNAUTHORIZED;
    let fields = answer.headers_mut();
    if is_stranger && is_fragment {
        fields.insert("hx-redirect", HeaderValue::from_static(LOGIN));
    }
    for (name, value) in FIELDS {
        let value = HeaderValue::from_static(value);
        fields.entry(name).or_insert(value);
    }
    answer
}

/// Whether a page of this server sent a request: the browser says so. Every browser sends the origin of a
/// form; other programs ask `/v1`.
fn is_same_origin(request: &Request) -> bool {
    let field = |name: &str| request.headers().get(name).and_then(|it| it.to_str().ok());
    let site = field("sec-fetch-site");
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let host = authority.or_else(|| field(HOST.as_str()));
    let origin = field(ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
    let is_own = origin.zip(host).is_some_and(|((_, origin), host)| {
        // A name may be written in capitals, and the origin has it in small letters.
        origin.eq_ignore_ascii_case(host)
    });
    is_own && site.is_none_or(|site| site == "same-origin")
}

impl Console {
    /// Takes a caller who has shown nothing else for the person whose session it is.
    fn recognise(&self, request: &mut Request) {
        let cookie = session::cookie(request.headers());
        let person = cookie.and_then(|text| self.person(&text));
        let client = request.extensions_mut().get_mut::<Client>();
        if let (Some(person), Some(client)) = (person, client)
            && client.caller == Caller::Stranger
        {
            client.caller = Caller::Bearer(person);
        }
    }

    /// Whose session a cookie is, while it lasts.
    fn person(&self, cookie: &str) -> Option<Arc<Grant>> {
        self.sessions.read(&self.shared.access, cookie)
    }

    /// Whether cookies are for TLS alone.
    fn is_secure(&self) -> bool {
        self.shared.tls.is_some()
    }
}

/// Another page, to be asked for by GET.
fn redirect(to: &'static str) -> Response {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = reply::reply(StatusCode::SEE_OTHER, kind, "");
    let fields = response.headers_mut();
    fields.insert(LOCATION, HeaderValue::from_static(to));
    response
}

/// Another page, with a cookie.
fn redirect_with(to: &'static str, cookie: &str) -> Response {
    let mut response = redirect(to);
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}
