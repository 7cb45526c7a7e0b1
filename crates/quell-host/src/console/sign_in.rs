//! Sign in: the pages where people log in and out.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::response::Response;
use quell_protocol::http::{Problem, ProblemKind};

use super::page::{Fields, PageResult};
use super::shell::{HOME, LOGIN, MAX_FORM, Shell, redirect, with_cookie, with_status};
use crate::access::{Caller, Login};
use crate::caller::Client;
use crate::{login, reply};

const TITLE: &str = "Log in";

/// Longest form to log in, in bytes: the names of what it keeps are longer than they were.
const MAX_LOGIN: usize = 2 * MAX_FORM;

/// Said of a form without a session that is too long to be kept: what a stranger sends must cost little.
const TOO_LONG: &str = "you are not logged in, or your session is over, and this is too long to be kept: log in in \
                        another tab, go back to the page, and send it again";

#[derive(Template)]
#[template(path = "console/login.html")]
struct LoginPage {
    /// True if anybody has a password.
    has_passwords: bool,
    /// Name to fill in again.
    name: String,
    kept: PendingForm,
}

/// A form of somebody whose session was over: it is sent again after the login, by the person.
#[derive(Default, Template)]
#[template(path = "console/again.html")]
struct PendingForm {
    to: String,
    fields: Fields,
}

/// Prefix of the names of a kept form's fields in the form of the login.
const KEPT: &str = "kept-";

impl LoginPage {
    fn new(shell: &Shell, name: String, kept: PendingForm) -> Self {
        let has_passwords = shell.host.access().has_passwords();
        Self {
            has_passwords,
            name,
            kept,
        }
    }
}

/// The form to log in.
pub(super) async fn page(State(shell): State<Arc<Shell>>, request: Request) -> PageResult {
    let viewer = shell.viewer(&request, &[])?;
    let page = LoginPage::new(&shell, String::new(), PendingForm::default());
    match viewer.caller {
        Caller::Stranger => shell.page(TITLE, &viewer, &page),
        Caller::Anyone | Caller::Bearer(_) => Ok(redirect(HOME)),
    }
}

/// The page to log in that has what a stranger sent.
pub(super) async fn keep(shell: &Shell, request: Request) -> PageResult {
    let viewer = shell.viewer(&request, &[])?;
    let to = request.uri().path().to_owned();
    let fields = shell
        .form(request)
        .await
        .map_err(|error| match error.status() {
            413 => Problem::new(ProblemKind::Unauthorized, TOO_LONG).into(),
            _ => error,
        })?;
    let page = LoginPage::new(shell, String::new(), PendingForm { to, fields });
    let why = "you are not logged in, or your session is over: log in, and send it again";
    let page = shell.answer(TITLE, &viewer, &Err(why.to_owned()), &page)?;
    Ok(with_status(401, page))
}

/// Logs a person in.
pub(super) async fn log_in(State(shell): State<Arc<Shell>>, request: Request) -> PageResult {
    let client = request.extensions().get::<Client>().cloned();
    let Some(mut client) = client.filter(|client| client.caller == Caller::Stranger) else {
        return Ok(redirect(HOME));
    };
    let mut viewer = shell.viewer(&request, &[])?;
    let cookie = shell.sessions.name(&request);
    let is_secure = shell.is_over_tls(&request);
    let fields = shell.form_of(request, MAX_LOGIN).await?;
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
        sessions.begin(&cookie, person, is_secure)
    });
    let to = fields.get("to").to_owned();
    let kept = { fields.0.into_iter() }
        .filter_map(|(name, value)| Some((name.strip_prefix(KEPT)?.to_owned(), value)));
    let fields = Fields(kept.collect());
    let kept = PendingForm { to, fields };
    match (refused, cookie) {
        (None, Some(cookie)) => {
            viewer.caller = client.caller;
            let page = match kept.to.starts_with("/console/") {
                true => shell.page("Send it again", &viewer, &kept)?,
                false => redirect(HOME),
            };
            Ok(with_cookie(page, &cookie))
        }
        (refused, _) => {
            let refused = refused.unwrap_or_else(|| {
                let detail = "the system has no random numbers to give: look at the server's log";
                Box::new(Problem::new(ProblemKind::Internal, detail))
            });
            // A form that is shown again is no challenge.
            let status = match refused.status {
                401 => 403,
                status => status,
            };
            let page = LoginPage::new(&shell, name, kept);
            let why = Err(refused.detail.unwrap_or_default());
            let page = shell.answer(TITLE, &viewer, &why, &page)?;
            Ok(with_status(status, page))
        }
    }
}

/// Ends a session.
pub(super) async fn log_out(State(shell): State<Arc<Shell>>, request: Request) -> Response {
    let (access, is_secure) = (shell.host.access(), shell.is_over_tls(&request));
    let forget = shell.sessions.end(access, &request, is_secure);
    with_cookie(redirect(LOGIN), &forget)
}
