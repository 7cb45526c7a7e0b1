//! History: what was decided in each second of the last five minutes, and more coarsely in the last hour
//! and day, for the console's charts; and what people changed lately. With a data directory the hour, the
//! day and the changes survive a restart (`file`).
//!
//! It is read from the numbers that metrics have, once a second. A reload drops the numbers of rules that
//! are gone; then a point may show too little, never too much.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use quell::Operation;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::metrics::{ALLOWED, BUCKETS, DENIED, Histogram, Metrics, WOULD_REFUSE, place};

pub(crate) mod file;
pub(crate) mod record;
pub(crate) use quell_host::history::{Change, Numbers, Point, Series, Span};

/// Changes that are kept; the log has them all.
const MAX_CHANGES: usize = 100;

/// Seconds between two writings of the file: a crash loses that much of a chart.
const WRITE_EVERY: u64 = 60;

/// Time between two readings.
const EVERY: Duration = Duration::from_secs(1);

/// Decisions of some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Allowed, and a rule in shadow would have refused them.
    pub(crate) would_refuse: u64,
    /// Answered degraded.
    pub(crate) degraded: u64,
    /// Answers by how long they took, as [`Histogram::counts`] has them.
    pub(crate) latency: [u64; BUCKETS],
}

impl Counts {
    /// All since the server started.
    pub(crate) fn total(metrics: &Metrics) -> Self {
        let mut total = Self::default();
        for tally in metrics.rules.domains().values() {
            total.allowed = total.allowed.wrapping_add(tally.sum(ALLOWED));
            total.denied = total.denied.wrapping_add(tally.sum(DENIED));
            total.would_refuse = total.would_refuse.wrapping_add(tally.sum(WOULD_REFUSE));
        }
        let ad_hoc = |is_allow| {
            let at = place(Operation::Acquire, is_allow, false);
            metrics.ad_hoc.sum(at)
        };
        total.allowed = total.allowed.wrapping_add(ad_hoc(true));
        total.denied = total.denied.wrapping_add(ad_hoc(false));
        total.degraded = metrics.degraded.get();
        total.latency = metrics.query_seconds.counts();
        total
    }

    /// Combines each number with that of `other`.
    pub(crate) fn with(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        let mut latency = self.latency;
        for (number, other) in latency.iter_mut().zip(other.latency) {
            *number = combine(*number, other);
        }
        Self {
            allowed: combine(self.allowed, other.allowed),
            denied: combine(self.denied, other.denied),
            would_refuse: combine(self.would_refuse, other.would_refuse),
            degraded: combine(self.degraded, other.degraded),
            latency,
        }
    }

    /// The time within which this part of a hundred of the answers were given: an upper edge of the
    /// histogram. `None` if there were none, or it is above all edges.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let total: u64 = self.latency.iter().sum();
        let wanted = total.saturating_mul(percent).div_ceil(100);
        let mut sum = 0_u64;
        let bucket = self.latency.iter().position(|count| {
            sum = sum.saturating_add(*count);
            sum >= wanted
        });
        bucket.filter(|_| total > 0).and_then(Histogram::upper_edge)
    }
}

impl Numbers for Counts {
    fn add(&mut self, later: &Self) {
        *self = self.with(later, u64::saturating_add);
    }
}

/// The history of one server: some 150 kB when it is full.
#[derive(Debug, Default)]
pub(crate) struct History {
    series: Mutex<[Series<Counts>; Span::ALL.len()]>,
    changes: Mutex<VecDeque<Change>>,
    /// Number of points that were added: changes once a second.
    points: watch::Sender<u64>,
    /// Held while the file is written: a stopping server may begin before the last writing has ended.
    writing: Mutex<()>,
}

impl History {
    /// The points of a span, the oldest first.
    pub(crate) fn points(&self, span: Span) -> Vec<Point<Counts>> {
        self.series(span).points().copied().collect()
    }

    fn series(&self, span: Span) -> Series<Counts> {
        let [minutes, hour, day] = &*self.series.lock();
        let series = match span {
            Span::Minutes => minutes,
            Span::Hour => hour,
            Span::Day => day,
        };
        series.clone()
    }

    /// All that is known of a span, as one point.
    pub(crate) fn sum(&self, span: Span) -> Option<Point<Counts>> {
        self.series(span).sum()
    }

    /// The last second.
    pub(crate) fn last(&self) -> Option<Point<Counts>> {
        let [minutes, ..] = &*self.series.lock();
        minutes.last().copied()
    }

    /// Changes after each point that is added.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.points.subscribe()
    }

    /// Last changes, the newest first.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.changes.lock().iter().rev().cloned().collect()
    }

    /// Notes a change.
    pub(crate) fn note(&self, change: Change) {
        let mut changes = self.changes.lock();
        changes.push_back(change);
        if changes.len() > MAX_CHANGES {
            changes.pop_front();
        }
    }

    fn add(&self, point: &Point<Counts>) {
        for (series, span) in self.series.lock().iter_mut().zip(Span::ALL) {
            series.add(span, point);
        }
        self.points.send_modify(|points| *points += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: i64, allowed: u64) -> Point<Counts> {
        let counts = Counts {
            allowed,
            ..Counts::default()
        };
        Point {
            at,
            millis: 1_000,
            counts,
        }
    }

    #[test]
    fn seconds_add_up_to_steps_and_old_steps_are_forgotten() {
        let history = History::default();
        for second in 0..86_400 + 300 {
            history.add(&point(second, 2));
        }
        for (span, steps, length) in [
            (Span::Minutes, 300, 1),
            (Span::Hour, 360, 10),
            (Span::Day, 288, 300),
        ] {
            let points = history.points(span);
            assert_eq!(points.len(), steps, "{span:?}");
            assert_eq!(
                points[0].at,
                86_700 - length * i64::try_from(steps).unwrap()
            );
            let whole = |p: &&Point<_>| p.millis == length.unsigned_abs() * 1_000;
            assert_eq!(points.iter().filter(whole).count(), steps, "{span:?}");
            assert!({ points.iter() }.all(|p| p.counts.allowed == 2 * length.unsigned_abs()));
        }
        assert_eq!(*history.subscribe().borrow(), 86_700);
    }

    #[test]
    fn a_clock_that_is_set_back_adds_to_the_last_step() {
        let history = History::default();
        history.add(&point(1_000, 1));
        history.add(&point(800, 1));
        history.add(&point(1_001, 1));
        let points = history.points(Span::Minutes);
        let shown: Vec<_> = points.iter().map(|p| (p.at, p.counts.allowed)).collect();
        assert_eq!(shown, [(1_000, 2), (1_001, 1)]);
    }

    #[test]
    fn percentiles_are_upper_edges() {
        let mut counts = Counts::default();
        assert_eq!(counts.percentile(99), None);
        let histogram = Histogram::default();
        (0..98).for_each(|_| histogram.record(Duration::from_nanos(700)));
        histogram.record(Duration::from_micros(3));
        counts.latency = histogram.counts();
        assert_eq!(counts.percentile(50), Some(Duration::from_micros(1)));
        assert_eq!(counts.percentile(99), Some(Duration::from_micros(4)));
        histogram.record(Duration::from_secs(2));
        counts.latency = histogram.counts();
        assert_eq!(counts.percentile(100), None);
    }
}
