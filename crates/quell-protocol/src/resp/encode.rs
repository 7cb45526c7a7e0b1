//! Encoder: writes replies.

/// The protocol of a connection: RESP2 until it sends `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Maps are flat arrays, booleans are 1 and 0.
    #[default]
    Resp2,
    /// Maps, sets, booleans and null are types of their own.
    Resp3,
}

impl Protocol {
    /// Its number in `HELLO`.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// An integer of at most three digits with its line end, and how many bytes that is.
type Short = ([u8; 6], u8);

/// -1 and 0 to 999: nearly all integers of a reply.
static SHORTS: [Short; 1_001] = shorts();

#[expect(
    clippy::cast_possible_truncation,
    reason = "const: digits of a number below 1,000"
)]
const fn shorts() -> [Short; 1_001] {
    let mut all = [(*b":-1\r\n\0", 5); 1_001];
    let mut value = 0;
    while value < 1_000 {
        let ones = b'0' + (value % 10) as u8;
        let tens = b'0' + (value / 10 % 10) as u8;
        let hundreds = b'0' + (value / 100) as u8;
        all[value + 1] = match value {
            0..=9 => ([b':', ones, b'\r', b'\n', 0, 0], 4),
            10..=99 => ([b':', tens, ones, b'\r', b'\n', 0], 5),
            _ => ([b':', hundreds, tens, ones, b'\r', b'\n'], 6),
        };
        value += 1;
    }
    all
}

/// Appends replies to a buffer.
///
/// An aggregate is a head and then that many elements (for maps, pairs), each written by its own
/// call.
#[derive(Debug)]
pub struct Encoder<'b> {
    out: &'b mut Vec<u8>,
    protocol: Protocol,
}

impl<'b> Encoder<'b> {
    /// An encoder that appends to `out`.
    pub const fn new(out: &'b mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// The protocol in which replies are written.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// A simple string such as `OK`; line ends in it become spaces.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.line(text);
    }

    /// An error: a code in capitals such as `ERR`, and a text; line ends in it become spaces.
    pub fn error(&mut self, code: &str, text: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        self.line(text);
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        self.head(b':', value);
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Text for people, marked as such in RESP3.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.length(b'=', text.len().saturating_add(4));
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Null: not applicable, or missing.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Null instead of an array, which RESP2 writes differently.
    pub(super) fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.extend_from_slice(b"*-1\r\n"),
            Protocol::Resp3 => self.null(),
        }
    }

    /// True or false; 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.protocol, value) {
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
        });
    }

    /// The head of an array of `length` elements.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// An array of at most 9 integers, written at once if all of them are short.
    pub(super) fn integers<const N: usize>(&mut self, values: [i64; N]) {
        const { assert!(N <= 9) };
        match short_array(&values) {
            Some((bytes, length)) => {
                let bytes = bytes.get(..length).unwrap_or_default();
                self.out.extend_from_slice(bytes);
            }
            None => {
                self.array(N);
                for value in values {
                    self.integer(value);
                }
            }
        }
    }

    /// The head of a set of `length` elements; an array in RESP2.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', length),
            Protocol::Resp3 => self.length(b'~', length),
        }
    }

    /// The head of a map of `pairs` keys and values; a flat array in RESP2.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', pairs.saturating_mul(2)),
            Protocol::Resp3 => self.length(b'%', pairs),
        }
    }

    fn line(&mut self, text: &str) {
        let safe = text.bytes().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            byte => byte,
        });
        self.out.extend(safe);
        self.out.extend_from_slice(b"\r\n");
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.head(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn head(&mut self, kind: u8, value: i64) {
        // Nearly all numbers of a reply are small.
        if let Ok(ones @ 0..=9) = u8::try_from(value) {
            self.out
                .extend_from_slice(&[kind, b'0' + ones, b'\r', b'\n']);
            return;
        }
        if let Ok(small @ 10..=99) = u8::try_from(value) {
            let (tens, ones) = (small / 10, small % 10);
            self.out
                .extend_from_slice(&[kind, b'0' + tens, b'0' + ones, b'\r', b'\n']);
            return;
        }
        if value == -1 {
            self.out
                .extend_from_slice(&[kind, b'-', b'1', b'\r', b'\n']);
            return;
        }
        self.long_head(kind, value);
    }

    fn long_head(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        let mut buffer = itoa::Buffer::new();
        self.out.extend_from_slice(buffer.format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// An array of at most 9 short integers, and how many bytes that is.
#[inline]
fn short_array(values: &[i64]) -> Option<([u8; 64], usize)> {
    let mut bytes = [0; 64];
    let mut at = 4;
    let count = u8::try_from(values.len()).ok()?;
    *bytes.first_chunk_mut()? = [b'*', b'0' + count, b'\r', b'\n'];
    for value in values {
        let index = usize::try_from(value.checked_add(1)?).ok()?;
        let (text, length) = SHORTS.get(index)?;
        *bytes.get_mut(at..)?.first_chunk_mut()? = *text;
        at += usize::from(*length);
    }
    Some((bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_an_array_of_them() {
        let edges = [
            0,
            7,
            9,
            10,
            99,
            100,
            999,
            1_000,
            65_535,
            65_536,
            i64::MAX,
            -1,
            -2,
            i64::MIN,
        ];
        for a in edges {
            for b in edges {
                let mut one_by_one = b"before".to_vec();
                let mut encoder = Encoder::new(&mut one_by_one, Protocol::Resp2);
                encoder.array(3);
                for value in [a, b, a] {
                    encoder.integer(value);
                }
                let mut at_once = b"before".to_vec();
                Encoder::new(&mut at_once, Protocol::Resp2).integers([a, b, a]);
                assert_eq!(at_once, one_by_one, "{a} {b}");
            }
        }
    }
}
