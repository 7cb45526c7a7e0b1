//! Handshake: makes a TLS connection of one that was accepted.
//!
//! It runs in the task of the connection, which has its place among `max_connections` already, and takes
//! at most `header_timeout`. The first byte shows whether a client speaks TLS at all.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::ListenSettings;
use super::overhead::BoundedOverhead;
use super::stream::{Stream, TlsConnection};
use super::{Accepted, Connection, close_lingering, last_wait};
use crate::budget::CallerBudget;
use crate::health::Phase;
use crate::numbers::{ListenerMetrics, Refused};
use crate::tls::Acceptor;

/// Memory of a TLS connection: a record that is half received, and what is encrypted but not sent. Ten
/// thousand of them fit into the default budget.
const CONNECTION: usize = 24 * 1_024;

/// Bytes that are encrypted and wait to be sent.
const UNSENT: usize = 8 * 1_024;

/// First byte of a record of a handshake (RFC 8446, 5.1). No request of HTTP or RESP does.
const HANDSHAKE: u8 = 22;

/// The alert `internal_error` (RFC 8446, 6.2).
const REFUSAL: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// The answer to a connection for which there is no place. To say more would need a handshake, which costs
/// more than to serve the connection.
pub(super) fn rejection(_: &ListenSettings, _: Refused) -> Arc<[u8]> {
    Arc::from(REFUSAL)
}

/// Needs of one listener's handshakes.
#[derive(Debug)]
pub(super) struct Handshakes {
    pub acceptor: Acceptor,
    pub timeout: Duration,
    pub phase: watch::Receiver<Phase>,
    pub numbers: Arc<ListenerMetrics>,
    /// The answer to a client that does not speak TLS.
    pub no_tls: Arc<[u8]>,
}

/// Reason why there is no TLS connection.
enum HandshakeFailure {
    /// The client left before it sent anything, or the server stops.
    Gone,
    Timeout,
    /// The budget has no room for it.
    Full(TcpStream),
    /// The client does not speak TLS.
    NoTls(TcpStream),
    Broken(io::Error, TcpStream),
}

impl Handshakes {
    /// Serves a connection with `start` once its client has completed the handshake.
    pub(super) async fn begin(
        self: Arc<Self>,
        accepted: Accepted,
        start: Arc<dyn Fn(Accepted) -> Connection + Send + Sync>,
    ) {
        // In a box, so that an open connection keeps no room for it.
        if let Some(accepted) = Box::pin(self.run(accepted)).await {
            start(accepted).await;
        }
    }

    /// The same connection over TLS, if its client completes the handshake.
    async fn run(&self, accepted: Accepted) -> Option<Accepted> {
        let Stream::Tcp(stream) = accepted.stream else {
            return None;
        };
        let remote = &accepted.remote;
        let connection = tokio::select! {
            biased;
            connection = self.connect(stream, &accepted.buffers) => connection,
            () = tokio::time::sleep(self.timeout) => Err(HandshakeFailure::Timeout),
            () = self.has_to_stop() => Err(HandshakeFailure::Gone),
        };
        match connection {
            Ok(connection) => {
                let certificate = connection.certificate().map(Arc::new);
                if let Some(certificate) = &certificate {
                    tracing::debug!(%remote, %certificate, "a client showed a certificate");
                }
                return Some(Accepted {
                    stream: Stream::Tls(Box::new(connection)),
                    certificate,
                    ..accepted
                });
            }
            Err(HandshakeFailure::Gone) => {}
            Err(HandshakeFailure::Timeout) => self.numbers.timeouts.add(1),
            Err(HandshakeFailure::Full(stream)) => {
                self.numbers.refused.add(Refused::Buffers);
                close_lingering(Stream::Tcp(stream), &REFUSAL).await;
            }
            Err(HandshakeFailure::NoTls(stream)) => {
                self.numbers.tls_errors.add(1);
                tracing::debug!(%remote, "a client does not speak TLS");
                close_lingering(Stream::Tcp(stream), &self.no_tls).await;
            }
            Err(HandshakeFailure::Broken(error, stream)) => {
                self.numbers.tls_errors.add(1);
                tracing::debug!(%remote, %error, "a TLS handshake failed");
                // An alert says why. It would be lost with a reset.
                close_lingering(Stream::Tcp(stream), &[]).await;
            }
        }
        None
    }

    async fn connect(
        &self,
        stream: TcpStream,
        buffers: &Arc<CallerBudget>,
    ) -> Result<TlsConnection, HandshakeFailure> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Err(HandshakeFailure::Gone),
            Ok(_) if first != [HANDSHAKE] => return Err(HandshakeFailure::NoTls(stream)),
            Ok(_) => {}
        }
        let mut share = buffers.share();
        if !share.resize(CONNECTION) {
            return Err(HandshakeFailure::Full(stream));
        }
        let acceptor = TlsAcceptor::from(self.acceptor.config());
        let handshake = acceptor.accept_with(BoundedOverhead::new(stream), |session| {
            session.set_buffer_limit(Some(UNSENT));
        });
        match handshake.into_fallible().await {
            Ok(stream) => Ok(TlsConnection::new(stream, share)),
            Err((error, stream)) => Err(HandshakeFailure::Broken(error, stream.stream)),
        }
    }

    /// Waits until a server that stops no longer waits for a first call.
    async fn has_to_stop(&self) {
        let begun = Instant::now();
        let mut phase = self.phase.clone();
        // Without a sender there is no server any more.
        let _ = phase.wait_for(|phase| *phase == Phase::Stopping).await;
        tokio::time::sleep(last_wait(begun.elapsed(), false)).await;
    }
}
