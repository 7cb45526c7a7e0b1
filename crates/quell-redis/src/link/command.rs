//! A command for a server, and the state of its attempts so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use redis::Cmd;

/// One command, or several in a row of which the last answer counts. Copies are the same command.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    bytes: Arc<Vec<u8>>,
    answers: usize,
    attempts: Arc<Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    /// Whether a connection has it, waiting or on the way: that limits the time.
    is_on_connection: AtomicBool,
    /// When it was on its way last.
    sent: Mutex<Option<Instant>>,
    /// Why the last attempt came to nothing.
    reason: Mutex<Option<String>>,
}

impl Command {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Arc::new(bytes),
            answers: 1,
            attempts: Arc::default(),
        }
    }

    /// The same, sent to a server that is about to get its key.
    pub(super) fn asking(&self) -> Self {
        let mut bytes = redis::cmd("ASKING").get_packed_command();
        bytes.extend_from_slice(&self.bytes);
        Self {
            bytes: Arc::new(bytes),
            answers: self.answers + 1,
            attempts: Arc::clone(&self.attempts),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many answers it has.
    pub(super) const fn answers(&self) -> usize {
        self.answers
    }

    /// Notes whether a connection has it now.
    pub(super) fn set_on_connection(&self, is_there: bool) {
        let attempts = &self.attempts;
        attempts.is_on_connection.store(is_there, Ordering::Release);
    }

    pub(super) fn is_on_connection(&self) -> bool {
        self.attempts.is_on_connection.load(Ordering::Acquire)
    }

    /// Notes that it leaves for its server.
    pub(super) fn set_sent(&self, now: Instant) {
        *self.attempts.sent.lock() = Some(now);
    }

    /// When it left for its server last; `None`: it waited, or there was no connection.
    pub(super) fn sent(&self) -> Option<Instant> {
        *self.attempts.sent.lock()
    }

    /// Whether a connection has it that has not sent it.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_on_connection() && self.sent().is_none()
    }

    /// Notes why an attempt came to nothing.
    pub(super) fn note(&self, reason: &str) {
        *self.attempts.reason.lock() = Some(reason.to_owned());
    }

    /// Why the last attempt came to nothing.
    pub(super) fn reason(&self) -> Option<String> {
        self.attempts.reason.lock().clone()
    }
}

impl From<&Cmd> for Command {
    fn from(command: &Cmd) -> Self {
        Self::new(command.get_packed_command())
    }
}
