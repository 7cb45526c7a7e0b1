//! Shell: what the consoles of servers and of coordinators have in common: who looks at a page, its frame, and streams
//! of what is live.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use askama::Template;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{Extensions, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use quell_core::address::canonical;
use quell_protocol::escape_json;
use quell_protocol::http::{Problem, ProblemKind};
use serde::Serialize;
use tokio::sync::Mutex;

use super::host::{Host, Ingress, Standalone};
use super::page::{
    Done, ErrorPage, Fields, Menu, PageError, PageResult, Viewer, anybody, host, html, visible,
};
use super::session::{OF_COORDINATOR, Sessions};
use crate::access::{Access, Caller, ClientCertificate, Grant, LivePage, LivePages, Role, Visits};
use crate::caller::Purpose;
use crate::caller::{Client, address, authenticate};
use crate::candidate_routes::Candidacy;
use crate::head::{Fields as _, is_address};
use crate::history::origin;
use crate::reply::Endless;
use crate::rules_host::RulesHost;
use crate::shell_word::quoted;
use crate::task;
use crate::{body, reply};

/// The first page.
pub const HOME: &str = "/console";

/// The page to log in.
pub const LOGIN: &str = "/console/login";

/// Default URL of commands about a server.
pub const SERVER_URL: &str = "http://127.0.0.1:8080";

/// Default URL of commands about a fleet.
const COORDINATOR_URL: &str = "http://127.0.0.1:7601";

/// Longest form, in bytes, but for that with rules.
pub const MAX_FORM: usize = 16 * 1_024;

/// Length of a stream. The browser asks for another one, and shows again who it is.
const LENGTH: Duration = Duration::from_secs(15 * 60);

/// The frame of a console.
#[derive(Debug)]
pub struct Shell {
    /// The process.
    pub host: Arc<dyn Host>,
    /// Ingress of requests.
    pub ingress: Ingress,
    menu: Menu,
    /// Logged-in people.
    pub sessions: Sessions,
    /// The URL that commands ask by themselves.
    usual: &'static str,
    pub(super) visits: Visits,
    live: Arc<LivePages>,
    /// Held by work that takes long.
    turn: Mutex<()>,
    /// Held by work on a text of rules, which takes longer.
    check_turn: Mutex<()>,
}

/// The frame of a page around its content.
#[derive(Template)]
#[template(path = "console/layout.html")]
struct Layout<'a> {
    title: &'static str,
    /// Empty for those who may see nothing.
    menu: Menu,
    caller: &'a Caller,
    done: &'a Done,
    main: &'a str,
}

/// Marks a request that a proxy sent which may name people.
#[derive(Clone, Copy, Debug)]
struct OfProxy;

impl Shell {
    /// The frame of a console with a cookie and an address of its own.
    pub fn new(
        host: Arc<dyn Host>,
        ingress: Ingress,
        (cookie, usual): (&'static str, &'static str),
        menu: Menu,
    ) -> Arc<Self> {
        if ingress.user_header.is_some() && !host.access().has_role(Role::Proxy) {
            tracing::warn!(
                "no token has the role proxy, so console_user_header has no effect: make one with quell \
                token new NAME --role proxy, and have the proxy send it as X-Quell-Token"
            );
        }
        Arc::new(Self {
            host,
            ingress,
            menu,
            sessions: Sessions::new(cookie),
            usual,
            visits: Visits::default(),
            live: Arc::default(),
            turn: Mutex::default(),
            check_turn: Mutex::default(),
        })
    }

    /// The frame of a console in a process that is no server.
    #[must_use]
    pub fn standalone(access: Arc<Access>, ingress: Ingress, menu: Menu) -> Arc<Self> {
        let kind = (OF_COORDINATOR, COORDINATOR_URL);
        Self::new(Arc::new(Standalone::new(access)), ingress, kind, menu)
    }

    /// `/v1/candidate` of a process that is no server.
    pub fn candidate(&self, rules: Arc<dyn RulesHost>) -> Router {
        Candidacy::routes(Arc::clone(&self.host), rules)
    }

    /// Notes who sends a request, for processes whose listener does not: by the token that it shows, or the
    /// certificate of its connection.
    pub fn identify(
        &self,
        request: &mut Request,
        address: Option<IpAddr>,
        certificate: Option<&ClientCertificate>,
    ) {
        let caller = authenticate(request, self.host.access(), certificate);
        request.extensions_mut().insert(Client {
            address,
            purpose: Purpose::Administration,
            caller,
            buffers: self.host.buffers().of(address),
            requests: None,
        });
    }

    /// Viewer of a page that needs these roles.
    ///
    /// # Errors
    /// [`PageError`] if it may not see the page; the guard sends a stranger to log in.
    pub fn viewer(&self, request: &Request, roles: &[Role]) -> Result<Viewer, PageError> {
        let caller = anybody(request);
        { roles.iter() }.try_for_each(|role| caller.check(*role, None))?;
        let (url, from) = (self.url(request), origin(address(request)));
        Ok(Viewer { caller, url, from })
    }

    /// Viewer of a page for which one of these roles is enough.
    ///
    /// # Errors
    /// [`PageError`] if it may not see the page; the guard sends a stranger to log in.
    pub fn viewer_of_either(&self, request: &Request, roles: &[Role]) -> Result<Viewer, PageError> {
        anybody(request).check_either(roles, None)?;
        self.viewer(request, &[])
    }

    /// Viewer of a page about all domains.
    ///
    /// # Errors
    /// [`PageError`] if it may not; the guard sends a stranger to log in.
    pub fn reader(&self, request: &Request) -> Result<Viewer, PageError> {
        self.viewer_of_all(request, &[Role::Read])
    }

    /// Editor of what is about all domains, on a page that shows it.
    ///
    /// # Errors
    /// [`PageError`] if it may not; the guard sends a stranger to log in.
    pub fn editor(&self, request: &Request) -> Result<Viewer, PageError> {
        self.viewer_of_all(request, &[Role::Admin, Role::Read])
    }

    fn viewer_of_all(&self, request: &Request, roles: &[Role]) -> Result<Viewer, PageError> {
        let viewer = self.viewer(request, roles)?;
        viewer.caller.check_whole()?;
        Ok(viewer)
    }

    /// Returns true if the browser that sends a form speaks TLS, here or to whatever stands before: it says
    /// so itself by the form's origin, whose host the guard has compared.
    pub fn is_over_tls(&self, request: &Request) -> bool {
        let origin = request.field(ORIGIN.as_str());
        self.ingress.is_secure || origin.is_some_and(|origin| origin.starts_with(b"https://"))
    }

    /// Flag for a command to ask this process by the host that a request names.
    fn url(&self, request: &Request) -> String {
        let is_of_proxy = request.extensions().get::<OfProxy>().is_some();
        let is_forwarded = || request.field("x-forwarded-proto") == Some(b"https");
        let is_secure = self.ingress.is_secure || is_of_proxy && is_forwarded();
        let scheme = if is_secure { "https" } else { "http" };
        let url = host(request).filter(|host| is_address(host));
        let url = url.map(|host| format!("{scheme}://{host}"));
        let url = url.filter(|url| url != self.usual);
        url.map_or_else(String::new, |url| format!(" --url {}", quoted(&url)))
    }

    /// The fields of a form.
    ///
    /// # Errors
    /// [`PageError`] if it is none, or too long or too slow.
    pub async fn form(&self, request: Request) -> Result<Fields, PageError> {
        self.form_of(request, MAX_FORM).await
    }

    /// The fields of a form of at most so many bytes.
    pub async fn form_of(&self, request: Request, most: usize) -> Result<Fields, PageError> {
        let form = body::read_form(request, self.host.bodies(most)).await?;
        Ok(Fields::parse(&form.bytes))
    }

    /// Does work that takes long on a thread that answers no calls, one at a time.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        take_turn(&self.turn, work).await
    }

    /// Does work on a text of rules likewise. No other page waits for it.
    pub async fn check<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        take_turn(&self.check_turn, work).await
    }

    /// A page with this content.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn page(
        &self,
        title: &'static str,
        viewer: &Viewer,
        content: &impl Template,
    ) -> PageResult {
        self.answer(title, viewer, &Ok(None), content)
    }

    /// A page that says what came of a form.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn answer(
        &self,
        title: &'static str,
        Viewer { caller, .. }: &Viewer,
        done: &Done,
        content: &impl Template,
    ) -> PageResult {
        let menu = match caller {
            Caller::Stranger => &[],
            _ => self.menu,
        };
        let main = content.render();
        let layout = Layout {
            title,
            menu,
            caller,
            done,
            main: &main.map_err(|error| PageError::internal(&error.to_string()))?,
        };
        Ok(html(&layout))
    }

    /// The page of an error.
    pub(super) fn error(&self, problem: &Problem, caller: Caller) -> Response {
        let viewer = Viewer {
            caller,
            url: String::new(),
            from: String::new(),
        };
        let page = self.page("Not possible", &viewer, &ErrorPage { problem });
        with_status(
            problem.status,
            page.unwrap_or_else(PageError::into_response),
        )
    }

    /// Takes a caller for the person whom a proxy names; else one who has shown nothing else for the person
    /// whose session it is.
    pub(super) fn recognise(&self, request: &mut Request) {
        if self.is_of_proxy(request) {
            request.extensions_mut().insert(OfProxy);
            let caller = self.named(request);
            let is_named = caller.is_some();
            if let Some(client) = request.extensions_mut().get_mut::<Client>() {
                // The token is the proxy's own, and says nothing of whoever asks through it.
                client.caller = caller.unwrap_or(Caller::Stranger);
            }
            if is_named {
                return;
            }
        }
        let cookie = self.sessions.cookie(request);
        let person = cookie.and_then(|text| self.person(&text));
        let client = request.extensions_mut().get_mut::<Client>();
        if let (Some(person), Some(client)) = (person, client)
            && client.caller == Caller::Stranger
        {
            client.caller = Caller::Bearer(person);
        }
    }

    /// Whom a proxy names; a stranger if nobody has that name. `None`: it names nobody.
    fn named(&self, request: &Request) -> Option<Caller> {
        let (name, _) = self.ingress.user_header.as_ref()?;
        let mut values = request.headers().get_all(name).iter();
        let value = values.next()?;
        // The second of two may be what the proxy's client wrote.
        let is_one = values.next().is_none();
        let name = value.to_str().ok().filter(|_| is_one);
        let person = name.and_then(|name| self.host.access().user(&name.trim().parse().ok()?));
        Some(person.map_or(Caller::Stranger, Caller::Bearer))
    }

    /// Returns true if a proxy sent a request that may name people: it shows a token with the role for
    /// that, since other processes may have its address, and comes from one of its networks if those are
    /// named.
    fn is_of_proxy(&self, request: &Request) -> bool {
        let Some((_, networks)) = &self.ingress.user_header else {
            return false;
        };
        let address = address(request).map(canonical);
        let mut networks_with = { networks.iter() }
            .filter(|network| address.is_some_and(|address| network.contains(&address)));
        let is_near = networks.is_empty() || networks_with.next().is_some();
        is_near && matches!(anybody(request), Caller::Bearer(grant) if grant.has(Role::Proxy))
    }

    /// Whose session a cookie is, while it lasts.
    fn person(&self, cookie: &str) -> Option<Arc<Grant>> {
        self.sessions.read(self.host.access(), cookie)
    }
}

/// Does work in its turn on a thread that answers no calls.
async fn take_turn<T: Send + 'static>(
    turn: &Mutex<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<Problem>> {
    let _turn = turn.lock().await;
    let done = task::run_blocking(work).await;
    let interrupted = || Problem::new(ProblemKind::Internal, "the work was interrupted");
    done.ok_or_else(|| Box::new(interrupted()))
}

/// A page with the status of a problem.
pub fn with_status(status: u16, mut page: Response) -> Response {
    *page.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    page
}

/// Another page, to be asked for by GET.
pub fn redirect(to: &'static str) -> Response {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = reply::reply(StatusCode::SEE_OTHER, kind, "");
    let fields = response.headers_mut();
    fields.insert(LOCATION, HeaderValue::from_static(to));
    response
}

/// A page, with a cookie.
pub fn with_cookie(mut page: Response, cookie: &str) -> Response {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        page.headers_mut().insert(SET_COOKIE, cookie);
    }
    page
}

/// Somebody whose page is kept up to date.
#[derive(Debug)]
pub struct Watcher {
    shell: Arc<Shell>,
    viewer: Viewer,
    /// Of the credentials that the caller was recognised by.
    version: u64,
    /// The caller's session, if that is what the caller was recognised by.
    session: Option<String>,
    began: Instant,
    _place: LivePage,
    /// A listener may tell by them that its connection is in use.
    _extensions: Extensions,
}

impl Watcher {
    /// Somebody who asks for a stream, and may have one.
    ///
    /// # Errors
    /// [`PageError`] while too many pages are kept up to date.
    pub fn new(shell: &Arc<Shell>, viewer: Viewer, request: &Request) -> Result<Self, PageError> {
        let place = shell.live.begin(&viewer.caller, address(request))?;
        let session = shell.sessions.cookie(request);
        Ok(Self {
            viewer,
            session: session.filter(|text| shell.person(text).is_some()),
            version: shell.host.access().version(),
            began: Instant::now(),
            shell: Arc::clone(shell),
            _place: place,
            _extensions: request.extensions().clone(),
        })
    }

    /// Viewer.
    #[must_use]
    pub const fn viewer(&self) -> &Viewer {
        &self.viewer
    }

    /// Returns true if the stream ends: the session is over, or it is time to show again who it is.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let host = &self.shell.host;
        let session = self.session.as_ref();
        host.is_stopping()
            || session.is_some_and(|text| self.shell.person(text).is_none())
            || host.access().version() != self.version
            || self.began.elapsed() >= LENGTH
    }
}

/// A stream of events (`event`): `next` is called for the next ones until it returns none.
pub fn events<T, F>(state: T, next: impl FnMut(T) -> F + Send + 'static) -> Response
where
    T: Send + 'static,
    F: Future<Output = Option<(String, T)>> + Send + 'static,
{
    let events =
        unfold(state, next).map(|events| Ok::<_, std::convert::Infallible>(Bytes::from(events)));
    let kind = HeaderValue::from_static("text/event-stream");
    let mut response = reply::reply(StatusCode::OK, kind, Body::from_stream(events));
    response.extensions_mut().insert(Endless);
    response
}

/// An event of a stream: a fragment of a page.
#[must_use]
pub fn event(name: &str, fragment: &str) -> String {
    event_of(name, &visible(fragment))
}

/// An event of a stream: numbers for a chart. `None` if they cannot be written.
#[must_use]
pub fn chart_event(name: &str, numbers: &impl Serialize) -> Option<String> {
    let text = serde_json::to_string(numbers).ok()?;
    Some(event_of(name, &escape_json(&text)))
}

fn event_of(name: &str, data: &str) -> String {
    let lines = data.lines().map(|line| format!("data: {line}\n"));
    format!("event: {name}\n{}\n", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn no_page_waits_for_the_check_of_a_text() {
        let access = Arc::new(Access::open(None).unwrap());
        let shell = Shell::standalone(access, Ingress::default(), &[]);
        let (end, wait) = mpsc::channel::<()>();
        let checking = Arc::clone(&shell);
        let check = tokio::spawn(async move { checking.check(move || wait.recv().is_ok()).await });
        while shell.check_turn.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(shell.work(|| 7).await.ok(), Some(7));
        end.send(()).unwrap();
        assert_eq!(check.await.unwrap().ok(), Some(true));
    }

    #[test]
    fn an_event_has_no_line_but_its_own() {
        let sent = event("now", "a\rb\r\nc\u{85}d\u{2028}e");
        let data = "data: a\\u{d}b\ndata: c\\u{85}d\\u{2028}e\n";
        assert_eq!(sent, format!("event: now\n{data}\n"));
    }
}
