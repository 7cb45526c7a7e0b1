//! Metered stream: a connection that ends when a client of HTTP/2 sends too many frames beside its requests.

use std::future::Future as _;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

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
    /// Is there if the client sent too many frames.
    flood: Option<Rest>,
    /// Is there if the connection ends before the client has sent all.
    unread: Option<Rest>,
}

/// What a client still sends after the last bytes that it gets. Some of it is read and dropped, since closing a
/// connection with unread bytes discards what was sent last.
#[derive(Debug)]
struct Rest {
    /// Bytes that are still read.
    left: usize,
    timer: Pin<Box<Sleep>>,
}

impl Rest {
    /// As much as a client may send from now on.
    fn new() -> Self {
        Self {
            left: LINGER_BYTES,
            timer: Box::pin(sleep(LINGER)),
        }
    }

    /// Reads and drops what comes, for a moment.
    fn drop_from(&mut self, stream: &mut Stream, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; SCRATCH];
        while self.left > 0 && self.timer.as_mut().poll(context).is_pending() {
            let mut part = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(context, &mut part) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !part.filled().is_empty() => {
                    self.left = self.left.saturating_sub(part.filled().len());
                }
                Poll::Ready(_) => break,
            }
        }
        Poll::Ready(())
    }
}

impl MeteredStream {
    /// A connection whose frames are not counted yet.
    pub const fn new(stream: Stream) -> Self {
        Self {
            stream,
            frames: None,
            has_unsent: false,
            flood: None,
            unread: None,
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
        self.flood = Some(Rest::new());
    }

    /// Reads and drops what the client still sends after a flood.
    fn end_flood(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(rest) = &mut self.flood {
            ready!(rest.drop_from(&mut self.stream, context));
        }
        let reason = "too many frames beside requests";
        Poll::Ready(Err(io::Error::new(ErrorKind::QuotaExceeded, reason)))
    }

    /// Reads and drops what the client still sends, for a moment, once the stream was shut down.
    pub fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let rest = self.unread.get_or_insert_with(Rest::new);
        rest.drop_from(&mut self.stream, context)
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
            return self.end_flood(context);
        }
        let before = buffer.filled().len();
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        let came = buffer.filled().get(before..).unwrap_or_default();
        if let Some(frames) = &mut self.frames
            && !frames.read(came, || Instant::now().into_std())
        {
            buffer.set_filled(before);
            self.calm();
            return self.end_flood(context);
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream as Client;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;

    use super::*;

    /// A stream whose client has sent `count` bytes that nobody has read.
    fn unread(count: usize) -> (MeteredStream, Client) {
        let (server, mut client) = Client::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        client.write_all(&vec![0; count]).unwrap();
        client.set_nonblocking(true).unwrap();
        let stream = UnixStream::from_std(server).unwrap();
        (MeteredStream::new(Stream::Unix(stream)), client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_not_sent_all_gets_what_was_sent_last() {
        let (mut stream, mut client) = unread(3 * SCRATCH);
        stream.write_all(b"too much").await.unwrap();
        stream.shutdown().await.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        poll_fn(|context| stream.poll_unread(context)).await;
        drop(stream);
        let mut last = String::new();
        client.read_to_string(&mut last).unwrap();
        assert_eq!(last, "too much");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_end_is_waited_for_a_moment() {
        let (mut stream, _client) = unread(1);
        let begin = Instant::now();
        stream.shutdown().await.unwrap();
        poll_fn(|context| stream.poll_unread(context)).await;
        let waited = begin.elapsed();
        assert!(
            (LINGER..2 * LINGER).contains(&waited),
            "waited for {waited:?}"
        );
    }
}
