//! The output of this program to the person who runs it.

use std::io::Write;
use std::time::Duration;

/// Prints one line at once. A closed pipe is not an error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Prints why the program fails, after everything that was printed before.
pub(crate) fn complain(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// A duration as people read it: `0.4 s`, `12.0 s`, `3 min 5 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    if tenths < 600 {
        return format!("{}.{} s", tenths / 10, tenths % 10);
    }
    let seconds = duration.as_secs();
    format!("{} min {} s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (0, "0.0 s"),
            (449, "0.4 s"),
            (59_999, "59.9 s"),
            (185_000, "3 min 5 s"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }
}
