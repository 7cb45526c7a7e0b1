//! Wakes a waiting caller when someone ahead of it leaves, on whatever node.
//!
//! The script that ends a hold writes the id of the first waiter behind it to a stream. While anybody waits
//! in this process, one of the waiters reads the stream for all of them every few milliseconds. On a
//! cluster each slot has a stream; only those with waiters are read, a bounded number at a time. A lost
//! message costs time only: a waiter goes on at its turn at the latest.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::resp::Value;
use parking_lot::Mutex;
use quell_core::hold::HoldId;
use tokio::sync::Notify;

use crate::answer::hold_id;

/// Interval at which the stream is read while a caller waits.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Streams that are read at a time, which is at most 3,200 calls a second from a process. With more
/// streams, waiters hear of their turn later.
const MAX_STREAMS: usize = 64;

/// Messages of one read.
pub(crate) const MAX_MESSAGES: usize = 1_000;

/// The reply to XREAD: messages by stream, each with its id and its fields. Nil reads as no stream.
type Streams = Vec<(Value, Vec<(String, Vec<Vec<u8>>)>)>;

/// The waiting callers of this process.
#[derive(Debug, Default)]
pub(crate) struct TurnNotifications {
    inner: Mutex<Inner>,
    /// The waiter that holds this lock reads the streams.
    pub(crate) reader: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<HoldId, Waiter>,
    /// The streams with waiters, by name.
    streams: BTreeMap<Arc<[u8]>, Stream>,
    /// The name of the stream that was read last.
    read: Option<Arc<[u8]>>,
}

#[derive(Debug)]
struct Waiter {
    notify: Arc<Notify>,
    stream: Arc<[u8]>,
}

#[derive(Debug)]
struct Stream {
    waiters: usize,
    /// The last message that was read.
    last: String,
}

impl TurnNotifications {
    /// Adds a waiter that this stream notifies. Its messages count from when the server's clock read `clock`
    /// microseconds.
    pub(crate) fn add(&self, id: &HoldId, stream: &[u8], clock: u64, is_own: bool) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.waiting.contains_key(id) {
            return;
        }
        let from = match is_own {
            true => (clock / 1_000).saturating_sub(1),
            false => 0,
        };
        let name: Arc<[u8]> = stream.into();
        let stream = inner.streams.entry(Arc::clone(&name)).or_insert(Stream {
            waiters: 0,
            last: format!("{from}-0"),
        });
        stream.waiters += 1;
        let waiter = Waiter {
            notify: Arc::default(),
            stream: name,
        };
        inner.waiting.insert(id.clone(), waiter);
    }

    pub(crate) fn remove(&self, id: &HoldId) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(waiter) = inner.waiting.remove(id) else {
            return;
        };
        if let Some(stream) = inner.streams.get_mut(&waiter.stream) {
            stream.waiters = stream.waiters.saturating_sub(1);
            if stream.waiters == 0 {
                inner.streams.remove(&waiter.stream);
            }
        }
    }

    pub(crate) fn notify(&self, ids: &[HoldId]) {
        let inner = self.inner.lock();
        for waiter in ids.iter().filter_map(|id| inner.waiting.get(id)) {
            waiter.notify.notify_one();
        }
    }

    pub(crate) fn notify_of(&self, id: &HoldId) -> Option<Arc<Notify>> {
        let inner = self.inner.lock();
        inner.waiting.get(id).map(|one| Arc::clone(&one.notify))
    }

    /// The streams to read now, each with its last message; they take turns, starting after the stream
    /// that was read last.
    pub(crate) fn due(&self) -> Vec<(Arc<[u8]>, String)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let from = match &inner.read {
            Some(read) => Bound::Excluded(Arc::clone(read)),
            None => Bound::Unbounded,
        };
        let after = inner.streams.range((from, Bound::Unbounded));
        let in_turn = after.chain(inner.streams.iter());
        let most = MAX_STREAMS.min(inner.streams.len());
        let due = in_turn.take(most);
        let due: Vec<_> = due
            .map(|(name, stream)| (Arc::clone(name), stream.last.clone()))
            .collect();
        inner.read = due.last().map(|(name, _)| Arc::clone(name));
        due
    }

    /// Wakes the waiters that are named in new messages of a stream.
    pub(crate) fn dispatch(&self, name: &[u8], reply: Value) {
        let Some(streams) = reply.read::<Streams>() else {
            return;
        };
        for (at, fields) in streams.into_iter().flat_map(|(_, messages)| messages) {
            if let Some(stream) = self.inner.lock().streams.get_mut(name) {
                stream.last = at;
            }
            if let Some(id) = fields.get(1).and_then(|id| hold_id(id)) {
                self.notify(&[id]);
            }
        }
    }
}
