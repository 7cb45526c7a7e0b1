//! Decision log: one JSON line per decision on an acquire, for people who ask why.
//!
//! A decision never waits for it: what it has to say goes into a bounded queue, and is counted as
//! dropped where that is full. A thread of its own makes text of it and writes; it flushes whenever
//! the queue is empty, so a line is late only while there are more. Nor does anything else wait for it
//! for long: a pipe that nobody reads keeps no reload and no end from coming.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use quell::observer::Event;
use quell::store::memory::HashKey;
use quell::{Decision, Operation};
use quell_core::time::Wall;

use crate::config;
use crate::error::ServeError;
use crate::metrics::Metrics;

mod line;
mod writer;

use writer::Writer;

/// Queries that may wait to be written: a second of a busy server, and a few megabytes.
const QUEUE: usize = 16_384;

/// Where decisions go to be written.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    queue: SyncSender<Message>,
    wanted: Arc<WriterOrders>,
    /// Says nothing and ends with the writer.
    end: Mutex<Receiver<Infallible>>,
    one_in: u64,
    seen: AtomicU64,
    metrics: Arc<Metrics>,
}

/// What the writer hears of.
#[derive(Debug)]
enum Message {
    Decided(Decided),
    /// Look what is [`WriterOrders`].
    Look,
}

/// What the writer is to do beside writing. It has no room in the queue that could be missing.
#[derive(Debug, Default)]
struct WriterOrders {
    /// Open the file again: it was moved away.
    reopen: AtomicBool,
    /// End once the queue is empty.
    stop: AtomicBool,
}

/// What was decided on one query.
#[derive(Debug)]
struct Decided {
    time: Wall,
    /// By the clock of the store that decided, if it has one.
    store_time: Option<Wall>,
    /// Whether the store could not tell.
    degraded: bool,
    domain: String,
    /// Empty: no rule decided.
    decisions: Vec<OfRule>,
}

/// What one rule decided.
#[derive(Debug)]
struct OfRule {
    rule: Arc<str>,
    key: Box<[u8]>,
    is_allow: bool,
    shadow: bool,
    banned: bool,
    remaining: u64,
    delay: Duration,
}

impl OfRule {
    fn new(rule: Arc<str>, key: &[u8], shadow: bool, decision: &Decision) -> Self {
        Self {
            rule,
            key: key.into(),
            is_allow: decision.outcome.is_allow(),
            shadow,
            banned: decision.banned,
            remaining: decision.remaining,
            delay: decision.delay,
        }
    }
}

impl DecisionLog {
    /// Opens the log; `secret` is that of the store.
    pub(crate) fn open(
        config: &config::DecisionLog,
        secret: HashKey,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServeError> {
        let (queue, messages) = sync_channel(QUEUE);
        let secret = config.hash_keys.then_some(secret);
        let writer = Writer::open(config.target.clone(), secret, Arc::clone(metrics))?;
        let wanted = Arc::new(WriterOrders::default());
        let heard = Arc::clone(&wanted);
        let (ends, end) = sync_channel(0);
        std::thread::Builder::new()
            .name("quell-decisions".to_owned())
            .spawn(move || {
                writer.run(&messages, &heard);
                drop(ends);
            })
            .map_err(|source| ServeError::DecisionLog {
                target: "its thread".to_owned(),
                source,
            })?;
        Ok(Self {
            queue,
            wanted,
            end: Mutex::new(end),
            one_in: config.one_in.get(),
            seen: AtomicU64::new(0),
            metrics: Arc::clone(metrics),
        })
    }

    /// Notes an answer, if its turn has come.
    pub(crate) fn note(&self, event: &Event<'_>) {
        let operation = match event {
            Event::Query { operation, .. } | Event::AdHoc { operation, .. } => *operation,
        };
        if operation != Operation::Acquire {
            return;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        if !seen.is_multiple_of(self.one_in) {
            return;
        }
        match self.queue.try_send(Message::Decided(decided(event))) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => self.metrics.log_dropped.add(1),
        }
    }

    /// Has the file opened again, before the next line.
    pub(crate) fn reopen(&self) {
        self.wanted.reopen.store(true, Ordering::Release);
        self.wake();
    }

    /// Has what is waiting written, and waits until it is, for at most as long as this.
    pub(crate) fn stop(&self, at_most: Duration) {
        self.wanted.stop.store(true, Ordering::Release);
        self.wake();
        if self.end.lock().recv_timeout(at_most) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the decision log is not taken: the last decisions are not in it");
        }
    }

    /// A writer that has something to write looks by itself.
    fn wake(&self) {
        let _ = self.queue.try_send(Message::Look);
    }
}

fn decided(event: &Event<'_>) -> Decided {
    match event {
        Event::Query {
            now,
            query,
            set,
            verdict,
            store_time,
            ..
        } => {
            let pairs = set.charges().iter().zip(&verdict.decisions);
            let of_rule = pairs.map(|(charge, decided)| {
                let rule = Arc::clone(&decided.rule);
                let key = set.key(charge);
                OfRule::new(rule, key.as_bytes(), decided.shadow, &decided.decision)
            });
            Decided {
                time: now.wall,
                store_time: *store_time,
                degraded: verdict.degraded,
                domain: query.domain().to_owned(),
                decisions: of_rule.collect(),
            }
        }
        Event::AdHoc {
            now,
            key,
            decision,
            store_time,
            ..
        } => Decided {
            time: now.wall,
            store_time: *store_time,
            degraded: false,
            domain: String::new(),
            decisions: vec![OfRule::new(Arc::from("cl.throttle"), key, false, decision)],
        },
    }
}
