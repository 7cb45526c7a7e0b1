//! Wait: milliseconds as every duration is written, `1h1m15s`, and as an instant.

use std::time::Duration;

use jiff::Timestamp;
use quell_rules::ExactDuration;

/// `milliseconds`, rounded up: who waits that long has waited long enough. Whole seconds from a minute
/// on, whole minutes from a day on.
#[must_use]
pub fn words(milliseconds: u64) -> String {
    let finest = match milliseconds {
        0..60_000 => 1,
        60_000..86_400_000 => 1_000,
        _ => 60_000,
    };
    let rounded = milliseconds.checked_next_multiple_of(finest);
    let rounded = rounded.unwrap_or(milliseconds - milliseconds % finest);
    ExactDuration(Duration::from_millis(rounded)).to_string()
}

/// Milliseconds since 1970 as an instant, to the second.
#[must_use]
pub fn instant(at_ms: u64) -> String {
    let seconds = i64::try_from(at_ms / 1_000).unwrap_or(i64::MAX);
    let at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up_to_few_units() {
        for (milliseconds, text) in [
            (0, "0s"),
            (1, "1ms"),
            (12_000, "12s"),
            (12_345, "12.345s"),
            (60_001, "61s"),
            (3_599_001, "1h"),
            (3_598_001, "59m59s"),
            (3_600_001, "1h1s"),
            (86_400_000, "1d"),
            (90_061_001, "1d1h2m"),
            (u64::MAX, "213503982334d14h25m"),
        ] {
            assert_eq!(words(milliseconds), text, "{milliseconds}");
        }
    }
}
