//! Question: a plain request for `/v1/acquire` or `/v1/peek`, found in the bytes of a connection.
//!
//! This is not an HTTP server, and must not become one. It takes a request only if the request is
//! complete, if it understands every byte of the head, and if the head asks for nothing but an answer:
//! one length, a JSON content type, no coding, no upgrade, no expectation. Every other request is left
//! unchanged for a full HTTP implementation, so a mistake here can only cost speed.

use std::mem;

use quell_core::charge::Operation;

/// The longest head, in bytes: ten times what programs usually send.
const MAX_HEAD: usize = 2_048;

/// The most digits of a length.
const MAX_LENGTH_DIGITS: usize = 7;

/// The most fields, as many as hyper reads; one more is an error, which hyper answers.
const MAX_FIELDS: usize = 100;

/// A request for `/v1/acquire` or `/v1/peek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// Operation: the question charges, or only peeks.
    pub operation: Operation,
    /// The value of `Host`; empty if there is none.
    pub host: &'a [u8],
    /// The value of `Authorization`.
    pub authorization: Option<&'a [u8]>,
    /// The value of `X-Quell-Token`.
    pub token: Option<&'a [u8]>,
    /// The lines of all fields.
    pub fields: &'a [u8],
    /// The body, which has the type of JSON; it is not parsed yet.
    pub body: &'a [u8],
    /// Bytes of the request, head and body.
    pub length: usize,
}

/// The request at the beginning of `input`; `None` if it is anything else, or incomplete.
#[must_use]
pub fn find_question(input: &[u8]) -> Option<Question<'_>> {
    let (operation, fields) = request_line(input)?;
    let mut rest = fields;
    let mut length = None;
    let mut is_json = false;
    let mut host = None;
    let (mut authorization, mut token) = (None, None);
    let mut read = input.len() - rest.len();
    let mut fields_left = MAX_FIELDS;
    loop {
        if let Some(after) = rest.strip_prefix(b"\r\n") {
            rest = after;
            break;
        }
        let (name, value, after) = field(rest)?;
        fields_left = fields_left.checked_sub(1)?;
        read += rest.len() - after.len();
        if read > MAX_HEAD {
            return None;
        }
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        let is_understood = match name.len() {
            // Host, Accept and User-Agent come with nearly every request.
            4 if is(b"host") => host.replace(value).is_none(),
            6 if is(b"accept") => true,
            10 if is(b"user-agent") => true,
            14 if is(b"content-length") => length.replace(natural(value)?).is_none(),
            12 if is(b"content-type") => {
                !mem::replace(&mut is_json, true) && value.eq_ignore_ascii_case(b"application/json")
            }
            13 if is(b"authorization") => authorization.replace(value).is_none(),
            13 if is(b"x-quell-token") => token.replace(value).is_none(),
            10 if is(b"connection") => value.eq_ignore_ascii_case(b"keep-alive"),
            _ => !MORE.iter().any(|more| is(more)),
        };
        if !is_understood {
            return None;
        }
        rest = after;
    }
    let fields = fields.get(..fields.len() - rest.len())?;
    let body = rest.get(..length?)?;
    is_json.then(|| Question {
        operation,
        host: host.unwrap_or_default(),
        authorization,
        token,
        fields,
        body,
        length: input.len() - rest.len() + body.len(),
    })
}

fn request_line(input: &[u8]) -> Option<(Operation, &[u8])> {
    let rest = input.strip_prefix(b"POST /v1/")?;
    if let Some(rest) = rest.strip_prefix(b"acquire HTTP/1.1\r\n") {
        return Some((Operation::Acquire, rest));
    }
    let rest = rest.strip_prefix(b"peek HTTP/1.1\r\n")?;
    Some((Operation::Peek, rest))
}

/// The name and value of a field, and the bytes after its line. Names are letters, digits, `-` and `_`; values
/// are printable ASCII, trimmed.
fn field(rest: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let name_end = rest.iter().position(|byte| !is_of_name(byte))?;
    let (name, after) = rest.split_at_checked(name_end)?;
    let after = after.strip_prefix(b":")?;
    let value_end = after.iter().position(|byte| !matches!(byte, b' '..=b'~'))?;
    let (value, after) = after.split_at_checked(value_end)?;
    let after = after.strip_prefix(b"\r\n")?;
    (!name.is_empty()).then_some((name, value.trim_ascii(), after))
}

/// Fields that change what a message is or how it is to be answered (RFC 9110 and 9112).
const MORE: [&[u8]; 10] = [
    b"transfer-encoding",
    b"content-encoding",
    b"content-range",
    b"expect",
    b"upgrade",
    b"te",
    b"trailer",
    b"http2-settings",
    b"keep-alive",
    b"proxy-connection",
];

fn natural(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > MAX_LENGTH_DIGITS {
        return None;
    }
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| usize::from(byte - b'0'));
    let add = |sum, byte| Some(sum * 10 + digit(byte)?);
    digits.iter().try_fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "POST /v1/acquire HTTP/1.1\r\nHost: a:1\r\nUser-Agent: x/1\r\nACCEPT: */*\r\n\
        content-type: Application/JSON\r\nX-Any: \"thing\"\r\nConnection: Keep-Alive\r\n\
        Content-Length:  2 \r\n\r\n{}";

    #[test]
    fn a_question_is_found_whole_or_not_at_all() {
        let more = format!("{SOUND}POST");
        let found = find_question(more.as_bytes()).unwrap();
        assert_eq!(found.operation, Operation::Acquire);
        assert_eq!(found.host, b"a:1");
        assert_eq!((found.body, found.length), (&b"{}"[..], SOUND.len()));
        for end in 0..SOUND.len() {
            assert_eq!(
                find_question(&SOUND.as_bytes()[..end]),
                None,
                "cut at {end}"
            );
        }
        let peek = SOUND.replace("acquire", "peek");
        let found = find_question(peek.as_bytes()).unwrap();
        assert_eq!(found.operation, Operation::Peek);
    }

    #[test]
    fn whatever_asks_for_more_is_left() {
        for (from, to) in [
            ("POST", "post"),
            ("POST", "GET"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("/v1/acquire", "/v1/acquire?x"),
            ("/v1/acquire", "/v1/acquires"),
            ("/v1/acquire ", "/v1/acquire  "),
            ("Host: a:1\r\n", "Host: a:1\n"),
            ("Host: a:1\r\n", "Host: a\r\n b\r\n"),
            ("Host:", "Host :"),
            ("Host: a:1", "Host: a\r1"),
            ("Host: a:1", "Host: a\tb"),
            ("Host: a:1", "Host: a\0"),
            ("Host: a:1", "Host: \u{e9}"),
            ("Host: a:1", ": a"),
            ("Host: a:1", "Host"),
            ("X-Any:", "Transfer-Encoding:"),
            ("X-Any:", "transfer-encoding:"),
            ("X-Any:", "Content-Encoding:"),
            ("X-Any:", "Expect:"),
            ("X-Any:", "Upgrade:"),
            ("X-Any: \"thing\"", "Host: b"),
            ("X-Any: \"thing\"", "Content-Length: 2"),
            ("X-Any: \"thing\"", "Content-Type: application/json"),
            ("Keep-Alive", "close"),
            ("Keep-Alive", "keep-alive, upgrade"),
            ("Application/JSON", "application/json; charset=utf-8"),
            ("Application/JSON", "text/plain"),
            ("content-type", "content-typ"),
            ("Content-Length:  2 ", "Content-Length: +2"),
            ("Content-Length:  2 ", "Content-Length: 2, 2"),
            ("Content-Length:  2 ", "Content-Length: 0x2"),
            ("Content-Length:  2 ", "Content-Length: "),
            ("Content-Length:  2 ", "Content-Length: 00000002"),
            ("Content-Length:  2 ", "Content-Length: 3"),
            ("Content-Length", "Content-Lengths"),
        ] {
            let other = SOUND.replacen(from, to, 1);
            assert_ne!(other, SOUND, "{from}");
            assert_eq!(find_question(other.as_bytes()), None, "{other}");
        }
        let long = SOUND.replace("thing", &"x".repeat(MAX_HEAD));
        assert_eq!(find_question(long.as_bytes()), None);
        let with_fields = |count: usize| {
            let more = "a:\r\n".repeat(count - SOUND.matches("\r\n").count() + 2);
            SOUND.replacen("Host", &format!("{more}Host"), 1)
        };
        assert!(find_question(with_fields(MAX_FIELDS).as_bytes()).is_some());
        assert_eq!(find_question(with_fields(MAX_FIELDS + 1).as_bytes()), None);
    }
}
