//! Inline commands: a line that a person typed, with quotes as in Redis.
//!
//! Words are separated by spaces. `"..."` supports `
//!  \r \t \b \a \xHH` and `\` before any other byte, `'...'` only `\'`. A closing quote ends its
//! word.

use super::args::{ArgSpan, Args};
use super::frame::FrameError;

/// Splits `line` into words, written to `unquoted` one after the other.
///
/// # Errors
/// [`FrameError::Quotes`] if quotes are not closed, [`FrameError::ArrayLength`] if there are more
/// than `max` words.
pub(super) fn split(
    line: &[u8],
    max: usize,
    unquoted: &mut Vec<u8>,
    spans: &mut Vec<ArgSpan>,
) -> Result<(), FrameError> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        while let [0 | 0x0b, after @ ..] = rest {
            rest = after.trim_ascii_start();
        }
        if rest.is_empty() {
            return Ok(());
        }
        if spans.len() == max {
            return Err(FrameError::ArrayLength(max));
        }
        let start = unquoted.len();
        rest = word(rest, unquoted)?;
        spans.push(ArgSpan {
            start,
            end: unquoted.len(),
        });
    }
}

/// Reads one word. Returns the rest.
fn word<'a>(mut rest: &'a [u8], unquoted: &mut Vec<u8>) -> Result<&'a [u8], FrameError> {
    loop {
        match rest {
            [] => return Ok(rest),
            [quote @ (b'"' | b'\''), after @ ..] => return quoted(*quote, after, unquoted),
            [byte, ..] if is_space(*byte) => return Ok(rest),
            [byte, after @ ..] => {
                unquoted.push(*byte);
                rest = after;
            }
        }
    }
}

/// Takes the rest of a quoted word off; returns what follows it, which must be a space or the end.
fn quoted<'a>(
    quote: u8,
    mut rest: &'a [u8],
    unquoted: &mut Vec<u8>,
) -> Result<&'a [u8], FrameError> {
    let is_double = quote == b'"';
    loop {
        let (byte, after) = match rest {
            [] => return Err(FrameError::Quotes),
            [byte, after @ ..] if *byte == quote => match after.first() {
                Some(byte) if !is_space(*byte) => return Err(FrameError::Quotes),
                _ => return Ok(after),
            },
            [b'\\', b'x', high, low, after @ ..] if is_double => match escaped(*high, *low) {
                Some(byte) => (byte, after),
                None => (b'x', rest.get(2..).unwrap_or_default()),
            },
            [b'\\', escaped, after @ ..] if is_double => (unescape(*escaped), after),
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [byte, after @ ..] => (*byte, after),
        };
        unquoted.push(byte);
        rest = after;
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | 0)
}

/// The byte for two hexadecimal digits.
fn escaped(high: u8, low: u8) -> Option<u8> {
    let digit = |letter: u8| char::from(letter).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

const fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// Returns true if a browser or a proxy is speaking. A web page can make a browser send a body of inline
/// commands to a port on the loopback; as in Redis, the first line of such a request closes the connection.
pub(super) fn is_http(args: Args<'_>) -> bool {
    let is = |index, text: &str| {
        args.get(index)
            .is_some_and(|arg| arg.eq_ignore_ascii_case(text.as_bytes()))
    };
    let says_version = args
        .get(2)
        .is_some_and(|version| version.starts_with(b"HTTP/"));
    says_version || is(0, "post") || is(0, "host:")
}
