//! Mount: the routes of a console behind the guard against other sites' pages.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ORIGIN, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use quell_protocol::http::{Problem, ProblemKind};

use super::page::{PageError, ShownProblem, anybody, host, html};
use super::shell::{HOME, LOGIN, Shell, redirect};
use super::{assets, sign_in};
use crate::access::Caller;
use crate::caller::address;

/// The page to log out.
const LOGOUT: &str = "/console/logout";

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

/// In place of what was to be checked.
#[derive(Template)]
#[template(
    source = "<p class=\"box warn\">Your session is over. Log in in another tab, and nothing of this is lost.</p>",
    ext = "html"
)]
struct SessionOver;

/// `pages`, guarded, with the pages to log in and out and the assets.
pub fn mount(shell: &Arc<Shell>, pages: Router) -> Router {
    let own = Router::new()
        .route(LOGIN, get(sign_in::page).post(sign_in::log_in))
        .route(LOGOUT, post(sign_in::log_out))
        .route("/console/assets/{name}", get(assets::asset))
        .route("/console/", get(async || redirect(HOME)))
        .route("/console/{*unknown}", get(unknown))
        .with_state(Arc::clone(shell));
    let guard = middleware::from_fn_with_state(Arc::clone(shell), guard);
    pages.merge(own).route_layer(guard)
}

/// No page has this address.
async fn unknown() -> PageError {
    Problem::new(ProblemKind::NotFound, "the console has no such page").into()
}

/// Refuses what another site's page sent, says who the caller is, and adds the fields of every answer.
async fn guard(State(shell): State<Arc<Shell>>, mut request: Request, next: Next) -> Response {
    let is_page = request.method() == Method::GET;
    let is_safe = is_page || request.method() == Method::HEAD;
    let is_fragment = request.headers().contains_key("hx-request");
    shell.recognise(&mut request);
    let caller = anybody(&request);
    let mut answer = if is_safe || is_same_origin(&request) {
        let is_sign_in = [LOGIN, LOGOUT].contains(&request.uri().path());
        let is_over = !is_safe && !is_sign_in && caller == Caller::Stranger;
        match shell.visits.admit(&caller, address(&request)) {
            // A form checked while it is written stays where it is.
            Ok(()) if is_over && is_fragment => html(&SessionOver),
            Ok(()) if is_over => sign_in::keep(&shell, request).await.into_response(),
            Ok(()) => next.run(request).await,
            Err(problem) => ([(RETRY_AFTER, "1")], PageError::from(problem)).into_response(),
        }
    } else {
        let detail = "a page of another site may have sent this: use the forms of the console";
        PageError::from(Problem::new(ProblemKind::Forbidden, detail)).into_response()
    };
    if let Some(ShownProblem(problem)) = answer.extensions_mut().remove() {
        let wait = answer.headers_mut().remove(RETRY_AFTER);
        answer = shell.error(&problem, caller);
        answer
            .headers_mut()
            .extend(wait.map(|wait| (RETRY_AFTER, wait)));
    }
    let mut answer = match answer.status() {
        StatusCode::UNAUTHORIZED if is_page => redirect(LOGIN),
        _ => answer,
    };
    let fields = answer.headers_mut();
    for (name, value) in FIELDS {
        let value = HeaderValue::from_static(value);
        fields.entry(name).or_insert(value);
    }
    answer
}

/// Returns true if a page of this server sent a request: the browser says so. Every browser sends the
/// origin of a form; other programs ask `/v1`.
fn is_same_origin(request: &Request) -> bool {
    let field = |name: &str| request.headers().get(name).and_then(|it| it.to_str().ok());
    let site = field("sec-fetch-site");
    let origin = field(ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
    let is_own = origin
        .zip(host(request))
        .is_some_and(|((_, origin), host)| {
            // A name may be written in capitals, and the origin has it in small letters.
            origin.eq_ignore_ascii_case(host)
        });
    is_own && site.is_none_or(|site| site == "same-origin")
}
