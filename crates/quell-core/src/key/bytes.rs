//! Key bytes: a buffer into which keys are written, piece by piece.
//!
//! Every query writes a key of four pieces or more, so a piece must cost no more than copying it.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Deref;

/// Bytes that need no allocation: a key of usual length, or two.
const SHORT: usize = 128;

/// A buffer for keys; keys of usual length need no allocation.
#[derive(Clone, Debug)]
pub struct KeyBytes {
    short: [u8; SHORT],
    /// The number of bytes in `short`.
    length: usize,
    /// All bytes, once they do not fit into `short`.
    long: Vec<u8>,
}

impl KeyBytes {
    /// No bytes yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            short: [0; SHORT],
            length: 0,
            long: Vec::new(),
        }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut written = Self::new();
        written.extend_from_slice(bytes);
        written
    }

    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    /// Appends `part`.
    #[inline]
    pub fn extend_from_slice(&mut self, part: &[u8]) {
        let end = self.length.saturating_add(part.len());
        match self.short.get_mut(self.length..end) {
            Some(place) if self.long.is_empty() => {
                place.copy_from_slice(part);
                self.length = end;
            }
            _ => self.extend_long(part),
        }
    }

    #[cold]
    fn extend_long(&mut self, part: &[u8]) {
        if self.long.is_empty() {
            let written = self.short.get(..self.length);
            self.long.extend_from_slice(written.unwrap_or_default());
        }
        self.long.extend_from_slice(part);
    }

    /// Keeps the first `length` bytes, or all if there are fewer.
    pub fn truncate(&mut self, length: usize) {
        // The bytes in `short` are the beginning of those in `long`.
        self.length = self.length.min(length);
        self.long.truncate(length);
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.long.is_empty() {
            self.short.get(..self.length).unwrap_or_default()
        } else {
            &self.long
        }
    }
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for KeyBytes {}

impl PartialOrd for KeyBytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_what_was_written() {
        for pieces in [&[1, 2, 3][..], &[126, 1, 1, 5], &[0, 128, 1], &[300, 0, 7]] {
            let mut written = KeyBytes::new();
            let mut expected = Vec::new();
            for (piece, length) in (0..).zip(pieces) {
                let part = alloc::vec![piece; *length];
                written.extend_from_slice(&part);
                written.push(0xff);
                expected.extend(part);
                expected.push(0xff);
                assert_eq!(*written, *expected);
                for end in 0..=expected.len() + 1 {
                    let mut cut = written.clone();
                    cut.truncate(end);
                    cut.extend_from_slice(b"again");
                    let mut again = expected.clone();
                    again.truncate(end);
                    again.extend_from_slice(b"again");
                    assert_eq!(cut, KeyBytes::from_slice(&again), "cut at {end}");
                }
            }
        }
    }
}
