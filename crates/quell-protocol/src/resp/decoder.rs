//! Decoder: finds a command and its arguments in the bytes of a connection.
//!
//! The decoder never copies an argument: it notes where each begins and ends. It remembers the positions
//! found in an incomplete frame, so bytes that arrive one by one are not read again and again: a call
//! costs the new arguments, plus at most the head of one that was cut (12 bytes). The search for the end
//! of a line continues where it stopped. All of that state is a list of positions, at most
//! [`FrameLimits::max_args`] long.

use super::args::{ArgSpan, Args};
use super::frame::{FrameError, FrameLimits};
use super::inline;
use super::number::natural;

/// Result of decoding the beginning of the input.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A command. Drop `length` bytes of the input before the next call.
    Command {
        /// Its name and arguments, at least one.
        args: Args<'a>,
        /// Bytes that the frame takes.
        length: usize,
    },
    /// Empty lines or arrays, which get no reply. Drop `length` bytes before the next call.
    Nothing {
        /// Bytes that they take.
        length: usize,
    },
    /// The frame is incomplete. Call again with the same bytes and more after them.
    Incomplete {
        /// At least this many bytes are missing; never more than
        /// [`FrameLimits::max_frame`] less the input.
        needed: usize,
    },
}

/// Finds the frames of one connection.
#[derive(Debug)]
pub struct Decoder {
    limits: FrameLimits,
    spans: Vec<ArgSpan>,
    /// The arguments of an inline command without their quotes.
    unquoted: Vec<u8>,
    /// The number of arguments in the array's head; `None` between frames.
    announced: Option<usize>,
    /// Offset of the first argument that was not yet found.
    position: usize,
    /// Offset up to which the end of a line was searched for.
    searched: usize,
}

/// The end of a line, or of the head of an argument.
enum LineEnd {
    /// A number, and where the bytes after it begin.
    Number(usize, usize),
    /// The bytes end too early.
    Cut,
    /// Not a number.
    Bad,
}

/// Bytes of the longest argument that the fast path finds: its length has two digits.
const MAX_SHORT: usize = 99;

/// Bytes of a list or of unquoted text that are kept for the next command.
const MAX_KEPT: usize = 1_024;

/// Digits of the longest length that is read; a longer one exceeds every bound.
const MAX_LENGTH_DIGITS: usize = 10;

/// Characters of the longest number that may be an argument: a double with all its digits.
const MAX_NUMBER_BYTES: usize = 64;

/// The first byte of a client that speaks TLS (RFC 8446, 5.1). No command begins with it, and what
/// follows may have no end of a line for long.
const TLS_HANDSHAKE: u8 = 0x16;

impl Decoder {
    /// A decoder between frames.
    #[must_use]
    pub const fn new(limits: FrameLimits) -> Self {
        Self {
            limits,
            spans: Vec::new(),
            unquoted: Vec::new(),
            announced: None,
            position: 0,
            searched: 0,
        }
    }

    /// Returns true if nothing of the next frame has been read yet.
    #[must_use]
    pub const fn is_between_frames(&self) -> bool {
        self.announced.is_none()
    }

    /// Looks for the first frame of `input`, which begins where the frame before it ended.
    ///
    /// # Errors
    /// [`FrameError`] if these bytes cannot become a frame within the bounds; the bytes after them
    /// cannot be understood.
    pub fn decode<'a>(&'a mut self, input: &'a [u8]) -> Result<Decoded<'a>, FrameError> {
        if self.announced.is_none()
            && let Some(length) = self.whole(input)
        {
            return Ok(self.command(input, length));
        }
        // What is beyond the bound decides nothing, as if it had not arrived yet.
        let most = self.limits.max_frame;
        let input = input.get(..most).unwrap_or(input);
        let progress = self.advance(input);
        if let Ok(Progress::Missing(needed)) = progress
            && input.len() < most
        {
            return Ok(Decoded::Incomplete { needed });
        }
        self.reset();
        Ok(match progress? {
            Progress::Array { length } => self.command(input, length),
            Progress::Inline { length } => self.command(&self.unquoted, length),
            Progress::Nothing { length } => Decoded::Nothing { length },
            Progress::Missing(_) => return Err(FrameError::LongFrame(most)),
        })
    }

    /// The command whose arguments were found in `bytes`.
    fn command<'a>(&'a self, bytes: &'a [u8], length: usize) -> Decoded<'a> {
        let spans = &self.spans;
        let args = Args { bytes, spans };
        Decoded::Command { args, length }
    }

    /// Frees the memory that only a long command needed, since the connection may be idle from now on.
    fn shrink(&mut self) {
        if self.unquoted.capacity() > MAX_KEPT {
            self.unquoted = Vec::new();
        }
        if self.spans.capacity() > MAX_KEPT / size_of::<ArgSpan>() {
            self.spans = Vec::new();
        }
    }

    /// Bytes that it has allocated.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.unquoted.capacity() + self.spans.capacity() * size_of::<ArgSpan>()
    }

    /// Forgets the frame, but not its spans, which the caller may borrow.
    const fn reset(&mut self) {
        self.announced = None;
        self.position = 0;
        self.searched = 0;
    }

    fn advance(&mut self, input: &[u8]) -> Result<Progress, FrameError> {
        let announced = match self.announced {
            Some(announced) => announced,
            None => {
                self.shrink();
                let empty = empty_frames(input);
                if empty > 0 {
                    return Ok(Progress::Nothing { length: empty });
                }
                match input.first() {
                    None => return Ok(Progress::Missing(1)),
                    Some(b'*') => {}
                    Some(_) => return self.inline(input),
                }
                let (announced, begin) = match head(input, 1) {
                    LineEnd::Number(count, begin) => (count, begin),
                    LineEnd::Cut => return Ok(Progress::Missing(1)),
                    LineEnd::Bad => return Err(FrameError::ArrayLength(self.limits.max_args)),
                };
                if announced > self.limits.max_args {
                    return Err(FrameError::ArrayLength(self.limits.max_args));
                }
                if announced == 0 {
                    return Ok(Progress::Nothing { length: begin });
                }
                self.spans.clear();
                self.announced = Some(announced);
                self.position = begin;
                announced
            }
        };
        while self.spans.len() < announced {
            if let Some(span) = short(input, self.position)
                && span.end - span.start <= self.limits.max_bulk
            {
                self.spans.push(span);
                self.position = span.end + 2;
                continue;
            }
            if let Some(missing) = self.argument(input)? {
                return Ok(Progress::Missing(missing));
            }
        }
        let length = self.position;
        Ok(Progress::Array { length })
    }

    /// The fast path: finds a complete command of at most nine bulk strings of less than 100 bytes.
    /// [`Self::advance`] reads everything else.
    fn whole(&mut self, input: &[u8]) -> Option<usize> {
        let [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] = input else {
            return None;
        };
        let count = usize::from(count - b'0');
        if count > self.limits.max_args || self.limits.max_bulk < MAX_SHORT {
            return None;
        }
        if self.spans.len() != count {
            self.spans.resize(count, ArgSpan { start: 0, end: 0 });
        }
        let mut at = 4;
        for span in &mut self.spans {
            *span = short(input, at)?;
            at = span.end + 2;
        }
        (at <= self.limits.max_frame).then_some(at)
    }

    /// Notes one argument, or returns how many bytes are missing if it is cut.
    fn argument(&mut self, input: &[u8]) -> Result<Option<usize>, FrameError> {
        let at = self.position;
        match input.get(at) {
            Some(b'$') => self.sized(input, at, 0),
            // A verbatim string begins with its format, as in `txt:`.
            Some(b'=') => self.sized(input, at, 4),
            Some(kind @ (b'+' | b':' | b'(' | b',')) => self.line(input, at, *kind),
            Some(kind @ (b'*' | b'%' | b'~' | b'>' | b'|')) => Err(FrameError::Nested(*kind)),
            Some(kind @ (b'_' | b'#' | b'-' | b'!')) => Err(FrameError::NoText(*kind)),
            Some(other) => Err(FrameError::ArgumentType(*other)),
            None => Ok(Some(1)),
        }
    }

    /// An argument whose head has its length; its first `format` bytes are not part of the text.
    fn sized(
        &mut self,
        input: &[u8],
        at: usize,
        format: usize,
    ) -> Result<Option<usize>, FrameError> {
        let (length, start) = match head(input, at + 1) {
            LineEnd::Number(length, start) => (length, start),
            LineEnd::Cut => return Ok(Some(1)),
            LineEnd::Bad => return Err(FrameError::BulkLength(self.limits.max_bulk)),
        };
        if length > self.limits.max_bulk {
            return Err(FrameError::BulkLength(self.limits.max_bulk));
        }
        if length < format {
            return Err(FrameError::Malformed(b'='));
        }
        let end = start + length;
        if end + 2 > self.limits.max_frame {
            return Err(FrameError::LongFrame(self.limits.max_frame));
        }
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(FrameError::Terminator),
            None => return Ok(Some(end + 2 - input.len())),
        }
        if format > 0 && input.get(start + format - 1) != Some(&b':') {
            return Err(FrameError::Malformed(b'='));
        }
        self.spans.push(ArgSpan {
            start: start + format,
            end,
        });
        self.position = end + 2;
        Ok(None)
    }

    /// An argument that ends with its line.
    fn line(&mut self, input: &[u8], at: usize, kind: u8) -> Result<Option<usize>, FrameError> {
        let start = at + 1;
        let longest = if kind == b'+' {
            self.limits.max_line
        } else {
            MAX_NUMBER_BYTES
        };
        let end = match self.find(input, b'\r', start, longest) {
            Ok(Some(end)) => end,
            Ok(None) => return Ok(Some(1)),
            Err(_) if kind != b'+' => return Err(FrameError::Malformed(kind)),
            Err(error) => return Err(error),
        };
        match input.get(end + 1) {
            Some(b'\n') => {}
            Some(_) => return Err(FrameError::Terminator),
            None => return Ok(Some(1)),
        }
        let text = input.get(start..end).unwrap_or_default();
        let sound = match kind {
            b'+' => !text.contains(&b'\n'),
            b',' => is_double(text),
            _ => is_integer(text),
        };
        if !sound {
            return Err(FrameError::Malformed(kind));
        }
        self.spans.push(ArgSpan { start, end });
        self.position = end + 2;
        self.searched = 0;
        Ok(None)
    }

    fn inline(&mut self, input: &[u8]) -> Result<Progress, FrameError> {
        if input.first() == Some(&TLS_HANDSHAKE) {
            return Err(FrameError::Tls);
        }
        let Some(end) = self.find(input, b'\n', 0, self.limits.max_line)? else {
            return Ok(Progress::Missing(1));
        };
        let line = input.get(..end).unwrap_or_default();
        self.spans.clear();
        self.unquoted.clear();
        inline::split(
            line,
            self.limits.max_args,
            &mut self.unquoted,
            &mut self.spans,
        )?;
        let length = end + 1;
        if self.spans.is_empty() {
            return Ok(Progress::Nothing { length });
        }
        let args = Args {
            bytes: &self.unquoted,
            spans: &self.spans,
        };
        if inline::is_http(args) {
            return Err(FrameError::Http);
        }
        Ok(Progress::Inline { length })
    }

    /// Searches for `byte` from `start`, or from where an earlier call stopped.
    fn find(
        &mut self,
        input: &[u8],
        byte: u8,
        start: usize,
        longest: usize,
    ) -> Result<Option<usize>, FrameError> {
        let from = self.searched.max(start);
        let rest = input.get(from..).unwrap_or_default();
        let found = rest.iter().position(|other| *other == byte);
        let end = from + found.unwrap_or(rest.len());
        if end - start > longest {
            return Err(FrameError::LongLine(longest));
        }
        // The byte that was found is searched for again if the byte after it is still missing.
        self.searched = end;
        Ok(found.map(|_| end))
    }
}

enum Progress {
    Array { length: usize },
    Inline { length: usize },
    Nothing { length: usize },
    Missing(usize),
}

/// Bytes of empty lines and arrays at the beginning of `input`.
fn empty_frames(input: &[u8]) -> usize {
    let mut rest = input;
    loop {
        rest = match rest {
            [b'\n', after @ ..]
            | [b'\r', b'\n', after @ ..]
            | [b'*', b'0', b'\r', b'\n', after @ ..] => after,
            _ => return input.len() - rest.len(),
        }
    }
}

/// The span of the text of a bulk string of less than 100 bytes whose head begins at `at`; `None` if
/// there is none, or not all of it.
#[inline]
pub(super) fn short(input: &[u8], at: usize) -> Option<ArgSpan> {
    const ONE_DIGIT: u32 = u32::from_le_bytes([b'$', 0, b'\r', b'\n']);
    const TWO_DIGITS: u32 = u32::from_le_bytes([b'$', 0, 0, b'\r']);
    // One comparison of four bytes for the whole head except its digits.
    let [kind, tens, ones, fourth, fifth] = *input.get(at..)?.first_chunk::<5>()?;
    let word = u32::from_le_bytes([kind, tens, ones, fourth]);
    let digit = |byte: u8| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(usize::from(digit))
    };
    let (start, length) = if word & 0xFFFF_00FF == ONE_DIGIT {
        (at + 4, digit(tens)?)
    } else if word & 0xFF00_00FF == TWO_DIGITS && fifth == b'\n' {
        (at + 5, digit(tens)? * 10 + digit(ones)?)
    } else {
        return None;
    };
    let end = start + length;
    match input.get(end..)?.first_chunk::<2>()? {
        b"\r\n" => Some(ArgSpan { start, end }),
        _ => None,
    }
}

/// Reads a length and the end of its line.
fn head(input: &[u8], at: usize) -> LineEnd {
    let rest = input.get(at..).unwrap_or_default();
    let count = rest.iter().take_while(|byte| byte.is_ascii_digit());
    let count = count.take(MAX_LENGTH_DIGITS + 1).count();
    let (digits, end) = rest.split_at_checked(count).unwrap_or_default();
    match (natural(digits), end) {
        _ if count > MAX_LENGTH_DIGITS => LineEnd::Bad,
        (_, []) | (Some(_), [b'\r']) => LineEnd::Cut,
        (Some(length), [b'\r', b'\n', ..]) => match usize::try_from(length) {
            Ok(length) => LineEnd::Number(length, at + count + 2),
            Err(_) => LineEnd::Bad,
        },
        _ => LineEnd::Bad,
    }
}

fn is_integer(text: &[u8]) -> bool {
    let digits = match text {
        [b'-' | b'+', digits @ ..] => digits,
        digits => digits,
    };
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn is_double(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}
