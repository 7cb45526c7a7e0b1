//! Unread: what is left of a request's body over HTTP/2 when its answer is ready.
//!
//! A request may be answered before its body was read, for example without a valid token. Then h2 resets
//! the stream right after the answer, and curl reports the reset in place of the answer. So the rest of
//! the body is read first, within the bounds of every body.

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
pub(super) struct SharedBody(Arc<Mutex<Incoming>>);

impl SharedBody {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    /// Reads and drops what is left, at most `max_body_bytes` and for at most `body_timeout`.
    pub(super) async fn drain(mut self, config: &Config) {
        if self.is_end_stream() {
            return;
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
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}
