//! Encoder: replies as bytes.

/// Which of the two protocols a connection speaks: RESP2 until it says `HELLO 3`.
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

/// Writes replies behind what a buffer already holds.
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

    /// The protocol that is written.
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

    /// Nothing: not applicable, or not there.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Nothing in place of an array, which RESP2 writes in its own way.
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
        if value < 0 {
            self.out.push(b'-');
        }
        // The digits of a 64 bit integer, the last first.
        let mut digits = [0u8; 20];
        let mut rest = value.unsigned_abs();
        let mut length = 0;
        for digit in &mut digits {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
            length += 1;
            if rest == 0 {
                break;
            }
        }
        let digits = digits.get(..length).unwrap_or_default();
        self.out.extend(digits.iter().rev());
        self.out.extend_from_slice(b"\r\n");
    }
}
