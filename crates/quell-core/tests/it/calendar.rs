//! A calendar whose edges are easy to compute: days of 24, 23, 24 and 25 hours, over and over.

use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::Calendar;
use quell_core::rule::CalendarEdges;
use quell_core::time::Wall;

const HOUR: u64 = 3_600_000_000_000;

/// The hours of each day in a round of four.
pub(crate) const DAYS: [u64; 4] = [24, 23, 24, 25];

const ROUND: u64 = 96 * HOUR;

/// The first nanosecond of the day that contains `wall`, and the first of the next.
pub(crate) fn day(wall: u64) -> (u64, u64) {
    let mut start = wall / ROUND * ROUND;
    for hours in DAYS {
        let end = start.saturating_add(hours * HOUR);
        if wall < end {
            return (start, end);
        }
        start = end;
    }
    (start, u64::MAX)
}

/// The edges around `wall`, as a rule set would pass them.
pub(crate) fn edges(wall: u64) -> Edges {
    let (start, end) = day(wall);
    Edges {
        start: Wall::from_nanos(start),
        end: Wall::from_nanos(end),
        next_end: Wall::from_nanos(day(end).1),
    }
}

/// The same days for every unit and zone.
pub(crate) struct FourDays;

impl CalendarEdges for FourDays {
    fn edges(&self, _calendar: &Calendar, wall: Wall) -> Edges {
        edges(wall.as_nanos())
    }
}
