//! Escape: makes JSON safe to read on a terminal, whoever wrote the texts in it.

use std::borrow::Cow;

use quell_core::key::is_printable;

/// A JSON document in which characters that are not [printable](quell_core::key::is_printable) are
/// written as `\u009b`: JSON itself requires escapes only for some characters that move the cursor,
/// begin an escape sequence or change the direction of text. The meaning is the same; between values,
/// tabs and carriage returns become spaces.
#[must_use]
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_plain = |character: char| is_printable(character) || character == '\n';
    // Nearly all documents consist of these.
    let is_usual = |byte: u8| matches!(byte, b' '..=b'~' | b'\n');
    if json.bytes().all(is_usual) || json.chars().all(is_plain) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match character {
            '\t' | '\r' => escaped.push(' '),
            plain if is_plain(plain) => escaped.push(plain),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    escaped.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_wrote_is_shown_and_means_the_same() {
        let hostile =
            "a\u{1b}[2J\r\n\t\u{7f}\u{9b}1m\u{202e}\u{e0041}\u{feff}\\\" caf\u{e9} \u{1f600}";
        let value = serde_json::json!({ hostile: [hostile, 1] });
        for json in [
            serde_json::to_string(&value).unwrap(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let escaped = escape_json(&json);
            let is_shown = |c| is_printable(c) || c == '\n';
            assert!(escaped.chars().all(is_shown), "{escaped:?}");
            assert_eq!(escaped.lines().count(), json.lines().count());
            let read: serde_json::Value = serde_json::from_str(&escaped).unwrap();
            assert_eq!(read, value);
            assert!(escaped.contains(r"\u007f\u009b1m\u202e\udb40\udc41\ufeff"));
            assert!(escaped.contains("caf\u{e9} \u{1f600}"));
        }
    }

    #[test]
    fn what_is_harmless_is_not_copied() {
        for json in ["{\"a\": 1}\n", "[\"caf\u{e9}\"]"] {
            assert!(matches!(escape_json(json), Cow::Borrowed(_)), "{json}");
        }
        assert_eq!(escape_json("[1,\t2,\r\n3]"), "[1, 2, \n3]");
    }
}
