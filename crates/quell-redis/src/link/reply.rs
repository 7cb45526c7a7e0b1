//! Parses RESP2 replies from the bytes that have arrived so far.

use crate::resp::{ServerError, Value};

/// Greatest depth of nested arrays.
const MAX_DEPTH: usize = 32;

/// Values in one reply: some ten times the most that we ask for.
const MAX_VALUES: usize = 1_000_000;

/// Elements for which an array reserves room before they have arrived.
const ROOM: usize = 1_024;

/// Reason why bytes are not a reply.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ReplyError(&'static str);

/// The reply at the start of `bytes`, and its length; `None` if it has not arrived completely.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(Value, usize)>, ReplyError> {
    let (mut rest, mut left) = (bytes, MAX_VALUES);
    let value = value(&mut rest, 0, &mut left)?;
    Ok(value.map(|value| (value, bytes.len() - rest.len())))
}

/// One value inside of `depth` arrays; takes it from the values that are `left`.
fn value(rest: &mut &[u8], depth: usize, left: &mut usize) -> Result<Option<Value>, ReplyError> {
    *left = left.checked_sub(1).ok_or(ReplyError("too many values"))?;
    let Some(line) = line(rest)? else {
        return Ok(None);
    };
    let Some((kind, text)) = line.split_first() else {
        return Err(ReplyError("an empty line"));
    };
    Ok(match kind {
        b'+' if text == b"OK" => Some(Value::Okay),
        b'+' => Some(Value::SimpleString(
            String::from_utf8_lossy(text).into_owned(),
        )),
        b'-' => Some(Value::ServerError(ServerError::new(text))),
        b':' => Some(Value::Int(number(text)?)),
        b'$' => match usize::try_from(number(text)?) {
            Err(_) => Some(Value::Nil),
            Ok(length) => bulk(rest, length)?,
        },
        b'*' if depth >= MAX_DEPTH => return Err(ReplyError("arrays in arrays in arrays")),
        b'*' => match usize::try_from(number(text)?) {
            Err(_) => Some(Value::Nil),
            Ok(length) => array(rest, length, depth, left)?,
        },
        _ => return Err(ReplyError("a reply of an unknown kind")),
    })
}

/// The next line without its end.
fn line<'b>(rest: &mut &'b [u8]) -> Result<Option<&'b [u8]>, ReplyError> {
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let (line, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    match line.strip_suffix(b"\r") {
        Some(line) => Ok(Some(line)),
        None => Err(ReplyError("a line that ends without CR")),
    }
}

fn number(text: &[u8]) -> Result<i64, ReplyError> {
    let text = std::str::from_utf8(text).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or(ReplyError("a number that is none"))
}

fn bulk(rest: &mut &[u8], length: usize) -> Result<Option<Value>, ReplyError> {
    let Some((bytes, after)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    match after.split_at_checked(2) {
        None => Ok(None),
        Some((b"\r\n", after)) => {
            *rest = after;
            Ok(Some(Value::BulkString(bytes.to_vec())))
        }
        Some(_) => Err(ReplyError("a text longer than its stated length")),
    }
}

fn array(
    rest: &mut &[u8],
    length: usize,
    depth: usize,
    left: &mut usize,
) -> Result<Option<Value>, ReplyError> {
    // Each element takes at least three bytes, so no room is reserved for elements that cannot be there.
    let mut elements = Vec::with_capacity(length.min(rest.len() / 3).min(ROOM));
    for _ in 0..length {
        match value(rest, depth + 1, left)? {
            Some(element) => elements.push(element),
            None => return Ok(None),
        }
    }
    Ok(Some(Value::Array(elements)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_replies_are_read_and_parts_are_waited_for() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let simple = |text: &str| Value::SimpleString(text.to_owned());
        let error = |text: &str| Value::ServerError(ServerError::new(text.as_bytes()));
        let inner = Value::Array(vec![simple("a"), bulk("b")]);
        let replies: [(&[u8], Value); 12] = [
            (b"+OK\r\n", Value::Okay),
            (b"+PONG\r\n", simple("PONG")),
            (b":-12\r\n", Value::Int(-12)),
            (b"$5\r\nab\r\nc\r\n", bulk("ab\r\nc")),
            (b"$0\r\n\r\n", bulk("")),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"*0\r\n", Value::Array(Vec::new())),
            (
                b"*3\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n$-1\r\n",
                Value::Array(vec![Value::Int(1), inner, Value::Nil]),
            ),
            (b"-ERR something else\r\n", error("ERR something else")),
            (
                b"-MOVED 42 127.0.0.1:7000\r\n",
                error("MOVED 42 127.0.0.1:7000"),
            ),
            (
                b"*2\r\n-WRONGTYPE no\r\n:1\r\n",
                Value::Array(vec![error("WRONGTYPE no"), Value::Int(1)]),
            ),
        ];
        for (text, expected) in replies {
            let longer = [text, b"+more\r\n"].concat();
            assert_eq!(read(&longer), Ok(Some((expected, text.len()))));
            for part in 0..text.len() {
                assert_eq!(read(&text[..part]), Ok(None), "{text:?} {part}");
            }
        }
    }

    #[test]
    fn garbage_is_told() {
        let deep = b"*1\r\n".repeat(MAX_DEPTH + 1);
        let texts: [&[u8]; 8] = [
            b"\r\n",
            b"x\r\n",
            b"+a\n",
            b":x\r\n",
            b"$x\r\n",
            b"$1\r\nabc\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            &deep,
        ];
        for text in texts {
            assert!(read(text).is_err(), "{text:?}");
        }
        // A length that is a lie takes no memory.
        assert_eq!(read(b"*2000000000\r\n:1\r\n"), Ok(None));
        assert_eq!(read(b"$9000000000000\r\n"), Ok(None));
        let many = b":1\r\n".repeat(MAX_VALUES);
        let many = [b"*1000000\r\n", &*many].concat();
        assert_eq!(read(&many), Err(ReplyError("too many values")));
        // Nor do many of them, in each other.
        let deep = b"*2000000000\r\n".repeat(MAX_DEPTH - 1);
        let deep = [&*deep, &vec![b'x'; 8 * 1_024 * 1_024]].concat();
        assert_eq!(read(&deep), Ok(None));
    }
}
