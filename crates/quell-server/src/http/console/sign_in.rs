//! Sign in: the pages where people log in and out.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use quell_protocol::http::{Problem, ProblemKind};

use super::page::{self, Head, PageResult, anybody};
use super::{Console, HOME, LOGIN, MOST_FORM, redirect, redirect_with, session};
use crate::access::{Caller, Login};
use crate::http::caller::Client;
use crate::http::{body, login, reply};

#[derive(Template)]
#[template(path = "console/login.html")]
struct LoginPage {
    head: Head,
    /// Whether anybody has a password.
    has_passwords: bool,
    /// What to fill in again.
    name: String,
    failure: Option<String>,
}

impl LoginPage {
    fn new(console: &Console) -> Self {
        Self {
            head: Head::of("Log in", &Caller::Stranger),
            has_passwords: console.shared.access.has_passwords(),
            name: String::new(),
            failure: None,
        }
    }
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> Response {
    match anybody(&request) {
        Caller::Stranger => page::page(&LoginPage::new(&console)),
        Caller::Anyone | Caller::Bearer(_) => redirect(HOME),
    }
}

pub(super) async fn log_in(
    State(console): State<Arc<Console>>,
    mut request: Request,
) -> PageResult {
    let shared = &console.shared;
    let client = request.extensions_mut().remove::<Client>();
    let Some(mut client) = client.filter(|client| client.caller == Caller::Stranger) else {
        return Ok(redirect(HOME));
    };
    let form = body::read_form(request, shared, MOST_FORM).await?;
    let (mut name, mut password) = (String::new(), String::new());
    for (field, value) in form_urlencoded::parse(&form.bytes) {
        match &*field {
            "name" => name = value.into_owned(),
            "password" => password = value.into_owned(),
            _ => {}
        }
    }
    let refused = match name.parse() {
        Ok(name) => {
            let password = password.into_bytes().into();
            let login = Login { name, password };
            login::log_in_as(shared, login, &mut client).await.err()
        }
        Err(reason) => Some(reply::invalid(reason)),
    };
    let cookie = client.caller.grant().and_then(|person| {
        let sessions = &console.sessions;
        sessions.begin(person, console.is_secure())
    });
    match (refused, cookie) {
        (None, Some(cookie)) => Ok(redirect_with(HOME, &cookie)),
        (refused, _) => {
            let refused = refused.unwrap_or_else(|| {
                let detail = "the system has no random numbers to give: look at the server's log";
                Box::new(Problem::new(ProblemKind::Internal, detail))
            });
            // A form that is shown again is no challenge.
            let status = match refused.status {
                401 => StatusCode::FORBIDDEN,
                status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST),
            };
            let page = LoginPage {
                name,
                failure: refused.detail,
                ..LoginPage::new(&console)
            };
            Ok(page::html(status, &page))
        }
    }
}

pub(super) async fn log_out(State(console): State<Arc<Console>>, request: Request) -> Response {
    let cookie = session::cookie(request.headers());
    let (access, is_secure) = (&console.shared.access, console.is_secure());
    let forget = console.sessions.end(access, cookie.as_deref(), is_secure);
    redirect_with(LOGIN, &forget)
}
