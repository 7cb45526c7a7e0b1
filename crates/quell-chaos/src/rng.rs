//! A seeded source of randomness (SplitMix64).

use std::ops::Range;

/// The same seed gives the same numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// The number that it was made with.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in a range, which must not be empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// A random element.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let length = u64::try_from(from.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(self.within(0..length)).unwrap_or(0);
        from[index].clone()
    }

    /// A new source for another task.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }
}
