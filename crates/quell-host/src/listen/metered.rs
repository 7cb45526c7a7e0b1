//! Metered stream: a connection that ends when a client of HTTP/2 sends too many frames beside its requests.

use std::future::Future as _;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use quell_protocol::callers::FrameMeter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::stream::Stream;
use super::{LINGER, LINGER_BYTES};

/// A `GOAWAY` with `ENHANCE_YOUR_CALM` (RFC 9113, 6.8).
const CALM: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

/// Bytes that are read and dropped at once.
const SCRATCH: usize = 4 * 1_024;

/// A connection of which the frames are counted, where it may speak HTTP/2.
#[derive(Debug)]
pub struct MeteredStream {
    stream: Stream,
    frames: Option<FrameMeter>,
    /// True if the last bytes were not sent as a whole, so that no others may be sent between.
    has_unsent: bool,
    flood: Option<Flood>,
}

/// The end of a connection whose client sent too many frames: its last bytes were sent. Some of what the client
/// still sends is read and dropped, since closing a connection with unread bytes discards what was sent last.
#[derive(Debug)]
struct Flood {
    /// Bytes that are still read.
    left: usize,
    timer: Pin<Box<Sleep>>,
}

impl MeteredStream {
    /// A connection whose frames are not counted yet.
    pub const fn new(stream: Stream) -> Self {
        Self {
            stream,
            frames: None,
            has_unsent: false,
            flood: None,
        }
    }

    /// Counts the frames of HTTP/2 in all bytes of the connection, of which these were read already.
    pub fn count_frames(&mut self, begun: &[u8]) {
        let mut frames = FrameMeter::new(Instant::now().into_std());
        let is_sound = frames.read(begun, || Instant::now().into_std());
        self.frames = Some(frames);
        if !is_sound {
            self.calm();
        }
    }

    /// The stream, for a last answer.
    pub fn into_inner(self) -> Stream {
        self.stream
    }

    /// Ends the connection. Tells the client if nothing else waits to be sent.
    fn calm(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        if !self.has_unsent {
            // Not repeated if the client does not take all of it at once.
            let _ = Pin::new(&mut self.stream).poll_write(&mut context, &CALM);
        }
        // One that reads knows at once that no more comes.
        let _ = Pin::new(&mut self.stream).poll_shutdown(&mut context);
        self.flood = Some(Flood {
            left: LINGER_BYTES,
            timer: Box::pin(sleep(LINGER)),
        });
    }

    /// Reads and drops what the client still sends, for a moment.
    fn drop_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [0; SCRATCH];
        while let Some(flood) = &mut self.flood
            && flood.left > 0
            && flood.timer.as_mut().poll(context).is_pending()
        {
            let mut part = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(context, &mut part) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !part.filled().is_empty() => {
                    flood.left = flood.left.saturating_sub(part.filled().len());
                }
                Poll::Ready(_) => break,
            }
        }
        let reason = "too many frames beside requests";
        Poll::Ready(Err(io::Error::new(ErrorKind::QuotaExceeded, reason)))
    }

    /// Notes how much of `all` bytes was sent.
    fn wrote(&mut self, all: usize, sent: &Poll<io::Result<usize>>) {
        let count = match sent {
            Poll::Ready(Ok(count)) => *count,
            _ => 0,
        };
        self.has_unsent = count < all;
        if let Some(frames) = &mut self.frames {
            frames.wrote(count);
        }
    }
}

impl AsFd for MeteredStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for MeteredStream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.flood.is_some() {
            return self.drop_rest(context);
        }
        let before = buffer.filled().len();
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        let came = buffer.filled().get(before..).unwrap_or_default();
        if let Some(frames) = &mut self.frames
            && !frames.read(came, || Instant::now().into_std())
        {
            buffer.set_filled(before);
            self.calm();
            return self.drop_rest(context);
        }
        moved
    }
}

impl AsyncWrite for MeteredStream {
    /// Bytes that are written after a flood are dropped.
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.flood.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(bytes.len(), &sent);
        sent
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        if self.flood.is_some() {
            return Poll::Ready(Ok(all));
        }
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(all, &sent);
        sent
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
