//! Unread body: what is left of a request's body when its answer is ready.
//!
//! A request may be answered before its body was read, for example without a valid token. Then h2 resets
//! the stream right after the answer, and curl reports the reset in place of the answer; over HTTP/1 the
//! connection closes, without a word, since the next request cannot be found in it. So the rest of the body is
//! read first, within the bounds of every body, and where it is longer than that the answer over HTTP/1 says
//! that it is the last one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;

use crate::config::Config;

/// A body that can be read on after the request was answered.
#[derive(Clone, Debug)]
pub(super) struct SharedBody(Arc<Mutex<Unread>>);

#[derive(Debug)]
struct Unread {
    body: Incoming,
    /// True if all of the body was read. One in pieces says so once only.
    is_read: bool,
}

impl SharedBody {
    pub(super) fn new(body: Incoming) -> Self {
        let is_read = body.is_end_stream();
        Self(Arc::new(Mutex::new(Unread { body, is_read })))
    }

    /// Reads and drops what is left, at most `max_body_bytes` and for at most `body_timeout`. Returns whether
    /// that was all.
    pub(super) async fn drain(mut self, config: &Config) -> bool {
        if self.is_end_stream() {
            return true;
        }
        let rest = async {
            let mut room = config.max_body_bytes;
            while let Some(Ok(frame)) = self.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match room.checked_sub(length) {
                    Some(left) => room = left,
                    None => return,
                }
            }
        };
        // In time or not: the answer is sent.
        drop(tokio::time::timeout(config.body_timeout, rest).await);
        self.is_end_stream()
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut unread = self.0.lock();
        if unread.is_read {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut unread.body).poll_frame(context);
        unread.is_read = matches!(polled, Poll::Ready(None)) || unread.body.is_end_stream();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_read
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}
