//! Fixed window: a count per window, the cheapest limit to explain.
//!
//! The usual recipe, a counter whose expiry is set in a second step, leaves keys for ever if the process
//! dies in between, and also counts refused calls. Here one state has the window and its use, and a
//! refusal writes nothing.
//!
//! ```text
//! gone(now)  = now >= start + window            (calendar: now >= end)
//! allow iff used + n <= limit;  retry_after = end of the window - now
//! ```
//!
//! With `align: first_request` the window opens at the first charge after rest. With `align: calendar`
//! windows follow the calendar of a time zone, so a day has 23, 24 or 25 hours and a month as many days
//! as it has; the caller passes their edges in as values. An [`Anchor`] moves the edges: to another day of the
//! month, another weekday, another time of day.
//!
//! # Another calendar
//!
//! What was used in the old window counts in the window of the new calendar that contains the change, until that
//! ends. So an anchor or a time zone that changes in the middle of a window gives no second budget:
//!
//! ```text
//! used before the change in the old window + admitted until the first new edge <= limit
//! ```
//!
//! Example: 100 per month, 80 used, and on January 20 the anchor changes from 1 to 15. 20 are left until February
//! 15. Back on January 25, 20 are left until February 1: [`versions`](crate::state::versions) says how both are
//! counted.
//!
//! Bound: at most `limit` in each window, hence up to 2 x limit across an edge: 100 per minute can admit
//! 100 at 0:59.9 and 100 more at 1:00.0. If that is too much, use `sliding_window`.
//!
//! # Overdraft
//!
//! The rule of Envoy's own rate limit service, for budgets whose costs are known when a call ends: a call that begins
//! at or below the limit is charged whole, also beyond it, even if it is refused; one that begins above is refused and
//! not charged; a check (0 units) is refused above the limit. What was used beyond the limit ends with its window.
//!
//! ```text
//! allow iff used + n <= limit;  charge iff used <= limit, in every limit of the call that is not in shadow
//! ```
//!
//! Who reserves and gives back gives back for refused calls too, so the units of calls that were refused and not
//! charged are remembered, and a refund takes from them first.
//!
//! If the clock goes back to before the window's start, the window begins now (a calendar window: ends
//! where the current one ends), and keeps its use.

mod anchor;

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::limit_error::LimitError;
use crate::rate::{checked_period, write_per_window};
use crate::time::{Monotonic, Wall};
use crate::usage::Usage;

pub use anchor::{Anchor, Weekday};

/// The numbers of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// Units per window, at least 1.
    pub limit: u64,
    /// Window boundaries.
    pub window: Window,
    /// True if a call that begins within the limit is charged whole. On a calendar only.
    pub overdraft: bool,
}

/// Window boundaries: fixed intervals, or a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// From the first charge after rest, for this long: above 0 and at most
    /// [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    FirstRequest(Duration),
    /// Aligned to the calendar.
    Calendar(Calendar),
}

/// A unit of the calendar in a time zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Calendar {
    /// The unit.
    pub unit: CalendarUnit,
    /// An IANA time zone name, such as `Europe/Berlin`. The code that finds the edges checks that it
    /// exists.
    pub zone: Arc<str>,
    /// Where its windows begin.
    pub anchor: Anchor,
}

impl Calendar {
    /// Windows that begin where the unit does.
    #[must_use]
    pub fn new(unit: CalendarUnit, zone: impl Into<Arc<str>>) -> Self {
        Self {
            unit,
            zone: zone.into(),
            anchor: Anchor::UnitStart,
        }
    }

    /// Returns true if both have the same unit, and their windows do not have the same edges.
    fn is_moved(&self, to: &Self) -> bool {
        self.unit == to.unit && self != to
    }
}

/// Units of the calendar; unless an [`Anchor`] says otherwise, weeks begin on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CalendarUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl CalendarUnit {
    /// The unit's name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The longest that one such unit can be, including clocks that are set back.
    #[must_use]
    pub const fn longest(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 2 * 3_600,
            Self::Day => DAY + 3 * 3_600,
            Self::Week => 7 * DAY + 3 * 3_600,
            Self::Month => 31 * DAY + 3 * 3_600,
            Self::Year => 366 * DAY + 3 * 3_600,
        })
    }
}

impl FixedWindow {
    pub(crate) const fn first_request(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window: Window::FirstRequest(window),
            overdraft: false,
        }
    }

    pub(crate) fn calendar(limit: u64, unit: CalendarUnit, zone: &str) -> Self {
        Self {
            limit,
            window: Window::Calendar(Calendar::new(unit, zone)),
            overdraft: false,
        }
    }

    /// Charges a call that begins within the limit whole. A window from the first request ignores it.
    #[must_use]
    pub const fn overdraft(mut self) -> Self {
        self.overdraft = true;
        self
    }

    /// Begins calendar windows at `anchor`. A window from the first request ignores it.
    #[must_use]
    pub fn anchor(mut self, anchor: Anchor) -> Self {
        if let Window::Calendar(calendar) = &mut self.window {
            calendar.anchor = anchor;
        }
        self
    }

    pub(crate) fn prove(mut self) -> Result<(Algorithm, Engine), LimitError> {
        if self.limit == 0 {
            return Err(LimitError::ZeroLimit);
        }
        if let Window::Calendar(calendar) = &mut self.window {
            calendar.anchor = calendar.anchor.checked(calendar.unit)?;
        }
        let limit = self.limit;
        let engine = match &self.window {
            Window::FirstRequest(window) => Engine::Fixed(FixedEngine {
                limit,
                window: checked_period(*window)?,
            }),
            Window::Calendar(calendar) => Engine::Calendar(CalendarEngine {
                limit,
                calendar: calendar.clone(),
                overdraft: self.overdraft,
            }),
        };
        Ok((Algorithm::FixedWindow(self), engine))
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.window {
            Window::FirstRequest(window) => {
                write_per_window(f, self.limit, *window)?;
                f.write_str(" from the first request")
            }
            Window::Calendar(Calendar { unit, zone, anchor }) => {
                write!(f, "{} per calendar {}", self.limit, unit.name())?;
                match anchor {
                    Anchor::UnitStart => {}
                    Anchor::DayOfMonth(day) => write!(f, " from day {day}")?,
                    _ => write!(f, " from {anchor}")?,
                }
                let overdraft = if self.overdraft { ", overdraft" } else { "" };
                write!(f, " in {zone}{overdraft}")
            }
        }
    }
}

fn check(limit: u64, used: u64, cost: u64, left: Duration) -> Outcome {
    if cost > limit {
        Outcome::Deny(RetryAfter::Never)
    } else if used <= limit - cost {
        Outcome::Allow
    } else {
        Outcome::Deny(RetryAfter::After(left))
    }
}

/// A window from the first request with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedEngine {
    limit: u64,
    window: u64,
}

impl FixedEngine {
    pub(super) const fn with_limit(&self, limit: u64) -> Self {
        Self { limit, ..*self }
    }

    fn parts(usage: &Usage, at: &At) -> (Monotonic, u64) {
        match usage {
            Usage::FixedWindow { start, used } => (*start, *used),
            _ => (at.now.monotonic, 0),
        }
    }

    pub(super) fn left(&self, start: Monotonic, now: Monotonic) -> Duration {
        Duration::from_nanos(self.window).saturating_sub(now.since(start))
    }

    /// Takes over the use of another such window, and its start.
    pub(crate) fn adopt(&self, usage: Usage) -> Usage {
        match usage {
            Usage::FixedWindow { start, used } => Usage::FixedWindow {
                start,
                used: used.min(self.limit),
            },
            _ => Usage::Rest,
        }
    }
}

impl Mechanics for FixedEngine {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn full_refill(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        let now = at.now.monotonic;
        *usage = match usage {
            Usage::FixedWindow { start, used } if !self.left(*start, now).is_zero() => {
                Usage::FixedWindow {
                    start: (*start).min(now),
                    used: *used,
                }
            }
            _ => Usage::Rest,
        };
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        let (start, used) = Self::parts(usage, at);
        check(self.limit, used, cost, self.left(start, at.now.monotonic))
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        let (start, used) = Self::parts(usage, at);
        let used = used.saturating_add(cost);
        *usage = Usage::FixedWindow { start, used };
    }

    fn remaining(&self, usage: &Usage, at: &At) -> u64 {
        self.limit.saturating_sub(Self::parts(usage, at).1)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        match usage {
            Usage::FixedWindow { start, .. } => self.left(*start, at.now.monotonic),
            _ => Duration::ZERO,
        }
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::FixedWindow { start, .. } = usage {
            *start = start.shifted(nanos);
        }
    }
}

/// A calendar window with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CalendarEngine {
    limit: u64,
    calendar: Calendar,
    overdraft: bool,
}

impl CalendarEngine {
    pub(super) fn with_limit(&self, limit: u64) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Returns true if a charge at `wall` may have been made in the window that ends at `end`.
    pub(super) fn may_contain(&self, wall: Wall, end: Wall) -> bool {
        wall < end && end <= wall.saturating_add(self.calendar.unit.longest())
    }

    /// The end of the window, what was used in it, and what was refused.
    fn parts(&self, usage: &Usage, at: &At) -> (Wall, u64, u64) {
        match usage {
            Usage::CalendarWindow { end, used, refused } => (*end, *used, *refused),
            _ => (self.end(at), 0, 0),
        }
    }

    /// The end of the current window. If the edges are unknown or impossible, it is one longest possible
    /// window from now.
    fn end(&self, at: &At) -> Wall {
        let wall = at.now.wall;
        let latest = wall.saturating_add(self.calendar.unit.longest());
        match at.edges.map(|edges| edges.end_at(wall)) {
            Some(end) if end > wall => end.min(latest),
            _ => latest,
        }
    }

    /// Returns true if `to` has the same unit and other edges.
    pub(crate) fn is_moved(&self, to: &Self) -> bool {
        self.calendar.is_moved(&to.calendar)
    }

    /// The mark of a charge that counts in the window that ends at `mark`, after the change to `to`.
    pub(super) fn moved_mark(&self, mark: Wall, to: &Self, at: &At) -> Wall {
        if self.calendar == to.calendar || mark <= at.now.wall {
            mark
        } else {
            to.end(at)
        }
    }

    /// The larger of two counts of the current window.
    pub(crate) fn larger(&self, mut one: Usage, mut other: Usage, at: &At) -> Usage {
        let used = |usage: &mut Usage| {
            self.settle(usage, at);
            self.parts(usage, at).1
        };
        if used(&mut one) > used(&mut other) {
            one
        } else {
            other
        }
    }

    /// Takes over the use of another such window. On another calendar it counts until the end of the
    /// window that contains the change.
    pub(crate) fn adopt(&self, from: &Self, usage: Usage, at: &At) -> Usage {
        let Usage::CalendarWindow { end, used, refused } = usage else {
            return Usage::Rest;
        };
        let (used, refused) = match self.overdraft {
            true => (used, refused),
            false => (used.min(self.limit), 0),
        };
        if from.calendar == self.calendar {
            return Usage::CalendarWindow { end, used, refused };
        }
        match at.edges {
            // The change was in an earlier window, which has ended.
            Some(edges) if at.now.wall < edges.start => Usage::Rest,
            _ => Usage::CalendarWindow {
                end: self.end(at),
                used,
                refused,
            },
        }
    }
}

impl Mechanics for CalendarEngine {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn full_refill(&self) -> Duration {
        self.calendar.unit.longest()
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        *usage = match usage {
            Usage::CalendarWindow { end, used, refused } if *end > at.now.wall => {
                Usage::CalendarWindow {
                    end: (*end).min(self.end(at)),
                    used: *used,
                    refused: *refused,
                }
            }
            _ => Usage::Rest,
        };
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        let (end, used, _) = self.parts(usage, at);
        check(self.limit, used, cost, end.since(at.now.wall))
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        if cost == 0 {
            return;
        }
        let (end, used, refused) = self.parts(usage, at);
        let used = used.saturating_add(cost);
        *usage = Usage::CalendarWindow { end, used, refused };
    }

    fn remaining(&self, usage: &Usage, at: &At) -> u64 {
        self.limit.saturating_sub(self.parts(usage, at).1)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        match usage {
            Usage::CalendarWindow { end, .. } => end.since(at.now.wall),
            _ => Duration::ZERO,
        }
    }

    fn shift(&self, _usage: &mut Usage, _nanos: i64) {}

    fn begins_within(&self, usage: &Usage) -> Option<bool> {
        let used = match usage {
            Usage::CalendarWindow { used, .. } => *used,
            _ => 0,
        };
        self.overdraft.then_some(used <= self.limit)
    }

    fn remember_refused(&self, usage: &mut Usage, at: &At, cost: u64) {
        if self.overdraft && cost > 0 {
            let (end, used, refused) = self.parts(usage, at);
            let refused = refused.saturating_add(cost);
            *usage = Usage::CalendarWindow { end, used, refused };
        }
    }
}
