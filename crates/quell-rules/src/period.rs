//! Period: the part of a rate after the `/`, and the count before it.

use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::rate::Rate;

use crate::decimal::{Decimal, simplest};
use crate::{duration, hint};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A length of time, or a unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Length(Duration),
    Month,
    Year,
}

/// Units: name, meaning, and other spellings.
const UNITS: [(&str, Period, &str); 7] = [
    ("s", Period::Length(SECOND), "sec secs second seconds"),
    ("min", Period::Length(MINUTE), "m mins minute minutes"),
    ("h", Period::Length(HOUR), "hr hour hours"),
    ("day", Period::Length(DAY), "d days"),
    ("week", Period::Length(WEEK), "w weeks"),
    ("month", Period::Month, "mo mon months"),
    ("year", Period::Year, "y yr years"),
];

/// Text that may follow the `/`.
const EXAMPLE: &str = "write s, min, h, day, week, month, year, or a duration such as `90ms`";

impl Period {
    /// Reads a unit or a duration.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some((_, period, _)) = UNITS.iter().find(|(name, ..)| *name == text) {
            return Ok(*period);
        }
        let shown = hint::shorten(text);
        let lower = text.trim().to_lowercase();
        let means =
            |(name, _, others): &&(&str, Self, &str)| *name == lower || hint::is_in(others, &lower);
        if let Some((meant, ..)) = UNITS.iter().find(means) {
            return Err(format!("unknown period `{shown}`: write `{meant}`"));
        }
        if matches!(text, "ns" | "us" | "ms") {
            return Err(format!("unknown period `{text}`: write `1{text}`"));
        }
        if !text.contains(|c: char| c.is_ascii_digit()) {
            return Err(format!("unknown period `{shown}`: {EXAMPLE}"));
        }
        duration::parse(text).map(Self::Length)
    }

    /// The length in a rate, where a month has 30 days and a year 365.
    pub(crate) const fn in_rate(self) -> Duration {
        match self {
            Self::Length(length) => length,
            Self::Month => Duration::from_secs(30 * 86_400),
            Self::Year => Duration::from_secs(365 * 86_400),
        }
    }

    /// The length of a window; a month and a year have no fixed one.
    pub(crate) fn in_window(self) -> Result<Duration, String> {
        let (unit, days) = match self {
            Self::Length(length) => return Ok(length),
            Self::Month => ("month", "30d"),
            Self::Year => ("year", "365d"),
        };
        Err(format!(
            "a {unit} has no fixed length: write `algorithm: fixed_window` with `align: calendar`, \
             or days such as `{days}`"
        ))
    }

    /// The unit of the calendar.
    pub(crate) fn on_calendar(self) -> Result<CalendarUnit, String> {
        let meant = match self {
            Self::Month => return Ok(CalendarUnit::Month),
            Self::Year => return Ok(CalendarUnit::Year),
            Self::Length(SECOND) => return Ok(CalendarUnit::Second),
            Self::Length(MINUTE) => return Ok(CalendarUnit::Minute),
            Self::Length(HOUR) => return Ok(CalendarUnit::Hour),
            Self::Length(DAY) => return Ok(CalendarUnit::Day),
            Self::Length(WEEK) => return Ok(CalendarUnit::Week),
            Self::Length(other) => match other.as_secs() / 86_400 {
                28..=31 => "write `month`",
                365 | 366 => "write `year`",
                _ => "write s, min, h, day, week, month or year, or leave `align: calendar` out",
            },
        };
        Err(format!(
            "a calendar window is one unit of the calendar: {meant}"
        ))
    }
}

/// `COUNT/PERIOD` as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerPeriod {
    pub(crate) count: Decimal,
    pub(crate) period: Period,
}

impl PerPeriod {
    /// Reads `COUNT/PERIOD`; the error says what to write.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let shown = hint::shorten(text);
        let Some((count, period)) = text.split_once('/') else {
            return Err(match Decimal::parse(text.trim()) {
                Some(_) => {
                    format!("`{shown}` has no period: write `{shown}/s`, `{shown}/min` or the like")
                }
                None => format!("`{shown}` is not a rate: write COUNT/PERIOD, such as `100/s`"),
            });
        };
        if text.contains(char::is_whitespace) {
            let tight: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            return Err(match Self::parse(&tight) {
                Ok(_) => format!("`{shown}` has spaces: write `{tight}`"),
                Err(message) => message,
            });
        }
        if count.starts_with('-') {
            return Err(format!("`{shown}` is negative: write a count above 0"));
        }
        let Some(count) = Decimal::parse(count) else {
            let period = Period::parse(period)?;
            if let Some(exact) = simplest(count).and_then(|found| in_whole_units(found, period)) {
                return Err(format!(
                    "`{shown}` has more digits than can be exact: write `{exact}`"
                ));
            }
            let count = hint::shorten(count);
            return Err(format!(
                "`{count}` is not a count: write a whole number up to 18446744073709551615 or a decimal such as `0.5`"
            ));
        };
        let period = Period::parse(period)?;
        Ok(Self { count, period })
    }

    /// The simplest rate in whole units that this may be a decimal of, as text: `10/13s` for
    /// `0.7692307692307693/s`.
    pub(crate) fn simplest(self) -> Option<String> {
        in_whole_units(self.count.simplest()?, self.period)
    }

    /// An exact whole count per length of time; months have 30 days, years 365.
    ///
    /// A length that is too long for a duration saturates; no limit accepts it.
    pub(crate) fn in_rate(self) -> (u64, Duration) {
        let (count, times) = self.count.fraction();
        let nanos = self
            .period
            .in_rate()
            .as_nanos()
            .saturating_mul(u128::from(times));
        let length = match u64::try_from(nanos) {
            Ok(nanos) => Duration::from_nanos(nanos),
            Err(_) => Duration::MAX,
        };
        (count, length)
    }
}

/// This many units per period, in whole units; `None` if no limit accepts that.
fn in_whole_units((count, times): (u64, u64), period: Period) -> Option<String> {
    let nanos = period.in_rate().as_nanos().checked_mul(u128::from(times))?;
    let length = Duration::from_nanos(u64::try_from(nanos).ok()?);
    Rate::new(count, length).ok()?;
    Some(format!("{count}/{}", duration::Exact(length)))
}

/// Reads a whole number.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let shown = hint::shorten(text);
    if is_digits(text) {
        let most = u64::MAX;
        return (text.parse()).map_err(|_| format!("`{shown}` is too large: write at most {most}"));
    }
    let tight = text.replace(['_', ',', ' ', '\''], "");
    Err(if is_digits(&tight) {
        format!(
            "`{shown}` is not a whole number: write `{}`",
            hint::shorten(&tight)
        )
    } else if text.starts_with('-') {
        format!("`{shown}` is negative: write a whole number such as `1`")
    } else {
        format!("`{shown}` is not a whole number: write digits only, such as `100`")
    })
}

/// Reads a whole number of at most 32 bits.
pub(crate) fn small(text: &str) -> Result<u32, String> {
    let number = whole(text)?;
    u32::try_from(number)
        .map_err(|_| format!("`{number}` is too large: write at most {}", u32::MAX))
}

/// Reads `true` or `false`.
pub(crate) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let instead = match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" | "true" => "`true`",
                "no" | "off" | "n" | "0" | "false" => "`false`",
                _ => "`true` or `false`",
            };
            let shown = hint::shorten(text);
            Err(format!(
                "`{shown}` is neither true nor false: write {instead}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact() {
        for (text, count, nanos) in [
            ("100/s", 100, 1_000_000_000),
            ("0.001/s", 1, 1_000_000_000_000),
            ("1.5/s", 3, 2_000_000_000),
            ("5/90ms", 5, 90_000_000),
            ("1/month", 1, 2_592_000_000_000_000),
            ("1/year", 1, 31_536_000_000_000_000),
            ("7/week", 7, 604_800_000_000_000),
            ("3/1h30m", 3, 5_400_000_000_000),
        ] {
            let rate = PerPeriod::parse(text).unwrap().in_rate();
            assert_eq!(rate, (count, Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(
            PerPeriod::parse("0.000000000000000001/year")
                .unwrap()
                .in_rate()
                .1,
            Duration::MAX
        );
    }

    #[test]
    fn says_what_to_write() {
        for (text, message) in [
            (
                "100",
                "`100` has no period: write `100/s`, `100/min` or the like",
            ),
            (
                "fast",
                "`fast` is not a rate: write COUNT/PERIOD, such as `100/s`",
            ),
            ("5/m", "unknown period `m`: write `min`"),
            ("5/Minute", "unknown period `Minute`: write `min`"),
            ("5/ms", "unknown period `ms`: write `1ms`"),
            (
                "5/fortnight",
                "unknown period `fortnight`: write s, min, h, day, week, month, year, or a duration such as `90ms`",
            ),
            (
                "5/2weeks",
                "`weeks` is not a unit of a duration: write days, such as `7d`",
            ),
            ("5 / s", "`5 / s` has spaces: write `5/s`"),
            ("-5/s", "`-5/s` is negative: write a count above 0"),
            (
                "1e3/s",
                "`1e3` is not a count: write a whole number up to 18446744073709551615 or a decimal such as `0.5`",
            ),
            (
                "0.76923076923076923076/s",
                "`0.76923076923076923076/s` has more digits than can be exact: write `10/13s`",
            ),
            (
                "0.0000000000000000000001/s",
                "`0.0000000000000000000001` is not a count: write a whole number up to 18446744073709551615 or a decimal such as `0.5`",
            ),
            ("5/60", "`60` has no unit: write `60s`, `60ms` or `60m`"),
            (
                "5/",
                "unknown period ``: write s, min, h, day, week, month, year, or a duration such as `90ms`",
            ),
        ] {
            assert_eq!(PerPeriod::parse(text), Err(message.to_owned()), "{text}");
        }
        assert_eq!(
            whole("1_000"),
            Err("`1_000` is not a whole number: write `1000`".to_owned())
        );
        assert_eq!(
            whole("1.5"),
            Err("`1.5` is not a whole number: write digits only, such as `100`".to_owned())
        );
        assert_eq!(
            flag("yes"),
            Err("`yes` is neither true nor false: write `true`".to_owned())
        );
    }
}
