//! A command for a server, and the state of its attempts so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::resp::{Cmd, cmd};
use parking_lot::Mutex;

/// One command, or several in a row of which the last answer counts. Copies are the same command.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    bytes: Arc<Vec<u8>>,
    answers: usize,
    /// The hash and the text of the script that it runs by its hash.
    script: Option<(&'static str, &'static str)>,
    attempts: Arc<Attempts>,
    /// Form for a server that may have lost its memory, if it differs.
    in_doubt: Option<Later>,
}

/// A command that is encoded once it is needed.
type Later = Arc<LazyLock<Command, Box<dyn FnOnce() -> Command + Send>>>;

#[derive(Debug, Default)]
struct Attempts {
    /// True while a connection has the command, waiting or in flight. The connection limits its time then.
    is_on_connection: AtomicBool,
    /// Instant at which it was sent last.
    sent: Mutex<Option<Instant>>,
    /// Reason why the last attempt failed.
    reason: Mutex<Option<String>>,
}

impl Command {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Arc::new(bytes),
            answers: 1,
            script: None,
            attempts: Arc::default(),
            in_doubt: None,
        }
    }

    /// `command`, which is `EVALSHA` with this hash of the script with this text.
    pub(crate) fn from_script(command: &Cmd, hash: &'static str, text: &'static str) -> Self {
        Self {
            script: Some((hash, text)),
            ..Self::from(command)
        }
    }

    /// The same, which is sent as `other` to a server that may have lost its memory. Which of them is sent is known
    /// only when the connection is: making it tells whether the server was started again.
    pub(crate) fn or_in_doubt(self, other: impl FnOnce() -> Self + Send + 'static) -> Self {
        let attempts = Arc::clone(&self.attempts);
        let other = move || Self {
            attempts,
            ..other()
        };
        Self {
            in_doubt: Some(Arc::new(LazyLock::new(Box::new(other)))),
            ..self
        }
    }

    pub(super) fn in_doubt(&self) -> Option<&Self> {
        self.in_doubt.as_deref().map(|other| &**other)
    }

    /// The same with the text of its script, for a server that does not know the hash.
    pub(super) fn with_text(&self) -> Option<Self> {
        let (hash, text) = self.script?;
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let (count, words) = self.bytes.split_at_checked(end + 1)?;
        let by_hash = format!("$7\r\nEVALSHA\r\n${}\r\n{hash}\r\n", hash.len());
        let by_text = format!("$4\r\nEVAL\r\n${}\r\n{text}\r\n", text.len());
        let rest = words.strip_prefix(by_hash.as_bytes())?;
        let command = Self {
            bytes: Arc::new([count, by_text.as_bytes(), rest].concat()),
            script: None,
            in_doubt: None,
            ..self.clone()
        };
        Some(match self.in_doubt().and_then(Self::with_text) {
            Some(other) => command.or_in_doubt(|| other),
            None => command,
        })
    }

    /// The same, sent to a server that is about to get its key.
    pub(super) fn asking(&self) -> Self {
        let mut bytes = cmd("ASKING").to_bytes();
        bytes.extend_from_slice(&self.bytes);
        let command = Self {
            bytes: Arc::new(bytes),
            answers: self.answers + 1,
            script: None,
            attempts: Arc::clone(&self.attempts),
            in_doubt: None,
        };
        match self.in_doubt().map(Self::asking) {
            Some(other) => command.or_in_doubt(|| other),
            None => command,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of replies to the command.
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

    /// Notes that it is sent.
    pub(super) fn set_sent(&self, now: Instant) {
        *self.attempts.sent.lock() = Some(now);
    }

    /// Instant at which it was last sent; `None` if it waited, or there was no connection.
    pub(super) fn sent(&self) -> Option<Instant> {
        *self.attempts.sent.lock()
    }

    /// Returns true if a connection has the command and has not sent it.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_on_connection() && self.sent().is_none()
    }

    /// Notes why an attempt failed.
    pub(super) fn note(&self, reason: &str) {
        *self.attempts.reason.lock() = Some(reason.to_owned());
    }

    /// The reason of a timeout: it was not sent within `timeout`, and why the last attempt failed.
    pub(super) fn late(&self, timeout: Duration) -> String {
        let reason = self.attempts.reason.lock();
        let reason = reason.as_ref().map(|reason| format!(": {reason}"));
        format!("no answer within {timeout:?}{}", reason.unwrap_or_default())
    }
}

impl From<&Cmd> for Command {
    fn from(command: &Cmd) -> Self {
        Self::new(command.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_sent_by_its_hash_or_with_its_text() {
        let mut by_hash = cmd("EVALSHA");
        by_hash.arg("cafe").arg(1).arg(b"a\r\nkey").arg("");
        let mut by_text = cmd("EVAL");
        by_text.arg("return 1\n").arg(1).arg(b"a\r\nkey").arg("");
        let command = Command::from_script(&by_hash, "cafe", "return 1\n");
        assert_eq!(command.bytes(), by_hash.to_bytes());
        let with_text = command.with_text().unwrap();
        assert_eq!(with_text.bytes(), by_text.to_bytes());
        assert!(with_text.with_text().is_none(), "it has its text");
    }

    #[test]
    fn a_command_in_doubt_is_sent_in_all_its_ways() {
        let of = |argument| {
            let mut command = cmd("EVALSHA");
            Command::from_script(command.arg("cafe").arg(0).arg(argument), "cafe", "return 1")
        };
        let both = || of("usual").or_in_doubt(move || of("in doubt"));
        type Way = fn(&Command) -> Command;
        let ways: [Way; 3] = [Clone::clone, Command::asking, |one| {
            one.with_text().unwrap()
        }];
        for way in ways {
            let sent = way(&both());
            assert_eq!(sent.bytes(), way(&of("usual")).bytes());
            let in_doubt = sent.in_doubt().unwrap();
            assert_eq!(in_doubt.bytes(), way(&of("in doubt")).bytes());
            assert_eq!(in_doubt.answers(), sent.answers());
            in_doubt.set_on_connection(true);
            assert!(sent.is_on_connection(), "it is the same command");
        }
    }
}
