//! Sign in: the pages where people log in and out.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use quell_protocol::http::{Problem, ProblemKind};

use super::page::{self, Head, PageResult, anybody};
use super::shell::{HOME, LOGIN, Shell, redirect, redirect_with};
use crate::access::{Caller, Login};
use crate::http::caller::Client;
use crate::http::{login, reply};

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
    fn new(shell: &Shell) -> Self {
        Self {
            head: Head::of("Log in", &Caller::Stranger),
            has_passwords: shell.host.access().has_passwords(),
            name: String::new(),
            failure: None,
        }
    }
}

pub(super) async fn page(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    match anybody(&request) {
        Caller::Stranger => page::page(&LoginPage::new(&shell)),
        Caller::Anyone | Caller::Bearer(_) => redirect(HOME),
    }
}

pub(super) async fn log_in(State(shell): State<Arc<Shell>>, request: Request) -> PageResult {
    let client = request.extensions().get::<Client>().cloned();
    let Some(mut client) = client.filter(|client| client.caller == Caller::Stranger) else {
        return Ok(redirect(HOME));
    };
    let fields = shell.form(request).await?;
    let name = fields.get("name").to_owned();
    let refused = match name.parse() {
        Ok(name) => {
            let password = fields.get("password").as_bytes().into();
            let login = Login { name, password };
            login::log_in_as(&shell.host, login, &mut client)
                .await
                .err()
        }
        Err(reason) => Some(reply::invalid(reason)),
    };
    let cookie = client.caller.grant().and_then(|person| {
        let sessions = &shell.sessions;
        sessions.begin(person, shell.host.is_secure())
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
                ..LoginPage::new(&shell)
            };
            Ok(page::html(status, &page))
        }
    }
}

pub(super) async fn log_out(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    let cookie = shell.sessions.cookie(request.headers());
    let (access, is_secure) = (shell.host.access(), shell.host.is_secure());
    let forget = shell.sessions.end(access, cookie.as_deref(), is_secure);
    redirect_with(LOGIN, &forget)
}
