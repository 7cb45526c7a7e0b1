//! Overhead: what a client of TLS sends that is no data: handshakes, new keys, empty records.
//!
//! rustls keeps up to 64 KiB of a message of a handshake that has not come whole, before the handshake is
//! done and after it. That is more than a connection draws, so a client may not send that much without any
//! data between.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The most of it: a record of 16 KiB is data, and the certificates of a client take some kilobytes.
const MOST: usize = 32 * 1_024;

/// The connection below TLS. Reading fails once there is too much overhead.
#[derive(Debug)]
pub(super) struct BoundedOverhead {
    pub(super) stream: TcpStream,
    /// Bytes since the last data.
    bytes: usize,
}

impl BoundedOverhead {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self { stream, bytes: 0 }
    }

    /// Notes that there was data.
    pub(super) const fn data_came(&mut self) {
        self.bytes = 0;
    }
}

impl AsyncRead for BoundedOverhead {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes > MOST {
            let reason = "more than 32 KiB of TLS without any data";
            return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, reason)));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.bytes += buffer.filled().len() - before;
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
