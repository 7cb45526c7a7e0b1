//! Beat: the sign of life of the task that leads.
//!
//! The key is kept on another thread than the one that leads, so a leader whose task hangs for good would
//! keep it for good, and no other coordinator could lead. So the task beats; when it has not for a while,
//! its key is given back, and it does not campaign before it beats again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_core::time::Monotonic;
use tokio::time::sleep;

use crate::clock::boottime;

/// When the task was last heard; 0 before it first was, and then nothing is expected of it.
#[derive(Debug, Default)]
pub(super) struct Beat(AtomicU64);

impl Beat {
    pub(super) fn beat(&self) {
        self.0.store(boottime().as_nanos(), Ordering::Relaxed);
    }

    fn is_missing(&self, patience: Duration) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last > 0 && boottime().since(Monotonic::from_nanos(last)) > patience
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
