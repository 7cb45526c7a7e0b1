//! Beat: the sign of life of the task that leads.
//!
//! The key is kept on another thread than the one that leads, so a leader whose task hangs for good would
//! keep it for good, and no other coordinator could lead. So the task beats; when it has not for a while,
//! its key is given back, and it does not campaign before it beats again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell::clock::Clock;
use quell_core::time::Monotonic;
use tokio::time::sleep;

/// Instant at which the task was last heard; 0 before it first was, and then nothing is expected of it.
#[derive(Debug)]
pub(super) struct Beat {
    last: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl Beat {
    pub(super) const fn new(clock: Arc<dyn Clock>) -> Self {
        let last = AtomicU64::new(0);
        Self { last, clock }
    }

    pub(super) fn beat(&self) {
        let now = self.clock.monotonic().as_nanos();
        self.last.store(now, Ordering::Relaxed);
    }

    fn is_missing(&self, patience: Duration) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let since = || self.clock.monotonic().since(Monotonic::from_nanos(last));
        last > 0 && since() > patience
    }

    /// Waits until the task has not been heard for `patience`. It is looked for twice, since a process
    /// that was stopped as a whole begins with this thread or with that task.
    pub(super) async fn lost(&self, patience: Duration) {
        let mut before = false;
        loop {
            sleep(patience / 4).await;
            let is_missing = self.is_missing(patience);
            if before && is_missing {
                return;
            }
            before = is_missing;
        }
    }

    /// Waits until the task is heard.
    pub(super) async fn heard(&self, patience: Duration) {
        while self.is_missing(patience) {
            sleep(patience / 16).await;
        }
    }
}
