//! Instants: the two readings of a clock that a decision may see.
//!
//! The core cannot read a clock. The caller that wants a decision reads both clocks once and passes
//! them down as one [`Now`].

use core::fmt;
use core::time::Duration;

/// An instant on a clock that is only ever compared with itself, in nanoseconds.
///
/// Its origin is 1970-01-01T00:00:00Z according to the wall clock at the time the clock was made,
/// so that segments of sliding windows are the same on every node. Instants past the year 2554
/// saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

/// An instant of the civil calendar, in nanoseconds since 1970-01-01T00:00:00Z.
///
/// Only calendar windows look at it. Instants outside 1970 to 2554 saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(u64);

/// Both clocks, read once per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Measures how much time has passed.
    pub monotonic: Monotonic,
    /// Tells the date.
    pub wall: Wall,
}

macro_rules! instant {
    ($name:ident) => {
        impl $name {
            /// The origin.
            pub const ORIGIN: Self = Self(0);

            /// The instant `nanos` nanoseconds after the origin.
            #[must_use]
            pub const fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }

            /// Nanoseconds since the origin.
            #[must_use]
            pub const fn as_nanos(self) -> u64 {
                self.0
            }

            /// The instant `duration` later; saturates at the end of time.
            #[must_use]
            pub fn saturating_add(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(saturating_nanos(duration)))
            }

            /// The instant `duration` earlier; saturates at the origin.
            #[must_use]
            pub fn saturating_sub(self, duration: Duration) -> Self {
                Self(self.0.saturating_sub(saturating_nanos(duration)))
            }

            /// Time from `earlier` to this instant; zero if this instant is not after it.
            #[must_use]
            pub const fn since(self, earlier: Self) -> Duration {
                Duration::from_nanos(self.0.saturating_sub(earlier.0))
            }

            /// The instant moved by `nanos`, which may be negative; saturates at both ends.
            #[must_use]
            pub const fn shifted(self, nanos: i64) -> Self {
                Self(self.0.saturating_add_signed(nanos))
            }
        }
    };
}
instant!(Monotonic);
instant!(Wall);

impl Now {
    /// Both clocks at `nanos` nanoseconds after 1970-01-01T00:00:00Z.
    ///
    /// ```
    /// use quell_core::time::Now;
    /// let now = Now::from_nanos(1_500_000_000);
    /// assert_eq!(now.wall.as_nanos(), now.monotonic.as_nanos());
    /// ```
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self {
            monotonic: Monotonic(nanos),
            wall: Wall(nanos),
        }
    }
}

/// `duration` in nanoseconds, at most `u64::MAX` (584 years).
#[must_use]
pub fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration of `nanos`, at most [`Duration::MAX`].
#[inline]
pub(crate) fn duration_from_nanos(nanos: u128) -> Duration {
    const PER_SECOND: u128 = 1_000_000_000;
    if let Ok(nanos) = u64::try_from(nanos) {
        return Duration::from_nanos(nanos);
    }
    match (
        u64::try_from(nanos / PER_SECOND),
        u32::try_from(nanos % PER_SECOND),
    ) {
        (Ok(seconds), Ok(rest)) => Duration::new(seconds, rest),
        _ => Duration::MAX,
    }
}

/// A duration as people write it in a rules file, exact: `1m`, `90s`, `1h30m`, `59.999s`. Seconds
/// and finer parts below two minutes are not converted to minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact(pub Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u128); 7] = [
            ("d", 86_400_000_000_000),
            ("h", 3_600_000_000_000),
            ("m", MINUTE),
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
            ("us", 1_000),
            ("ns", 1),
        ];
        const MINUTE: u128 = 60_000_000_000;
        let mut nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let is_short = nanos < 2 * MINUTE && nanos != MINUTE;
        for (unit, length) in UNITS {
            let whole = nanos / length;
            if whole == 0 || (is_short && length >= MINUTE) {
                continue;
            }
            nanos %= length;
            write!(f, "{whole}")?;
            if length < MINUTE && nanos > 0 {
                let mut width = length.ilog10() as usize;
                while nanos.is_multiple_of(10) {
                    (nanos, width) = (nanos / 10, width - 1);
                }
                write!(f, ".{nanos:0width$}")?;
                nanos = 0;
            }
            f.write_str(unit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let end = Monotonic::from_nanos(u64::MAX);
        assert_eq!(end.saturating_add(Duration::from_secs(1)), end);
        assert_eq!(
            Monotonic::ORIGIN.saturating_sub(Duration::MAX),
            Monotonic::ORIGIN
        );
        assert_eq!(Monotonic::ORIGIN.since(end), Duration::ZERO);
        assert_eq!(Wall::from_nanos(5).shifted(-7), Wall::ORIGIN);
        assert_eq!(duration_from_nanos(u128::MAX), Duration::MAX);
        assert_eq!(
            duration_from_nanos(1 << 64),
            Duration::new(18_446_744_073, 709_551_616)
        );
    }
}
