//! Requests: those of one connection so far, and whether its client has hung up.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::hang_up::HangUp;
use crate::listen::last_wait;

/// Requests of a connection so far.
#[derive(Debug)]
pub struct Requests {
    opened: Instant,
    begun: AtomicU32,
    answered: AtomicU32,
    leaves_unread: AtomicBool,
    /// Tells when the client hangs up.
    pub hang_up: HangUp,
}

impl Default for Requests {
    /// Those of a connection that is opened now.
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            begun: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            leaves_unread: AtomicBool::new(false),
            hang_up: HangUp::default(),
        }
    }
}

impl Requests {
    /// Time a server that stops waits for another one.
    pub fn last_wait(&self) -> Duration {
        last_wait(self.opened.elapsed(), self.begun() > 0)
    }

    /// Counts one whose head is complete.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that is answered.
    pub fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Those so far.
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Notes that the last one was answered without reading all of its body.
    pub fn leave_unread(&self) {
        self.leaves_unread.store(true, Ordering::Relaxed);
    }

    /// Returns true if the last one was answered without reading all of its body.
    pub fn leaves_unread(&self) -> bool {
        self.leaves_unread.load(Ordering::Relaxed)
    }

    /// Returns true if the next bytes are a body, which does not stay in hyper's buffer.
    pub fn is_body(&self) -> bool {
        self.begun() != self.answered.load(Ordering::Relaxed)
    }
}
