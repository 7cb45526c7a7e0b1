//! Durations that leave the process: whole units, always rounded up.

use std::time::Duration;

pub(crate) use quell_core::rate_limit_fields::seconds;

/// Whole milliseconds, rounded up; at most `u64::MAX`.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// For protocols with signed integers: at most `i64::MAX`.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_begins_counts_whole() {
        for (nanos, ms, s) in [
            (0, 0, 0),
            (1, 1, 1),
            (1_000_000, 1, 1),
            (1_000_001, 2, 1),
            (999_999_999, 1_000, 1),
            (1_000_000_000, 1_000, 1),
            (1_000_000_001, 1_001, 2),
        ] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(milliseconds(duration), ms, "{nanos} ns in ms");
            assert_eq!(seconds(duration), s, "{nanos} ns in s");
        }
    }

    #[test]
    fn the_longest_duration_saturates() {
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
        assert_eq!(seconds(Duration::MAX), u64::MAX);
        assert_eq!(signed(u64::MAX), i64::MAX);
    }
}
