//! Tally: numbers that many threads add to without contention.
//!
//! With a single atomic, cores would pass its cache line to and fro, which costs as much as the decision
//! that is counted. So every thread adds in a cache line of its own, and readers add them up.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Lines per tally. With more threads than that, some share a line, which is only slower.
const LINES: usize = 8;

/// `N` numbers that only grow.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    lines: Box<[NumberLine<N>]>,
}

/// Numbers in cache lines of their own.
#[derive(Debug)]
#[repr(align(64))]
struct NumberLine<const N: usize>([AtomicU64; N]);

static NEXT_LINE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LINE: usize = NEXT_LINE.fetch_add(1, Ordering::Relaxed) % LINES;
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        let line = || NumberLine([const { AtomicU64::new(0) }; N]);
        Self {
            lines: (0..LINES).map(|_| line()).collect(),
        }
    }
}

impl<const N: usize> Tally<N> {
    /// Adds to number `index`; nothing if there is none.
    pub fn add(&self, index: usize, more: u64) {
        let line = LINE.with(|line| *line);
        if let Some(number) = self.lines.get(line).and_then(|line| line.0.get(index)) {
            number.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Adds the numbers of another tally.
    pub fn take_over(&self, other: &Self) {
        for index in 0..N {
            self.add(index, other.sum(index));
        }
    }

    /// The sum of several numbers.
    pub fn total(&self, indexes: Range<usize>) -> u64 {
        indexes.fold(0, |total, index| total.wrapping_add(self.sum(index)))
    }

    /// Number `index`.
    pub fn sum(&self, index: usize) -> u64 {
        let of_line = |line: &NumberLine<N>| {
            let number = line.0.get(index);
            number.map_or(0, |number| number.load(Ordering::Relaxed))
        };
        self.lines.iter().map(of_line).fold(0, u64::wrapping_add)
    }
}

/// Upper edges of the histogram's buckets, in nanoseconds, each twice the one before. In memory a decision takes
/// less than a microsecond; a store beside this process takes some hundred, and one that is far or slow up to a
/// second.
const EDGES: [u32; 23] = [
    250,
    500,
    1_000,
    2_000,
    4_000,
    8_000,
    16_000,
    32_000,
    64_000,
    125_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    4_000_000,
    8_000_000,
    16_000_000,
    32_000_000,
    64_000_000,
    125_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

const ABOVE: usize = EDGES.len();

/// Buckets of a histogram: one below each edge, and one above all.
pub const BUCKETS: usize = ABOVE + 1;

const SUM: usize = ABOVE + 1;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram(Tally<{ SUM + 1 }>);

impl Histogram {
    /// Counts a time.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let part = EDGES.iter().position(|edge| nanos <= u64::from(*edge));
        self.0.add(part.unwrap_or(ABOVE), 1);
        self.0.add(SUM, nanos);
    }

    /// The upper edges in seconds, each with the number of durations up to it.
    pub fn parts(&self) -> impl Iterator<Item = (String, u64)> {
        let seconds = |nanos: &u32| (f64::from(*nanos) / 1e9).to_string();
        let edges = EDGES.iter().map(seconds).chain(["+Inf".to_owned()]);
        let mut sum = 0_u64;
        edges.enumerate().map(move |(index, edge)| {
            sum = sum.wrapping_add(self.0.sum(index));
            (edge, sum)
        })
    }

    /// Number in each bucket.
    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|index| self.0.sum(index))
    }

    /// The upper edge of a bucket; `None` for the last.
    pub fn upper_edge(bucket: usize) -> Option<Duration> {
        let nanos = EDGES.get(bucket)?;
        Some(Duration::from_nanos(u64::from(*nanos)))
    }

    /// Total number.
    pub fn count(&self) -> u64 {
        self.0.total(0..SUM)
    }

    /// All durations together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.0.sum(SUM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let tally = Tally::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| (0..1_000).for_each(|_| tally.add(1, 2)));
            }
        });
        tally.add(2, 1);
        assert_eq!((tally.sum(0), tally.sum(1), tally.sum(2)), (0, 20_000, 0));
    }

    #[test]
    fn parts_of_a_histogram_include_those_below() {
        let histogram = Histogram::default();
        for nanos in [1, 250, 251, 100_000_001] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let parts: Vec<_> = histogram.parts().collect();
        let edges: Vec<&str> = parts.iter().map(|(edge, _)| edge.as_str()).collect();
        let expected = [
            "0.00000025",
            "0.0000005",
            "0.000001",
            "0.000002",
            "0.000004",
            "0.000008",
            "0.000016",
            "0.000032",
            "0.000064",
            "0.000125",
            "0.00025",
            "0.0005",
            "0.001",
            "0.002",
            "0.004",
            "0.008",
            "0.016",
            "0.032",
            "0.064",
            "0.125",
            "0.25",
            "0.5",
            "1",
            "+Inf",
        ];
        assert_eq!(edges, expected);
        let sums: Vec<u64> = parts.iter().map(|(_, sum)| *sum).collect();
        assert_eq!((sums[0], sums[1], sums[23]), (2, 3, 4));
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.sum(), Duration::from_nanos(100_000_503));
    }
}
