//! Output: lines for people, JSON for programs, colours on a terminal only.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints one line to standard output.
///
/// # Errors
/// If it cannot be written, such as to a full disk. A reader that has gone (`quell ... | head`) is no
/// failure.
pub(crate) fn line(text: impl Display) -> Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints these bytes to standard output.
///
/// # Errors
/// As [`line()`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints one line to standard error.
pub(crate) fn note(text: impl Display) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Prints why the command fails, with all its causes, to standard error.
pub(crate) fn complain(error: &anyhow::Error) {
    let paint = Paint::stderr();
    note(format_args!("{} {error:#}", paint.red("error:")));
}

/// Prints a value as JSON to standard output.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value).context("cannot write this as JSON")?)
}

/// Colours, where they are seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output.
    pub(crate) fn stdout() -> Self {
        Self::on(std::io::stdout().is_terminal())
    }

    /// For standard error.
    pub(crate) fn stderr() -> Self {
        Self::on(std::io::stderr().is_terminal())
    }

    /// On a terminal, unless it or its user says otherwise (<https://no-color.org>).
    fn on(terminal: bool) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            on: terminal && !unwanted && !dumb,
        }
    }

    /// Whether there are colours at all.
    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    /// What went well.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// What did not.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// What deserves a look.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Headings.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_only_where_they_are_on() {
        assert_eq!(Paint { on: false }.red("no"), "no");
        assert_eq!(Paint { on: true }.red("no"), "\u{1b}[31mno\u{1b}[0m");
        assert!(!Paint::on(false).is_on());
    }
}
