//! HTTP connection: what hyper serves, of version 1 or 2, to its end.
//!
//! hyper bounds the time of heads and of answers to a PING only. Here a connection on which nothing goes on is ended,
//! and one whose caller has lost it; and all of them when the process stops.

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::address::Address;
use crate::health::Phase;
use crate::listen::wait_until;
use crate::numbers::{ListenerMetrics, Refused};
use crate::requests::Requests;

/// Requests that a client may cancel before the process has looked at them. They take memory, but do not count among
/// [`HttpBounds::streams`] (CVE-2023-44487). A client that gives up does so rarely within the microseconds that this
/// takes.
const MAX_CANCELLED: usize = 20;

/// Requests of a connection that the process may have to cancel because of the client's mistakes. They do not count
/// among [`HttpBounds::streams`] either (CVE-2025-8671).
const MAX_FAULTY: usize = 100;

/// Bounds of a client on a connection.
#[derive(Clone, Copy, Debug)]
pub struct HttpBounds {
    /// Longest time for the head of a request over HTTP/1; silence between two requests counts as well.
    pub head_timeout: Duration,
    /// The longest head over HTTP/1, in bytes.
    pub head: usize,
    /// The same over HTTP/2, where one byte can encode a whole field. Each field counts 32 bytes more than its length.
    pub head_http2: u32,
    /// Requests of one HTTP/2 connection at a time.
    pub streams: u32,
    /// Unread data of one HTTP/2 stream, in bytes.
    pub window: u32,
    /// The same of one connection.
    pub connection_window: u32,
    /// Period of pings over HTTP/2 to the other end.
    pub ping: Duration,
    /// Longest time for its answer.
    pub pong: Duration,
}

impl HttpBounds {
    /// Server of connections.
    #[must_use]
    pub fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .max_buf_size(self.head);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.streams)
            .max_pending_accept_reset_streams(MAX_CANCELLED)
            .max_local_error_reset_streams(MAX_FAULTY)
            .max_header_list_size(self.head_http2)
            .initial_stream_window_size(self.window)
            .initial_connection_window_size(self.connection_window)
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(self.pong);
        builder
    }
}

/// State of a connection: it is in use or not, and has to end or not. Its requests share it.
#[derive(Debug)]
pub struct ConnectionState {
    requests: Arc<Requests>,
    /// True if it may be ended without the end of an answer: HTTP/2 tells the client which requests are not
    /// answered.
    is_framed: AtomicBool,
    /// Requests a GOAWAY.
    close: Notify,
    /// True if a caller has lost this connection.
    is_lost: AtomicBool,
    /// Signals that the budget has no room for a request of this connection.
    full: Notify,
    /// Beside this one, each request has one for as long as it goes on.
    in_use: InUse,
}

/// Tells that a connection is in use.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    count: Arc<()>,
}

impl ConnectionState {
    /// That of a connection with these requests.
    #[must_use]
    pub fn new(requests: Arc<Requests>) -> Self {
        Self {
            requests,
            is_framed: AtomicBool::new(false),
            close: Notify::new(),
            is_lost: AtomicBool::new(false),
            full: Notify::new(),
            in_use: InUse::default(),
        }
    }

    /// Notes that HTTP/2 is spoken: from now on silence ends the connection.
    pub fn mark_framed(&self) {
        self.is_framed.store(true, Ordering::Relaxed);
    }

    /// Tells the client to go on on another connection.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Ends the connection, for a caller that has lost it.
    pub fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.close.notify_one();
    }

    /// Ends the connection at once, with all requests that wait on it: the budget has no room.
    pub fn mark_full(&self) {
        self.full.notify_one();
    }

    /// For a request, for as long as it goes on.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        self.in_use.clone()
    }

    /// Waits until for `timeout`, or up to twice as long, no request was in use and none has begun. hyper only closes
    /// connections that answer no PING.
    async fn silence(&self, timeout: Duration) {
        loop {
            let begun = self.requests.begun();
            let was_in_use = Arc::strong_count(&self.in_use.count) > 1;
            tokio::time::sleep(timeout).await;
            let is_framed = self.is_framed.load(Ordering::Relaxed);
            if is_framed && !was_in_use && begun == self.requests.begun() {
                return;
            }
        }
    }

    /// Waits until the client has to be told that the connection closes. While a server drains, an HTTP/1 connection
    /// is told to close with its next answer: closing an idle one could lose a request that is on its way.
    async fn has_to_close(&self, phase: &mut watch::Receiver<Phase>) {
        loop {
            let now = *phase.borrow_and_update();
            match now {
                Phase::Draining | Phase::Stopping if self.is_framed.load(Ordering::Relaxed) => {
                    return;
                }
                _ if self.is_lost.load(Ordering::Relaxed) => return,
                Phase::Stopping => return tokio::time::sleep(self.requests.last_wait()).await,
                _ => {}
            }
            tokio::select! {
                changed = phase.changed() => {
                    if changed.is_err() {
                        // Nobody is left who could tell.
                        return;
                    }
                }
                () = self.close.notified() => {}
            }
        }
    }
}

/// End of a connection, and the counter of such ends.
#[derive(Debug)]
pub struct ConnectionEnd<'a> {
    /// The other end, for the log.
    pub remote: &'a Address,
    /// Longest silence.
    pub idle_timeout: Duration,
    /// Time for a client that was told to end and goes on.
    pub grace: Duration,
    /// Age at which a client is told to end; `None`: at none.
    pub age: Option<Duration>,
    /// Counters of its end.
    pub numbers: &'a ListenerMetrics,
    /// Phase of the process.
    pub phase: watch::Receiver<Phase>,
}

impl ConnectionEnd<'_> {
    /// Serves a connection to its end, or until the process stops and the requests in flight are answered.
    pub async fn serve<I, S, B>(
        mut self,
        builder: &Builder<TokioExecutor>,
        stream: I,
        service: S,
        state: &ConnectionState,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Future: Send + 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let numbers = self.numbers;
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut silence = pin!(state.silence(self.idle_timeout));
        let old_at = self.age.map(|age| Instant::now() + age);
        let (mut is_told, mut is_silent, mut ends_at) = (false, false, None);
        let end = loop {
            tokio::select! {
                biased;
                // First, so that what was received counts as in flight.
                end = connection.as_mut() => break end,
                () = wait_until(ends_at) => return numbers.timeouts.add(1),
                () = state.full.notified() => return numbers.refused.add(Refused::Buffers),
                () = silence.as_mut() => {
                    is_silent = true;
                    if is_told {
                        // Whoever reads no answer and sends a PING now and then would stay.
                        break Ok(());
                    }
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                    silence.set(state.silence(self.idle_timeout));
                }
                () = wait_until(old_at), if !is_told => {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = state.has_to_close(&mut self.phase), if !is_told => {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                    if state.is_lost.load(Ordering::Relaxed) {
                        // A client may ignore what it is told.
                        ends_at = Some(Instant::now() + self.grace);
                    }
                }
            }
        };
        match end {
            _ if is_silent => numbers.timeouts.add(1),
            Ok(()) => {}
            Err(error) => self.note(&*error),
        }
    }

    /// Counts why a connection ended.
    pub fn note(&self, error: &(dyn Error + 'static)) {
        let (numbers, remote) = (self.numbers, self.remote);
        let hyper = error.downcast_ref::<hyper::Error>();
        let of_stream = end_of_stream(error);
        if of_stream == Some(io::ErrorKind::OutOfMemory) {
            numbers.refused.add(Refused::Buffers);
        } else if hyper.is_some_and(hyper::Error::is_timeout)
            || of_stream == Some(io::ErrorKind::TimedOut)
        {
            numbers.timeouts.add(1);
        } else if hyper.is_some_and(hyper::Error::is_parse)
            || of_stream == Some(io::ErrorKind::QuotaExceeded)
        {
            numbers.protocol_errors.add(1);
        }
        tracing::debug!(remote = %remote, %error, "an HTTP connection ended");
    }
}

/// Reason why the stream of a connection ended it.
fn end_of_stream(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}
