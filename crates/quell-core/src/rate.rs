//! Rate: an exact number of units per period.

use core::fmt;
use core::ops::Rem;
use core::time::Duration;

use crate::limit_error::LimitError;
use crate::time::{Exact, saturating_nanos};

/// The longest period of a rate or window: 100 years of 365 days.
///
/// With it and [`MAX_COUNT`] every sum of the bucket arithmetic stays below 2^127.
pub const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The largest count of a rate, whatever its period: 2^62.
pub const MAX_COUNT: u64 = 1 << 62;

/// The largest rate, in units per nanosecond: 10^12 a second, more than all bytes of a terabit line.
pub const MAX_PER_NANO: u64 = 1_000;

/// `count` units per `period`, exact: nothing is divided before the answer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    period: Duration,
}

impl Rate {
    /// `count` units per `period`.
    ///
    /// # Errors
    /// [`LimitError`] if the count is 0 or above [`MAX_COUNT`], the period is zero or longer than
    /// [`MAX_PERIOD`], or the rate is above [`MAX_PER_NANO`] units per nanosecond.
    pub fn new(count: u64, period: Duration) -> Result<Self, LimitError> {
        if count == 0 {
            return Err(LimitError::ZeroRate);
        }
        let nanos = checked_period(period)?;
        if u128::from(count) > u128::from(nanos) * u128::from(MAX_PER_NANO) {
            return Err(LimitError::FastRate);
        }
        if count > MAX_COUNT {
            return Err(LimitError::LargeCount);
        }
        Ok(Self { count, period })
    }

    /// The units per period, as given.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The period, as given.
    #[must_use]
    pub const fn period(self) -> Duration {
        self.period
    }

    /// Another count in the same period, which must be one that [`Rate::new`] admits, or 0 for a rate that is
    /// only compared.
    pub(crate) const fn with_count(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// The same rate in ticks: the emission interval of one unit, and how many ticks make a
    /// nanosecond. Both are integers because a tick is `1/per_nano` of a nanosecond.
    pub(crate) fn ticks(self) -> Ticks {
        let nanos = saturating_nanos(self.period);
        let divisor = gcd(self.count, nanos);
        Ticks {
            interval: nanos / divisor,
            per_nano: self.count / divisor,
        }
    }

    /// Returns true if both are the same number of units per second, however they were written.
    #[must_use]
    pub fn equals(self, other: Self) -> bool {
        self.ticks() == other.ticks()
    }
}

/// The nanoseconds of a period or window; refuses one of zero or above [`MAX_PERIOD`].
pub(crate) fn checked_period(period: Duration) -> Result<u64, LimitError> {
    if period.is_zero() {
        return Err(LimitError::ZeroPeriod);
    }
    if period > MAX_PERIOD {
        return Err(LimitError::LongPeriod);
    }
    Ok(saturating_nanos(period))
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(f, self.count, self.period)
    }
}

/// `COUNT/PERIOD` as a rate in a rules file; a month has 30 days and a year 365.
pub(crate) fn write_rate(f: &mut fmt::Formatter<'_>, count: u64, period: Duration) -> fmt::Result {
    const DAY: u64 = 86_400;
    match (period.as_secs(), period.subsec_nanos()) {
        (seconds, 0) if seconds == 30 * DAY => write!(f, "{count}/month"),
        (seconds, 0) if seconds == 365 * DAY => write!(f, "{count}/year"),
        _ => write_per_window(f, count, period),
    }
}

/// `COUNT/PERIOD` as the limit of a window in a rules file; months are those of the calendar.
pub(crate) fn write_per_window(
    f: &mut fmt::Formatter<'_>,
    count: u64,
    window: Duration,
) -> fmt::Result {
    match window.as_nanos() {
        1_000_000_000 => write!(f, "{count}/s"),
        60_000_000_000 => write!(f, "{count}/min"),
        3_600_000_000_000 => write!(f, "{count}/h"),
        86_400_000_000_000 => write!(f, "{count}/day"),
        604_800_000_000_000 => write!(f, "{count}/week"),
        _ => write!(f, "{count}/{}", Exact(window)),
    }
}

/// A rate in whole ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Emission interval T of one unit, in ticks.
    pub(crate) interval: u64,
    /// Ticks in a nanosecond.
    pub(crate) per_nano: u64,
}

/// The greatest common divisor of two unsigned integers, to shorten a fraction by; that of `a` and 0
/// is `a`.
///
/// ```
/// assert_eq!(quell_core::rate::gcd(84_u64, 36), 12);
/// ```
#[must_use]
pub fn gcd<N: Copy + Default + PartialEq + Rem<Output = N>>(mut a: N, mut b: N) -> N {
    while b != N::default() {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_exact() {
        let second = Duration::from_secs(1);
        for (count, interval, per_nano) in [
            (1, 1_000_000_000, 1),
            (100, 10_000_000, 1),
            (3, 1_000_000_000, 3),
            (300_000_007, 1_000_000_000, 300_000_007),
            (1_000_000_000, 1, 1),
            (1_000_000_000_000, 1, 1_000),
            (999_999_999_999, 1_000_000_000, 999_999_999_999),
        ] {
            let ticks = Rate::new(count, second).unwrap().ticks();
            assert_eq!(ticks, Ticks { interval, per_nano }, "{count}/s");
        }
    }

    #[test]
    fn impossible_rates_are_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Rate::new(0, second), Err(LimitError::ZeroRate));
        assert_eq!(Rate::new(1, Duration::ZERO), Err(LimitError::ZeroPeriod));
        assert_eq!(Rate::new(1, Duration::MAX), Err(LimitError::LongPeriod));
        let fast = Rate::new(1_000_000_000_001, second);
        assert_eq!(fast, Err(LimitError::FastRate));
        let large = Rate::new((1 << 62) + 1, MAX_PERIOD);
        assert_eq!(large, Err(LimitError::LargeCount));
    }
}
