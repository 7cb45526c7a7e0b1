//! HTTP service: what all connections of one listener share, and within which bounds hyper serves them.

use std::sync::Arc;

use axum::Router;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use quell_host::head::MAX_HEAD;
use quell_host::http_connection::HttpBounds;

use super::{Purpose, router};
use crate::config::Config;
use crate::metrics::ListenerMetrics;
use crate::shared::Shared;

/// Requests of one HTTP/2 connection at a time.
const MAX_STREAMS: u32 = 200;

/// Questions of one Envoy at a time: as many as it asks a cluster that has the circuit breakers of its default. It sends
/// them on a new connection before it has read what that takes, and lets a call pass whose question is refused.
const MAX_QUESTIONS: u32 = 1_024;

/// [`MAX_HEAD`] over HTTP/2, where one byte can encode a whole field. Each field counts 32 bytes more
/// than its length.
const MAX_HEAD_HTTP2: u32 = 32 * 1_024;

/// The same of a question of Envoy, so that the heads of a connection take as little as elsewhere.
const MAX_QUESTION_HEAD: u32 = 8 * 1_024;

/// Unread data of one HTTP/2 stream, and of one connection.
const WINDOW: u32 = 64 * 1_024;
const CONNECTION_WINDOW: u32 = 256 * 1_024;

/// The same of a connection of Envoy. h2 takes half as many bytes of frames that are not read yet, where a short one
/// counts as 256.
const QUESTIONS_WINDOW: u32 = MAX_QUESTIONS * 256 * 2;

/// Service that all connections of one listener share.
#[derive(Debug)]
pub(crate) struct HttpService {
    pub(super) shared: Arc<Shared>,
    pub(super) purpose: Purpose,
    /// The port of the listener; a Unix socket has none.
    pub(super) port: Option<u16>,
    pub(super) numbers: Arc<ListenerMetrics>,
    pub(super) router: Router,
    pub(super) builder: Builder<TokioExecutor>,
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
            builder: builder(&shared.config, purpose),
        }
    }
}

/// Builder of the servers of connections.
fn builder(config: &Config, purpose: Purpose) -> Builder<TokioExecutor> {
    let (streams, head_http2, connection_window) = match purpose {
        Purpose::RateLimitService => (MAX_QUESTIONS, MAX_QUESTION_HEAD, QUESTIONS_WINDOW),
        _ => (MAX_STREAMS, MAX_HEAD_HTTP2, CONNECTION_WINDOW),
    };
    let bounds = HttpBounds {
        // It counts from when the connection can read a request, so it includes silence between two.
        head_timeout: config.idle_timeout,
        head: MAX_HEAD,
        head_http2,
        streams,
        window: WINDOW,
        connection_window,
        ping: config.idle_timeout,
        pong: config.header_timeout,
    };
    let mut builder = bounds.builder();
    // Calls that wait notice the end of a client by `HangUp`; others are answered also if a client has closed its
    // side.
    builder.http1().half_close(true);
    builder
}
