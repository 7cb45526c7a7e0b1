//! Watched: a stream that ends when nothing moves on it for long.
//!
//! hyper watches heads only; a client that never reads its answer would keep its place. One timer
//! per connection is enough, set again only when it fires: a move is a flag, not a look at the
//! clock. So the end comes after one to two timeouts. Before the first request it comes sooner, and
//! moves do not count: who connects has something to ask.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::config::Bounds;

/// A stream with a watch.
#[derive(Debug)]
pub(super) struct Watched {
    inner: TcpStream,
    /// Bytes that were read and given back.
    given_back: Vec<u8>,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    has_moved: bool,
    /// Whether a request has come.
    has_asked: Arc<AtomicBool>,
}

impl Watched {
    pub(super) fn new(inner: TcpStream, bounds: &Bounds, has_asked: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            given_back: Vec::new(),
            timeout: bounds.idle_timeout,
            timer: Box::pin(tokio::time::sleep(bounds.header_timeout)),
            has_moved: false,
            has_asked,
        }
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
            if !self.has_moved || !self.has_asked.load(Ordering::Relaxed) {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            self.has_moved = false;
            self.timer.as_mut().reset(Instant::now() + self.timeout);
        }
        Poll::Pending
    }
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
        let moved = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.watch(context, moved)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, moved)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch(context, moved)
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
