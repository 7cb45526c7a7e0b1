//! One HTTP connection, version 1 or 2, from accept to close.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Version};
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use quell_protocol::http::{PROBLEM_JSON, Problem, ProblemKind};
use tokio::sync::{Notify, watch};
use tower_service::Service;

use super::direct::{self, Left};
use super::stream::Watched;
use super::{ask, origin, reply};
use crate::config::Bounds;
use crate::health::Phase;
use crate::listen::Accepted;
use crate::metrics::ListenerMetrics;
use crate::shared::Shared;

/// What a connection is told that comes when `most` are open, which is as many as may be.
pub(crate) fn sorry(most: usize) -> Arc<[u8]> {
    let detail = format!(
        "{most} connections are open, as many as max_connections allows: close some, or raise it"
    );
    let problem = Problem::new(ProblemKind::Overloaded, detail);
    // A document of texts and a number cannot fail to be written.
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\n\
         Content-Type: {PROBLEM_JSON}\r\n\
         Content-Length: {}\r\n\
         Retry-After: 1\r\n\
         Connection: close\r\n\r\n\
         {body}",
        body.len()
    );
    Arc::from(text.into_bytes())
}

/// Requests of one HTTP/2 connection at a time.
const MAX_STREAMS: u32 = 200;

/// Bytes that a request's head may have, all fields together.
const MAX_HEAD: usize = 64 * 1_024;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteAddress(pub(super) SocketAddr);

/// What is known of a connection that speaks HTTP/2.
#[derive(Debug, Default)]
struct Http2 {
    is_spoken: AtomicBool,
    /// Asks for the connection to be told that it closes.
    close: Notify,
}

/// An answer that is on its way.
type Answer = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Hands requests to the router with the address they come from.
#[derive(Clone, Debug)]
struct Handler {
    router: Router,
    shared: Arc<Shared>,
    remote: RemoteAddress,
    has_asked: Arc<AtomicBool>,
    phase: watch::Receiver<Phase>,
    http2: Arc<Http2>,
}

impl Handler {
    /// Answers a request.
    fn answer(&self, request: Request<Incoming>) -> Answer {
        if let Err(problem) = origin::check(&request, &self.shared.config) {
            return Box::pin(async move { Ok(reply::problem(&problem)) });
        }
        // Those that did not come whole, and those that are wrong.
        if let Some(operation) = ask::operation(&request) {
            let shared = Arc::clone(&self.shared);
            return Box::pin(async move { Ok(ask::verdict(&shared, operation, request).await) });
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.remote);
        Box::pin(self.router.clone().call(request))
    }
}

impl hyper::service::Service<Request<Incoming>> for Handler {
    type Response = Response;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.has_asked.store(true, Ordering::Relaxed);
        let is_http1 = request.version() < Version::HTTP_2;
        let answer = self.answer(request);
        let phase = self.phase.clone();
        if !is_http1 {
            self.http2.is_spoken.store(true, Ordering::Relaxed);
            if *phase.borrow() != Phase::Running {
                self.http2.close.notify_one();
            }
            return answer;
        }
        Box::pin(async move {
            let mut response = answer.await?;
            if *phase.borrow() != Phase::Running {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response)
        })
    }
}

/// How connections are served.
pub(crate) fn builder(bounds: &Bounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // From when the connection is ready for it, so silence between requests counts too.
        .header_read_timeout(bounds.idle_timeout)
        .max_buf_size(MAX_HEAD)
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .keep_alive_interval(bounds.idle_timeout)
        .keep_alive_timeout(bounds.header_timeout);
    builder
}

/// Serves a connection to its end, or until the server stops and what is in flight is answered.
///
/// While it drains, an HTTP/1 connection is told to close with its next answer, an HTTP/2 one at once:
/// closing one that is silent could meet a request that is on its way.
pub(crate) async fn run(
    accepted: Accepted,
    router: Router,
    shared: Arc<Shared>,
    builder: Arc<Builder<TokioExecutor>>,
    mut phase: watch::Receiver<Phase>,
) {
    let remote = RemoteAddress(accepted.remote);
    let has_asked = Arc::new(AtomicBool::new(false));
    let mut watched = Watched::new(
        accepted.stream,
        &shared.config.bounds,
        Arc::clone(&has_asked),
    );
    match direct::serve(&mut watched, &shared, &has_asked, &mut phase).await {
        Ok(Left::Closed) => return,
        Ok(Left::Other(begun)) => watched.give_back(begun),
        Err(error) => return note_end(&shared.metrics.http, remote, &error),
    }
    let handler = Handler {
        router,
        shared,
        remote,
        has_asked,
        phase: phase.clone(),
        http2: Arc::default(),
    };
    // In memory of its own, so that a connection that never gets here stays small.
    Box::pin(serve(watched, handler, builder, phase)).await;
}

/// Serves what else may come than questions.
async fn serve(
    watched: Watched,
    handler: Handler,
    builder: Arc<Builder<TokioExecutor>>,
    mut phase: watch::Receiver<Phase>,
) {
    let (remote, numbers) = (handler.remote, Arc::clone(&handler.shared.metrics.http));
    let http2 = Arc::clone(&handler.http2);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(watched), handler));
    let mut is_told = false;
    let end = loop {
        tokio::select! {
            biased;
            // First, so that what came already counts as in flight.
            end = connection.as_mut() => break end,
            () = has_to_close(&mut phase, &http2), if !is_told => {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = end {
        note_end(&numbers, remote, &*error);
    }
}

/// Waits until the connection has to be told that it closes.
async fn has_to_close(phase: &mut watch::Receiver<Phase>, http2: &Http2) {
    loop {
        match *phase.borrow_and_update() {
            Phase::Stopping => return,
            Phase::Draining if http2.is_spoken.load(Ordering::Relaxed) => return,
            _ => {}
        }
        tokio::select! {
            changed = phase.changed() => if changed.is_err() {
                // Nobody is left who could stop the server but by dropping it.
                std::future::pending::<()>().await;
            },
            () = http2.close.notified() => {}
        }
    }
}

/// Counts why a connection ended.
fn note_end(
    numbers: &ListenerMetrics,
    remote: RemoteAddress,
    error: &(dyn std::error::Error + 'static),
) {
    let hyper = error.downcast_ref::<hyper::Error>();
    if hyper.is_some_and(hyper::Error::is_timeout) || is_idle_end(error) {
        numbers.timeouts.add(1);
    } else if hyper.is_some_and(hyper::Error::is_parse) {
        numbers.protocol_errors.add(1);
    }
    tracing::debug!(remote = %remote.0, %error, "an HTTP connection ended");
}

/// Whether a connection was ended by [`Watched`].
fn is_idle_end(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::TimedOut;
        }
        next = error.source();
    }
    false
}
