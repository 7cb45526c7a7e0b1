//! Login: people who show a name and a password (RFC 7617) where administration is.
//!
//! Not where questions are: a password takes tens of milliseconds to check, and strangers would decide how
//! often. There, and for health, a request with a password is one without credentials.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quell_protocol::http::{Problem, ProblemKind};

use crate::access::{BARRED, Caller, Login, LoginRefused};
use crate::caller::{AUTHORIZATION, Client, TOKEN};
use crate::console::host::Host;
use crate::head::Fields as _;
use crate::reply;

/// Makes a browser ask for a name and a password.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"quell\", charset=\"UTF-8\"");

/// Lets the request through as the user whose password it shows. One with a wrong password is refused,
/// whatever its connection showed.
pub async fn log_in(
    State(host): State<Arc<dyn Host>>,
    mut request: Request,
    next: Next,
) -> Response {
    if !host.access().has_passwords() {
        return next.run(request).await;
    }
    let login = login(&request);
    let client = request.extensions_mut().get_mut::<Client>();
    let refused = match login.zip(client) {
        Some((login, client)) => log_in_as(&host, login, client).await.err(),
        None => None,
    };
    let mut response = match refused {
        Some(problem) => reply::problem(&problem),
        None => next.run(request).await,
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().append(WWW_AUTHENTICATE, CHALLENGE);
    }
    response
}

/// Makes the caller of a request the user whose password it shows.
pub async fn log_in_as(
    host: &Arc<dyn Host>,
    login: Login,
    client: &mut Client,
) -> Result<(), Box<Problem>> {
    let (remote, purpose) = (client.address, client.purpose);
    let (barring, noting) = (Arc::clone(host), Arc::clone(host));
    let is_barred = move || barring.failed_logins().bar(remote);
    let note_failure = move || {
        let numbers = noting.numbers(purpose);
        noting.failed_logins().note(remote, numbers);
    };
    let problem = |kind, detail| Err(Box::new(Problem::new(kind, detail)));
    match host.access().log_in(login, is_barred, note_failure).await {
        Ok(Caller::Stranger) => problem(
            ProblemKind::Unauthorized,
            "no user has this name and password: write those of an entry from `quell token password` that \
             is among the credentials",
        ),
        Ok(caller) => {
            client.caller = caller;
            Ok(())
        }
        Err(LoginRefused::TooManyFailed) => problem(ProblemKind::Unauthorized, BARRED),
        Err(LoginRefused::Busy) => problem(
            ProblemKind::Overloaded,
            "too many log in at this moment: try again in a second",
        ),
    }
}

/// The name and the password that a request shows. A token counts before them, and of two fields neither
/// counts.
fn login(request: &Request) -> Option<Login> {
    if request.field(TOKEN).is_some() || request.is_repeated(AUTHORIZATION) {
        return None;
    }
    basic(request.field(AUTHORIZATION)?)
}

/// The name and the password in a field.
pub fn basic(field: &[u8]) -> Option<Login> {
    let (scheme, shown) = field.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let shown = STANDARD.decode(shown.trim_ascii()).ok()?;
    let mut parts = shown.splitn(2, |byte| *byte == b':');
    let (name, password) = (parts.next()?, parts.next()?);
    // Whoever has another name is no user.
    let name = std::str::from_utf8(name).ok()?.parse().ok()?;
    Some(Login {
        name,
        password: password.into(),
    })
}
