//! One background task that runs as long as there is work.
//!
//! A caller adds work, then calls [`Background::begins`] and starts the task if that returns true. When
//! the task finds no more work it calls [`Background::ends`]. One of the two sees work that is added in
//! between.

use crate::sync::{AtomicBool, Ordering};

/// Whether the task exists.
#[derive(Debug, Default)]
pub(super) struct Background {
    is_running: AtomicBool,
}

impl Background {
    /// Whether the caller is to start the task.
    pub(super) fn begins(&self) -> bool {
        !self.is_running.swap(true, Ordering::SeqCst)
    }

    /// Whether the task is to end. If not, it goes on.
    pub(super) fn ends(&self, has_work: impl Fn() -> bool) -> bool {
        if has_work() {
            return false;
        }
        self.is_running.store(false, Ordering::SeqCst);
        // Work may have been added in between, by a caller that found the task still running.
        !has_work() || !self.begins()
    }

    /// The task was dropped in the middle.
    pub(super) fn is_lost(&self) {
        self.is_running.store(false, Ordering::SeqCst);
    }
}
