//! Watched: a stream that ends when nothing moves on it for long.
//!
//! hyper watches heads only; a client that never reads its answer would keep its place. One timer
//! per connection is enough, set again only when it fires: a move is a flag, not a look at the
//! clock. So the end comes after one to two timeouts. Before the first request it comes sooner, and
//! moves do not count: who connects has something to ask.
//!
//! It also draws for what hyper keeps, which says nothing of its buffers: what came of a head, the room
//! that it reads into, and what the client does not take. Room that hyper got it keeps for the next
//! request, so what was drawn for a long one stays drawn until the connection ends. A client that
//! does not read its answers is not read either.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::reply;
use crate::budget::BudgetShare;
use crate::listen::last_wait;
use crate::shared::Shared;

/// What hyper has for reading, and for writing, from the beginning: little enough for ten thousand
/// connections.
const FIRST: usize = 8 * 1_024;

/// Bytes that a request's head may have, all fields together.
pub(super) const MAX_HEAD: usize = 64 * 1_024;

/// What is read at once of a body where there is no room for more.
const LITTLE: usize = 4 * 1_024;

/// Bytes that a client may leave unread before nothing more is read of it.
const MAX_UNSENT: usize = 64 * 1_024;

/// The most that is drawn for what is unsent: the answers to the requests that were read ahead.
/// Larger ones draw for themselves.
const MAX_DRAWN: usize = 1_024 * 1_024;

/// Requests of a connection so far.
#[derive(Debug)]
pub(super) struct Requests {
    opened: Instant,
    begun: AtomicU32,
    answered: AtomicU32,
}

impl Requests {
    /// Those of a connection that is opened now.
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            begun: AtomicU32::new(0),
            answered: AtomicU32::new(0),
        }
    }

    /// How long a server that stops waits for another one.
    pub(super) fn last_wait(&self) -> Duration {
        last_wait(self.opened.elapsed(), self.begun() > 0)
    }

    /// The head of one came whole.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer to one is made.
    pub(super) fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether what comes is a body, which is taken out of hyper's buffer where it is read.
    fn is_body(&self) -> bool {
        self.begun() != self.answered.load(Ordering::Relaxed)
    }
}

/// A stream with a watch.
#[derive(Debug)]
pub(super) struct Watched {
    inner: TcpStream,
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
    /// Who would read if that were less.
    reader: Option<Waker>,
    /// Whether its last words were said.
    is_over: bool,
}

/// What hyper has for reading: the head that came so far, and room for more.
#[derive(Debug)]
struct ReadRoom {
    /// Bytes of the last head.
    head: usize,
    /// Requests before it.
    before: u32,
    share: BudgetShare,
}

impl ReadRoom {
    /// Draws for `room` beside what came; returns whether all connections together have as much.
    fn draw(&mut self, room: usize, requests: &Requests) -> bool {
        let before = requests.begun();
        if self.before != before && !requests.is_body() {
            (self.head, self.before) = (0, before);
        }
        let kept = self.head.saturating_add(room);
        kept <= FIRST || kept <= self.share.held() || self.share.resize(kept)
    }

    /// Notes that so many bytes of a head came.
    fn add(&mut self, count: usize) {
        self.head = self.head.saturating_add(count).min(MAX_HEAD);
    }
}

impl Watched {
    pub(super) fn new(inner: TcpStream, shared: &Shared, requests: Arc<Requests>) -> Self {
        let config = &shared.config;
        Self {
            inner,
            given_back: Vec::new(),
            timeout: config.idle_timeout,
            timer: Box::pin(tokio::time::sleep(config.header_timeout)),
            has_moved: false,
            requests,
            input: ReadRoom {
                head: 0,
                before: 0,
                share: shared.buffers.share(),
            },
            unsent: 0,
            output: shared.buffers.share_of_answers(),
            reader: None,
            is_over: false,
        }
    }

    /// Draws for all that is kept of requests on this connection; returns whether there is as much.
    pub(super) fn draw(&mut self, bytes: usize) -> bool {
        self.input.share.resize(bytes)
    }

    /// The stream, for the last words.
    pub(super) fn into_inner(self) -> TcpStream {
        self.inner
    }

    /// Notes how much of `all` bytes was sent; fails if there is no room for the rest.
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
        if self.is_over || !self.output.resize(kept) {
            return Poll::Ready(Err(ErrorKind::OutOfMemory.into()));
        }
        self.watch(context, sent)
    }

    /// Ends a connection for which all together have no more room, and says so if that can be heard.
    fn refuse(&mut self) -> io::Error {
        self.is_over = true;
        if self.unsent == 0 {
            // Who does not take it in one piece is not waited for.
            let _ = self.inner.try_write(&reply::overloaded(reply::FULL));
        }
        ErrorKind::OutOfMemory.into()
    }

    /// Has these bytes read again before what comes.
    pub(super) fn give_back(&mut self, bytes: Vec<u8>) {
        self.given_back = bytes;
    }

    /// Notes a move; where there was none, looks whether it is time.
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
}

/// Reads less than hyper has room for, so that it makes no more of that.
fn read_little(
    stream: &mut TcpStream,
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

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
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
        let this = &mut *self;
        let room = buffer.remaining();
        let is_drawn = this.input.draw(room, &this.requests);
        let moved = match is_drawn {
            true => Pin::new(&mut this.inner).poll_read(context, buffer),
            false => read_little(&mut this.inner, context, buffer),
        };
        let came = room - buffer.remaining();
        if came > 0 && !this.requests.is_body() {
            // A head is kept until it is whole.
            if !is_drawn {
                return Poll::Ready(Err(this.refuse()));
            }
            this.input.add(came);
        }
        self.watch(context, moved)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = match self.is_over {
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
        let sent = match self.is_over {
            true => Poll::Pending,
            false => Pin::new(&mut self.inner).poll_write_vectored(context, slices),
        };
        let all = slices.iter().map(|slice| slice.len()).sum();
        self.wrote(all, sent, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
