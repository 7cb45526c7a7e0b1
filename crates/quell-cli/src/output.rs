//! Output: lines for people, JSON for programs, colours on a terminal only.
//!
//! Keys, domains and what servers answer are the words of strangers: whatever they hold, the terminal
//! of whoever reads it does nothing but show them.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use quell_protocol::{escape_json, is_printable, printable};
use serde::Serialize;

/// Prints a line, or several, to standard output.
///
/// # Errors
/// If it cannot be written, such as to a full disk. A reader that has gone (`quell ... | head`) is no
/// failure.
pub(crate) fn line(text: impl Display) -> Result<()> {
    let shown = shown(&text.to_string(), Paint::stdout());
    bytes(format!("{shown}\n").as_bytes())
}

/// Prints these bytes to standard output, as they are.
///
/// # Errors
/// As [`line()`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            READER_HAS_GONE.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written.context("cannot write to standard output"),
    }
}

static READER_HAS_GONE: AtomicBool = AtomicBool::new(false);

/// Returns true if the reader of standard output has gone, as was found when something was written.
pub(crate) fn reader_has_gone() -> bool {
    READER_HAS_GONE.load(Ordering::Relaxed)
}

/// Prints a line, or several, to standard error.
pub(crate) fn note(text: impl Display) {
    let shown = shown(&text.to_string(), Paint::stderr());
    // In one write, so that two servers on one terminal do not mix their lines.
    drop(std::io::stderr().write_all(format!("{shown}\n").as_bytes()));
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
    json_text(&serde_json::to_string_pretty(value).context("cannot write this as JSON")?)
}

/// Prints JSON that is written already to standard output; it means what it meant.
///
/// # Errors
/// As [`line()`].
pub(crate) fn json_text(text: &str) -> Result<()> {
    line(escape_json(text))
}

/// Text as a terminal may show it: lines stay lines, our colours stay colours, and every other
/// character that would do something is written as `\u{1b}`.
fn shown(text: &str, paint: Paint) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let rest = text.get(at..).unwrap_or_default();
        let is_ours = || paint.on && COLOURS.iter().any(|code| rest.starts_with(code));
        if is_printable(character) || character == '\n' || is_ours() {
            shown.push(character);
        } else {
            shown.push_str(&printable(character.encode_utf8(&mut [0; 4])));
        }
    }
    shown
}

/// Escape sequences that [`Paint`] writes.
const COLOURS: [&str; 5] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];

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

    /// Returns true if colours are on.
    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    /// Text for success.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Text for failure.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Text for a warning.
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

    #[test]
    fn a_terminal_shows_what_a_stranger_wrote_and_does_nothing() {
        let hostile = "a\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\rb\n\tcaf\u{e9}";
        let expected =
            r"a\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{d}b".to_owned() + "\n" + r"\u{9}caf\u{e9}";
        let expected = expected.replace(r"\u{e9}", "\u{e9}");
        for on in [false, true] {
            let paint = Paint { on };
            assert_eq!(shown(hostile, paint), expected);
            let painted = [
                paint.red("a"),
                paint.green("b"),
                paint.yellow("c"),
                paint.bold("d"),
            ];
            for text in painted {
                assert_eq!(shown(&text, paint), text);
            }
        }
        assert_eq!(
            shown("\u{1b}[31mred", Paint { on: false }),
            r"\u{1b}[31mred"
        );
    }
}
