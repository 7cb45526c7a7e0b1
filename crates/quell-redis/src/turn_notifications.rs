//! Wakes a waiting caller when someone ahead of it leaves, on whatever node.
//!
//! The script that ends a hold writes the id of the first waiter behind it to a stream. While anybody waits
//! in this process, one of the waiters reads the stream for all of them every few milliseconds. On a
//! cluster each slot has a stream; only those with waiters are read, a bounded number at a time. A lost
//! message costs time only: a waiter goes on at its turn at the latest.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::ParseIntError;
use std::ops::Bound;
use std::str::FromStr;
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
    last: StreamId,
}

/// Id of a message: milliseconds of the server's clock, and a number within them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(u64, u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

impl FromStr for StreamId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (millis, number) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self(millis.parse()?, number.parse()?))
    }
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
        let from = StreamId(from, 0);
        let name: Arc<[u8]> = stream.into();
        let stream = inner.streams.entry(Arc::clone(&name)).or_insert(Stream {
            waiters: 0,
            last: from,
        });
        stream.waiters += 1;
        // A message for this waiter may have been read for others before it was added here: it is read again.
        stream.last = stream.last.min(from);
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
        self.inner.lock().notify(ids);
    }

    pub(crate) fn notify_of(&self, id: &HoldId) -> Option<Arc<Notify>> {
        let inner = self.inner.lock();
        inner.waiting.get(id).map(|one| Arc::clone(&one.notify))
    }

    /// The streams to read now, each with its last message; they take turns, starting after the stream
    /// that was read last.
    pub(crate) fn due(&self) -> Vec<(Arc<[u8]>, StreamId)> {
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
            .map(|(name, stream)| (Arc::clone(name), stream.last))
            .collect();
        inner.read = due.last().map(|(name, _)| Arc::clone(name));
        due
    }

    /// Wakes the waiters that are named in the messages of a stream after `from`.
    pub(crate) fn dispatch(&self, name: &[u8], from: StreamId, reply: Value) {
        let Some(streams) = reply.read::<Streams>() else {
            return;
        };
        let mut inner = self.inner.lock();
        let mut last = from;
        for (at, fields) in streams.into_iter().flat_map(|(_, messages)| messages) {
            last = at.parse().unwrap_or(last);
            if let Some(id) = fields.get(1).and_then(|id| hold_id(id)) {
                inner.notify(&[id]);
            }
        }
        // A waiter that was added meanwhile reads from an earlier message.
        if let Some(stream) = inner.streams.get_mut(name)
            && stream.last == from
        {
            stream.last = last;
        }
    }

    /// Notes that a stream could not be read: perhaps another server answers next, whose clock is behind.
    pub(crate) fn failed(&self, name: &[u8]) {
        if let Some(stream) = self.inner.lock().streams.get_mut(name) {
            stream.last = StreamId::default();
        }
    }
}

impl Inner {
    fn notify(&self, ids: &[HoldId]) {
        for waiter in ids.iter().filter_map(|id| self.waiting.get(id)) {
            waiter.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const STREAM: &[u8] = b"stream";

    fn id(name: &str) -> HoldId {
        HoldId::new("d", name).unwrap()
    }

    /// The reply to XREAD if the stream has these messages.
    fn messages(messages: &[(&str, &str)]) -> Value {
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        let each = messages.iter().map(|(at, name)| {
            let fields = vec![text(b"i"), text(id(name).as_bytes())];
            Value::Array(vec![text(at.as_bytes()), Value::Array(fields)])
        });
        let each = Value::Array(each.collect());
        Value::Array(vec![Value::Array(vec![text(STREAM), each])])
    }

    fn is_woken(notifications: &TurnNotifications, name: &str) -> bool {
        let notify = notifications.notify_of(&id(name)).unwrap();
        notify.notified().now_or_never().is_some()
    }

    fn last(notifications: &TurnNotifications) -> StreamId {
        notifications.due()[0].1
    }

    fn dispatch(notifications: &TurnNotifications, reply: &[(&str, &str)]) {
        notifications.dispatch(STREAM, last(notifications), messages(reply));
    }

    /// The answer that a call has to wait comes with its message, which another waiter of this process reads
    /// before the call is known here as a waiter.
    #[test]
    fn a_message_that_came_before_its_waiter_is_read_again() {
        let notifications = TurnNotifications::default();
        notifications.add(&id("first"), STREAM, 5_000_000, true);
        assert_eq!(last(&notifications), StreamId(4_999, 0));
        let messages = [("5001-0", "first"), ("5007-2", "second")];
        dispatch(&notifications, &messages);
        assert!(is_woken(&notifications, "first"));
        assert_eq!(last(&notifications), StreamId(5_007, 2));
        notifications.add(&id("second"), STREAM, 5_006_000, true);
        assert_eq!(last(&notifications), StreamId(5_005, 0));
        dispatch(&notifications, &messages[1..]);
        assert!(is_woken(&notifications, "second"));
        assert_eq!(last(&notifications), StreamId(5_007, 2));
    }

    #[test]
    fn a_reply_to_an_earlier_question_skips_no_message_of_a_new_waiter() {
        let notifications = TurnNotifications::default();
        notifications.add(&id("first"), STREAM, 5_000_000, true);
        dispatch(&notifications, &[("5007-2", "first")]);
        let asked = last(&notifications);
        notifications.add(&id("second"), STREAM, 5_006_000, true);
        notifications.dispatch(STREAM, asked, messages(&[("5009-0", "first")]));
        assert_eq!(last(&notifications), StreamId(5_005, 0));
    }

    #[test]
    fn a_stream_is_read_from_its_beginning_after_a_failure() {
        let notifications = TurnNotifications::default();
        notifications.add(&id("first"), STREAM, 5_000_000, true);
        notifications.failed(STREAM);
        assert_eq!(last(&notifications), StreamId::default());
        // The clock of the server that answers now is behind.
        dispatch(&notifications, &[("4100-0", "first")]);
        assert!(is_woken(&notifications, "first"));
        assert_eq!(last(&notifications), StreamId(4_100, 0));
    }
}
