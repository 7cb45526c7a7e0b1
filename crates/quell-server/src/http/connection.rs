//! One HTTP connection, version 1 or 2, from accept to close.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{error, io};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Version};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use quell_host::head::MAX_HEAD;
use quell_protocol::http::{Problem, ProblemKind};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tower_service::Service;

use super::caller::{Client, authenticate, token};
use super::fast_path::{self, Exit};
use super::reply::Endless;
use super::requests::Requests;
use super::stream::MeteredStream;
use super::unread::SharedBody;
use super::{Purpose, origin, reply, router};
use crate::access::{Caller, ClientCertificate, TOO_MANY_FAILED_LOGINS};
use crate::address::Address;
use crate::budget::{BudgetShare, Budgeted, CallerBudget};
use crate::config::Config;
use crate::health::Phase;
use crate::listen::{Accepted, ListenSettings, close_lingering, wait_until};
use crate::metrics::{ListenerMetrics, Refused};
use crate::shared::Shared;

/// The answer to a connection for which there is no place.
pub(crate) fn rejection(config: &ListenSettings, refused: Refused) -> Arc<[u8]> {
    let (most, own) = (config.max_connections, config.max_connections_per_address);
    reply::overloaded(match refused {
        Refused::Address => format!(
            "{own} connections from your address are open, as many as max_connections_per_address allows: \
             close some, or raise it"
        ),
        _ => format!(
            "{most} connections are open, as many as max_connections allows: close some, or raise it"
        ),
    })
}

/// [`reply::FULL`] over HTTP/2: empty `SETTINGS`, and a `GOAWAY` with `ENHANCE_YOUR_CALM` (RFC 9113, 6.8).
const FULL_HTTP2: [u8; 26] = [
    0, 0, 0, 4, 0, 0, 0, 0, 0, //
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11,
];

/// Requests of one HTTP/2 connection at a time.
const MAX_STREAMS: u32 = 200;

/// Requests that a client may cancel before the server has looked at them. They take memory, but do not
/// count among [`MAX_STREAMS`] (CVE-2023-44487). A client that gives up does so rarely within the
/// microseconds that this takes.
const MAX_CANCELLED: usize = 20;

/// Requests of a connection that the server may have to cancel because of the client's mistakes. They do
/// not count among [`MAX_STREAMS`] either (CVE-2025-8671).
const MAX_FAULTY: usize = 100;

/// [`MAX_HEAD`] over HTTP/2, where one byte can encode a whole field. Each field counts 32 bytes more
/// than its length.
const MAX_HEAD_HTTP2: u32 = 32 * 1_024;

/// What an open HTTP/2 connection draws: a frame, a head that is half sent, and what its streams share.
/// Four thousand of them fit into the default budget.
const CONNECTION_HTTP2: usize = 64 * 1_024;

/// What a request over HTTP/2 draws beside its fields and its answer, until the answer is sent.
const STREAM_HTTP2: usize = 4 * 1_024;

/// Memory for a field beside its name and its value.
const FIELD: usize = 128;

/// Longest answer over HTTP/1 that draws nothing: a connection has at most one.
const SMALL: usize = 4 * 1_024;

/// Unread data of one HTTP/2 stream, and of one connection.
const WINDOW: u32 = 64 * 1_024;
const CONNECTION_WINDOW: u32 = 256 * 1_024;

/// State of a connection that speaks HTTP/2.
#[derive(Debug, Default)]
struct Http2 {
    is_spoken: AtomicBool,
    /// Requests a GOAWAY.
    close: Notify,
    /// Whether a caller has lost this connection.
    is_lost: AtomicBool,
    /// Signals that the budget has no room for a request of this connection.
    full: Notify,
    /// Beside this one, each request has one that is being answered, or whose answer is [`Endless`].
    in_use: InUse,
}

impl Http2 {
    /// Waits until HTTP/2 is spoken, and for `timeout`, or up to twice as long, no request was in use and none
    /// has begun. hyper only closes connections that answer no PING.
    async fn silence(&self, requests: &Requests, timeout: Duration) {
        loop {
            let begun = requests.begun();
            let was_in_use = Arc::strong_count(&self.in_use.count) > 1;
            tokio::time::sleep(timeout).await;
            let is_spoken = self.is_spoken.load(Ordering::Relaxed);
            if is_spoken && !was_in_use && begun == requests.begun() {
                return;
            }
        }
    }
}

/// Tells that a connection over HTTP/2 is in use.
#[derive(Clone, Debug, Default)]
struct InUse {
    count: Arc<()>,
}

/// Draws for the body of `response`, beside what `share` has; `None` if there is no room.
async fn drawn(response: Response, mut share: BudgetShare) -> Option<Response> {
    let (parts, body) = response.into_parts();
    // All answers are complete in memory.
    let bytes = body.collect().await.ok()?.to_bytes();
    if !share.resize(share.held().saturating_add(bytes.len())) {
        return None;
    }
    let bytes = Bytes::from_owner(Budgeted {
        bytes,
        _share: share,
    });
    Some(Response::from_parts(parts, Body::from(bytes)))
}

/// Memory for the fields of a request.
fn size_of_fields(fields: &HeaderMap) -> usize {
    let each = fields.iter();
    each.map(|(name, value)| name.as_str().len() + value.len() + FIELD)
        .sum()
}

/// The future of an answer.
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// What all connections of one listener share.
#[derive(Debug)]
pub(crate) struct HttpService {
    pub(super) shared: Arc<Shared>,
    pub(super) purpose: Purpose,
    /// The port of the listener; a Unix socket has none.
    pub(super) port: Option<u16>,
    numbers: Arc<ListenerMetrics>,
    router: Router,
    builder: Builder<TokioExecutor>,
}

impl HttpService {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        purpose: Purpose,
        port: Option<u16>,
        numbers: Arc<ListenerMetrics>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            purpose,
            port,
            numbers,
            router: router(Arc::clone(shared), purpose),
            builder: builder(&shared.config),
        }
    }
}

/// Hands requests to the router with the address they come from.
#[derive(Clone, Debug)]
struct Handler {
    service: Arc<HttpService>,
    remote: Address,
    certificate: Option<Arc<ClientCertificate>>,
    buffers: Arc<CallerBudget>,
    requests: Arc<Requests>,
    http2: Arc<Http2>,
}

impl Handler {
    /// Answers a request.
    fn answer<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: HttpBody<Data = Bytes, Error = hyper::Error> + Send + 'static,
    {
        let HttpService { shared, port, .. } = &*self.service;
        if let Err(problem) = origin::admit(&request, *port, &shared.config) {
            return Box::pin(async move { Ok(reply::problem(&problem)) });
        }
        let client = Client {
            address: self.remote.ip(),
            purpose: self.service.purpose,
            caller: authenticate(&request, &shared.access, self.certificate.as_deref()),
            buffers: Arc::clone(&self.buffers),
            requests: (request.version() < Version::HTTP_2).then(|| Arc::clone(&self.requests)),
        };
        let is_unknown = client.caller == Caller::Stranger && token(&request).is_some();
        let version = request.version();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(client);
        let answer = self.service.router.clone().call(request);
        match is_unknown {
            true => Box::pin(self.clone().note_failed_login(version, answer)),
            false => Box::pin(answer),
        }
    }

    /// Notes a request that is refused because of its token. Where there were too many, the connection
    /// closes.
    async fn note_failed_login(
        self,
        version: Version,
        answer: impl Future<Output = Result<Response, Infallible>>,
    ) -> Result<Response, Infallible> {
        let response = answer.await?;
        let (logins, numbers) = (&self.service.shared.failed_logins, &self.service.numbers);
        if response.status() != StatusCode::UNAUTHORIZED || !logins.note(self.remote.ip(), numbers)
        {
            return Ok(response);
        }
        let problem = Problem::new(ProblemKind::Unauthorized, TOO_MANY_FAILED_LOGINS);
        let mut response = reply::problem(&problem);
        if version < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        } else {
            self.http2.is_lost.store(true, Ordering::Relaxed);
            self.http2.close.notify_one();
        }
        Ok(response)
    }

    /// Answers a request over HTTP/1.
    fn answer_http1(&self, request: Request<Incoming>) -> ResponseFuture {
        // Whoever waits to be told to go on sends no body once it is answered.
        let is_held_back = request.headers().contains_key(EXPECT);
        let (head, body) = request.into_parts();
        let (answer, body) = match body.is_end_stream() {
            true => (self.answer(Request::from_parts(head, body)), None),
            false => {
                let body = SharedBody::new(body);
                let request = Request::from_parts(head, body.clone());
                (self.answer(request), Some(body))
            }
        };
        let (service, requests) = (Arc::clone(&self.service), Arc::clone(&self.requests));
        let buffers = Arc::clone(&self.buffers);
        Box::pin(async move {
            let mut response = answer.await?;
            requests.answer();
            let shared = &service.shared;
            if response.body().size_hint().lower() > SMALL as u64 {
                response = match drawn(response, buffers.share_of_answers()).await {
                    Some(response) => response,
                    None => reply::problem(&Problem::new(ProblemKind::Overloaded, reply::FULL)),
                };
            }
            let is_read = match body {
                Some(body) if is_held_back => body.is_end_stream(),
                Some(body) => body.drain(&shared.config).await,
                None => true,
            };
            if shared.is_stopping() || !is_read {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response)
        })
    }

    /// Answers a request over HTTP/2, where a client may leave many answers unread.
    fn answer_http2(&self, mut request: Request<Incoming>) -> ResponseFuture {
        self.http2.is_spoken.store(true, Ordering::Relaxed);
        let shared = &self.service.shared;
        if shared.is_stopping() {
            self.http2.close.notify_one();
        }
        let mut share = self.buffers.share_of_answers();
        let is_drawn = share.resize(STREAM_HTTP2 + size_of_fields(request.headers()));
        let in_use = self.http2.in_use.clone();
        // Who streams an answer keeps what comes with the request.
        request.extensions_mut().insert(in_use.clone());
        let (head, body) = request.into_parts();
        let body = SharedBody::new(body);
        let answer = is_drawn.then(|| self.answer(Request::from_parts(head, body.clone())));
        let (http2, service) = (Arc::clone(&self.http2), Arc::clone(&self.service));
        Box::pin(async move {
            let _in_use = in_use;
            if let Some(answer) = answer {
                let response = answer.await?;
                body.drain(&service.shared.config).await;
                let is_endless = response.extensions().get::<Endless>().is_some();
                if response.body().is_end_stream() || is_endless {
                    return Ok(response);
                }
                share.resize(STREAM_HTTP2);
                if let Some(response) = drawn(response, share).await {
                    return Ok(response);
                }
            }
            // Ends the connection, with all requests that wait on it.
            http2.full.notify_one();
            std::future::pending().await
        })
    }
}

impl hyper::service::Service<Request<Incoming>> for Handler {
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.requests.begin();
        match request.version() < Version::HTTP_2 {
            true => self.answer_http1(request),
            false => self.answer_http2(request),
        }
    }
}

/// How connections are served.
fn builder(config: &Config) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // It counts from when the connection can read a request, so it includes silence between two.
        .header_read_timeout(config.idle_timeout)
        .max_buf_size(MAX_HEAD)
        // Calls that wait notice the end of a client by `HangUp`; others are answered also if a client has closed
        // its side.
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_CANCELLED)
        .max_local_error_reset_streams(MAX_FAULTY)
        .max_header_list_size(MAX_HEAD_HTTP2)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(config.idle_timeout)
        .keep_alive_timeout(config.header_timeout);
    builder
}

/// Serves a connection to its end, or until the server stops and the requests in flight are answered.
///
/// While the server drains, an HTTP/1 connection is told to close with its next answer, and an HTTP/2
/// connection at once. Closing an idle HTTP/1 connection could lose a request that is on its way.
pub(crate) async fn run(accepted: Accepted, service: Arc<HttpService>) {
    let mut phase = service.shared.phase.subscribe();
    let remote = accepted.remote;
    let (certificate, buffers) = (accepted.certificate, accepted.buffers);
    let (config, requests) = (&service.shared.config, Arc::<Requests>::default());
    let mut watched = MeteredStream::new(accepted.stream, config, Arc::clone(&requests), &buffers);
    let shown = certificate.as_deref();
    match fast_path::serve(&mut watched, &service, shown, &requests, &mut phase).await {
        Ok(Exit::Closed) => return,
        Ok(Exit::Fallback(begun)) => {
            if may_be_http2(&begun) {
                if !watched.draw(CONNECTION_HTTP2) {
                    service.numbers.refused.add(Refused::Buffers);
                    return close_lingering(watched.into_inner(), &FULL_HTTP2).await;
                }
                watched.count_frames();
            }
            watched.give_back(begun);
        }
        Err(error) => return note_end(&service.numbers, &remote, &error),
    }
    let handler = Handler {
        service,
        remote,
        certificate,
        buffers,
        requests,
        http2: Arc::default(),
    };
    // In a box, so that a connection that never gets here stays small.
    Box::pin(serve(watched, handler, phase)).await;
}

/// Whether a connection that begins so may speak HTTP/2.
fn may_be_http2(begun: &[u8]) -> bool {
    let preface = b"PRI * HTTP/2.0";
    preface.starts_with(begun) || begun.starts_with(preface)
}

/// Serves all requests but the questions of the fast path.
async fn serve(watched: MeteredStream, handler: Handler, mut phase: watch::Receiver<Phase>) {
    let (remote, service) = (handler.remote.clone(), Arc::clone(&handler.service));
    let (http2, requests) = (Arc::clone(&handler.http2), Arc::clone(&handler.requests));
    let config = &service.shared.config;
    let (grace, timeout) = (config.header_timeout, config.idle_timeout);
    let stream = TokioIo::new(watched);
    let mut connection = pin!(service.builder.serve_connection(stream, handler));
    let mut silence = pin!(http2.silence(&requests, timeout));
    let (mut is_told, mut is_silent, mut ends_at) = (false, false, None);
    let end = loop {
        tokio::select! {
            biased;
            // First, so that what was received counts as in flight.
            end = connection.as_mut() => break end,
            () = wait_until(ends_at) => return service.numbers.timeouts.add(1),
            () = http2.full.notified() => return service.numbers.refused.add(Refused::Buffers),
            () = silence.as_mut() => {
                is_silent = true;
                if is_told {
                    // Whoever reads no answer and sends a PING now and then would stay.
                    break Ok(());
                }
                is_told = true;
                connection.as_mut().graceful_shutdown();
                silence.set(http2.silence(&requests, timeout));
            }
            () = has_to_close(&mut phase, &http2, &requests), if !is_told => {
                is_told = true;
                connection.as_mut().graceful_shutdown();
                if http2.is_lost.load(Ordering::Relaxed) {
                    // A client may ignore what it is told.
                    ends_at = Some(Instant::now() + grace);
                }
            }
        }
    };
    match end {
        _ if is_silent => service.numbers.timeouts.add(1),
        Ok(()) => {}
        Err(error) => note_end(&service.numbers, &remote, &*error),
    }
}

/// Waits until the client has to be told that the connection closes.
async fn has_to_close(phase: &mut watch::Receiver<Phase>, http2: &Http2, requests: &Requests) {
    loop {
        let now = *phase.borrow_and_update();
        match now {
            Phase::Draining | Phase::Stopping if http2.is_spoken.load(Ordering::Relaxed) => return,
            _ if http2.is_lost.load(Ordering::Relaxed) => return,
            Phase::Stopping => return tokio::time::sleep(requests.last_wait()).await,
            _ => {}
        }
        tokio::select! {
            _ = phase.changed() => {}
            () = http2.close.notified() => {}
        }
    }
}

/// Counts why a connection ended.
fn note_end(numbers: &ListenerMetrics, remote: &Address, error: &(dyn error::Error + 'static)) {
    let hyper = error.downcast_ref::<hyper::Error>();
    let watched = end_of_stream(error);
    if watched == Some(io::ErrorKind::OutOfMemory) {
        numbers.refused.add(Refused::Buffers);
    } else if hyper.is_some_and(hyper::Error::is_timeout)
        || watched == Some(io::ErrorKind::TimedOut)
    {
        numbers.timeouts.add(1);
    } else if hyper.is_some_and(hyper::Error::is_parse)
        || watched == Some(io::ErrorKind::QuotaExceeded)
    {
        numbers.protocol_errors.add(1);
    }
    tracing::debug!(remote = %remote, %error, "an HTTP connection ended");
}

/// Why [`MeteredStream`] ended the stream of a connection.
fn end_of_stream(error: &(dyn error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}
