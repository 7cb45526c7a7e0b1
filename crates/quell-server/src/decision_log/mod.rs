//! Decision log: one JSON line per decision on an acquire, for people who ask why.
//!
//! A decision never waits for it: what it has to say goes into a bounded queue, and is counted as
//! dropped where that is full. A thread of its own makes text of it and writes; it flushes whenever
//! the queue is empty, so a line is late only while there are more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
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
    writer: Mutex<Option<JoinHandle<()>>>,
    one_in: u64,
    seen: AtomicU64,
    metrics: Arc<Metrics>,
}

/// What the writer is told.
#[derive(Debug)]
enum Message {
    Decided(Decided),
    /// Open the file again: it was moved away.
    Reopen,
    Stop,
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
        let spawned = std::thread::Builder::new()
            .name("quell-decisions".to_owned())
            .spawn(move || writer.run(&messages))
            .map_err(|source| ServeError::DecisionLog {
                target: "its thread".to_owned(),
                source,
            })?;
        Ok(Self {
            queue,
            writer: Mutex::new(Some(spawned)),
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

    /// Has the file opened again. Waits while the queue is full.
    pub(crate) fn reopen(&self) {
        let _ = self.queue.send(Message::Reopen);
    }

    /// Writes what is waiting, and ends. Waits for it.
    pub(crate) fn stop(&self) {
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            let _ = self.queue.send(Message::Stop);
            let _ = writer.join();
        }
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
