//! Overhead: what a client of TLS sends that is no data, in its handshake and after it.
//!
//! rustls keeps up to 64 KiB of a message of a handshake that has not come whole, whenever it comes. That is
//! more than a connection draws, so neither a handshake nor what comes between data may be that long.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The longest handshake: the certificates of a client take some kilobytes.
const MOST: usize = 32 * 1_024;

/// The most between data after it: the longest record (RFC 5246, 6.2.3), which is data only when it is whole,
/// and some dozens of new keys.
const MAX_LATER: usize = 20 * 1_024;

/// The connection below TLS. Reading fails once there is too much without data.
#[derive(Debug)]
pub struct BoundedOverhead {
    pub stream: TcpStream,
    /// Bytes of the handshake, or since the last data.
    bytes: usize,
    most: usize,
}

impl BoundedOverhead {
    pub const fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            bytes: 0,
            most: MOST,
        }
    }

    /// Notes that the handshake is done.
    pub const fn handshake_is_done(&mut self) {
        self.most = MAX_LATER;
        self.data_came();
    }

    /// Notes that what was read was data.
    pub const fn data_came(&mut self) {
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
        if self.bytes > self.most {
            let reason = "more than 32 KiB of a handshake, or 20 KiB without data after it";
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
