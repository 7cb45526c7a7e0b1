//! Calendar edges: where windows of a civil calendar begin and end.

use std::collections::BTreeMap;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use parking_lot::RwLock;
pub use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::{Calendar, CalendarUnit};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
pub use quell_core::rule::CalendarEdges;
use quell_core::time::Wall;

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
        self.last.write().insert(calendar.clone(), edges);
        edges
    }
}

/// The edges around `wall`. Unknown time zones do not get here ([`check_zone`]). If the database
/// loses a zone while the process runs, its windows continue in UTC.
fn find(calendar: &Calendar, wall: Wall) -> Edges {
    let zone = TimeZone::get(&calendar.zone).unwrap_or(TimeZone::UTC);
    let (start, end) = window(calendar.unit, &zoned(wall, &zone));
    let (_, next_end) = window(calendar.unit, &zoned(end, &zone));
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

/// The first day of the unit that contains `date`, and of the next unit.
fn days(unit: CalendarUnit, date: Date) -> Option<(Date, Date)> {
    let (first, span) = match unit {
        CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour => return None,
        CalendarUnit::Day => (date, 1.day()),
        CalendarUnit::Week => {
            let since_monday = date.weekday().since(Weekday::Monday);
            let monday = date.checked_sub(i32::from(since_monday).days());
            (monday.ok()?, 1.week())
        }
        CalendarUnit::Month => (date.first_of_month(), 1.month()),
        CalendarUnit::Year => (date.first_of_year(), 1.year()),
    };
    Some((first, first.checked_add(span).ok()?))
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
fn window(unit: CalendarUnit, now: &Zoned) -> (Wall, Wall) {
    match days(unit, now.date()) {
        Some((first, next)) => (midnight(first, now), midnight(next, now)),
        None => within_hour(unit, now),
    }
}

/// The first instant of `date`; if midnight is skipped, the first instant after it.
fn midnight(date: Date, like: &Zoned) -> Wall {
    let zoned = date.to_zoned(like.time_zone().clone());
    zoned.map_or(Wall::from_nanos(u64::MAX), |zoned| wall(&zoned))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn edges(unit: CalendarUnit, zone: &str, at: &str) -> (String, String, String) {
        let calendar = Calendar {
            unit,
            zone: Arc::from(zone),
        };
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
