//! Progress: one line on a terminal that says how far long work is, and goes away when it is done.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

/// Beginning of the line, and no more of what was on it.
const CLEAR: &str = "\r\u{1b}[K";

/// A line of progress. Off a terminal nothing is written.
#[derive(Debug)]
pub(crate) struct Progress {
    is_seen: bool,
    is_shown: bool,
}

impl Progress {
    /// Progress on standard error.
    pub(crate) fn stderr() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            is_seen: stderr().is_terminal() && !is_dumb,
            is_shown: false,
        }
    }

    /// Shows these words of ours in place of those before.
    pub(crate) fn show(&mut self, words: impl Display) {
        if self.is_seen {
            self.is_shown = true;
            drop(stderr().write_all(format!("{CLEAR}{words}").as_bytes()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            drop(stderr().write_all(CLEAR.as_bytes()));
        }
    }
}
