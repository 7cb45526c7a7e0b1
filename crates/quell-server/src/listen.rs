//! Listen: accepts connections, up to a limit, until the server stops.
//!
//! The system completes handshakes by itself, and closing a listener resets those that nobody accepted.
//! There is always one more between the last accept and the close. So a server that stops first has the
//! system drop new attempts, then accepts what was begun before, and only then closes. A client whose
//! attempt was dropped repeats it after a second, and is refused or reaches the next server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::ServeError;
use crate::health::Phase;
use crate::metrics::{ListenerMetrics, Refused};
use crate::places::{Place, Places};
use crate::shared::Shared;

mod stream;

pub(crate) use stream::{Address, Stream};

/// How long accepting pauses after the system could not give a connection, out of files mostly:
/// without a pause the loop would do nothing else.
const PAUSE: Duration = Duration::from_millis(50);

/// Refused connections that are told so at the same time; more are closed without a word.
const MAX_REFUSALS: usize = 64;

/// How long a client that is being left may go on talking.
const LINGER: Duration = Duration::from_secs(1);

/// How much it may say.
const LINGER_BYTES: usize = 1_024 * 1_024;

/// Connections that the system keeps until they are accepted. A client that comes when there are more
/// gets no answer, and tries again after a second. Linux keeps at most `net.core.somaxconn`, by default
/// the same number.
const BACKLOG: u32 = 4_096;

/// How long a server that stops waits for handshakes that have begun, and for a call on a connection
/// that is open: the call may have arrived already, without the runtime having noticed.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// How long after its start a connection may send its first call although the server stops: clients
/// connect in order to call, and one without processor time takes a while from one to the other.
const FIRST_CALL: Duration = Duration::from_secs(1);

/// How long a server that stops waits for a call on a connection that has been open for `age`.
pub(crate) fn last_wait(age: Duration, has_called: bool) -> Duration {
    match has_called {
        true => ON_ITS_WAY,
        false => FIRST_CALL.saturating_sub(age).max(ON_ITS_WAY),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As a server that starts again needs it: connections of the one before may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Has the system drop attempts to connect, and go on with handshakes that have begun. A classic BPF
/// program reads the TCP header of each segment that comes to the listener.
#[cfg(target_os = "linux")]
fn drop_attempts(socket: &TcpListener) -> io::Result<()> {
    use socket2::SockFilter;
    // As <linux/bpf_common.h> has them.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // As RFC 9293, 3.1 has them.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        // Bytes of the segment that are kept.
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

/// Other systems have nothing of the kind: a connection that comes while a listener closes is reset.
#[cfg(not(target_os = "linux"))]
fn drop_attempts(_: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A connection that the system has completed, if there is any. This asks the system, since the runtime
/// may not have noticed it yet.
fn accept_now(socket: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    let (stream, remote) = SockRef::from(socket).accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    Some((
        TcpStream::from_std(stream.into()).ok()?,
        remote.as_socket()?,
    ))
}

/// Where connections come in.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    pub(crate) address: SocketAddr,
    name: &'static str,
}

/// A connection with its right to be one.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) remote: Address,
    pub(crate) local: Address,
    _place: Place,
}

impl Listener {
    /// Binds `address`. Needs a runtime.
    pub(crate) fn bind(name: &'static str, address: SocketAddr) -> Result<Self, ServeError> {
        let error = |source| ServeError::Bind {
            listener: name,
            address,
            source,
        };
        let socket = listen(address).map_err(error)?;
        let address = socket.local_addr().map_err(error)?;
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "other machines can reach {name}, without TLS");
        }
        Ok(Self {
            socket,
            address,
            name,
        })
    }

    /// Accepts until the server stops; a connection for which there is no place is sent what `sorry` makes
    /// of the reason. Returns those that are still open.
    pub(crate) async fn accept<F>(
        self,
        shared: &Shared,
        numbers: Arc<ListenerMetrics>,
        sorry: fn(&Config, Refused) -> Arc<[u8]>,
        mut start: impl FnMut(Accepted) -> F,
    ) -> JoinSet<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut phase = shared.phase.subscribe();
        let places = Places::new(&shared.config);
        let mut connections = JoinSet::new();
        let mut refusals = JoinSet::new();
        let mut late = BACKLOG;
        let mut closes_at = None;
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
                () = wait_until(closes_at) => match accept_now(&self.socket) {
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
            match places.take(Some(remote.ip())) {
                Ok(place) => {
                    // Before it can ask how many there are.
                    numbers.open.set(connections.len() as u64 + 1);
                    connections.spawn(start(self.accepted(stream, remote, place)));
                }
                Err(refused) => {
                    numbers.refused.add(refused);
                    if refusals.len() < MAX_REFUSALS {
                        let sorry = sorry(&shared.config, refused);
                        refusals.spawn(async move { leave(Stream::Tcp(stream), &sorry).await });
                    }
                }
            }
        }
        connections
    }

    fn accepted(&self, stream: TcpStream, remote: SocketAddr, place: Place) -> Accepted {
        // Replies are written whole; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        Accepted {
            local: Address::Tcp(stream.local_addr().unwrap_or(self.address)),
            stream: Stream::Tcp(stream),
            remote: Address::Tcp(remote),
            _place: place,
        }
    }

    /// Has new attempts to connect dropped. Returns when to close.
    fn begin_to_close(&self) -> Instant {
        if let Err(error) = drop_attempts(&self.socket) {
            tracing::debug!(listener = self.name, %error, "attempts to connect are not dropped");
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
pub(crate) async fn wait_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Sends `last` and closes. What the client still sends is read for a moment, since closing a connection
/// with unread bytes discards what was sent last.
pub(crate) async fn leave(mut stream: Stream, last: &[u8]) {
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

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_listener_that_closes_loses_no_connection() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let before = TcpStream::connect(address).await.unwrap();
        drop_attempts(&listener).unwrap();
        let after = TcpStream::connect(address);
        let after = tokio::time::timeout(Duration::from_millis(200), after).await;
        assert!(after.is_err(), "it is neither accepted nor refused");
        let (_, remote) = accept_now(&listener).unwrap();
        assert_eq!(remote, before.local_addr().unwrap());
        assert!(accept_now(&listener).is_none());
    }

    #[test]
    fn a_connection_without_a_call_is_waited_for_longer() {
        let second = Duration::from_secs(1);
        assert_eq!(last_wait(Duration::ZERO, true), ON_ITS_WAY);
        assert_eq!(last_wait(second / 4, false), second * 3 / 4);
        assert_eq!(last_wait(second * 60, false), ON_ITS_WAY);
    }

    /// Without this a crowd of clients that connects at once waits for seconds.
    #[tokio::test]
    async fn many_connect_before_any_is_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let connects = (0..1_000).map(|_| TcpStream::connect(address));
        let connected = futures_util::future::join_all(connects);
        // A connection that the system did not take tries again after a second.
        let connected = tokio::time::timeout(Duration::from_millis(900), connected).await;
        let connected = connected.expect("the system took all of them");
        assert!(connected.iter().all(Result::is_ok));
    }
}
