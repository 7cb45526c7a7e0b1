//! Handshake: makes a TLS connection of one that was accepted.
//!
//! rustls keeps up to 64 KiB of a message of a handshake that has not come whole. A client may send half
//! of that before it has shown anything.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quell_protocol::http::{PROBLEM_JSON, Problem, ProblemKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// The longest handshake: the certificates of a client take some kilobytes.
const MOST: usize = 32 * 1_024;

/// What a record of a handshake begins with (RFC 8446, 5.1). No request of HTTP does.
const HANDSHAKE: u8 = 22;

/// How long a client that is being left may go on talking, and how much it may say.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 * 1_024;

/// Shakes hands. `None`: the client has left before it said anything.
///
/// # Errors
/// What is wrong with the handshake. A client that does not speak TLS was told so.
pub(super) async fn shake_hands(
    mut stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<Option<TlsStream<BoundedHandshake>>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    if first != [HANDSHAKE] {
        stream.write_all(no_tls().as_bytes()).await?;
        stream.shutdown().await?;
        // Closing a connection with unread bytes discards what was sent last.
        let mut unread = stream.take(LINGER_BYTES);
        let rest = timeout(LINGER, tokio::io::copy(&mut unread, &mut tokio::io::sink())).await;
        drop(rest);
        let reason = "the client does not speak TLS";
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    let bounded = BoundedHandshake {
        stream,
        bytes: Some(0),
    };
    let mut stream = TlsAcceptor::from(config).accept(bounded).await?;
    stream.get_mut().0.bytes = None;
    Ok(Some(stream))
}

/// The answer to a client that does not speak TLS.
fn no_tls() -> String {
    let detail = "this port speaks TLS: write https:// in place of http://";
    let problem = Problem::new(ProblemKind::InvalidRequest, detail);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The connection below TLS. Reading fails once its handshake is too long.
#[derive(Debug)]
pub(super) struct BoundedHandshake {
    stream: TcpStream,
    /// Bytes of the handshake; `None` when it is done.
    bytes: Option<usize>,
}

impl AsyncRead for BoundedHandshake {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_some_and(|bytes| bytes > MOST) {
            let reason = "a handshake of more than 32 KiB";
            return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, reason)));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes) = &mut self.bytes {
            *bytes += buffer.filled().len() - before;
        }
        outcome
    }
}

impl AsyncWrite for BoundedHandshake {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
