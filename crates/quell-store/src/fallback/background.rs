//! One background task that runs as long as there is work.
//!
//! A caller adds work, then calls [`Background::try_begin`] and starts the task if that returns true. When
//! the task finds no more work it calls [`Background::try_end`]. One of the two sees work that is added in
//! between.

use crate::sync::{AtomicBool, Ordering};

/// State of the task: it runs, or a caller that adds work starts it.
#[derive(Debug, Default)]
pub(super) struct Background {
    is_running: AtomicBool,
}

impl Background {
    /// Marks the task as running; returns true if the caller is to start it.
    pub(super) fn try_begin(&self) -> bool {
        !self.is_running.swap(true, Ordering::SeqCst)
    }

    /// Marks the task as ended, unless there is work; returns true if it is to end.
    pub(super) fn try_end(&self, has_work: impl Fn() -> bool) -> bool {
        if has_work() {
            return false;
        }
        self.is_running.store(false, Ordering::SeqCst);
        // Work may have been added in between, by a caller that found the task still running.
        !has_work() || !self.try_begin()
    }

    /// Records that the task was dropped in the middle.
    pub(super) fn mark_lost(&self) {
        self.is_running.store(false, Ordering::SeqCst);
    }
}
