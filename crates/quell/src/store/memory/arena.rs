//! Arena: lines by number. It grows by one piece at a time, and nothing in it ever moves.

use std::sync::OnceLock;

use super::line::{Line, MAX_LINES};

/// Lines of a piece: 64 KiB, which are there in a few microseconds.
const PIECE: usize = 512;

/// Pieces of a shelf: 8 KiB of pointers.
const SHELF: usize = 512;

/// Shelves, enough for all lines that can be linked to.
const SHELVES: usize = (MAX_LINES + 1) / PIECE / SHELF;

type Shelf = Box<[OnceLock<Box<[Line]>>]>;

/// Lines that are made when first asked for.
#[derive(Debug)]
pub(super) struct Arena {
    shelves: Box<[OnceLock<Shelf>]>,
}

impl Default for Arena {
    fn default() -> Self {
        Self {
            shelves: (0..SHELVES).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Arena {
    /// The line of this number, if it was made.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Line> {
        let shelf = self.shelves.get(index / (PIECE * SHELF))?.get()?;
        let piece = shelf.get(index / PIECE % SHELF)?.get()?;
        piece.get(index % PIECE)
    }

    /// The line of this number, made with its neighbours if it was not there; `None` past
    /// [`MAX_LINES`].
    pub(super) fn make(&self, index: usize) -> Option<&Line> {
        let shelf = self.shelves.get(index / (PIECE * SHELF))?;
        let shelf = shelf.get_or_init(|| (0..SHELF).map(|_| OnceLock::new()).collect());
        let piece = shelf.get(index / PIECE % SHELF)?;
        let piece = piece.get_or_init(|| (0..PIECE).map(|_| Line::default()).collect());
        piece.get(index % PIECE)
    }
}
