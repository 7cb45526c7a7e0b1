//! Arguments: where they lie in the bytes of a connection. Nothing is copied.

use std::fmt;

/// Where an argument lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The arguments of a command, borrowed from the input; the first is its name.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `index`, counted from 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.bytes.get(span.start..span.end)
    }

    /// All but the first `count`.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        Self {
            bytes: self.bytes,
            spans: self.spans.get(count..).unwrap_or_default(),
        }
    }

    /// One after the other.
    #[must_use]
    pub const fn iter(&self) -> ArgIter<'a> {
        ArgIter(*self)
    }
}

/// Says how many there are and nothing else: one of them may be a password.
impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<'a> IntoIterator for Args<'a> {
    type Item = &'a [u8];
    type IntoIter = ArgIter<'a>;

    fn into_iter(self) -> ArgIter<'a> {
        self.iter()
    }
}

/// Iterates over arguments.
#[derive(Clone, Debug)]
pub struct ArgIter<'a>(Args<'a>);

impl<'a> Iterator for ArgIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let first = self.0.get(0)?;
        self.0 = self.0.skip(1);
        Some(first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}
