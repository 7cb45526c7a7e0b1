//! Log: what happens in the server, as lines of text or JSON on standard error.

use std::io::{self, Write};

use anyhow::{Result, anyhow};
use quell_protocol::{escape_json, printable};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{FormatFields, format, layer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::output::Paint;

/// Levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Targets that are left out of the log by default: the messages of the watch over files, and those of the
/// library for HTTP/2 about clients, of which strangers could write a line with each connection.
const QUIET_TARGETS: &str = "notify=off,h2=off";

/// Format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs: an object on each line.
    Json,
}

impl Format {
    /// Reads `text` or `json`.
    ///
    /// # Errors
    /// What to write, if it is neither.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("`{other}` is not a format: write text or json")),
        }
    }
}

/// Reads levels: `debug`, or `warn,quell_server=debug`.
///
/// # Errors
/// What to write, if it is something else. A bare word that is no level would else be the name of a
/// target, and silence everything.
pub(crate) fn filter(text: &str) -> Result<Targets, String> {
    let wrong = || {
        format!(
            "`{text}` is not a level: write error, warn, info, debug or trace, or levels of targets such \
             as warn,quell_server=debug"
        )
    };
    for part in text.split(',') {
        let is_level = LEVELS
            .iter()
            .any(|level| level.eq_ignore_ascii_case(part.trim()));
        if !is_level && !part.contains('=') {
            return Err(wrong());
        }
    }
    // The first of two that speak of one target gives way.
    let quieter = format!("{QUIET_TARGETS},{text}");
    quieter.parse().map_err(|_| wrong())
}

/// Begins to log.
///
/// # Errors
/// If somebody logs already.
pub(crate) fn start(filter: Targets, format: Format) -> Result<()> {
    let lines = layer()
        // Else a line that does not fit, on a full disk, panics whoever has something to say.
        .log_internal_errors(false)
        .with_ansi(Paint::stderr().is_on());
    let all = registry().with(filter);
    let started = match format {
        Format::Text => {
            let lines = lines.with_writer(io::stderr).fmt_fields(fields());
            all.with(lines).try_init()
        }
        Format::Json => {
            let lines = lines.with_writer(|| Escaped(io::stderr()));
            all.with(lines.json().flatten_event(true)).try_init()
        }
    };
    started.map_err(|error| anyhow!("cannot begin to log: {error}"))
}

/// Writes fields so that what a stranger wrote in one does nothing to the terminal or the next line.
fn fields() -> impl for<'w> FormatFields<'w> + 'static {
    format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        let value = printable(&value);
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

/// Writes lines of JSON so that what a stranger wrote in one does nothing to the terminal.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    /// Takes whole lines: each event comes in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(json) => self.0.write_all(escape_json(json).as_bytes())?,
            Err(_) => self
                .0
                .write_all(line.escape_ascii().to_string().as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use quell_protocol::is_printable;
    use tracing::Level;

    use super::*;

    #[test]
    fn what_a_stranger_wrote_does_nothing_to_who_reads_it() {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let writer = Arc::clone(&kept);
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || LogBuffer(Arc::clone(&writer)))
            .fmt_fields(fields());
        let hostile = "a\u{1b}[2J\nERROR forged\u{202e}";
        tracing::subscriber::with_default(lines.finish(), || {
            tracing::info!(domain = %hostile, "by hand: {hostile}");
        });
        let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
        let shown = r"a\u{1b}[2J\u{a}ERROR forged\u{202e}";
        let ends = format!("by hand: {shown} domain={shown}\n");
        assert!(text.ends_with(&ends), "{text:?}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn lines_of_json_show_what_a_stranger_wrote_and_mean_the_same() {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let writer = Arc::clone(&kept);
        let lines = tracing_subscriber::fmt()
            .with_writer(move || Escaped(LogBuffer(Arc::clone(&writer))))
            .json()
            .flatten_event(true);
        let hostile = "a\u{1b}[2J\n{}\u{9b}1m\u{7f}\u{202e}\u{e0041}";
        tracing::subscriber::with_default(lines.finish(), || {
            tracing::info!(domain = %hostile, rule = hostile, "by hand: {hostile}");
        });
        let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
        assert!(text.trim_end().chars().all(is_printable), "{text:?}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&read["domain"], &read["rule"]),
            (&hostile.into(), &hostile.into())
        );
        assert_eq!(read["message"], format!("by hand: {hostile}"));
    }

    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn levels_and_targets_are_read() {
        for text in ["info", "DEBUG", "warn,quell_server=debug", "off"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        let is_on = |text, target| filter(text).unwrap().would_enable(target, &Level::DEBUG);
        assert!(is_on("debug", "quell_server") && !is_on("debug", "h2::codec"));
        assert!(is_on("warn,h2=debug", "h2::codec") && !is_on("warn,h2=debug", "quell_server"));
    }

    #[test]
    fn what_is_no_level_is_refused() {
        for text in ["inof", "", "quell_server=loud", "info,verbose"] {
            let error = filter(text).unwrap_err();
            assert!(error.contains("write error, warn, info"), "{error}");
        }
        let error = Format::parse("xml").unwrap_err();
        assert!(error.contains("write text or json"), "{error}");
        assert_eq!(Format::parse("text"), Ok(Format::Text));
    }
}
