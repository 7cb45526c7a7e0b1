//! Listen: accepts connections, as many as may be, until the server stops.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::error::ServeError;
use crate::health::Phase;
use crate::metrics::ListenerMetrics;

/// How long accepting pauses after the system could not give a connection, out of files mostly:
/// without a pause the loop would do nothing else.
const PAUSE: Duration = Duration::from_millis(50);

/// Refused connections that are told so at the same time; more are closed without a word.
const MAX_REFUSALS: usize = 64;

/// How long a client that is being left may go on talking.
const LINGER: Duration = Duration::from_secs(1);

/// How much it may say.
const LINGER_BYTES: usize = 1_024 * 1_024;

/// Connections that the system holds until they are accepted, also for a server that stops. Whoever
/// comes when there are more hears nothing, and tries again after a second. Linux holds no more than
/// its `net.core.somaxconn`, which is the same unless it was changed.
const BACKLOG: u32 = 4_096;

/// How long a server that stops waits for a call on a connection that is open: the call may have come
/// already, and the runtime has not heard of it yet. Who connected last has asked nothing so far.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(50);

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

/// A connection that the system has taken already, if there is any. The runtime has perhaps not heard of
/// it yet, so the system is asked.
fn taken(socket: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    let own = socket.as_fd().try_clone_to_owned().ok()?;
    let (stream, remote) = std::net::TcpListener::from(own).accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    Some((TcpStream::from_std(stream).ok()?, remote))
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
    pub(crate) stream: TcpStream,
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    /// Binds `address`.
    pub(crate) async fn bind(name: &'static str, address: SocketAddr) -> Result<Self, ServeError> {
        let error = |source| ServeError::Bind {
            listener: name,
            address,
            source,
        };
        let socket = listen(address).map_err(error)?;
        let address = socket.local_addr().map_err(error)?;
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "other machines can reach {name}, without TLS and credentials");
        }
        Ok(Self {
            socket,
            address,
            name,
        })
    }

    /// Accepts until the server stops, at most `most` connections at a time; who is too much gets
    /// `sorry`. Returns the connections that are still open.
    pub(crate) async fn accept<F>(
        self,
        most: usize,
        numbers: Arc<ListenerMetrics>,
        sorry: Arc<[u8]>,
        mut phase: watch::Receiver<Phase>,
        mut start: impl FnMut(Accepted) -> F,
    ) -> JoinSet<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let mut connections = JoinSet::new();
        let mut refusals = JoinSet::new();
        let mut late = BACKLOG;
        loop {
            let arrived = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase == Phase::Stopping) => {
                    // Who was let in by the system may have asked already.
                    let Some(arrived) = taken(&self.socket).filter(|_| late > 0) else { break };
                    late -= 1;
                    Ok(arrived)
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
                arrived = self.socket.accept() => arrived,
            };
            let (stream, remote) = match arrived {
                Ok(arrived) => arrived,
                Err(error) => {
                    self.pause(&error).await;
                    continue;
                }
            };
            numbers.accepted.add(1);
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    // Replies are written whole; waiting for more to send would only delay them.
                    let _ = stream.set_nodelay(true);
                    let local = stream.local_addr().unwrap_or(self.address);
                    let accepted = Accepted {
                        stream,
                        remote,
                        local,
                        _place: place,
                    };
                    // Before it can ask how many there are.
                    numbers.open.set(connections.len() as u64 + 1);
                    connections.spawn(start(accepted));
                }
                Err(_) => {
                    numbers.refused.add(1);
                    if refusals.len() < MAX_REFUSALS {
                        let sorry = Arc::clone(&sorry);
                        refusals.spawn(async move { leave(stream, &sorry).await });
                    }
                }
            }
        }
        connections
    }

    /// A connection that went before it was accepted is no reason to wait.
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

/// Says `last` and closes; what the client still sends is read for a moment, since a connection that
/// is closed with bytes unread takes the last words with it.
pub(crate) async fn leave(mut stream: TcpStream, last: &[u8]) {
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
    // A client that does not take it has only itself to blame.
    let _ = tokio::time::timeout(LINGER, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

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
