//! Page: what all pages have, and the page of an error.

use std::sync::Arc;

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use quell_protocol::http::{Problem, ProblemKind};

use crate::access::{Caller, Denied, Role};
use crate::http::caller::{Client, caller};
use crate::http::reply;

/// The pages of a menu, by title and path.
pub type Menu = &'static [(&'static str, &'static str)];

/// What a page's head and menu show.
pub(super) struct Head {
    pub(super) title: &'static str,
    /// Who has logged in; `None` where nobody has to.
    pub(super) person: Option<String>,
    /// Empty for those who may see nothing.
    pub(super) menu: Menu,
}

impl Head {
    /// The head of a server's page for this caller.
    pub(super) fn of(title: &'static str, caller: &Caller) -> Self {
        Self::with(super::MENU, title, caller)
    }

    /// The head of a page for this caller, with this menu.
    pub(super) fn with(menu: Menu, title: &'static str, caller: &Caller) -> Self {
        Self {
            title,
            person: caller.grant().map(|grant| grant.name().to_string()),
            menu: match caller {
                Caller::Stranger => &[],
                _ => menu,
            },
        }
    }

    /// Whether this is the page of the menu with this title.
    pub(super) fn is_of(&self, title: &str) -> bool {
        self.title == title
    }
}

/// A page that says why there is no other.
#[derive(Template)]
#[template(path = "console/error.html")]
pub(super) struct ErrorPage<'a> {
    pub(super) head: Head,
    pub(super) problem: &'a Problem,
}

/// A problem, shown to a person.
#[derive(Debug)]
pub struct PageError(Box<Problem>);

/// What the guard makes a page of.
#[derive(Clone, Debug)]
pub(super) struct Shown(pub(super) Arc<Problem>);

impl PageError {
    /// Something that was asked for is wrong; `detail` says what to write.
    #[must_use]
    pub fn wrong(detail: &str) -> Self {
        Problem::new(ProblemKind::InvalidField, detail).into()
    }

    /// A mistake of this program.
    #[must_use]
    pub fn internal(detail: &str) -> Self {
        Problem::new(ProblemKind::Internal, detail).into()
    }
}

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

/// The guard of the console makes the page.
impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let mut response = reply::problem(&self.0);
        response.extensions_mut().insert(Shown(Arc::from(self.0)));
        response
    }
}

/// The parameters of an address, or the fields of a form.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads what a browser sent.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// The parameters of a request.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        Self::parse(request.uri().query().unwrap_or_default().as_bytes())
    }

    /// The first value of this name; empty if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value)
    }

    /// The same without space around it, which people paste.
    #[must_use]
    pub fn word(&self, name: &str) -> &str {
        self.get(name).trim()
    }
}

/// What a page's route returns.
pub type PageResult = Result<Response, PageError>;

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
