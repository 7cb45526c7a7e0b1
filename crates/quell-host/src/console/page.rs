//! Page: what all pages have, and the page of an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use quell_core::key::is_printable;
use quell_protocol::http::{Problem, ProblemKind};

use crate::access::{Caller, Denied, Role};
use crate::caller::Client;
use crate::head::Head as _;
use crate::reply;
use crate::shell_word::quoted;

/// The pages of a menu, by title and path.
pub type Menu = &'static [(&'static str, &'static str)];

/// Caller that looks at a page, and how commands find its process.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Caller.
    pub caller: Caller,
    /// Flag for a command to ask this process, ` --url URL`; empty if it asks this one by itself.
    pub url: String,
    /// From where.
    pub from: String,
}

impl Viewer {
    /// Returns true if it has the role that changes need.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.caller.check(Role::Admin, None).is_ok()
    }
}

/// Result of a form, if one was sent: what was done, with the command that does the same, or why not.
pub type Done = Result<Option<(String, String)>, String>;

/// A value, or why there is none.
pub fn or_why<T>(result: Result<T, String>) -> (Option<T>, Done) {
    match result {
        Ok(some) => (Some(some), Ok(None)),
        Err(reason) => (None, Err(reason)),
    }
}

/// Says why there is no page.
#[derive(Debug, Template)]
#[template(path = "console/error.html")]
pub struct ErrorPage<'a> {
    /// The problem.
    pub problem: &'a Problem,
}

/// A problem, shown to a person.
#[derive(Debug)]
pub struct PageError(Box<Problem>);

/// Problem for a guard's page.
#[derive(Clone, Debug)]
pub struct ShownProblem(pub Arc<Problem>);

impl PageError {
    /// Something that was asked for is wrong; `detail` says what to write.
    #[must_use]
    pub fn wrong(detail: &str) -> Self {
        Problem::new(ProblemKind::InvalidField, detail).into()
    }

    /// The status of its answer.
    pub const fn status(&self) -> u16 {
        self.0.status
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
        response
            .extensions_mut()
            .insert(ShownProblem(Arc::from(self.0)));
        response
    }
}

/// The parameters of an address, or the fields of a form.
#[derive(Debug, Default)]
pub struct Fields(pub Vec<(String, String)>);

impl Fields {
    /// Reads what a browser sent.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// The parameters of a request.
    #[must_use]
    pub fn new(request: &Request) -> Self {
        Self::parse(request.uri().query().unwrap_or_default().as_bytes())
    }

    /// The first value of this name; empty if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value)
    }

    /// The same, or this if nothing was written.
    #[must_use]
    pub fn or<'a>(&'a self, name: &str, usual: &'a str) -> &'a str {
        Some(self.word(name))
            .filter(|word| !word.is_empty())
            .unwrap_or(usual)
    }

    /// The entries of a call, `NAME=VALUE`, one a line, in the field `entries`.
    pub fn entry_lines(&self) -> impl Iterator<Item = &str> {
        let lines = self.get("entries").lines().map(str::trim);
        lines.filter(|line| !line.is_empty())
    }

    /// Those entries, each name once.
    ///
    /// # Errors
    /// Names the fault in a line.
    pub fn entries(&self) -> Result<BTreeMap<&str, &str>, String> {
        let mut entries = BTreeMap::new();
        for line in self.entry_lines() {
            let entry = line.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = entry.ok_or_else(|| {
                format!("`{line}` is not an entry: write NAME=VALUE, such as path=/login")
            })?;
            if entries.insert(name, value).is_some() {
                return Err(format!(
                    "the entry `{name}` appears twice: write each name once"
                ));
            }
        }
        Ok(entries)
    }

    /// A command about the domain, a rule and the entries, with further flags. What is empty is left out.
    #[must_use]
    pub fn command(&self, words: &str, rule: &str, more: &[(&str, &str)]) -> String {
        let flags = [("--domain", self.word("domain")), ("--rule", rule)].into_iter();
        let entries = self.entry_lines().map(|line| ("-e", line));
        let flags = flags.chain(entries).chain(more.iter().copied());
        let flags = flags.filter(|(_, value)| !value.is_empty());
        flags.fold(words.to_owned(), |words, (flag, value)| {
            format!("{words} {flag} {}", quoted(value))
        })
    }

    /// The cost of a call, if it is said and is not 1.
    #[must_use]
    pub fn cost(&self) -> &str {
        Some(self.word("cost"))
            .filter(|cost| *cost != "1")
            .unwrap_or_default()
    }

    /// The same without space around it, which people paste.
    #[must_use]
    pub fn word(&self, name: &str) -> &str {
        self.get(name).trim()
    }
}

/// Shows, on a page that is kept up to date, whether it is.
pub const CONNECTION: &str = include_str!("../../templates/console/connection.html");

/// The form in which a call is described.
#[derive(Debug, Template)]
#[template(path = "console/call_form.html")]
pub struct CallForm<'a> {
    /// The page that is asked.
    pub action: &'static str,
    /// Its button's text.
    pub button: &'static str,
    /// The domains that it may be of.
    pub domains: &'a [String],
    /// Values filled in before.
    pub asked: &'a Fields,
}

/// Result of a page's route.
pub type PageResult = Result<Response, PageError>;

/// 200 with HTML.
pub fn html(template: &impl Template) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    match template.render() {
        Ok(text) => reply::reply(StatusCode::OK, kind, visible(&text)),
        Err(error) => reply::problem(&Problem::new(ProblemKind::Internal, error.to_string())),
    }
}

/// A page in which no character does something that nobody sees, whoever wrote it: what is no line and no
/// [printable](is_printable) character is written as `\u{1b}`. It is the way out of every page and fragment.
pub fn visible(page: &str) -> String {
    let is_shown = |character: char| is_printable(character) || matches!(character, '\n' | '\t');
    if page.chars().all(is_shown) {
        return page.to_owned();
    }
    let mut shown = String::with_capacity(page.len());
    for character in page.replace("\r\n", "\n").chars() {
        match is_shown(character) {
            true => shown.push(character),
            false => shown.extend(character.escape_unicode()),
        }
    }
    shown
}

/// Text that a form sends back as it was, for templates: as HTML, with character references for what
/// [`visible`] would change.
pub fn kept(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => html.push(character),
            '&' | '<' | '>' | '"' | '\'' => html.push_str(&reference(character)),
            character if is_printable(character) => html.push(character),
            character => html.push_str(&reference(character)),
        }
    }
    html
}

/// A character as a reference of HTML.
fn reference(character: char) -> String {
    format!("&#{};", u32::from(character))
}

/// Seconds since 1970, for people.
pub fn instant(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| String::new(), |at| at.to_string())
}

/// The address of a page with parameters. Empty ones are left out.
#[must_use]
pub fn address(path: &str, parameters: &[(&str, &str)]) -> String {
    let said = parameters.iter().filter(|(_, value)| !value.is_empty());
    let mut query = form_urlencoded::Serializer::new(String::new());
    format!("{path}?{}", query.extend_pairs(said).finish())
}

/// The caller of a page that everybody may see.
pub fn anybody(request: &Request) -> Caller {
    let client = request.extensions().get::<Client>();
    client.map_or(Caller::Stranger, |client| client.caller.clone())
}

/// The host that a request was sent to, as a stranger may have written it.
pub fn host(request: &Request) -> Option<&str> {
    let host = request.hosts().next()?;
    std::str::from_utf8(host).ok()
}
