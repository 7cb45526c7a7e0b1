//! Decision log: one JSON line per decision on an acquire, for people who ask why.
//!
//! A decision never waits for it: what it has to say goes into a queue, bounded in decisions and in
//! bytes, and is counted as dropped where that is full. A thread of its own makes text of it and
//! writes; it flushes whenever the queue is empty, so a line is late only while there are more. Nor
//! does anything else wait for it for long: a pipe that nobody reads keeps no reload and no end from
//! coming.

use std::convert::Infallible;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quell::observer::Event;
use quell::store::memory::HashKey;
use quell::{Decision, Operation};
use quell_core::time::Wall;

use crate::budget::{Budget, BudgetShare, CallerBudget};
use crate::config::Config;
use crate::error::ServeError;
use crate::metrics::Metrics;
use quell_host::refused_key::AD_HOC_RULE;

mod line;
mod writer;

use writer::Writer;

/// Queries that may wait to be written: a second of a busy server.
const QUEUE: usize = 16_384;

/// Bytes that they may take: a kilobyte each, which is two rules with keys of some 400 bytes.
const QUEUE_BYTES: usize = 16 * 1_024 * 1_024;

/// Between two warnings that decisions are dropped.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Log of decisions.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    queue: SyncSender<Message>,
    /// Bytes of the queue.
    bytes: Arc<CallerBudget>,
    /// Instant of the last warning that decisions are dropped.
    warned: Mutex<Option<Instant>>,
    wanted: Arc<WriterOrders>,
    /// Says nothing and ends with the writer.
    end: Mutex<Receiver<Infallible>>,
    one_in: u64,
    seen: AtomicU64,
    metrics: Arc<Metrics>,
}

/// Message to the writer.
#[derive(Debug)]
enum Message {
    /// A decision, and what it has of the queue's bytes.
    Decided(QueryRecord, BudgetShare),
    /// Look what is [`WriterOrders`].
    Look,
}

/// Orders to the writer beside writing. It has no room in the queue that could be missing.
#[derive(Debug, Default)]
struct WriterOrders {
    /// Open the file again: it was moved away.
    reopen: AtomicBool,
    /// End once the queue is empty.
    stop: AtomicBool,
}

/// Decision on one query.
#[derive(Debug)]
struct QueryRecord {
    time: Wall,
    /// By the clock of the store that decided, if it has one.
    store_time: Option<Wall>,
    /// True if the store could not tell.
    degraded: bool,
    domain: String,
    /// Empty: no rule decided.
    decisions: Vec<RuleRecord>,
}

/// Decision of one rule.
#[derive(Debug)]
struct RuleRecord {
    rule: Arc<str>,
    key: Box<[u8]>,
    shadow: bool,
    decision: Decision,
}

impl QueryRecord {
    /// Bytes that it takes.
    fn size(&self) -> usize {
        let keys = self.decisions.iter().map(|of_rule| of_rule.key.len());
        let decisions = self.decisions.capacity() * size_of::<RuleRecord>();
        size_of::<Message>() + self.domain.capacity() + decisions + keys.sum::<usize>()
    }
}

impl DecisionLog {
    /// Opens the log, if there is to be one; `secret` is that of the store.
    pub(crate) fn open(
        config: &Config,
        secret: HashKey,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>, ServeError> {
        let Some(target) = config.decision_log.clone() else {
            return Ok(None);
        };
        let (log, messages, ends) = Self::new(config.decision_log_one_in, metrics);
        let secret = config.decision_log_hash_keys.then_some(secret);
        let writer = Writer::open(target, secret, Arc::clone(metrics))?;
        let heard = Arc::clone(&log.wanted);
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
        Ok(Some(log))
    }

    /// A log, what is to be written to it, and what is to be dropped when that ends.
    fn new(
        one_in: NonZeroU64,
        metrics: &Arc<Metrics>,
    ) -> (Self, Receiver<Message>, SyncSender<Infallible>) {
        let (queue, messages) = sync_channel(QUEUE);
        let (ends, end) = sync_channel(0);
        let log = Self {
            queue,
            bytes: Budget::new(QUEUE_BYTES).of(None),
            warned: Mutex::default(),
            wanted: Arc::default(),
            end: Mutex::new(end),
            one_in: one_in.get(),
            seen: AtomicU64::new(0),
            metrics: Arc::clone(metrics),
        };
        (log, messages, ends)
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
        let (decided, mut share) = (decided(event), self.bytes.share_of_answers());
        if !share.resize(decided.size()) {
            return self.drop_one();
        }
        match self.queue.try_send(Message::Decided(decided, share)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => self.drop_one(),
        }
    }

    /// Counts a decision for which there is no room, and says so now and then.
    #[cold]
    fn drop_one(&self) {
        self.metrics.log_dropped.add(1);
        // Others who drop are not waited for.
        let Some(mut warned) = self.warned.try_lock() else {
            return;
        };
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            let dropped = self.metrics.log_dropped.get();
            tracing::warn!(
                dropped,
                "the decision log cannot keep up: some decisions are missing from it"
            );
        }
    }

    /// Lets the file be opened again, before the next line.
    pub(crate) fn reopen(&self) {
        self.wanted.reopen.store(true, Ordering::Release);
        self.wake();
    }

    /// Lets the waiting lines be written, and waits until they are, for at most as long as this.
    pub(crate) fn stop(&self, at_most: Duration) {
        self.wanted.stop.store(true, Ordering::Release);
        self.wake();
        if self.end.lock().recv_timeout(at_most) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the decision log cannot be written in time: the last decisions are missing from it"
            );
        }
    }

    /// A writer that has something to write looks by itself.
    fn wake(&self) {
        let _ = self.queue.try_send(Message::Look);
    }
}

fn decided(event: &Event<'_>) -> QueryRecord {
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
            let of_rule = pairs.map(|(charge, decided)| RuleRecord {
                rule: Arc::clone(&decided.rule),
                key: set.key(charge).as_bytes().into(),
                shadow: decided.shadow,
                decision: decided.decision,
            });
            QueryRecord {
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
        } => QueryRecord {
            time: now.wall,
            store_time: *store_time,
            degraded: false,
            domain: String::new(),
            decisions: vec![RuleRecord {
                rule: Arc::from(AD_HOC_RULE),
                key: (*key).into(),
                shadow: false,
                decision: **decision,
            }],
        },
    }
}

#[cfg(test)]
mod tests {
    use quell::observer::Event;
    use quell_core::decision::Outcome;
    use quell_core::time::Now;

    use super::*;

    fn ask(log: &DecisionLog, key: &[u8]) {
        let decision = Decision {
            outcome: Outcome::Allow,
            limit: 1,
            remaining: 0,
            reset_after: Duration::ZERO,
            delay: Duration::ZERO,
            banned: false,
        };
        log.note(&Event::AdHoc {
            now: Now::from_nanos(0),
            operation: Operation::Acquire,
            key,
            decision: &decision,
            store_time: None,
        });
    }

    /// Nobody takes what is written, and strangers choose keys of 60 KB.
    #[test]
    fn long_keys_take_no_more_than_the_bytes_of_the_queue() {
        let metrics = Arc::<Metrics>::default();
        let (log, messages, _ends) = DecisionLog::new(NonZeroU64::MIN, &metrics);
        let key = vec![b'x'; 60_000];
        for _ in 0..1_000 {
            ask(&log, &key);
        }
        let kept = messages.try_iter().count();
        assert!((270..=QUEUE_BYTES / key.len()).contains(&kept), "{kept}");
        assert_eq!(metrics.log_dropped.get(), 1_000 - kept as u64);
        assert!(log.warned.lock().is_some(), "it is said");
        // What was taken leaves room for others.
        assert_eq!(log.bytes.used(), 0);
        ask(&log, &key);
        assert_eq!(messages.try_iter().count(), 1);
    }
}
