//! Listen: accepts connections, plain or TLS, and serves HTTP on them.
//!
//! A connection costs memory, so their number is bounded, in all and for one address; one on which nothing
//! is going on is closed, and one whose other end is gone is found by pings. An address that shows one
//! unknown token after the other loses a connection with each.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::rustls::ServerConfig;
use tower_service::Service;

use crate::callers::Callers;
use crate::gate::Peer;
use crate::metrics::ListenerNumbers;

mod handshake;
mod metered;

use handshake::shake_hands;
use metered::Metered;

/// How long a client may take to shake hands, and to send the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a connection is looked at; one that was idle twice is closed.
const LOOK: Duration = Duration::from_secs(10);

/// How often the other end is asked whether it is there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(10);

/// The most requests at once on a connection: a member has one stream, and may begin the next before the
/// last one has ended.
const STREAMS: u32 = 8;

/// The longest head of a request, in bytes.
const HEAD: u32 = 16 * 1_024;

/// What a client may send ahead on a stream, and twice as much on a connection, in bytes: most reports fit, and
/// what nobody has read yet takes no more.
const WINDOW: u32 = 64 * 1_024;

/// Where tokens are shown.
const TOKENS: [&str; 2] = ["authorization", "x-quell-token"];

/// The code of gRPC for a caller that is not known.
const UNAUTHENTICATED: &[u8] = b"16";

/// How long to wait when the system has no more sockets.
const NO_SOCKET: Duration = Duration::from_millis(100);

/// How long connections have to end after a listener was told to stop.
const LAST: Duration = Duration::from_secs(2);

/// Says with which certificate a connection that begins now is met; none: it is not met.
pub type TlsNow = Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>;

/// A listener.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// Without it connections are plain.
    pub tls: Option<TlsNow>,
    /// The most connections at once; what is more is closed at once.
    pub connections: usize,
    /// The most of one address, or of one /64 of IPv6.
    pub connections_per_address: usize,
    /// Whether only HTTP/2 is spoken, as gRPC does.
    pub only_http2: bool,
    /// Where its connections are counted.
    pub numbers: Arc<ListenerNumbers>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("socket", &self.socket)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Serves connections with `service` until `stop` changes or is dropped. A request that is let in
    /// finds its [`Peer`] among its extensions.
    pub async fn serve<S, B>(self, service: S, mut stop: watch::Receiver<bool>)
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let numbers = Arc::clone(&self.numbers);
        let (most, of_one) = (self.connections, self.connections_per_address);
        let callers = Callers::new(most, of_one, Arc::clone(&numbers));
        let mut open = JoinSet::new();
        let (tell, told) = watch::channel(false);
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                Some(_) = open.join_next() => {
                    numbers.open.set(open.len());
                    continue;
                }
                _ = stop.changed() => break,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.note(&error).await;
                    continue;
                }
            };
            numbers.accepted.increment();
            let Some(place) = callers.take(address.ip()) else {
                continue;
            };
            let peer = Peer {
                address,
                certificate: None,
                in_use: Arc::new(()),
            };
            let (tls, only_http2) = (self.tls.clone(), self.only_http2);
            let service = Counted {
                service: service.clone(),
                callers: Arc::clone(&callers),
                numbers: Arc::clone(&numbers),
                lost: Arc::default(),
            };
            let told = told.clone();
            // Before it can ask how many there are.
            numbers.open.set(open.len() + 1);
            open.spawn(async move {
                let _place = place;
                if let Err(error) = converse(stream, peer, tls, only_http2, service, told).await {
                    tracing::debug!(%address, %error, "a connection failed");
                }
            });
        }
        drop(tell);
        let ended = async { while open.join_next().await.is_some() {} };
        let in_time = timeout(LAST, ended).await;
        drop(in_time);
    }

    async fn note(&self, error: &io::Error) {
        let is_of_client = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
        );
        if !is_of_client {
            tracing::error!(%error, "no connection can be accepted: let the process open more files");
            sleep(NO_SOCKET).await;
        }
    }
}

async fn converse<S, B>(
    stream: TcpStream,
    mut peer: Peer,
    tls: Option<TlsNow>,
    only_http2: bool,
    service: Counted<S>,
    told: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        return hold(stream, peer, only_http2, service, told).await;
    };
    let Some(config) = tls() else {
        return Ok(());
    };
    let shaken = timeout(PATIENCE, shake_hands(stream, config)).await;
    let shaken = shaken.map_err(io::Error::from).flatten();
    let Some(stream) = shaken.inspect_err(|_| service.numbers.tls_errors.increment())? else {
        return Ok(());
    };
    let (_, session) = stream.get_ref();
    let shown = session.peer_certificates().and_then(|chain| chain.first());
    peer.certificate = shown.map(|certificate| Arc::from(certificate.as_ref()));
    hold(stream, peer, only_http2, service, told).await
}

/// A service whose failed logins are counted.
#[derive(Clone)]
struct Counted<S> {
    service: S,
    callers: Arc<Callers>,
    numbers: Arc<ListenerNumbers>,
    /// Notified when the connection is to end because of them.
    lost: Arc<Notify>,
}

impl<S> Counted<S> {
    /// Both services that are served here are always ready.
    fn call<B>(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Result<Response<B>, Infallible>> + use<S, B>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    {
        let (address, callers) = (peer.address.ip(), Arc::clone(&self.callers));
        let lost = Arc::clone(&self.lost);
        let shows_token = TOKENS
            .iter()
            .any(|name| request.headers().contains_key(*name));
        let answer = self.service.clone().call(request);
        async move {
            let answer = answer.await?;
            if shows_token && is_unknown(&answer) && callers.note_failed_login(address) {
                lost.notify_one();
            }
            Ok(answer)
        }
    }
}

/// Whether an answer says that the caller is not known: by its status, or by that of gRPC.
fn is_unknown<B>(answer: &Response<B>) -> bool {
    let code = answer.headers().get("grpc-status");
    answer.status() == StatusCode::UNAUTHORIZED
        || code.is_some_and(|code| code.as_bytes() == UNAUTHENTICATED)
}

/// What is spoken, with its bounds.
fn protocol(only_http2: bool) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    if only_http2 {
        builder = builder.http2_only();
    }
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_header_list_size(HEAD);
    builder
}

/// Serves one connection, until it ends, has been idle, has shown too many unknown tokens, or the listener
/// stops.
async fn hold<I, S, B>(
    stream: I,
    peer: Peer,
    only_http2: bool,
    service: Counted<S>,
    mut told: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (in_use, lost) = (Arc::clone(&peer.in_use), Arc::clone(&service.lost));
    let stream = Metered::new(stream, Arc::clone(&service.numbers));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        service.call(request, &peer)
    });
    let builder = protocol(only_http2);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let (mut look, mut was_idle) = (Instant::now() + LOOK, false);
    let mut closes = false;
    let mut ends = None;
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = told.changed(), if !closes => {
                connection.as_mut().graceful_shutdown();
                closes = true;
            }
            () = lost.notified() => {
                connection.as_mut().graceful_shutdown();
                closes = true;
                ends.get_or_insert(Instant::now() + PATIENCE);
            }
            // A client that goes on all the same.
            () = sleep_until(ends.unwrap_or(look)), if ends.is_some() => return Ok(()),
            () = sleep_until(look) => {
                // This function, and the closure that meets requests.
                let is_idle = Arc::strong_count(&in_use) <= 2;
                if is_idle && closes {
                    return Ok(());
                }
                if is_idle && was_idle {
                    connection.as_mut().graceful_shutdown();
                    closes = true;
                }
                was_idle = is_idle;
                look += LOOK;
            }
        }
    }
}
