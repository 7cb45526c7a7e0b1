//! Anchor: where the windows of a calendar begin, as a rules file writes it.

use jiff::civil::Date;
use quell_core::algorithm::fixed_window::{Anchor, CalendarUnit, Weekday};

use crate::hint;

/// An anchor as written, whose meaning depends on the unit of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenAnchor {
    /// A day of the month.
    Day(u8),
    Date(Date),
    /// A date without its year.
    DayOfYear {
        month: u8,
        day: u8,
    },
    Weekday(Weekday),
    /// Minutes after midnight.
    Time(u16),
}

impl WrittenAnchor {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let shown = hint::shorten(text);
        let is_of = |others: &str| {
            let mut chars = text.chars();
            text.starts_with(|c: char| c.is_ascii_digit())
                && chars.all(|c| c.is_ascii_digit() || others.contains(c))
        };
        if is_of("") {
            let day = text.parse().ok().filter(|day| (1..=31).contains(day));
            let message = || format!("`{shown}` is no day of a month: write 1 to 31");
            return day.map(Self::Day).ok_or_else(message);
        }
        if is_of(":") {
            let message =
                || format!("`{shown}` is no time of a day: write 00:00 to 23:59, such as `20:00`");
            return time(text).map(Self::Time).ok_or_else(message);
        }
        if is_of("-") {
            let message = || format!("`{shown}` is no date: write one such as `2026-01-31`");
            return date(text).ok_or_else(message);
        }
        let mut days = Weekday::ALL.into_iter();
        if let Some(day) = days.find(|day| day.name() == text) {
            return Ok(Self::Weekday(day));
        }
        let write = "write a day of the month such as `17`, a date such as `2026-01-31`, a weekday \
                     such as `thursday`, or a time such as `\"20:00\"`";
        Err(
            match hint::meant(text, &Weekday::ALL.map(|day| day.name())) {
                Some(meant) => format!("unknown anchor `{shown}`, did you mean `{meant}`? {write}"),
                None => format!("unknown anchor `{shown}`: {write}"),
            },
        )
    }

    /// The anchor of windows of this unit.
    pub(crate) fn of(self, unit: CalendarUnit) -> Result<Anchor, String> {
        let message = match (unit, self) {
            (CalendarUnit::Day, Self::Time(minute)) => return Ok(Anchor::TimeOfDay(minute)),
            (CalendarUnit::Week, Self::Weekday(day)) => return Ok(Anchor::Weekday(day)),
            (CalendarUnit::Week, Self::Date(date)) => return Ok(Anchor::Weekday(weekday(date))),
            (CalendarUnit::Month, Self::Day(day)) => return Ok(Anchor::DayOfMonth(day)),
            (CalendarUnit::Month, Self::Date(date)) => {
                return Ok(Anchor::DayOfMonth(date.day().unsigned_abs()));
            }
            (CalendarUnit::Year, Self::DayOfYear { month, day }) => {
                return Ok(Anchor::DayOfYear { month, day });
            }
            (CalendarUnit::Year, Self::Date(date)) => {
                return Ok(Anchor::DayOfYear {
                    month: date.month().unsigned_abs(),
                    day: date.day().unsigned_abs(),
                });
            }
            (CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour, _) => {
                return Err(format!(
                    "the windows of a calendar {} have no anchor: leave it out, or write a window of a day, \
                     week, month or year",
                    unit.name()
                ));
            }
            (CalendarUnit::Day, _) => "a day begins at a time: write one such as `\"20:00\"`",
            (CalendarUnit::Week, _) => {
                "a week begins on a weekday: write one such as `thursday`, or a date"
            }
            (CalendarUnit::Month, _) => {
                "a month begins on a day: write 1 to 31, or a date such as `2026-01-31`"
            }
            (CalendarUnit::Year, _) => "a year begins on a date: write one such as `2026-01-31`",
        };
        Err(message.to_owned())
    }
}

fn weekday(date: Date) -> Weekday {
    let since_monday = usize::from(date.weekday().to_monday_zero_offset().unsigned_abs());
    let mut days = Weekday::ALL.into_iter();
    days.nth(since_monday).unwrap_or(Weekday::Monday)
}

/// Minutes after midnight.
fn time(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    if hour.len() > 2 || minute.len() != 2 {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// `2026-01-31`, or `01-31` of any year.
fn date(text: &str) -> Option<WrittenAnchor> {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, digits| (part.len() == digits).then(|| part.parse().ok())?;
    match *parts {
        [year, month, day] => {
            let year = number(year, 4)?;
            let [month, day] = [month, day].map(|part| number(part, 2));
            let date = Date::new(year, month?.try_into().ok()?, day?.try_into().ok()?);
            date.ok().map(WrittenAnchor::Date)
        }
        [month, day] => {
            let [month, day] = [month, day].map(|part| number(part, 2)?.try_into().ok());
            // In a leap year.
            let date = Date::new(2024, month?, day?).ok()?;
            Some(WrittenAnchor::DayOfYear {
                month: date.month().unsigned_abs(),
                day: date.day().unsigned_abs(),
            })
        }
        _ => None,
    }
}
