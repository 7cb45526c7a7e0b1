//! Health: how far a process is on its way down, and what it attempts and fails to do.

use jiff::Timestamp;
use parking_lot::Mutex;
use quell_protocol::http::Failure;

/// Stage of a server's way down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It is not.
    #[default]
    Running,
    /// It says that it is not ready and asks connections to close, and goes on serving.
    Draining,
    /// It accepts no connection, and answers what is in flight.
    Stopping,
}

/// Attempts at one thing: why the last one failed, if it did.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<Option<Failure>>);

impl Attempts {
    /// Notes a success. Returns whether the attempt before failed.
    pub fn succeeded(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Notes a failure.
    pub fn failed(&self, reasons: Vec<String>) {
        let mut failure = self.0.lock();
        let since = failure.take().map(|failure| failure.since);
        let since = since.unwrap_or_else(|| Timestamp::now().to_string().into());
        *failure = Some(Failure { since, reasons });
    }

    /// Reason why the last attempt failed; none if it did not.
    pub fn failure(&self) -> Option<Failure> {
        self.0.lock().clone()
    }
}
