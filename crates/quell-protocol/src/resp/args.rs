//! Arguments: their positions in the bytes of a connection. Nothing is copied.

use std::fmt;

/// The position of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArgSpan {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The arguments of a command, borrowed from the input; the first is its name.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) spans: &'a [ArgSpan],
}

impl<'a> Args<'a> {
    /// The number of arguments.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns true if there are no arguments.
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

    /// All of them, in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let Self { bytes, spans } = *self;
        let arg = |span: &ArgSpan| bytes.get(span.start..span.end).unwrap_or_default();
        spans.iter().map(arg)
    }
}

/// Shows only how many there are, since one of them may be a password.
impl fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
