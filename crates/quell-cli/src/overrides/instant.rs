//! Instant: when an override begins and ends, in the ways that people write it.

use clap::Args;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use quell_host::wait;
use quell_protocol::printable;
use quell_rules::{is_no_year_of_instants, meant, parse_duration};

use crate::exit::Usage;

const EXAMPLES: &str = "write an instant such as 2026-12-06T20:00:00Z, a date, a weekday such as sunday, or a \
                        duration from now such as 2h";

/// The days, as they are written.
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// The time zone of days.
#[derive(Debug, Args)]
pub(super) struct TimeZoneArg {
    /// The time zone of dates, weekdays and times without an offset, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
}

/// Which end of a time is meant: a day begins at its start, and ends at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    From,
    Until,
}

/// Reads and shows instants.
#[derive(Clone, Debug)]
pub(super) struct InstantReader {
    zone: TimeZone,
    /// When the command was given.
    pub(super) now: Timestamp,
}

impl TimeZoneArg {
    /// A reader that takes this instant for now.
    ///
    /// # Errors
    /// If there is no such time zone.
    pub(super) fn reader(&self, now: Timestamp) -> Result<InstantReader, Usage> {
        let zone = TimeZone::get(&self.time_zone).map_err(|_| {
            let shown = printable(&self.time_zone);
            Usage(format!(
                "unknown time zone `{shown}`: write an IANA name such as Europe/Berlin into --time-zone"
            ))
        })?;
        Ok(InstantReader { zone, now })
    }
}

impl InstantReader {
    /// Reads RFC 3339, a date with or without a time, a weekday, or a duration from now.
    ///
    /// # Errors
    /// What to write.
    pub(super) fn read(&self, text: &str, edge: Edge) -> Result<Timestamp, String> {
        if is_no_year_of_instants(text) {
            let text = printable(text);
            return Err(format!(
                "`{text}` is not between 1970 and 2554: leave it out for always"
            ));
        }
        if let Ok(instant) = text.parse() {
            return Ok(instant);
        }
        let wrong = || {
            let names = WEEKDAYS.map(|(name, _)| name);
            let text = printable(text);
            match meant(&text, &names) {
                Some(day) => format!("`{text}` is not an instant: did you mean `{day}`?"),
                None => format!("`{text}` is not an instant: {EXAMPLES}"),
            }
        };
        if let Some(day) = weekday(text) {
            return self.next(day, edge).ok_or_else(wrong);
        }
        // Digits alone are no date.
        if text.get(1..).is_some_and(|rest| rest.contains('-')) {
            let civil = match text.parse::<Date>() {
                Ok(date) if !text.contains(['T', 't', ' ', ':']) => {
                    return self.day(date, edge).ok_or_else(wrong);
                }
                _ => text.parse::<DateTime>().map_err(|_| wrong())?,
            };
            let zoned = civil.to_zoned(self.zone.clone());
            return zoned.map(|zoned| zoned.timestamp()).map_err(|_| wrong());
        }
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(wrong());
        }
        let length = parse_duration(text)?;
        if length.is_zero() {
            return Err(format!(
                "`{text}` from now is now: write a longer duration, such as 2h"
            ));
        }
        let length = SignedDuration::try_from(length).ok();
        let instant = length.and_then(|length| self.now.checked_add(length).ok());
        instant.map(whole_second).ok_or_else(wrong)
    }

    /// The next day of this name. One that ends may be today; one that begins is after today.
    fn next(&self, day: Weekday, edge: Edge) -> Option<Timestamp> {
        let today = self.now.to_zoned(self.zone.clone()).date();
        let date = match edge {
            Edge::Until if today.weekday() == day => today,
            _ => today.nth_weekday(1, day).ok()?,
        };
        self.day(date, edge)
    }

    /// The start of a date, or its end.
    fn day(&self, date: Date, edge: Edge) -> Option<Timestamp> {
        let date = match edge {
            Edge::From => date,
            Edge::Until => date.tomorrow().ok()?,
        };
        let start = date.to_zoned(self.zone.clone()).ok()?;
        Some(start.timestamp())
    }

    /// An instant in this time zone.
    pub(super) fn show(&self, instant: Timestamp) -> String {
        if self.zone == TimeZone::UTC {
            return instant.to_string();
        }
        let zoned = instant.to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// How long it is until then; `None` if it is over.
    pub(super) fn left(&self, instant: Timestamp) -> Option<String> {
        let left = instant.duration_since(self.now);
        let milliseconds = u64::try_from(left.as_millis())
            .ok()
            .filter(|left| *left > 0);
        milliseconds.map(wait::words)
    }

    /// `from 2026-12-01T00:00:00Z until 2026-12-07T00:00:00Z (in 6d2h)`; empty for a time without ends.
    pub(super) fn time(&self, from: Option<Timestamp>, until: Option<Timestamp>) -> String {
        let mut words = Vec::new();
        if let Some(from) = from.filter(|from| *from > self.now) {
            words.push(format!("from {}", self.show(from)));
        }
        if let Some(until) = until {
            let shown = self.show(until);
            words.push(match self.left(until) {
                Some(left) => format!("until {shown} (in {left})"),
                None => format!("over since {shown}"),
            });
        }
        words.join(" ")
    }
}

/// A day by its name, or by its first three letters.
fn weekday(text: &str) -> Option<Weekday> {
    let text = text.to_ascii_lowercase();
    let is_it = |name: &&str| *name == text || name.get(..3) == Some(&*text);
    let mut days = WEEKDAYS.iter();
    days.find(|(name, _)| is_it(name)).map(|(_, day)| *day)
}

/// The next whole second.
fn whole_second(instant: Timestamp) -> Timestamp {
    let second = Timestamp::from_second(instant.as_second()).unwrap_or(instant);
    match second < instant {
        true => second.checked_add(1.second()).unwrap_or(instant),
        false => second,
    }
}

/// A reader for tests.
#[cfg(test)]
pub(super) fn utc(now: &str) -> InstantReader {
    InstantReader {
        zone: TimeZone::UTC,
        now: now.parse().unwrap(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(zone: &str) -> InstantReader {
        // A Thursday.
        let now = "2026-12-03T10:00:00.5Z".parse().unwrap();
        let zone = zone.to_owned();
        TimeZoneArg { time_zone: zone }.reader(now).unwrap()
    }

    #[test]
    fn an_instant_is_written_in_many_ways() {
        for (zone, text, from, until) in [
            (
                "UTC",
                "2026-12-06T20:00:00+01:00",
                "2026-12-06T19:00:00Z",
                "2026-12-06T19:00:00Z",
            ),
            ("UTC", "2h", "2026-12-03T12:00:01Z", "2026-12-03T12:00:01Z"),
            (
                "UTC",
                "2026-12-06",
                "2026-12-06T00:00:00Z",
                "2026-12-07T00:00:00Z",
            ),
            (
                "Europe/Berlin",
                "2026-12-06",
                "2026-12-05T23:00:00Z",
                "2026-12-06T23:00:00Z",
            ),
            (
                "Europe/Berlin",
                "2026-12-06T20:00",
                "2026-12-06T19:00:00Z",
                "2026-12-06T19:00:00Z",
            ),
            (
                "UTC",
                "sunday",
                "2026-12-06T00:00:00Z",
                "2026-12-07T00:00:00Z",
            ),
            ("UTC", "Sun", "2026-12-06T00:00:00Z", "2026-12-07T00:00:00Z"),
            // Today ends today, and does not begin again before next week.
            (
                "UTC",
                "thursday",
                "2026-12-10T00:00:00Z",
                "2026-12-04T00:00:00Z",
            ),
            // There it is Friday already.
            (
                "Pacific/Kiritimati",
                "thursday",
                "2026-12-09T10:00:00Z",
                "2026-12-10T10:00:00Z",
            ),
            // The day on which clocks go back has 25 hours.
            (
                "Europe/Berlin",
                "2027-10-31",
                "2027-10-30T22:00:00Z",
                "2027-10-31T23:00:00Z",
            ),
        ] {
            let read = |edge| reader(zone).read(text, edge).map(|at| at.to_string());
            assert_eq!(read(Edge::From).as_deref(), Ok(from), "{zone} {text}");
            assert_eq!(read(Edge::Until).as_deref(), Ok(until), "{zone} {text}");
        }
    }

    #[test]
    fn what_is_no_instant_says_what_to_write() {
        for (text, expected) in [
            ("sundy", "did you mean `sunday`?"),
            ("soon", "a weekday such as sunday, or a duration from now"),
            ("", "is not an instant"),
            ("-2h", "is not an instant"),
            ("2026-13-01", "is not an instant"),
            ("9999-12-31", "leave it out for always"),
            ("9999-12-31T00:00:00Z", "is not between 1970 and 2554"),
            ("20261206", "has no unit"),
            ("0s", "write a longer duration"),
            ("2hours", "write `2h`"),
        ] {
            let error = reader("UTC").read(text, Edge::Until).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let zone = "Europe/Berlim".to_owned();
        let error = TimeZoneArg { time_zone: zone }.reader(Timestamp::UNIX_EPOCH);
        assert!(error.unwrap_err().0.contains("IANA name"));
    }

    #[test]
    fn a_time_is_shown_in_its_zone_with_what_is_left() {
        let at = |text: &str| Some(text.parse().unwrap());
        let (from, until) = (at("2026-12-04T00:00:00Z"), at("2026-12-07T00:00:00Z"));
        assert_eq!(
            reader("UTC").time(from, until),
            "from 2026-12-04T00:00:00Z until 2026-12-07T00:00:00Z (in 3d14h)"
        );
        assert_eq!(
            reader("Europe/Berlin").time(at("2026-12-01T00:00:00Z"), until),
            "until 2026-12-07T01:00:00+01:00 (in 3d14h)"
        );
        assert_eq!(
            reader("UTC").time(None, from.and(at("2026-12-03T00:00:00Z"))),
            "over since 2026-12-03T00:00:00Z"
        );
        assert_eq!(reader("UTC").time(None, None), "");
    }
}
