//! Anchor: where within a unit of the calendar its windows begin.

use core::fmt;

use super::CalendarUnit;
use crate::limit_error::LimitError;

/// Minutes in a day.
const DAY: u16 = 24 * 60;

/// The longest that each month can be.
const MONTHS: [u8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Where within a unit of the calendar its windows begin. Seconds, minutes and hours have no anchor.
///
/// A day that a month does not have is its last day. It is always counted from the anchor: windows that begin on
/// the 31st begin on January 31, February 28, and March 31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anchor {
    /// Where the unit begins: midnight, Monday, the first day of a month or year.
    #[default]
    UnitStart,
    /// Of days: the time at which they begin, in minutes after midnight, below 1,440. If clocks skip it, they begin
    /// as much later as clocks go forward; if clocks show it twice, at the first time.
    TimeOfDay(u16),
    /// Of weeks: the day on which they begin.
    Weekday(Weekday),
    /// Of months: the day on which they begin, 1 to 31.
    DayOfMonth(u8),
    /// Of years: the day on which they begin.
    DayOfYear {
        /// The month, 1 to 12.
        month: u8,
        /// The day in the month, from 1. February 29 is February 28 in other than leap years.
        day: u8,
    },
}

/// Days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    /// All days, from Monday.
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// The day's name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }
}

impl Anchor {
    /// The anchor as it is compared: one that is the start of the unit is [`Anchor::UnitStart`].
    ///
    /// # Errors
    /// [`LimitError::Anchor`] if it is one of another unit, or there is no such day or time.
    pub(super) fn checked(self, unit: CalendarUnit) -> Result<Self, LimitError> {
        let is_right = match (unit, self) {
            (_, Self::UnitStart) => true,
            (CalendarUnit::Day, Self::TimeOfDay(minute)) => minute < DAY,
            (CalendarUnit::Week, Self::Weekday(_)) => true,
            (CalendarUnit::Month, Self::DayOfMonth(day)) => (1..=31).contains(&day),
            (CalendarUnit::Year, Self::DayOfYear { month, day }) => {
                let index = usize::from(month).checked_sub(1);
                let length = index.and_then(|index| MONTHS.get(index));
                length.is_some_and(|length| (1..=*length).contains(&day))
            }
            _ => false,
        };
        match self {
            _ if !is_right => Err(LimitError::Anchor),
            Self::TimeOfDay(0)
            | Self::Weekday(Weekday::Monday)
            | Self::DayOfMonth(1)
            | Self::DayOfYear { month: 1, day: 1 } => Ok(Self::UnitStart),
            anchor => Ok(anchor),
        }
    }
}

/// As a rules file writes it; the start of a unit is not written.
impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnitStart => f.write_str("its start"),
            Self::TimeOfDay(minute) => write!(f, "{:02}:{:02}", minute / 60, minute % 60),
            Self::Weekday(day) => f.write_str(day.name()),
            Self::DayOfMonth(day) => day.fmt(f),
            Self::DayOfYear { month, day } => write!(f, "{month:02}-{day:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const UNITS: [CalendarUnit; 7] = [
        CalendarUnit::Second,
        CalendarUnit::Minute,
        CalendarUnit::Hour,
        CalendarUnit::Day,
        CalendarUnit::Week,
        CalendarUnit::Month,
        CalendarUnit::Year,
    ];

    /// Each anchor is one of a single unit.
    #[test]
    fn an_anchor_fits_its_unit_alone() {
        let day = |month, day| Anchor::DayOfYear { month, day };
        let right = [
            (Anchor::TimeOfDay(1_200), CalendarUnit::Day, "20:00"),
            (Anchor::TimeOfDay(1_439), CalendarUnit::Day, "23:59"),
            (
                Anchor::Weekday(Weekday::Thursday),
                CalendarUnit::Week,
                "thursday",
            ),
            (Anchor::DayOfMonth(31), CalendarUnit::Month, "31"),
            (day(2, 29), CalendarUnit::Year, "02-29"),
            (day(12, 31), CalendarUnit::Year, "12-31"),
        ];
        for (anchor, own, text) in right {
            assert_eq!(anchor.to_string(), text);
            for unit in UNITS {
                let expected = if unit == own {
                    Ok(anchor)
                } else {
                    Err(LimitError::Anchor)
                };
                assert_eq!(anchor.checked(unit), expected, "{anchor} {unit:?}");
            }
        }
    }

    #[test]
    fn the_start_of_a_unit_is_one_anchor() {
        let starts = [
            (Anchor::TimeOfDay(0), CalendarUnit::Day),
            (Anchor::Weekday(Weekday::Monday), CalendarUnit::Week),
            (Anchor::DayOfMonth(1), CalendarUnit::Month),
            (Anchor::DayOfYear { month: 1, day: 1 }, CalendarUnit::Year),
        ];
        for (anchor, unit) in starts {
            assert_eq!(anchor.checked(unit), Ok(Anchor::UnitStart));
        }
        for unit in UNITS {
            assert_eq!(Anchor::UnitStart.checked(unit), Ok(Anchor::UnitStart));
        }
    }

    #[test]
    fn days_and_times_that_do_not_exist_are_refused() {
        let day = |month, day| (Anchor::DayOfYear { month, day }, CalendarUnit::Year);
        for (anchor, unit) in [
            (Anchor::TimeOfDay(1_440), CalendarUnit::Day),
            (Anchor::DayOfMonth(0), CalendarUnit::Month),
            (Anchor::DayOfMonth(32), CalendarUnit::Month),
            day(0, 1),
            day(13, 1),
            day(4, 31),
            day(2, 30),
            day(5, 0),
        ] {
            assert_eq!(anchor.checked(unit), Err(LimitError::Anchor), "{anchor:?}");
        }
    }
}
