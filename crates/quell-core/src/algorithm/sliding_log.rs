//! Sliding log: at most `limit` in any window, exact to the nanosecond.
//!
//! The usual recipe, a sorted set with one member per call, also stores refused calls, which
//! starves a caller that keeps trying. Here a refusal leaves no trace.
//!
//! ```text
//! gone(entry) iff entry.t + window <= now
//! allow iff sum of live entries + n <= limit
//! retry_after = when enough of the oldest entries are gone
//! ```
//!
//! Example, 5 per minute: five logins at 0, 1, 2, 3 and 4 s; at 10 s deny, `retry_after` 50 s; at
//! 60 s the first is gone (windows are half open) and one more fits.
//!
//! Bound: at most `limit` in any window. State: one entry per charge (charges of one instant share
//! theirs), 16 bytes each; so a limit above `max_entries` becomes a `sliding_window`.
//!
//! Bad at: large limits, in memory.

use core::fmt;
use core::time::Duration;

use super::entries::{self, Entries, add, drop_oldest, put_in_order};
use super::sliding_window::SlidingWindow;
use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::Outcome;
use crate::limit_error::LimitError;
use crate::rate::{checked_period, write_per_window};
use crate::time::Monotonic;
use crate::usage::Usage;

/// The default number of entries per key: 160 kB.
pub const DEFAULT_MAX_ENTRIES: u32 = 10_000;

/// The largest `max_entries`: 1.6 MB per key.
pub const MAX_ENTRIES: u32 = 100_000;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    /// Units in any window, at least 1. One above `max_entries` is built as a `sliding_window` with
    /// the same limit and window, on every store alike: look at
    /// [`Limit::algorithm`](crate::limit::Limit::algorithm) to tell.
    pub limit: u64,
    /// The window's length, above 0 and at most [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    pub window: Duration,
    /// Entries that a key may hold, 1 to [`MAX_ENTRIES`]. Default: [`DEFAULT_MAX_ENTRIES`].
    pub max_entries: u32,
}

impl SlidingLog {
    pub(crate) const fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window,
            max_entries: DEFAULT_MAX_ENTRIES,
        }
    }

    setters! {
        max_entries(u32) => max_entries;
    }

    pub(crate) fn prove(self) -> Result<(Algorithm, Engine), LimitError> {
        if self.limit == 0 {
            return Err(LimitError::ZeroLimit);
        }
        let window = checked_period(self.window)?;
        if !(1..=MAX_ENTRIES).contains(&self.max_entries) {
            return Err(LimitError::MaxEntries);
        }
        if self.limit > u64::from(self.max_entries) {
            return SlidingWindow::new(self.limit, self.window).prove();
        }
        let engine = Engine::Log(LogEngine {
            limit: self.limit,
            window,
        });
        Ok((Algorithm::SlidingLog(self), engine))
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_per_window(f, self.limit, self.window)?;
        match self.max_entries {
            DEFAULT_MAX_ENTRIES => Ok(()),
            entries => write!(f, ", max_entries {entries}"),
        }
    }
}

/// A sliding log with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEngine {
    limit: u64,
    window: u64,
}

impl LogEngine {
    pub(super) const fn with_limit(&self, limit: u64) -> Self {
        Self { limit, ..*self }
    }

    fn entries(usage: &Usage) -> Option<&Entries<Monotonic>> {
        match usage {
            Usage::SlidingLog { entries } => Some(entries),
            _ => None,
        }
    }

    /// Time for which `entry` counts, from `now` on.
    pub(super) fn left(&self, entry: Monotonic, now: Monotonic) -> Duration {
        Duration::from_nanos(self.window).saturating_sub(now.since(entry))
    }

    /// Takes over the entries of another log.
    pub(crate) fn adopt(&self, usage: Usage) -> Usage {
        let Usage::SlidingLog { mut entries } = usage else {
            return Usage::Rest;
        };
        drop_oldest(&mut entries, self.limit);
        Usage::SlidingLog { entries }
    }
}

impl Mechanics for LogEngine {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn full_refill(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        let Usage::SlidingLog { entries } = usage else {
            *usage = Usage::Rest;
            return;
        };
        let now = at.now.monotonic;
        put_in_order(entries);
        for (instant, _) in entries.iter_mut().rev() {
            if *instant <= now {
                break;
            }
            *instant = now;
        }
        while entries
            .pop_front_if(|(instant, _)| self.left(*instant, now).is_zero())
            .is_some()
        {}
        if entries.is_empty() {
            *usage = Usage::Rest;
        }
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        let wait = |instant| self.left(instant, at.now.monotonic);
        entries::check(Self::entries(usage), self.limit, cost, wait)
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        let now = at.now.monotonic;
        if let Usage::SlidingLog { entries } = usage {
            add(entries, now, cost);
        } else {
            let entries = Entries::from([(now, cost)]);
            *usage = Usage::SlidingLog { entries };
        }
    }

    fn remaining(&self, usage: &Usage, _at: &At) -> u64 {
        let used = entries::used(Self::entries(usage));
        self.limit.saturating_sub(used)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        let left = |instant| self.left(instant, at.now.monotonic);
        entries::rest(Self::entries(usage), left)
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::SlidingLog { entries } = usage {
            for (instant, _) in entries {
                *instant = instant.shifted(nanos);
            }
        }
    }
}
