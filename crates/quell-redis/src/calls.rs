//! Calls: how a caller that waits here hears that somebody before it left, on whatever node.
//!
//! Who ends a hold that others wait behind writes the id of the first of them into a stream, by the
//! same script. While anybody waits in this process one of them reads the stream for all, every few
//! milliseconds, whatever their number. A message that is lost costs time and nothing else: whoever
//! waits goes at the turn that it was given, if not before.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use quell_core::hold::{Ending, HoldId};
use quell_core::time::Now;
use redis::{Cmd, Value};
use tokio::sync::Notify;

use crate::answer::Reply;
use crate::hold::{hold_id, ids};
use crate::link::Link;
use crate::script::Scripts;
use crate::store::{RedisStore, StoreClock};

/// How often the stream is read while anybody waits.
const EVERY: Duration = Duration::from_millis(20);

/// Messages of one read.
const AT_ONCE: usize = 1_000;

/// Pauses before each attempt to end the hold of a caller that is gone. After the last it ends by
/// itself, when its time is over.
const ATTEMPTS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// How long one of these may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Those of this process that wait.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    inner: Mutex<Inner>,
    /// Whoever has it reads the stream.
    reader: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<HoldId, Arc<Notify>>,
    /// The last message that was read.
    last: Option<String>,
}

impl Calls {
    /// Takes `id` among those who wait, from when the store's clock read so many microseconds.
    pub(crate) fn enter(&self, id: &HoldId, clock: u64, is_own: bool) {
        let mut inner = self.inner.lock();
        inner.waiting.entry(id.clone()).or_default();
        let from = match is_own {
            true => (clock / 1_000).saturating_sub(1),
            false => 0,
        };
        inner.last.get_or_insert_with(|| format!("{from}-0"));
    }

    pub(crate) fn leave(&self, id: &HoldId) {
        let mut inner = self.inner.lock();
        inner.waiting.remove(id);
        if inner.waiting.is_empty() {
            inner.last = None;
        }
    }

    fn call(&self, ids: &[HoldId]) {
        let inner = self.inner.lock();
        for notify in ids.iter().filter_map(|id| inner.waiting.get(id)) {
            notify.notify_one();
        }
    }

    fn notify_of(&self, id: &HoldId) -> Option<Arc<Notify>> {
        self.inner.lock().waiting.get(id).cloned()
    }

    fn last(&self) -> Option<String> {
        self.inner.lock().last.clone()
    }

    /// Calls those whom the stream names.
    fn heard(&self, reply: &Value) {
        let Value::Array(streams) = reply else {
            return;
        };
        let Some(Value::Array(stream)) = streams.first() else {
            return;
        };
        let Some(Value::Array(messages)) = stream.get(1) else {
            return;
        };
        for message in messages {
            let Value::Array(message) = message else {
                continue;
            };
            if let Some(Value::BulkString(at)) = message.first()
                && let Some(last) = &mut self.inner.lock().last
            {
                *last = String::from_utf8_lossy(at).into_owned();
            }
            if let Some(Value::Array(fields)) = message.get(1)
                && let Some(Value::BulkString(id)) = fields.get(1)
                && let Some(id) = hold_id(id)
            {
                self.call(&[id]);
            }
        }
    }
}

impl RedisStore {
    /// Completes when `id` is called.
    pub(crate) async fn wait_for_call(&self, id: &HoldId) {
        let Some(notify) = self.calls.notify_of(id) else {
            return std::future::pending().await;
        };
        let mut called = pin!(notify.notified());
        let reader = match select(called.as_mut(), pin!(self.calls.reader.lock())).await {
            Either::Left(_) => return,
            Either::Right((reader, _)) => reader,
        };
        loop {
            self.read_calls().await;
            let pause = pin!(tokio::time::sleep(EVERY));
            if let Either::Left(_) = select(called.as_mut(), pause).await {
                break;
            }
        }
        drop(reader);
    }

    async fn read_calls(&self) {
        let Some(last) = self.calls.last() else {
            return;
        };
        let name = self.names.calls();
        let mut read = Cmd::new();
        read.arg("XREAD").arg("COUNT").arg(AT_ONCE);
        read.arg("STREAMS").arg(name.as_slice()).arg(last);
        if let Ok(reply) = self.in_time(&name, self.link.call(&name, &read)).await {
            self.calls.heard(&reply);
        }
    }

    /// Whether instants are the store's own.
    pub(crate) fn keeps_time(&self) -> bool {
        self.clock() == StoreClock::Own
    }

    /// Ends the hold of a caller that is gone, in a task of its own.
    pub(crate) fn end_later(&self, id: &HoldId, ending: Ending, now: Now) {
        self.calls.leave(id);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::debug!(?id, "no runtime: the hold ends when its time is over");
            return;
        };
        let (keys, arguments) = self.ending(id, ending, now);
        let (link, scripts) = (Arc::clone(&self.link), Arc::clone(&self.scripts));
        let (calls, own) = (Arc::clone(&self.calls), Arc::clone(&self.own));
        let id = id.clone();
        runtime.spawn(async move {
            if let Some(expired) = end(&link, &scripts, &calls, &keys, &arguments).await {
                own.over(&id);
                own.expired(expired);
            }
        });
    }
}

/// Ends a hold, however often that has to be said: said again it changes nothing. Returns how many
/// holds were over by themselves, or nothing if the store was never heard.
async fn end(
    link: &Link,
    scripts: &Scripts,
    calls: &Calls,
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
) -> Option<u64> {
    for pause in ATTEMPTS {
        tokio::time::sleep(pause).await;
        let ended = scripts.hold.run(link, keys, arguments);
        match tokio::time::timeout(PATIENCE, ended).await {
            Ok(Ok(reply)) => {
                let mut reply = Reply::of(&reply)?;
                for _ in 0..4 {
                    reply.number()?;
                }
                let expired = reply.natural()?;
                calls.call(&ids(&mut reply));
                return Some(expired);
            }
            Ok(Err(failure)) => tracing::debug!(%failure, "a hold of a caller that is gone stands"),
            Err(_) => tracing::debug!("a hold of a caller that is gone stands: no answer"),
        }
    }
    None
}
