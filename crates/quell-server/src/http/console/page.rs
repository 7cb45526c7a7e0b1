//! Page: what all pages have, and the page of an error.

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use quell_protocol::http::{Problem, ProblemKind};

use crate::access::{Caller, Denied, Role};
use crate::http::caller::{Client, caller};
use crate::http::reply;

/// The pages of the menu, by title and path.
pub(super) const MENU: [(&str, &str); 3] = [
    ("Overview", super::HOME),
    ("Rules", super::rules::PATH),
    ("Keys", super::keys::PATH),
];

/// What a page's head and menu show.
pub(super) struct Head {
    pub(super) title: &'static str,
    /// Who has logged in; `None` where nobody has to.
    pub(super) person: Option<String>,
    /// Whether the menu is shown.
    pub(super) has_menu: bool,
}

impl Head {
    /// The head of a page for this caller.
    pub(super) fn of(title: &'static str, caller: &Caller) -> Self {
        Self {
            title,
            person: caller.grant().map(|grant| grant.name().to_string()),
            has_menu: *caller != Caller::Stranger,
        }
    }
}

impl Head {
    /// Whether this is the page of the menu with this title.
    pub(super) fn is_of(&self, title: &str) -> bool {
        self.title == title
    }
}

/// A page that says why there is no other.
#[derive(Template)]
#[template(path = "console/error.html")]
struct ErrorPage<'a> {
    head: Head,
    problem: &'a Problem,
}

/// A problem, shown to a person.
#[derive(Debug)]
pub(super) struct PageError(Box<Problem>);

impl From<Problem> for PageError {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<Box<Problem>> for PageError {
    fn from(problem: Box<Problem>) -> Self {
        Self(problem)
    }
}

impl From<Denied> for PageError {
    fn from(denied: Denied) -> Self {
        Self(denied.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let page = ErrorPage {
            head: Head {
                title: "Not possible",
                person: None,
                has_menu: true,
            },
            problem: &self.0,
        };
        let status = StatusCode::from_u16(self.0.status);
        html(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &page)
    }
}

/// What a page's route returns.
pub(super) type PageResult = Result<Response, PageError>;

/// 200 with a page.
pub(super) fn page(template: &impl Template) -> Response {
    html(StatusCode::OK, template)
}

/// A page with a status.
pub(super) fn html(status: StatusCode, template: &impl Template) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    match template.render() {
        Ok(text) => reply::reply(status, kind, text),
        Err(error) => reply::problem(&Problem::new(ProblemKind::Internal, error.to_string())),
    }
}

/// Seconds since 1970, for people.
pub(super) fn instant(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| String::new(), |at| at.to_string())
}

/// The caller of a page, if it has the role that reading needs.
pub(super) fn reader(request: &Request) -> Result<Caller, PageError> {
    Ok(caller(request, Role::Read)?)
}

/// The caller of a page that everybody may see.
pub(super) fn anybody(request: &Request) -> Caller {
    let client = request.extensions().get::<Client>();
    client.map_or(Caller::Stranger, |client| client.caller.clone())
}
