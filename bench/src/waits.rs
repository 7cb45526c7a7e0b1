//! Waits: how long calls took, with the slow ones kept apart.

/// Steps per doubling: a percentile is exact to 3 %.
const STEPS: usize = 32;

/// Durations of calls, counted by size.
#[derive(Debug)]
pub(crate) struct Waits {
    counts: Vec<u64>,
    slowest: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            counts: vec![0; 64 * STEPS],
            slowest: 0,
        }
    }
}

impl Waits {
    /// Counts a call that took this many nanoseconds.
    pub(crate) fn add(&mut self, nanos: u64) {
        self.counts[place(nanos)] += 1;
        self.slowest = self.slowest.max(nanos);
    }

    /// The nanoseconds that this fraction of the calls did not exceed.
    pub(crate) fn share(&self, share: f64) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let below = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= below {
                return upper(place).min(self.slowest as f64);
            }
        }
        self.slowest as f64
    }

    /// The slowest call, in nanoseconds.
    pub(crate) fn slowest(&self) -> f64 {
        self.slowest as f64
    }
}

/// Exact below `STEPS`, then `STEPS` places per doubling.
fn place(nanos: u64) -> usize {
    let steps = STEPS as u64;
    if nanos < steps {
        return nanos as usize;
    }
    let doublings = nanos.ilog2() - steps.ilog2();
    let step = (nanos >> doublings) - steps;
    (doublings as usize + 1) * STEPS + step as usize
}

/// The largest number of nanoseconds in a place.
fn upper(place: usize) -> f64 {
    if place < STEPS {
        return place as f64;
    }
    let doublings = (place / STEPS - 1) as i32;
    ((STEPS + place % STEPS + 1) as f64) * 2_f64.powi(doublings) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_known_to_three_percent() {
        let mut waits = Waits::default();
        (1..=100_000).for_each(|nanos| waits.add(nanos));
        for share in [0.1, 0.5, 0.99, 0.9999] {
            let exact = share * 100_000.0;
            let found = waits.share(share);
            assert!((exact..exact * 1.04).contains(&found), "{share}: {found}");
        }
        assert!((waits.slowest() - 100_000.0).abs() < 1e-9);
    }
}
