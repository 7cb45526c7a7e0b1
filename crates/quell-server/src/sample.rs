//! Sample: picks a share of calls at random, without a number that threads have to share.

use std::cell::Cell;

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(1) };
}

/// Returns true for one call in `n`; `n` is at least 1. The numbers need not be secret, nor differ between
/// threads.
#[inline]
pub(crate) fn one_in(n: u64) -> bool {
    // A linear congruential generator, of which the upper bits are good (Knuth's constants).
    let random = RANDOM.get().wrapping_mul(6_364_136_223_846_793_005);
    let random = random.wrapping_add(1_442_695_040_888_963_407);
    RANDOM.set(random);
    (random >> 32).is_multiple_of(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_about_as_large_as_it_says() {
        for n in [1, 2, 3, 16, 1_000] {
            let picked = (0..100_000).filter(|_| one_in(n)).count() as u64;
            let expected = 100_000 / n;
            let is_near = picked.abs_diff(expected) <= expected / 5 + 20;
            assert!(is_near, "{picked} of 100000, one in {n}");
        }
    }
}
