//! Series: numbers over time in steps, for the charts of a server and of a coordinator.

use std::collections::VecDeque;
use std::collections::vec_deque::{Iter, IterMut};

use serde::{Deserialize, Serialize};

/// Numbers of some time.
pub trait Numbers: Clone {
    /// Adds those of a later time.
    fn add(&mut self, later: &Self);
}

/// Counts in a step of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point<T> {
    /// Beginning of the step, in seconds since 1970.
    pub at: i64,
    /// Watched part of it, in milliseconds.
    pub millis: u64,
    /// The counts.
    pub counts: T,
}

impl<T: Numbers> Point<T> {
    fn add(&mut self, later: &Self) {
        self.millis = self.millis.saturating_add(later.millis);
        self.counts.add(&later.counts);
    }
}

/// Time span of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Five, by the second.
    Minutes,
    /// One, by ten seconds.
    Hour,
    /// One, by five minutes.
    Day,
}

impl Span {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Minutes, Self::Hour, Self::Day];

    /// The length of a step in seconds, and how many steps are kept.
    #[must_use]
    pub const fn steps(self) -> (i64, usize) {
        match self {
            Self::Minutes => (1, 300),
            Self::Hour => (10, 360),
            Self::Day => (300, 288),
        }
    }

    /// In seconds.
    #[must_use]
    pub const fn length(self) -> i64 {
        match self {
            Self::Minutes => 300,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }
}

/// The steps of one span, the oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Series<T>(VecDeque<Point<T>>);

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Series<T> {
    /// Its steps.
    #[must_use]
    pub fn points(&self) -> Iter<'_, Point<T>> {
        self.0.iter()
    }

    /// Its steps, to be changed.
    pub fn points_mut(&mut self) -> IterMut<'_, Point<T>> {
        self.0.iter_mut()
    }

    /// The newest step.
    #[must_use]
    pub fn last(&self) -> Option<&Point<T>> {
        self.0.back()
    }

    /// Forgets all but the newest steps.
    pub fn keep(&mut self, most: usize) {
        self.0.drain(..self.0.len().saturating_sub(most));
    }
}

impl<T: Numbers> Series<T> {
    /// Its steps by when each began, and where some are missing a gap.
    #[must_use]
    pub fn with_gaps(&self, span: Span) -> Vec<(i64, Option<&Point<T>>)> {
        let (step, _) = span.steps();
        let mut all = Vec::with_capacity(self.0.len());
        for point in &self.0 {
            let next = all.last().map_or(point.at, |(at, _)| at + step);
            if next < point.at {
                all.push((next, None));
            }
            all.push((point.at, Some(point)));
        }
        all
    }

    /// All that is known, as one point.
    #[must_use]
    pub fn sum(&self) -> Option<Point<T>> {
        let mut points = self.0.iter();
        let mut sum = points.next()?.clone();
        points.for_each(|point| sum.add(point));
        Some(sum)
    }

    /// Adds a point to its step, and forgets what is older than the span.
    pub fn add(&mut self, span: Span, point: &Point<T>) {
        let (step, most) = span.steps();
        let at = point.at - point.at.rem_euclid(step);
        // The clock was far ahead, and is right now.
        if self.last().is_some_and(|last| last.at - at > span.length()) {
            self.0.clear();
        }
        match self.0.back_mut() {
            // Also if the clock was set back.
            Some(last) if last.at >= at => last.add(point),
            _ => self.0.push_back(Point {
                at,
                ..point.clone()
            }),
        }
        self.keep(most);
        let old = self.0.partition_point(|old| old.at <= at - span.length());
        self.0.drain(..old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbers for u64 {
        fn add(&mut self, later: &Self) {
            *self += *later;
        }
    }

    fn add(series: &mut Series<u64>, at: i64) {
        let point = Point {
            at,
            millis: 1_000,
            counts: 1,
        };
        series.add(Span::Hour, &point);
    }

    fn shown(series: &Series<u64>) -> Vec<(i64, u64)> {
        let points = series.points();
        points.map(|point| (point.at, point.counts)).collect()
    }

    #[test]
    fn a_span_has_as_many_steps_as_it_is_long() {
        for span in Span::ALL {
            let (step, most) = span.steps();
            assert_eq!(step * i64::try_from(most).unwrap(), span.length());
        }
    }

    #[test]
    fn what_is_older_than_the_span_is_forgotten_also_if_there_are_few_steps() {
        let mut series = Series::default();
        for at in [5, 12, 19, 3_609, 3_610] {
            add(&mut series, at);
        }
        assert_eq!(shown(&series), [(3_600, 1), (3_610, 1)]);
        series.keep(1);
        assert_eq!(shown(&series), [(3_610, 1)]);
    }

    #[test]
    fn a_clock_that_was_far_ahead_does_not_stop_a_series() {
        let mut series = Series::default();
        for at in [1_000_000, 999_000, 100] {
            add(&mut series, at);
        }
        assert_eq!(shown(&series), [(100, 1)]);
    }
}
