//! Arena: lines, or spills, by number. It grows by one piece at a time, and nothing in it ever moves.

use std::sync::OnceLock;

use super::line::MAX_LINES;

/// Lines of a piece: 64 KiB, which can be made in a few microseconds; a piece of spills is half as
/// large.
const PIECE: usize = if cfg!(test) { 2 } else { 512 };

/// Pieces of a shelf: 8 KiB of pointers.
const SHELF: usize = if cfg!(test) { 2 } else { 512 };

/// Shelves, enough for all lines there can be, or spills.
const SHELVES: usize = if cfg!(test) {
    2
} else {
    (MAX_LINES + 1) / PIECE / SHELF
};

type Piece<T> = [T; PIECE];
type Shelf<T> = [OnceLock<Box<Piece<T>>>; SHELF];

/// Items that are made when first used. The lengths of its parts are compile-time constants, so none
/// has to be read.
#[derive(Debug)]
pub(super) struct Arena<T> {
    shelves: Box<[OnceLock<Box<Shelf<T>>>; SHELVES]>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            shelves: Box::new([const { OnceLock::new() }; SHELVES]),
        }
    }
}

impl<T: Default> Arena<T> {
    /// The item with this number, if it was made.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let shelf = self.shelves.get(index / (PIECE * SHELF))?.get()?;
        let piece = shelf[index / PIECE % SHELF].get()?;
        Some(&piece[index % PIECE])
    }

    /// The item with this number, made with its neighbours if necessary; `None` above [`MAX_LINES`].
    pub(super) fn make(&self, index: usize) -> Option<&T> {
        let shelf = self.shelves.get(index / (PIECE * SHELF))?;
        let shelf = shelf.get_or_init(|| Box::new([const { OnceLock::new() }; SHELF]));
        let piece = shelf[index / PIECE % SHELF].get_or_init(piece);
        Some(&piece[index % PIECE])
    }
}

/// Empty items, allocated at their final place.
fn piece<T: Default>() -> Box<Piece<T>> {
    let piece: Box<[T]> = (0..PIECE).map(|_| T::default()).collect();
    match piece.try_into() {
        Ok(piece) => piece,
        // This cannot happen: the length is the one it was made with.
        Err(_) => Box::new(std::array::from_fn(|_| T::default())),
    }
}
