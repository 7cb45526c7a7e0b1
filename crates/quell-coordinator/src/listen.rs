//! Listen: serves HTTP on the connections of a listener.
//!
//! A connection on which nothing is going on is closed, and one whose other end is gone is found by pings. An
//! address that shows one unknown token after the other loses a connection with each.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use quell::clock::{Clock, SystemClock};
use quell_host::access::FailedLogins;
use quell_host::budget::Budget;
use quell_host::caller::{AUTHORIZATION, TOKEN};
use quell_host::console::host::FAILED_LOGINS;
use quell_host::health::Phase;
use quell_host::http_connection::{ConnectionEnd, ConnectionState, HttpBounds};
use quell_host::listen::{
    Accepted, ListenScope, ListenSettings, Listener as HostListener, MeteredStream,
};
use quell_host::numbers::ListenerMetrics;
use quell_host::reply::is_unauthenticated;
use quell_host::requests::Requests;
use tokio::sync::watch;
use tokio::time::timeout;
use tower_service::Service;

use crate::gate::Peer;

/// Longest time for a handshake, and for the head of a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a connection may be idle, or up to twice as long; and may last once it was told to end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Period of pings to the other end, and longest time for its answer.
const PING: Duration = Duration::from_secs(10);

/// The most requests at once on a connection: a member has one stream, and may begin the next before the
/// last one has ended.
const STREAMS: u32 = 8;

/// The longest head of a request, in bytes.
const HEAD: u32 = 16 * 1_024;

/// Bytes a client may send ahead on a stream, and twice as many on a connection: most reports fit, and what nobody
/// has read yet takes no more.
const WINDOW: u32 = 64 * 1_024;

/// Memory for the TLS of a connection, twice what it draws: the bound is the number of connections, also for
/// one address.
const OF_TLS: usize = 2 * 24 * 1_024;

/// Time for connections to end after a listener was told to stop.
const LAST: Duration = Duration::from_secs(2);

/// A listener, and what is served on it.
#[derive(Debug)]
pub struct Listener {
    /// Source of connections, plain or over TLS.
    pub socket: HostListener,
    /// The most connections at once; what is more is closed at once.
    pub connections: usize,
    /// The most of one address, or of one /64 of IPv6.
    pub connections_per_address: usize,
    /// True if only HTTP/2 is spoken, as gRPC does.
    pub only_http2: bool,
    /// Counters of its connections.
    pub numbers: Arc<ListenerMetrics>,
}

impl Listener {
    /// Serves connections with `service` until the process stops. A request that is let in finds its [`Peer`]
    /// among its extensions.
    pub async fn serve(self, service: Router, phase: watch::Receiver<Phase>) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let logins = Arc::new(FailedLogins::new(FAILED_LOGINS, &clock));
        let scope = ListenScope {
            settings: ListenSettings {
                max_connections: self.connections,
                max_connections_per_address: self.connections_per_address,
                header_timeout: HANDSHAKE_TIMEOUT,
            },
            phase: phase.clone(),
            buffers: Budget::new(self.connections * OF_TLS),
            numbers: Arc::clone(&self.numbers),
        };
        let (numbers, only_http2) = (self.numbers, self.only_http2);
        let start = move |accepted: Accepted| {
            let service = Counted {
                service: service.clone(),
                logins: Arc::clone(&logins),
                numbers: Arc::clone(&numbers),
            };
            converse(accepted, only_http2, service, phase.clone())
        };
        // Surplus connections are closed silently.
        let mut open = self.socket.accept(scope, |_, _| Arc::from([]), start).await;
        let ended = async { while open.join_next().await.is_some() {} };
        let in_time = timeout(LAST, ended).await;
        drop(in_time);
    }
}

async fn converse(
    accepted: Accepted,
    only_http2: bool,
    service: Counted,
    phase: watch::Receiver<Phase>,
) {
    let Accepted {
        stream,
        remote,
        certificate,
        ..
    } = accepted;
    let (requests, numbers) = (Arc::<Requests>::default(), Arc::clone(&service.numbers));
    let state = Arc::new(ConnectionState::new(Arc::clone(&requests)));
    // A connection without a request is idle from its first byte on, in any version.
    state.mark_framed();
    let mut stream = MeteredStream::new(stream);
    stream.count_frames(&[]);
    let (from, own) = (remote.clone(), Arc::clone(&state));
    let service = service_fn(move |mut request: Request<Incoming>| {
        requests.begin();
        let peer = Peer {
            remote: from.clone(),
            certificate: certificate.clone(),
            _in_use: own.in_use(),
        };
        request.extensions_mut().insert(peer.clone());
        service.call(request, peer, Arc::clone(&own))
    });
    let end = ConnectionEnd {
        remote: &remote,
        idle_timeout: IDLE_TIMEOUT,
        grace: HANDSHAKE_TIMEOUT,
        age: None,
        numbers: &numbers,
        phase,
    };
    end.serve(&protocol(only_http2), stream, service, &state)
        .await;
}

/// A service whose failed logins are counted.
#[derive(Clone)]
struct Counted {
    service: Router,
    logins: Arc<FailedLogins>,
    numbers: Arc<ListenerMetrics>,
}

impl Counted {
    /// A router is always ready.
    fn call(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        state: Arc<ConnectionState>,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        let address = peer.ip();
        let (logins, numbers) = (Arc::clone(&self.logins), Arc::clone(&self.numbers));
        let shows = |name| request.headers().contains_key(name);
        let shows_token = shows(TOKEN) || shows(AUTHORIZATION);
        let answer = self.service.clone().call(request);
        async move {
            // In use until it is answered; whoever goes on has another one.
            let _peer = peer;
            let answer = answer.await?;
            if shows_token && is_unauthenticated(&answer) && logins.note(address, &numbers) {
                state.lose();
            }
            Ok(answer)
        }
    }
}

/// The protocol, with its bounds.
fn protocol(only_http2: bool) -> Builder<TokioExecutor> {
    let bounds = HttpBounds {
        head_timeout: HANDSHAKE_TIMEOUT,
        head: HEAD as usize,
        head_http2: HEAD,
        streams: STREAMS,
        window: WINDOW,
        connection_window: 2 * WINDOW,
        ping: PING,
        pong: PING,
    };
    match only_http2 {
        true => bounds.builder().http2_only(),
        false => bounds.builder(),
    }
}
