//! Calendar edges: where windows of a civil calendar begin and end.
//!
//! Windows of a day or longer begin at one time of day of some dates: each date, each Thursday, the 31st of each
//! month or its last day. An edge is the instant at which a clock of the zone shows that date and time. If the clock
//! skips it, the edge is as much later as the clock goes forward, so with 02:30 on the morning when summer time
//! begins it is 03:30; if the clock shows it twice, the edge is the first instant. A date that a zone skips as a whole
//! has the edge of the next, and so no window of its own. This is the *compatible* disambiguation of RFC 5545 and
//! ECMAScript's Temporal.

use std::collections::BTreeMap;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};
use parking_lot::RwLock;
pub use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::{Anchor, Calendar, CalendarUnit};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
pub use quell_core::rule::CalendarEdges;
use quell_core::time::Wall;

/// Calendars whose last edges are cached. Tenants may have 2,000 anchors in each of 600 time zones.
const MAX_CACHED: usize = 10_000;

/// Finds edges in the system's time zone database, and caches the last ones of each calendar.
#[derive(Debug, Default)]
pub struct SystemCalendar {
    last: RwLock<BTreeMap<Calendar, Edges>>,
}

/// Refuses a limit on the calendar of a time zone that the system does not know.
///
/// # Errors
/// [`LimitError::UnknownTimeZone`].
pub fn check_zone(limit: &Limit) -> Result<(), LimitError> {
    match limit.calendar() {
        Some(calendar) if TimeZone::get(&calendar.zone).is_err() => {
            Err(LimitError::UnknownTimeZone)
        }
        _ => Ok(()),
    }
}

impl CalendarEdges for SystemCalendar {
    fn edges(&self, calendar: &Calendar, wall: Wall) -> Edges {
        if let Some(edges) = self.last.read().get(calendar)
            && (edges.start..edges.end).contains(&wall)
        {
            return *edges;
        }
        let edges = find(calendar, wall);
        let mut last = self.last.write();
        if last.len() >= MAX_CACHED {
            last.clear();
        }
        last.insert(calendar.clone(), edges);
        edges
    }
}

/// The edges around `wall`. Unknown time zones do not get here ([`check_zone`]). If the database
/// loses a zone while the process runs, its windows continue in UTC.
fn find(calendar: &Calendar, wall: Wall) -> Edges {
    let zone = TimeZone::get(&calendar.zone).unwrap_or(TimeZone::UTC);
    let (start, end) = window(calendar, &zoned(wall, &zone));
    let (_, next_end) = window(calendar, &zoned(end, &zone));
    Edges {
        start,
        end,
        next_end,
    }
}

fn zoned(wall: Wall, zone: &TimeZone) -> Zoned {
    let timestamp = Timestamp::from_nanosecond(i128::from(wall.as_nanos()));
    timestamp.unwrap_or(Timestamp::MAX).to_zoned(zone.clone())
}

fn wall(zoned: &Zoned) -> Wall {
    let nanos = zoned.timestamp().as_nanosecond();
    Wall::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

/// The edge that lies `units` after that of the unit around `now`, which may be before or after `now`; `None` for units
/// below a day, and beyond the years that dates have.
fn edge(calendar: &Calendar, now: &Zoned, units: i8) -> Option<Wall> {
    let today = now.date();
    let date = |span: Span| today.checked_add(span).ok();
    let units = i64::from(units);
    let first = match calendar.unit {
        CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour => return None,
        CalendarUnit::Day => date(units.days())?,
        CalendarUnit::Week => {
            let day = match calendar.anchor {
                // Both count from Monday.
                Anchor::Weekday(day) => day as i64,
                _ => 0,
            };
            let today = i64::from(today.weekday().to_monday_zero_offset());
            date((units * 7 + day - today).days())?
        }
        CalendarUnit::Month => {
            let month = today.first_of_month().checked_add(units.months()).ok()?;
            let day = match calendar.anchor {
                Anchor::DayOfMonth(day) => day,
                _ => 1,
            };
            clamped(month, day)?
        }
        CalendarUnit::Year => {
            let year = today.first_of_year().checked_add(units.years()).ok()?;
            let (month, day) = match calendar.anchor {
                Anchor::DayOfYear { month, day } => (month, day),
                _ => (1, 1),
            };
            clamped(year.with().month(month.try_into().ok()?).build().ok()?, day)?
        }
    };
    let minute = match calendar.anchor {
        Anchor::TimeOfDay(minute) => minute,
        _ => 0,
    };
    let hour = i8::try_from(minute / 60).ok()?;
    let minute = i8::try_from(minute % 60).ok()?;
    let first = first.at(hour, minute, 0, 0);
    Some(instant(first, now.time_zone()))
}

/// This day of the month that begins with `first`, or the last that it has.
fn clamped(first: Date, day: u8) -> Option<Date> {
    let day = i8::try_from(day).ok()?.min(first.days_in_month());
    first.with().day(day).build().ok()
}

/// When a clock of the zone shows `datetime`.
fn instant(datetime: DateTime, zone: &TimeZone) -> Wall {
    let zoned = datetime.to_zoned(zone.clone());
    zoned.map_or(Wall::from_nanos(u64::MAX), |zoned| wall(&zoned))
}

/// Boundaries of the second, minute or hour around `now`. They follow local time. An hour that a change of offset
/// cuts short ends there.
fn within_hour(unit: CalendarUnit, now: &Zoned) -> (Wall, Wall) {
    let (minute, second) = (i64::from(now.minute()), i64::from(now.second()));
    let (into, length) = match unit {
        CalendarUnit::Hour => (minute * 60 + second, 3_600),
        CalendarUnit::Minute => (second, 60),
        _ => (0, 1),
    };
    let into = into * 1_000_000_000 + i64::from(now.subsec_nanosecond());
    let start = wall(now).shifted(-into);
    let end = start.shifted(length * 1_000_000_000);
    let zone = now.time_zone();
    let change = zone.following(now.timestamp()).next();
    let change = change.map(|change| wall(&change.timestamp().to_zoned(zone.clone())));
    match change {
        Some(change) if change > wall(now) && change < end => (start, change),
        _ => (start, end),
    }
}

/// Boundaries of the window around `now`.
fn window(calendar: &Calendar, now: &Zoned) -> (Wall, Wall) {
    // Clocks that are set back show an earlier date again, and a date that is skipped has no edge of its own.
    let mut edges = (-2..=2).filter_map(|units| edge(calendar, now, units));
    let at = wall(now);
    let Some(first) = edges.next() else {
        return within_hour(calendar.unit, now);
    };
    let latest = Wall::from_nanos(u64::MAX);
    edges.fold((first, latest), |(start, end), edge| match edge <= at {
        true => (start.max(edge), end),
        false => (start, end.min(edge)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(unit: CalendarUnit, zone: &str, at: &str) -> (String, String, String) {
        let calendar = Calendar::new(unit, zone);
        let at: Timestamp = at.parse().unwrap();
        let wall = Wall::from_nanos(u64::try_from(at.as_nanosecond()).unwrap());
        let edges = SystemCalendar::default().edges(&calendar, wall);
        let text = |wall: Wall| {
            let nanos = i128::from(wall.as_nanos());
            Timestamp::from_nanosecond(nanos).unwrap().to_string()
        };
        (text(edges.start), text(edges.end), text(edges.next_end))
    }

    #[test]
    fn edges_follow_the_calendar() {
        // Unit, zone, an instant; where its window starts and ends, and where the next one ends.
        const TABLE: &str = "
            Day    Europe/Berlin       2026-03-29T00:30:00Z   2026-03-28T23:00:00Z 2026-03-29T22:00:00Z 2026-03-30T22:00:00Z
            Day    Europe/Berlin       2026-10-25T12:00:00Z   2026-10-24T22:00:00Z 2026-10-25T23:00:00Z 2026-10-26T23:00:00Z
            Hour   Europe/Berlin       2026-10-25T00:30:00Z   2026-10-25T00:00:00Z 2026-10-25T01:00:00Z 2026-10-25T02:00:00Z
            Hour   Asia/Kolkata        2026-01-01T00:00:00Z   2025-12-31T23:30:00Z 2026-01-01T00:30:00Z 2026-01-01T01:30:00Z
            Hour   Australia/Lord_Howe 2026-04-04T14:50:00Z   2026-04-04T14:00:00Z 2026-04-04T15:00:00Z 2026-04-04T15:30:00Z
            Minute UTC                 2026-01-01T00:00:59.5Z 2026-01-01T00:00:00Z 2026-01-01T00:01:00Z 2026-01-01T00:02:00Z
            Week   UTC                 2026-11-22T23:59:59Z   2026-11-16T00:00:00Z 2026-11-23T00:00:00Z 2026-11-30T00:00:00Z
            Month  UTC                 2028-02-29T12:00:00Z   2028-02-01T00:00:00Z 2028-03-01T00:00:00Z 2028-04-01T00:00:00Z
            Year   America/New_York    2026-01-01T04:59:59Z   2025-01-01T05:00:00Z 2026-01-01T05:00:00Z 2027-01-01T05:00:00Z
        ";
        for row in TABLE.lines().filter(|row| !row.trim().is_empty()) {
            let cells: Vec<_> = row.split_whitespace().map(str::to_owned).collect();
            let [unit, zone, at, start, end, next] = cells.try_into().unwrap();
            let unit = [
                CalendarUnit::Second,
                CalendarUnit::Minute,
                CalendarUnit::Hour,
                CalendarUnit::Day,
                CalendarUnit::Week,
                CalendarUnit::Month,
                CalendarUnit::Year,
            ]
            .into_iter()
            .find(|other| format!("{other:?}") == unit);
            assert_eq!(
                edges(unit.unwrap(), &zone, &at),
                (start, end, next),
                "{row}"
            );
        }
    }
}
