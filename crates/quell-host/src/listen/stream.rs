//! Stream: the bytes of a connection, whatever carries them.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncBufRead as _, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::overhead::BoundedOverhead;
use crate::access::ClientCertificate;
use crate::budget::BudgetShare;

/// A connection that the listeners accepted.
#[derive(Debug)]
pub enum Stream {
    /// In the clear.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
    /// In a box, since its state is large.
    Tls(Box<TlsConnection>),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(connection) => connection.stream.get_ref().0.stream.as_fd(),
        }
    }
}

impl Stream {
    /// Returns true if bytes that it took wait to be sent.
    pub fn has_unsent(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(connection) => connection.stream.get_ref().1.wants_write(),
        }
    }
}

/// A connection over TLS.
#[derive(Debug)]
pub struct TlsConnection {
    stream: TlsStream<BoundedOverhead>,
    /// Error that ended reading, after bytes before it.
    error: Option<io::Error>,
    /// Share drawn for its buffers.
    _share: BudgetShare,
}

impl TlsConnection {
    pub fn new(mut stream: TlsStream<BoundedOverhead>, share: BudgetShare) -> Self {
        stream.get_mut().0.handshake_is_done();
        Self {
            stream,
            error: None,
            _share: share,
        }
    }

    /// As that of [`TlsStream`], and says each time to what is below that data came.
    #[inline]
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        while buffer.remaining() > 0 {
            let has_read = buffer.filled().len() > before;
            let count = match Pin::new(&mut self.stream).poll_fill_buf(context) {
                Poll::Ready(Ok(data)) if !data.is_empty() => {
                    let count = data.len().min(buffer.remaining());
                    buffer.put_slice(data.get(..count).unwrap_or_default());
                    count
                }
                Poll::Ready(Err(error)) if has_read => {
                    self.error = Some(error);
                    break;
                }
                _ if has_read => break,
                ended => return ended.map_ok(drop),
            };
            Pin::new(&mut self.stream).consume(count);
            self.stream.get_mut().0.data_came();
        }
        Poll::Ready(Ok(()))
    }

    /// The certificate that the client showed.
    pub fn certificate(&self) -> Option<ClientCertificate> {
        let (_, session) = self.stream.get_ref();
        let certificate = session.peer_certificates()?.first()?;
        Some(ClientCertificate::read(certificate))
    }
}

/// Says that it is closed on purpose, however it ends: without `close_notify` a client cannot know
/// whether somebody cut the connection.
impl Drop for TlsConnection {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // A client that reads so slowly that there is no room for it misses it.
        let _ = Pin::new(&mut self.stream).poll_shutdown(&mut context);
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(connection) => connection.poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_write(context, bytes),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(connection) => {
                Pin::new(&mut connection.stream).poll_write_vectored(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(connection) => connection.stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_shutdown(context),
        }
    }
}
