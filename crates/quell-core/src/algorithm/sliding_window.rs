//! Sliding window: at most `limit` in any window, at a fixed price per key.
//!
//! The usual estimate, this window's count plus a fraction of the last one's, guesses how calls were
//! spread over the last window and admits slightly more than the limit across an edge. The sum of
//! the usual ten counters does so as well: it forgets a tenth while calls at the end of that tenth
//! are younger than the window. So a charge here counts until the *end* of its segment plus the
//! window.
//!
//! With g = window/segments (an exact fraction of a nanosecond), segment number s = floor(t/g):
//!
//! ```text
//! counts(s) at now  iff  s + segments >= floor(now/g)
//! allow iff sum of counting segments + n <= limit
//! retry_after = when enough of the oldest segments stop counting
//! ```
//!
//! Example, 10 per 1 s in 10 segments: ten calls at 0.05 s are all in segment 0, which counts until
//! 0.1 + 1 = 1.1 s; the eleventh is refused at 0.05 s with `retry_after` 1.05 s.
//!
//! Bound: at most `limit` in any window; a charge is counted at most one segment too long. State: at
//! most `segments + 1` pairs.
//!
//! Bad at: exactness at low counts, where `sliding_log` costs no more.

use core::fmt;
use core::time::Duration;

use super::entries::{self, Entries, add, drop_oldest, put_in_order};
use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::Outcome;
use crate::limit_error::LimitError;
use crate::rate::{checked_period, write_per_window};
use crate::time::{Monotonic, duration_from_nanos};
use crate::usage::Usage;

/// The default number of segments: a charge counts at most 10 % too long.
pub const DEFAULT_SEGMENTS: u32 = 10;

/// The most segments: 3,600 pairs of 16 bytes are 58 kB for one key.
pub const MAX_SEGMENTS: u32 = 3_600;

/// The numbers of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    /// Units in any window, at least 1.
    pub limit: u64,
    /// The window's length, above 0 and at most [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    pub window: Duration,
    /// Into how many segments the window is cut: 2 to [`MAX_SEGMENTS`], each at least a nanosecond
    /// long. Default: [`DEFAULT_SEGMENTS`].
    pub segments: u32,
}

impl SlidingWindow {
    pub(crate) const fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window,
            segments: DEFAULT_SEGMENTS,
        }
    }

    setters! {
        segments(u32) => segments;
    }

    pub(crate) fn prove(self) -> Result<(Algorithm, Engine), LimitError> {
        if self.limit == 0 {
            return Err(LimitError::ZeroLimit);
        }
        let window = checked_period(self.window)?;
        if !(2..=MAX_SEGMENTS).contains(&self.segments) {
            return Err(LimitError::Segments);
        }
        if window < u64::from(self.segments) {
            return Err(LimitError::ShortSegments);
        }
        let engine = Engine::Segments(SegmentEngine {
            limit: self.limit,
            window,
            segments: u64::from(self.segments),
        });
        Ok((Algorithm::SlidingWindow(self), engine))
    }
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_per_window(f, self.limit, self.window)?;
        write!(f, " in {} segments", self.segments)
    }
}

/// A sliding window with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEngine {
    limit: u64,
    window: u64,
    segments: u64,
}

type Segments = Entries<u64>;

impl SegmentEngine {
    pub(super) const fn with_limit(&self, limit: u64) -> Self {
        Self { limit, ..*self }
    }

    /// The segment that contains `instant`.
    pub(super) fn segment(&self, instant: Monotonic) -> u64 {
        let parts = u128::from(instant.as_nanos()) * u128::from(self.segments);
        u64::try_from(parts / u128::from(self.window)).unwrap_or(u64::MAX)
    }

    /// The first nanosecond of `segment`; it may be past the end of all instants.
    fn start(&self, segment: u64) -> u128 {
        let start = u128::from(segment) * u128::from(self.window);
        start.div_ceil(u128::from(self.segments))
    }

    /// The last instant of `segment`.
    fn last(&self, segment: u64) -> Monotonic {
        let last = self.start(segment.saturating_add(1)).saturating_sub(1);
        Monotonic::from_nanos(u64::try_from(last).unwrap_or(u64::MAX))
    }

    /// Time for which charges of `segment` count, from `now` on.
    pub(super) fn left(&self, segment: u64, now: Monotonic) -> Duration {
        let gone = self.start(segment.saturating_add(self.segments + 1));
        duration_from_nanos(gone.saturating_sub(u128::from(now.as_nanos())))
    }

    /// The segment that contains the end of `segment` moved by `nanos`.
    pub(super) fn shifted(&self, segment: u64, nanos: i64) -> u64 {
        self.segment(self.last(segment).shifted(nanos))
    }

    /// The segment of `to` that gets charges of `segment` after a change at `at`.
    pub(super) fn moved_mark(&self, segment: u64, to: &Self, at: &At) -> u64 {
        if (self.window, self.segments) == (to.window, to.segments) {
            return segment;
        }
        to.segment(self.last(segment).min(at.now.monotonic))
    }

    fn segments(usage: &Usage) -> Option<&Segments> {
        match usage {
            Usage::SlidingWindow { segments } => Some(segments),
            _ => None,
        }
    }

    /// Takes over the segments of another such window. Those on another grid go to the segment that
    /// contains their end, so none counts for too short a time.
    pub(crate) fn adopt(&self, from: &Self, usage: Usage, at: &At) -> Usage {
        let Usage::SlidingWindow { mut segments } = usage else {
            return Usage::Rest;
        };
        drop_oldest(&mut segments, self.limit);
        if (from.window, from.segments) != (self.window, self.segments) {
            let mut moved = Segments::with_capacity(segments.len());
            for (segment, used) in segments {
                let last = from.last(segment).min(at.now.monotonic);
                add(&mut moved, self.segment(last), used);
            }
            segments = moved;
        }
        Usage::SlidingWindow { segments }
    }
}

impl Mechanics for SegmentEngine {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn full_refill(&self) -> Duration {
        Duration::from_nanos(
            self.window
                .saturating_add(self.window.div_ceil(self.segments)),
        )
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        let Usage::SlidingWindow { segments } = usage else {
            *usage = Usage::Rest;
            return;
        };
        let current = self.segment(at.now.monotonic);
        put_in_order(segments);
        while let Some((_, used)) = segments.pop_back_if(|(segment, _)| *segment > current) {
            match segments.back_mut() {
                Some((newest, sum)) if *newest >= current => *sum = sum.saturating_add(used),
                _ => {
                    segments.push_back((current, used));
                    break;
                }
            }
        }
        let oldest = current.saturating_sub(self.segments);
        let is_gone = |(segment, _): &mut (u64, u64)| *segment < oldest;
        while segments.pop_front_if(is_gone).is_some() {}
        if segments.is_empty() {
            *usage = Usage::Rest;
        }
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        let wait = |segment| self.left(segment, at.now.monotonic);
        entries::check(Self::segments(usage), self.limit, cost, wait)
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        let current = self.segment(at.now.monotonic);
        if let Usage::SlidingWindow { segments } = usage {
            add(segments, current, cost);
        } else {
            let segments = Segments::from([(current, cost)]);
            *usage = Usage::SlidingWindow { segments };
        }
    }

    fn remaining(&self, usage: &Usage, _at: &At) -> u64 {
        let used = entries::used(Self::segments(usage));
        self.limit.saturating_sub(used)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        let left = |segment| self.left(segment, at.now.monotonic);
        entries::rest(Self::segments(usage), left)
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::SlidingWindow { segments } = usage {
            for (segment, _) in segments {
                *segment = self.shifted(*segment, nanos);
            }
        }
    }
}
