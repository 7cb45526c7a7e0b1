//! Draws: the sequence of keys to ask for. It is the same for every rival, from a fixed seed.

use clap::ValueEnum;

/// Spread of calls over keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spread {
    /// Zipf with exponent 1: with a million keys, every 14th call asks for the first key, and half
    /// of the calls for the first 850.
    Skewed,
    /// Every key equally often.
    Uniform,
    /// One key.
    Hot,
}

impl Spread {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Skewed => "skewed",
            Self::Uniform => "uniform",
            Self::Hot => "one hot key",
        }
    }
}

/// A key of 17 bytes, as `redis-benchmark` makes it from `user:__rand_int__`.
pub(crate) fn key(number: u64) -> String {
    format!("user:{number:012}")
}

/// `length` keys in the order in which they are asked for, out of `keys` different ones.
///
/// They are in memory in that order, so that reading them costs next to nothing, as for a key that
/// has just been read from a socket.
pub(crate) fn draw(spread: Spread, keys: usize, length: usize) -> Vec<String> {
    let mut random = Random(0x5EED);
    let names = shuffled(keys, &mut random);
    let rank: Box<dyn FnMut(&mut Random) -> usize> = match spread {
        Spread::Hot => Box::new(|_| 0),
        Spread::Uniform => Box::new(move |random| random.below(keys)),
        Spread::Skewed => {
            let weights = cumulative(keys);
            Box::new(move |random| {
                let at = random.unit();
                weights.partition_point(|below| *below < at)
            })
        }
    };
    let mut rank = rank;
    (0..length)
        .map(|_| key(names[rank(&mut random).min(keys - 1)]))
        .collect()
}

/// Every key once, in no particular order.
pub(crate) fn all(keys: usize) -> Vec<String> {
    let names = shuffled(keys, &mut Random(0xA11));
    names.into_iter().map(key).collect()
}

/// The number for each rank: busy keys are not neighbours.
fn shuffled(keys: usize, random: &mut Random) -> Vec<u64> {
    let mut names: Vec<u64> = (0..keys as u64).collect();
    for last in (1..names.len()).rev() {
        names.swap(last, random.below(last + 1));
    }
    names
}

/// The share of calls that go to the keys up to each rank.
fn cumulative(keys: usize) -> Vec<f64> {
    let mut sum = 0.0;
    let mut weights: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    for weight in &mut weights {
        *weight /= sum;
    }
    weights
}

/// SplitMix64: short, and good enough to spread keys.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_17_bytes_and_all_keys_differ() {
        let mut keys = all(1000);
        assert!(keys.iter().all(|key| key.len() == 17));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn spreads_are_what_they_say() {
        let most = |spread| {
            let mut counts = std::collections::HashMap::new();
            for key in draw(spread, 1_000_000, 100_000) {
                *counts.entry(key).or_insert(0) += 1;
            }
            let half_of_calls = {
                let mut sorted: Vec<i32> = counts.values().copied().collect();
                sorted.sort_by_key(|count| -count);
                let mut sum = 0;
                let covers = |count: &i32| {
                    sum += count;
                    sum < 50_000
                };
                sorted.iter().copied().take_while(covers).count()
            };
            (counts.into_values().max(), half_of_calls)
        };
        assert_eq!(most(Spread::Hot).0, Some(100_000));
        assert!(most(Spread::Uniform).0.is_some_and(|most| most < 10));
        let (hottest, half) = most(Spread::Skewed);
        assert!(hottest.is_some_and(|hottest| (6_500..7_500).contains(&hottest)));
        assert!((600..1_000).contains(&half), "{half}");
        assert_eq!(draw(Spread::Skewed, 50, 9), draw(Spread::Skewed, 50, 9));
    }
}
