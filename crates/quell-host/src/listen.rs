//! Listen: accepts connections, up to a limit, until the server stops.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quell_protocol::callers::{Place, Places};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::ClientCertificate;
use crate::address::Address;
use crate::budget::{Budget, CallerBudget};
use crate::health::Phase;
use crate::numbers::{ListenerMetrics, Refused};
use crate::task;
use crate::tls::Acceptor;

mod handshake;
mod metered;
mod overhead;
mod socket;
mod stream;

pub use metered::MeteredStream;
pub use stream::Stream;

use handshake::Handshakes;
use socket::{BACKLOG, Socket};

/// Pause of accepting after the system could not give a connection, out of files mostly:
/// without a pause the loop would do nothing else.
const PAUSE: Duration = Duration::from_millis(50);

/// Refused connections that are told so at the same time; more are closed without a word.
const MAX_REFUSALS: usize = 64;

/// Time a client that is being left may go on talking.
pub const LINGER: Duration = Duration::from_secs(1);

/// Bytes it may say.
pub const LINGER_BYTES: usize = 1_024 * 1_024;

/// Time a server that stops waits for handshakes that have begun, and for a call on a connection
/// that is open: the call may have arrived already, without the runtime having noticed.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// Time after its start for a connection to send its first call although the server stops: clients
/// connect in order to call, and one without processor time takes a while from one to the other.
const FIRST_CALL: Duration = Duration::from_secs(1);

/// Time a server that stops waits for a call on a connection that has been open for `age`.
pub fn last_wait(age: Duration, has_called: bool) -> Duration {
    match has_called {
        true => ON_ITS_WAY,
        false => FIRST_CALL.saturating_sub(age).max(ON_ITS_WAY),
    }
}

/// Bounds of a listener's connections.
#[derive(Clone, Copy, Debug)]
pub struct ListenSettings {
    /// Connections at a time.
    pub max_connections: usize,
    /// Connections of one address at a time; 0 for any number.
    pub max_connections_per_address: usize,
    /// Longest time for a TLS handshake.
    pub header_timeout: Duration,
}

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for {listener}: stop the process that does, or write another --{listener}"
)]
pub struct BindError {
    /// Name of the listener.
    pub listener: &'static str,
    /// The address.
    pub address: Address,
    /// The system's error.
    pub source: io::Error,
}

/// A listener's part of its process.
#[derive(Clone, Debug)]
pub struct ListenScope {
    /// Bounds of connections.
    pub settings: ListenSettings,
    /// Phase of the process.
    pub phase: watch::Receiver<Phase>,
    /// Budget of their buffers.
    pub buffers: Arc<Budget>,
    /// Their counters.
    pub numbers: Arc<ListenerMetrics>,
}

/// The conversation on one connection.
type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Source of connections.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// Its address.
    pub address: Address,
    name: &'static str,
    /// Its TLS, and its answer to clients without it.
    tls: Option<(Acceptor, Arc<[u8]>)>,
}

/// A connection with its right to be one.
#[derive(Debug)]
pub struct Accepted {
    /// The bytes.
    pub stream: Stream,
    /// Client's address.
    pub remote: Address,
    /// Address it reached.
    pub local: Address,
    /// That of the client, if it showed one over TLS.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// Budget of its buffers.
    pub buffers: Arc<CallerBudget>,
    _place: Place,
}

impl Listener {
    /// Listens on `address`; `unix_mode` are the permissions of a Unix socket, which never speaks TLS. Needs
    /// a runtime.
    pub fn bind(
        name: &'static str,
        address: &Address,
        unix_mode: u32,
        tls: Option<(Acceptor, Arc<[u8]>)>,
    ) -> Result<Self, BindError> {
        let error = |source| BindError {
            listener: name,
            address: address.clone(),
            source,
        };
        let socket = Socket::bind(address, unix_mode).map_err(error)?;
        let address = socket.address().map_err(error)?;
        let tls = tls.filter(|_| address.tcp().is_some());
        if tls.is_none() && !address.is_local() {
            tracing::warn!(
                %address,
                "the listener {name} is open to other machines without TLS: set a certificate and key, or \
                listen on the loopback"
            );
        }
        Ok(Self {
            socket,
            address,
            name,
            tls,
        })
    }

    /// Accepts until the process stops; a connection for which there is no place is sent what `rejection` makes
    /// of the reason. Returns those that are still open.
    pub fn accept<F: Future<Output = ()> + Send + 'static>(
        self,
        scope: ListenScope,
        rejection: fn(&ListenSettings, Refused) -> Arc<[u8]>,
        start: impl Fn(Accepted) -> F + Send + Sync + 'static,
    ) -> Pin<Box<dyn Future<Output = JoinSet<()>> + Send>> {
        // Connections are boxed, so that this is compiled once and not for each kind of them.
        let start = move |accepted| -> Connection { Box::pin(start(accepted)) };
        Box::pin(self.accept_boxed(scope, rejection, Arc::new(start)))
    }

    async fn accept_boxed(
        mut self,
        scope: ListenScope,
        rejection: fn(&ListenSettings, Refused) -> Arc<[u8]>,
        start: Arc<dyn Fn(Accepted) -> Connection + Send + Sync>,
    ) -> JoinSet<()> {
        let tls = self.handshakes(&scope);
        let rejection = tls.as_ref().map_or(rejection, |_| handshake::rejection);
        let ListenScope {
            settings,
            mut phase,
            buffers,
            numbers,
        } = scope;
        let places = Self::places(&settings);
        let (mut connections, mut refusals) = (JoinSet::new(), JoinSet::new());
        let (mut late, mut closes_at) = (BACKLOG, None);
        loop {
            let arrived = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase == Phase::Stopping), if closes_at.is_none() => {
                    closes_at = Some(self.begin_to_close());
                    continue;
                }
                Some(ended) = connections.join_next() => {
                    if ended.is_err_and(|error| error.is_panic()) {
                        numbers.panics.add(1);
                        tracing::error!(listener = self.name, "a connection panicked: please report it");
                    }
                    numbers.open.set(connections.len() as u64);
                    continue;
                }
                Some(_) = refusals.join_next() => continue,
                arrived = self.socket.accept(), if late > 0 => arrived,
                () = wait_until(closes_at) => match self.socket.accept_now() {
                    Some(arrived) if late > 0 => Ok(arrived),
                    _ => break,
                },
            };
            late -= u32::from(closes_at.is_some());
            let (stream, remote) = match arrived {
                Ok(arrived) => arrived,
                Err(error) => {
                    self.pause(&error).await;
                    continue;
                }
            };
            numbers.accepted.add(1);
            match places.take(remote.ip()) {
                Ok(place) => {
                    // Before it can ask how many there are.
                    numbers.open.set(connections.len() as u64 + 1);
                    let accepted = self.accepted(stream, remote, place, (&buffers, &settings));
                    match tls.clone() {
                        None => connections.spawn(start(accepted)),
                        Some(tls) => {
                            connections.spawn(Box::pin(tls.begin(accepted, Arc::clone(&start))))
                        }
                    };
                }
                Err(full) => {
                    let refused = full.into();
                    numbers.refused.add(refused);
                    if refusals.len() < MAX_REFUSALS {
                        let last = rejection(&settings, refused);
                        task::spawn_in(&mut refusals, async move {
                            close_lingering(stream, &last).await;
                        });
                    }
                }
            }
        }
        connections
    }

    fn places(config: &ListenSettings) -> Arc<Places> {
        Places::new(config.max_connections, config.max_connections_per_address)
    }

    /// Handshakes of its connections; none if it does not speak TLS.
    fn handshakes(&self, scope: &ListenScope) -> Option<Arc<Handshakes>> {
        let (acceptor, no_tls) = self.tls.clone()?;
        Some(Arc::new(Handshakes {
            acceptor,
            timeout: scope.settings.header_timeout,
            phase: scope.phase.clone(),
            numbers: Arc::clone(&scope.numbers),
            no_tls,
        }))
    }

    fn accepted(
        &self,
        stream: Stream,
        remote: Address,
        place: Place,
        (buffers, config): (&Arc<Budget>, &ListenSettings),
    ) -> Accepted {
        let tells_addresses_apart = config.max_connections_per_address > 0;
        let address = remote.ip().filter(|_| tells_addresses_apart);
        let mut local = None;
        if let Stream::Tcp(stream) = &stream {
            // Replies are written whole; waiting for more to send would only delay them.
            let _ = stream.set_nodelay(true);
            local = stream.local_addr().ok().map(Address::Tcp);
        }
        Accepted {
            local: local.unwrap_or_else(|| self.address.clone()),
            stream,
            remote,
            certificate: None,
            buffers: buffers.of(address),
            _place: place,
        }
    }

    /// Keeps new connections out. Returns when to close.
    fn begin_to_close(&mut self) -> Instant {
        if let Err(error) = self.socket.shut_out() {
            tracing::debug!(
                listener = self.name, %error,
                "cannot have the system drop new connections"
            );
        }
        Instant::now() + ON_ITS_WAY
    }

    /// Pauses after an error, unless it is only that a client left before it was accepted.
    async fn pause(&self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if !matches!(
            error.kind(),
            ConnectionAborted | ConnectionReset | Interrupted
        ) {
            tracing::warn!(listener = self.name, %error, "cannot accept connections");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits until an instant; for ever if there is none.
pub async fn wait_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Sends `last` and closes. What the client still sends is read for a moment, since closing a connection
/// with unread bytes discards what was sent last.
pub async fn close_lingering(mut stream: Stream, last: &[u8]) {
    let farewell = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut scratch = vec![0; 4_096];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match stream.read(&mut scratch).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        Ok::<(), io::Error>(())
    };
    // A client that does not read it in time misses it.
    let _ = tokio::time::timeout(LINGER, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_call_is_waited_for_longer() {
        let second = Duration::from_secs(1);
        assert_eq!(last_wait(Duration::ZERO, true), ON_ITS_WAY);
        assert_eq!(last_wait(second / 4, false), second * 3 / 4);
        assert_eq!(last_wait(second * 60, false), ON_ITS_WAY);
    }
}
