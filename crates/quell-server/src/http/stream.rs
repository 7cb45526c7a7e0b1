//! Timed stream: a stream that ends when nothing moves on it for a while.
//!
//! hyper limits the time for heads only, so a client that never reads its answer would keep its place.
//! One timer per connection is enough. It is set again only when it fires, since a move sets a flag and
//! does not read the clock; so the end comes after one to two timeouts. Before the first request it comes
//! sooner, and moves do not count: clients connect in order to ask.
//!
//! The stream also draws for hyper's buffers, which hyper does not report: the part of a head that was
//! received, the buffer that it reads into, and what the client does not read. hyper keeps its read buffer
//! for the next request, so what was drawn for a long one stays drawn until the connection ends. Nothing
//! is read from a client that does not read its answers.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use quell_host::head::MAX_HEAD;

use super::reply;
use super::requests::Requests;
use crate::budget::{BudgetShare, CallerBudget};
use crate::config::Config;
use crate::hang_up::{HangUpWatch, has_hung_up};
use crate::listen::{MeteredStream, Stream};

/// hyper's first buffer for reading, and for writing: small enough for ten thousand connections.
const FIRST: usize = 8 * 1_024;

/// Bytes of a body that are read at once when the budget is used up.
const LITTLE: usize = 4 * 1_024;

/// Bytes that a client may leave unread before the server stops reading from it.
const MAX_UNSENT: usize = 64 * 1_024;

/// The most that is drawn for unsent bytes: answers to requests that were read ahead. Larger answers draw
/// for themselves.
const MAX_DRAWN: usize = 1_024 * 1_024;

/// A stream with a timer and a budget.
#[derive(Debug)]
pub(super) struct TimedStream {
    inner: MeteredStream,
    /// Bytes that were read and given back.
    given_back: Vec<u8>,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    has_moved: bool,
    requests: Arc<Requests>,
    input: ReadRoom,
    /// Bytes that could not be sent.
    unsent: usize,
    output: BudgetShare,
    /// The task that would read if that were less.
    reader: Option<Waker>,
    /// True if the budget had no room for it.
    is_full: bool,
    hang_up: HangUpWatch,
}

/// hyper's read buffer: the part of a head that was received, and room for more.
#[derive(Debug)]
struct ReadRoom {
    /// Bytes of the last head.
    head: usize,
    /// Requests before it.
    before: u32,
    share: BudgetShare,
}

impl ReadRoom {
    /// Draws for `room` beside what was received. Returns whether the budget has as much.
    fn draw(&mut self, room: usize, requests: &Requests) -> bool {
        let before = requests.begun();
        if self.before != before && !requests.is_body() {
            (self.head, self.before) = (0, before);
        }
        let kept = self.head.saturating_add(room);
        kept <= FIRST || kept <= self.share.held() || self.share.resize(kept)
    }

    /// Notes that `count` bytes of a head were received.
    fn add(&mut self, count: usize) {
        self.head = self.head.saturating_add(count).min(MAX_HEAD);
    }
}

impl TimedStream {
    pub(super) fn new(
        inner: Stream,
        config: &Config,
        requests: Arc<Requests>,
        buffers: &Arc<CallerBudget>,
    ) -> Self {
        Self {
            inner: MeteredStream::new(inner),
            given_back: Vec::new(),
            timeout: config.idle_timeout,
            timer: Box::pin(tokio::time::sleep(config.header_timeout)),
            has_moved: false,
            requests,
            input: ReadRoom {
                head: 0,
                before: 0,
                share: buffers.share(),
            },
            unsent: 0,
            output: buffers.share_of_answers(),
            reader: None,
            is_full: false,
            hang_up: HangUpWatch::default(),
        }
    }

    /// Draws `bytes` for the requests of this connection. Returns whether the budget has as much.
    pub(super) fn draw(&mut self, bytes: usize) -> bool {
        self.input.share.resize(bytes)
    }

    /// Returns true if the client has hung up by now.
    pub(super) fn has_hung_up(&self) -> bool {
        has_hung_up(self.inner.as_fd())
    }

    /// The stream, for a last answer.
    pub(super) fn into_inner(self) -> Stream {
        self.inner.into_inner()
    }

    /// Notes how much of `all` bytes was sent. Fails if the budget has no room for the rest.
    fn wrote(
        &mut self,
        all: usize,
        sent: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let count = match &sent {
            Poll::Ready(Ok(count)) => *count,
            _ => 0,
        };
        self.unsent = all.saturating_sub(count);
        if self.unsent <= MAX_UNSENT
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        let kept = Some(self.unsent.min(MAX_DRAWN).next_power_of_two());
        let kept = kept.filter(|kept| *kept > FIRST).unwrap_or_default();
        if self.is_full || !self.output.resize(kept) {
            return Poll::Ready(Err(ErrorKind::OutOfMemory.into()));
        }
        self.watch(context, sent)
    }

    /// Reads from the client.
    fn receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.given_back.is_empty() {
            let count = self.given_back.len().min(buffer.remaining());
            let rest = self.given_back.split_off(count);
            buffer.put_slice(&std::mem::replace(&mut self.given_back, rest));
            return Poll::Ready(Ok(()));
        }
        if self.unsent > MAX_UNSENT {
            self.reader = Some(context.waker().clone());
            return self.watch(context, Poll::Pending);
        }
        let room = buffer.remaining();
        let is_drawn = self.input.draw(room, &self.requests);
        let moved = match is_drawn {
            true => Pin::new(&mut self.inner).poll_read(context, buffer),
            false => read_little(&mut self.inner, context, buffer),
        };
        let came = room - buffer.remaining();
        if came > 0 && !self.requests.is_body() {
            // hyper keeps a head until it is complete.
            if !is_drawn {
                return Poll::Ready(Err(self.refuse()));
            }
            self.input.add(came);
        }
        self.watch(context, moved)
    }

    /// Ends a connection for which the budget has no room. Sends the reason if nothing else waits to be
    /// sent.
    fn refuse(&mut self) -> io::Error {
        self.is_full = true;
        if self.unsent == 0 {
            // Not repeated if the client does not take all of it at once.
            let mut context = Context::from_waker(Waker::noop());
            let last = reply::overloaded(reply::FULL);
            let _ = Pin::new(&mut self.inner).poll_write(&mut context, &last);
        }
        ErrorKind::OutOfMemory.into()
    }

    /// Puts the connection's first bytes back, which are read again before new ones, and counts its frames if it
    /// may speak HTTP/2.
    pub(super) fn give_back(&mut self, begun: Vec<u8>, may_be_http2: bool) {
        if may_be_http2 {
            self.inner.count_frames(&begun);
        }
        self.given_back = begun;
    }

    /// Notes a move. If there was none, checks the timer.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.has_moved = true;
            return moved;
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if !self.has_moved || self.requests.begun() == 0 {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            self.has_moved = false;
            self.timer.as_mut().reset(Instant::now() + self.timeout);
        }
        Poll::Pending
    }

    /// Checks the timer if this has to wait. Otherwise nothing moved: hyper also flushes when there is
    /// nothing to send.
    fn watch_end(
        &mut self,
        context: &mut Context<'_>,
        ended: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        match ended {
            Poll::Pending => self.watch(context, Poll::Pending),
            ended => ended,
        }
    }
}

/// Reads less than hyper's buffer has room for, so that it does not grow.
fn read_little(
    stream: &mut MeteredStream,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let mut little = [0; LITTLE];
    let size = LITTLE.min(buffer.remaining());
    let mut part = ReadBuf::new(little.get_mut(..size).unwrap_or_default());
    let moved = Pin::new(stream).poll_read(context, &mut part);
    buffer.put_slice(part.filled());
    moved
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.receive(context, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = match self.is_full {
            true => Poll::Pending,
            false => Pin::new(&mut self.inner).poll_write(context, bytes),
        };
        self.wrote(bytes.len(), sent, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        let sent = match self.is_full {
            true => Poll::Pending,
            false => Pin::new(&mut self.inner).poll_write_vectored(context, slices),
        };
        self.wrote(all, sent, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = &mut *self;
        let (socket, hang_up) = (own.inner.as_fd(), &own.requests.hang_up);
        // hyper flushes each time that it has looked for an answer.
        own.hang_up.look(socket, hang_up, context);
        let flushed = Pin::new(&mut own.inner).poll_flush(context);
        own.watch_end(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        let shut = ready!(self.watch_end(context, shut));
        if self.requests.leaves_unread() {
            ready!(self.inner.poll_unread(context));
        }
        Poll::Ready(shut)
    }
}
