//! Generation: how numbers go on rising although the store went back.
//!
//! Epochs, incarnations, revisions and versions of the record rise, and whoever has seen a number obeys
//! no lower one. A store that was restored from a backup gives the same numbers once more, for other
//! things. So an operator who restores it raises the *generation*: it is the upper part of each of these
//! numbers, and all of a higher generation are higher than all of a lower one.
//!
//! Example: 261123 is a generation that was raised on 23 November 2026. In it the key with revision 7
//! is epoch `261123 << 44 | 7`.

/// The bits of a number that count within a generation: 17 million million numbers.
const BITS: u32 = 44;

/// The highest generation. A date as `YYMMDD` fits.
pub const HIGHEST: u64 = (1 << (64 - BITS)) - 1;

/// The generation of a number.
#[must_use]
pub const fn of(number: u64) -> u64 {
    number >> BITS
}

/// A number within its generation.
#[must_use]
pub const fn within(number: u64) -> u64 {
    number & ((1 << BITS) - 1)
}

/// The number `within` of a generation.
#[must_use]
pub const fn number(generation: u64, within: u64) -> u64 {
    generation << BITS | self::within(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_later_generation_is_higher() {
        assert_eq!((of(7), within(7)), (0, 7));
        let last = number(261_122, u64::MAX);
        let first = number(261_123, 0);
        assert_eq!(first, last + 1);
        assert_eq!((of(last), of(first), within(first)), (261_122, 261_123, 0));
        assert_eq!(of(u64::MAX), HIGHEST);
    }
}
