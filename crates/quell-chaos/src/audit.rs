//! An auditor: by how much admitted calls exceeded a rate, in the worst of all intervals.
//!
//! Nobody outside a server knows the instant at which it decides: only that it lies between the question and the
//! answer. A call counts in an interval in which both lie, so what is found is an excess whenever in these spans the
//! calls were decided. A call across an edge of an interval is for the servers.

use std::cmp::Reverse;
use std::time::Instant;

/// A call that was admitted between its question and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}

/// The most calls above `rate * d` in any interval of `d` seconds; without calls, less than any number. It takes
/// `n log n` steps.
///
/// The beginning of an interval goes back from call to call, and a tree has the worst end of each.
pub(crate) fn worst_excess(calls: &[Span], rate: f64) -> f64 {
    let Some(origin) = calls.iter().map(|call| call.begun).min() else {
        return f64::NEG_INFINITY;
    };
    let produced = |at: Instant| rate * (at - origin).as_secs_f64();
    let mut by_end = calls.to_vec();
    by_end.sort_by_key(|call| call.ended);
    let mut places: Vec<usize> = (0..by_end.len()).collect();
    places.sort_by_key(|place| Reverse(by_end[*place].begun));
    let (mut ends, mut worst) = (Ends::new(by_end.len()), f64::NEG_INFINITY);
    for place in places {
        let call = by_end[place];
        ends.add(place, produced(call.ended));
        worst = worst.max(ends.worst() + produced(call.begun));
    }
    worst
}

/// The ends of intervals that have one beginning, in order: a binary tree whose leaves are calls.
struct Ends {
    nodes: Vec<Node>,
    leaves: usize,
}

#[derive(Clone, Copy)]
struct Node {
    /// Calls below this node.
    count: f64,
    /// The most calls from the first below this node up to one of them, above what was produced by its end.
    worst: f64,
}

impl Ends {
    fn new(calls: usize) -> Self {
        let leaves = calls.next_power_of_two();
        let none = Node {
            count: 0.0,
            worst: f64::NEG_INFINITY,
        };
        Self {
            nodes: vec![none; 2 * leaves],
            leaves,
        }
    }

    /// A call at this place ends when so much was produced.
    fn add(&mut self, place: usize, produced: f64) {
        let mut at = self.leaves + place;
        self.nodes[at] = Node {
            count: 1.0,
            worst: 1.0 - produced,
        };
        while at > 1 {
            at /= 2;
            let (left, right) = (self.nodes[2 * at], self.nodes[2 * at + 1]);
            self.nodes[at] = Node {
                count: left.count + right.count,
                worst: left.worst.max(left.count + right.worst),
            };
        }
    }

    fn worst(&self) -> f64 {
        self.nodes[1].worst
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rng::Rng;

    /// The same, by looking at every interval.
    fn looked_at_each(calls: &[Span], rate: f64) -> f64 {
        let mut worst = f64::NEG_INFINITY;
        for from in calls.iter().map(|call| call.begun) {
            for until in calls.iter().map(|call| call.ended) {
                let is_inside = |call: &&Span| call.begun >= from && call.ended <= until;
                let count = calls.iter().filter(is_inside).count();
                if count > 0 {
                    let during = (until - from).as_secs_f64();
                    worst = f64::max(worst, count as f64 - rate * during);
                }
            }
        }
        worst
    }

    #[test]
    fn the_tree_finds_what_a_look_at_every_interval_finds() {
        let origin = Instant::now();
        let mut rng = Rng::new(42);
        for case in 0..3_000 {
            let calls: Vec<Span> = (0..rng.within(0..24))
                .map(|_| {
                    // Few instants, so that many are equal; spans from none to longer than all of it.
                    let begun = origin + Duration::from_millis(rng.within(0..40));
                    let took = Duration::from_millis(rng.within(0..8).pow(2));
                    let ended = begun + took;
                    Span { begun, ended }
                })
                .collect();
            let rate = [0.0, 1.0, 90.0, 700.0, 5_000.0][case % 5];
            let (found, expected) = (worst_excess(&calls, rate), looked_at_each(&calls, rate));
            let is_same = found == expected || (found - expected).abs() < 1e-6;
            assert!(is_same, "{found} in place of {expected}: {rate}, {calls:?}");
        }
    }

    #[test]
    fn all_of_a_long_flood_is_its_worst_interval() {
        let origin = Instant::now();
        let at = |micros| origin + Duration::from_micros(micros);
        let calls: Vec<Span> = (0..500_000)
            .map(|call| Span {
                begun: at(call * 100),
                ended: at(call * 100 + 5_000),
            })
            .collect();
        // 10,000/s of 4,000/s for 50 s: all of it is the worst interval.
        let excess = worst_excess(&calls, 4_000.0);
        assert!((299_979.0..299_981.0).contains(&excess), "{excess}");
    }
}
