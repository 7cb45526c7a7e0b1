//! Outage: whether callers are answered by what is declared, since the store cannot tell.
//!
//! What counts is what callers were answered, not whether the store is there: one that answers and
//! refuses (out of memory, too few replicas, a right that is missing) is as little use as one that is
//! gone. It begins with the first such answer, with a line in the log, and is over, with another, once
//! no caller was answered so for a while and every server of the store decides again. A task looks
//! after that, so the end comes though nobody asks.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Inner;

/// It is over once no answer was degraded for this long.
const QUIET: Duration = Duration::from_secs(5);

/// How often it is looked whether it is over.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether answers are degraded.
#[derive(Debug, Default)]
pub(super) struct Outage {
    standing: Mutex<Option<Standing>>,
}

#[derive(Debug)]
struct Standing {
    /// The last answer that was degraded.
    last: Instant,
    /// Why it was.
    reason: String,
}

impl Outage {
    /// An answer was degraded; returns whether that begins an outage.
    fn failed(&self, reason: String, now: Instant) -> bool {
        let mut standing = self.standing.lock();
        let begins = standing.is_none();
        *standing = Some(Standing { last: now, reason });
        begins
    }

    /// Whether it would be over, if every server decides.
    fn is_quiet(&self, now: Instant) -> bool {
        let standing = self.standing.lock();
        let last = standing.as_ref().map(|standing| standing.last);
        last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET)
    }

    /// Every server of the store decides; returns whether that ends the outage.
    fn answered(&self, now: Instant) -> bool {
        let mut standing = self.standing.lock();
        let last = standing.as_ref().map(|standing| standing.last);
        let is_over = last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET);
        if is_over {
            *standing = None;
        }
        is_over
    }

    /// Why answers are degraded, if they are.
    pub(super) fn reason(&self) -> Option<String> {
        let standing = self.standing.lock();
        standing.as_ref().map(|standing| standing.reason.clone())
    }

    pub(super) fn is_on(&self) -> bool {
        self.standing.lock().is_some()
    }
}

/// Ends with the task that watches an outage, so that the next failure begins another if that died
/// with its runtime.
struct Watching(Weak<Inner>);

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            *inner.outage.standing.lock() = None;
        }
    }
}

impl Inner {
    /// A caller is answered by what is declared, or by an error, for this reason.
    pub(super) fn degraded(self: &Arc<Self>, reason: &dyn Display) {
        let reason = reason.to_string();
        if !self.outage.failed(reason.clone(), Instant::now()) {
            return;
        }
        tracing::error!(
            store = %self.store,
            failure = reason,
            "the store does not decide: what on_failure declares is answered until it does"
        );
        let watching = Watching(Arc::downgrade(self));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(watch(watching));
        }
    }
}

async fn watch(watching: Watching) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        // Nobody has the store any more.
        let Some(inner) = watching.0.upgrade() else {
            return;
        };
        if !inner.outage.is_quiet(Instant::now()) {
            continue;
        }
        if inner.store.ping().await.is_ok() && inner.outage.answered(Instant::now()) {
            tracing::info!(store = %inner.store, "the store is back: it decides every call again");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_once_and_is_over_when_no_answer_was_degraded_for_a_while() {
        let outage = Outage::default();
        let now = Instant::now();
        let failed = |reason: &str, now| outage.failed(reason.to_owned(), now);
        assert!(!outage.answered(now) && !outage.is_on());
        assert!(failed("OOM", now));
        assert!(!failed("READONLY", now));
        assert_eq!(outage.reason().as_deref(), Some("READONLY"));
        let early = now + QUIET / 2;
        assert!(!outage.answered(early), "others may go well meanwhile");
        assert!(!failed("OOM", early));
        assert!(!outage.is_quiet(now + QUIET) && !outage.answered(now + QUIET));
        assert!(outage.is_quiet(early + QUIET) && outage.answered(early + QUIET));
        assert!(!outage.answered(early + QUIET) && outage.reason().is_none());
        assert!(failed("OOM", early + QUIET));
    }
}
