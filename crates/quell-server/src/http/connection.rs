//! One HTTP connection, version 1 or 2, from accept to close.

use std::convert::Infallible;
use std::future;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderMap, HeaderValue, Request, Version};
use axum::response::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use quell_host::http_connection::{ConnectionEnd, ConnectionState};
use quell_host::reply::is_unauthenticated;
use quell_protocol::http::{Problem, ProblemKind};
use tokio::sync::watch;
use tower_service::Service;

use super::caller::{Client, authenticate, token};
use super::fast_path::{self, Exit};
use super::reply::Endless;
use super::requests::Requests;
use super::service::HttpService;
use super::stream::TimedStream;
use super::unread_body::SharedBody;
use super::{Purpose, origin, reply};
use crate::access::{Caller, ClientCertificate, TOO_MANY_FAILED_LOGINS};
use crate::address::Address;
use crate::budget::{BudgetShare, Budgeted, CallerBudget};
use crate::envoy;
use crate::health::Phase;
use crate::listen::{Accepted, ListenSettings, close_lingering};
use crate::metrics::Refused;

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

/// Bytes that an open HTTP/2 connection draws: a frame, a head that is half sent, and what its streams
/// share. Four thousand of them fit into the default budget.
const CONNECTION_HTTP2: usize = 64 * 1_024;

/// Bytes that a request over HTTP/2 draws beside its fields and its answer, until the answer is sent.
const STREAM_HTTP2: usize = 4 * 1_024;

/// Memory for a field beside its name and its value.
const FIELD: usize = 128;

/// Longest answer over HTTP/1 that draws nothing: a connection has at most one.
const SMALL: usize = 4 * 1_024;

/// Draws for the body of `response`, beside what `share` has; `None` if there is no room.
async fn drawn(response: Response, mut share: BudgetShare) -> Option<Response> {
    let (parts, mut body) = response.into_parts();
    let size = match body.size_hint().exact() {
        Some(size) => usize::try_from(size).ok()?,
        // All answers are complete in memory, but some do not say how long they are.
        None => {
            let whole = body.collect().await.ok()?;
            let trailers = whole.trailers().cloned();
            let bytes = whole.to_bytes();
            let size = bytes.len();
            let trailers = future::ready(trailers.map(Ok));
            body = Body::new(Full::new(bytes).with_trailers(trailers));
            size
        }
    };
    if !share.resize(share.held().saturating_add(size)) {
        return None;
    }
    let share = Some(share);
    let body = Body::new(DrawnBody { body, share });
    Some(Response::from_parts(parts, body))
}

/// A body of one piece, and the share that was drawn for it.
struct DrawnBody {
    body: Body,
    /// Given back when the piece is sent.
    share: Option<BudgetShare>,
}

impl HttpBody for DrawnBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame?;
            Ok(match self.share.take() {
                Some(share) if frame.is_data() => frame.map_data(|bytes| {
                    Bytes::from_owner(Budgeted {
                        bytes,
                        _share: share,
                    })
                }),
                share => {
                    self.share = share;
                    frame
                }
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Memory for the fields of a request.
fn size_of_fields(fields: &HeaderMap) -> usize {
    let each = fields.iter();
    each.map(|(name, value)| name.as_str().len() + value.len() + FIELD)
        .sum()
}

/// The future of an answer.
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Hands requests to the router with the address they come from.
#[derive(Clone, Debug)]
struct Handler {
    service: Arc<HttpService>,
    remote: Address,
    certificate: Option<Arc<ClientCertificate>>,
    buffers: Arc<CallerBudget>,
    requests: Arc<Requests>,
    state: Arc<ConnectionState>,
}

impl Handler {
    /// Answers a request.
    fn answer<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: HttpBody<Data = Bytes, Error = hyper::Error> + Send + 'static,
    {
        let HttpService { shared, port, .. } = &*self.service;
        // Envoy names its cluster, not this host; and no page has a browser speak HTTP/2 to a name that is not in the
        // certificate.
        let is_of_envoy = self.service.purpose == Purpose::RateLimitService
            && request.version() >= Version::HTTP_2;
        let admitted = match is_of_envoy {
            true => Ok(()),
            false => origin::admit(&request, *port, &shared.config),
        };
        if let Err(problem) = admitted {
            return Box::pin(async move { Ok(reply::problem(&problem)) });
        }
        let certificate = self.certificate.as_deref();
        if self.service.purpose == Purpose::RateLimitService
            && let Some(refusal) = envoy::check_client(&shared.config, certificate)
        {
            return Box::pin(async move { Ok(refusal) });
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
        if !is_unauthenticated(&response) || !logins.note(self.remote.ip(), numbers) {
            return Ok(response);
        }
        let problem = Problem::new(ProblemKind::Unauthorized, TOO_MANY_FAILED_LOGINS);
        let mut response = reply::problem(&problem);
        if version < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        } else {
            self.state.lose();
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
            if !is_read {
                requests.leave_unread();
            }
            if shared.is_stopping() || !is_read {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response)
        })
    }

    /// Answers a request over HTTP/2, where a client may leave many answers unread.
    fn answer_http2(&self, mut request: Request<Incoming>) -> ResponseFuture {
        self.state.mark_framed();
        let shared = &self.service.shared;
        if shared.is_stopping() {
            self.state.close();
        }
        let mut share = self.buffers.share_of_answers();
        let is_drawn = share.resize(STREAM_HTTP2 + size_of_fields(request.headers()));
        let in_use = self.state.in_use();
        // Who streams an answer keeps what comes with the request.
        request.extensions_mut().insert(in_use.clone());
        let (head, body) = request.into_parts();
        let body = SharedBody::new(body);
        let answer = is_drawn.then(|| self.answer(Request::from_parts(head, body.clone())));
        let (state, service) = (Arc::clone(&self.state), Arc::clone(&self.service));
        Box::pin(async move {
            let _in_use = in_use;
            if let Some(answer) = answer {
                let response = answer.await?;
                if response.extensions().get::<Endless>().is_some() {
                    return Ok(response);
                }
                body.drain(&service.shared.config).await;
                if response.body().is_end_stream() {
                    return Ok(response);
                }
                share.resize(STREAM_HTTP2);
                if let Some(response) = drawn(response, share).await {
                    return Ok(response);
                }
            }
            // Ends the connection, with all requests that wait on it.
            state.mark_full();
            future::pending().await
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

/// Serves a connection to its end, or until the server stops and the requests in flight are answered.
pub(crate) async fn run(accepted: Accepted, service: Arc<HttpService>) {
    let mut phase = service.shared.phase.subscribe();
    let (remote, certificate, buffers) = (accepted.remote, accepted.certificate, accepted.buffers);
    let (config, requests) = (&service.shared.config, Arc::<Requests>::default());
    let mut stream = TimedStream::new(accepted.stream, config, Arc::clone(&requests), &buffers);
    let shown = certificate.as_deref();
    match fast_path::serve(&mut stream, &service, shown, &requests, &mut phase).await {
        Ok(Exit::Closed) => return,
        Ok(Exit::Fallback(begun)) => {
            let may_be_http2 = may_be_http2(&begun);
            if may_be_http2 && !stream.draw(CONNECTION_HTTP2) {
                service.numbers.refused.add(Refused::Buffers);
                return close_lingering(stream.into_inner(), &FULL_HTTP2).await;
            }
            stream.give_back(begun, may_be_http2);
        }
        Err(error) => return end(&service, &remote, phase).note(&error),
    }
    let state = Arc::new(ConnectionState::new(Arc::clone(&requests)));
    let handler = Handler {
        service: Arc::clone(&service),
        remote: remote.clone(),
        certificate,
        buffers,
        requests,
        state: Arc::clone(&state),
    };
    // In a box, so that a connection that never gets here stays small.
    let end = end(&service, &remote, phase);
    Box::pin(end.serve(&service.builder, stream, handler, &state)).await;
}

/// End of a connection.
fn end<'a>(
    service: &'a HttpService,
    remote: &'a Address,
    phase: watch::Receiver<Phase>,
) -> ConnectionEnd<'a> {
    let config = &service.shared.config;
    ConnectionEnd {
        remote,
        idle_timeout: config.idle_timeout,
        grace: config.header_timeout,
        age: envoy::connection_age(config).filter(|_| service.purpose == Purpose::RateLimitService),
        numbers: &service.numbers,
        phase,
    }
}

/// Returns true if a connection that begins with these bytes may speak HTTP/2.
fn may_be_http2(begun: &[u8]) -> bool {
    let preface = b"PRI * HTTP/2.0";
    preface.starts_with(begun) || begun.starts_with(preface)
}
