//! Overhead: what a client of TLS sends in its handshake.
//!
//! rustls keeps up to 64 KiB of a message of a handshake that has not come whole. That is more than a
//! connection draws, so a handshake may not be that long.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The longest handshake: the certificates of a client take some kilobytes.
const MOST: usize = 32 * 1_024;

/// The connection below TLS. Reading fails once its handshake is too long.
#[derive(Debug)]
pub(super) struct BoundedOverhead {
    pub(super) stream: TcpStream,
    /// Bytes of the handshake; `None` when it is done.
    bytes: Option<usize>,
}

impl BoundedOverhead {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            bytes: Some(0),
        }
    }

    /// Notes that the handshake is done.
    pub(super) const fn handshake_is_done(&mut self) {
        self.bytes = None;
    }
}

impl AsyncRead for BoundedOverhead {
    #[inline]
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

impl AsyncWrite for BoundedOverhead {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    #[inline]
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

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
