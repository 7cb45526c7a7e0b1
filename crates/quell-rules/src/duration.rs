//! Duration: `250ms`, `1.5s`, `1h30m`, exact to the nanosecond, both ways.

use std::time::Duration;

pub use quell_core::time::Exact;

use crate::decimal::Decimal;
use crate::hint;

/// Units from the longest to the shortest: name, nanoseconds, and other spellings.
const UNITS: [(&str, u64, &str); 7] = [
    ("d", 86_400_000_000_000, "day days"),
    ("h", 3_600_000_000_000, "hour hours hr hrs"),
    ("m", 60_000_000_000, "min mins minute minutes"),
    ("s", 1_000_000_000, "sec secs second seconds"),
    (
        "ms",
        1_000_000,
        "milli millis msec msecs millisecond milliseconds",
    ),
    ("us", 1_000, "usec \u{b5}s \u{3bc}s"),
    ("ns", 1, "nanos nsec"),
];

/// The form of a duration.
const EXAMPLE: &str =
    "write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`";

/// Reads a duration in the words of a rules file, such as `250ms`, `1.5s` or `1h30m`; at most
/// 2^64-1 nanoseconds.
///
/// # Errors
/// Text that says what to write.
pub fn parse(text: &str) -> Result<Duration, String> {
    let nanos = u64::try_from(nanos(text)?).map_err(|_| {
        let shown = hint::shorten(text);
        format!("`{shown}` is longer than 584 years: write a shorter one")
    })?;
    Ok(Duration::from_nanos(nanos))
}

/// Reads a duration as [`parse`] does, up to the longest that an answer can hold.
pub(crate) fn parse_any(text: &str) -> Result<Duration, String> {
    const SECOND: u128 = 1_000_000_000;
    let nanos = nanos(text)?;
    let seconds = u64::try_from(nanos / SECOND).map_err(|_| {
        let shown = hint::shorten(text);
        let longest = Exact(Duration::MAX);
        format!("`{shown}` is longer than any answer: write at most `{longest}`")
    })?;
    // Below 10^9, which fits.
    let rest = u32::try_from(nanos % SECOND).unwrap_or_default();
    Ok(Duration::new(seconds, rest))
}

/// The duration in `text`, in nanoseconds.
fn nanos(text: &str) -> Result<u128, String> {
    let shown = hint::shorten(text);
    if let Some(positive) = text.strip_prefix('-') {
        let positive = hint::shorten(positive);
        return Err(format!(
            "`{shown}` is negative: write `{positive}`, or another longer than 0"
        ));
    }
    if !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return Err(format!(
            "`{shown}` has no unit: write `{shown}s`, `{shown}ms` or `{shown}m`"
        ));
    }
    let wrong = || format!("`{shown}` is not a duration: {EXAMPLE}");
    let mut nanos: u128 = 0;
    let mut rest = text;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let (number, unit, after) = part(rest).ok_or_else(wrong)?;
        let Some((_, length, _)) = UNITS.iter().find(|(name, ..)| *name == unit) else {
            return Err(spelled(text, unit, &shown));
        };
        if *length >= last {
            return Err(format!(
                "`{shown}` repeats a unit or says a longer one after a shorter: {EXAMPLE}"
            ));
        }
        last = *length;
        let decimal = Decimal::parse(number).ok_or_else(wrong)?;
        if decimal.has_fraction() && !after.is_empty() {
            return Err(format!(
                "`{shown}` has a fraction before its last unit: {EXAMPLE}"
            ));
        }
        let exact = decimal.times(*length);
        let exact =
            exact.ok_or_else(|| format!("`{shown}` is finer than 1ns: write whole nanoseconds"))?;
        nanos = nanos.saturating_add(exact);
        rest = after;
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Ok(nanos)
}

/// Number, unit, and what follows.
fn part(text: &str) -> Option<(&str, &str, &str)> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c))?);
    let end = rest.find(is_number).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    (!number.is_empty()).then_some((number, unit, rest))
}

/// The message for an unknown unit: its correct spelling, if only that is wrong.
fn spelled(text: &str, unit: &str, shown: &str) -> String {
    let word = unit.trim();
    let lower = word.to_lowercase();
    let means =
        |(name, _, others): &&(&str, u64, &str)| *name == lower || hint::is_in(others, &lower);
    if let Some((meant, ..)) = UNITS.iter().find(means) {
        let better = hint::shorten(&text.replacen(unit, meant, 1));
        if parse_again(&better) {
            return format!("`{shown}` is not a duration: write `{better}`");
        }
    }
    if hint::is_in("w week weeks month months y year years", &lower) {
        return format!("`{word}` is not a unit of a duration: write days, such as `7d`");
    }
    format!("`{shown}` is not a duration: {EXAMPLE}")
}

/// Returns true if a proposal is valid. It is only called with a correct unit, so this ends.
fn parse_again(better: &str) -> bool {
    let known = |unit: &str| UNITS.iter().any(|(name, ..)| *name == unit);
    part(better).is_some_and(|(_, unit, rest)| known(unit) && rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes() {
        for (text, nanos) in [
            ("0s", 0),
            ("1ns", 1),
            ("1.5us", 1_500),
            ("250ms", 250_000_000),
            ("59.999s", 59_999_000_000),
            ("1m", 60_000_000_000),
            ("60.5s", 60_500_000_000),
            ("90s", 90_000_000_000),
            ("2m", 120_000_000_000),
            ("10m", 600_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1d2h3m4.000000005s", 93_784_000_000_005),
            ("2m1ns", 120_000_000_001),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
            assert_eq!(Exact(Duration::from_nanos(nanos)).to_string(), text);
        }
        assert_eq!(parse("59999ms"), parse("59.999s"));
        assert_eq!(parse("60s"), parse("1m"));
        assert_eq!(parse("0.5h"), parse("30m"));
    }

    #[test]
    fn what_an_answer_can_hold_is_read() {
        let days = Duration::from_secs(365_000 * 86_400);
        for (text, length) in [
            ("365000d", days),
            ("365000d1ns", days + Duration::from_nanos(1)),
            ("213503982334601d7h15.999999999s", Duration::MAX),
        ] {
            assert_eq!(parse_any(text), Ok(length), "{text}");
            assert_eq!(Exact(length).to_string(), text);
        }
        assert_eq!(
            parse_any("213503982334601d7h16s"),
            Err("`213503982334601d7h16s` is longer than any answer: \
                 write at most `213503982334601d7h15.999999999s`"
                .to_owned())
        );
    }

    #[test]
    fn says_what_to_write() {
        for (text, message) in [
            (
                "",
                "`` is not a duration: write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`",
            ),
            ("10", "`10` has no unit: write `10s`, `10ms` or `10m`"),
            (
                "-1s",
                "`-1s` is negative: write `1s`, or another longer than 0",
            ),
            ("10min", "`10min` is not a duration: write `10m`"),
            ("10 s", "`10 s` is not a duration: write `10s`"),
            ("5S", "`5S` is not a duration: write `5s`"),
            (
                "2weeks",
                "`weeks` is not a unit of a duration: write days, such as `7d`",
            ),
            (
                "1m1h",
                "`1m1h` repeats a unit or says a longer one after a shorter: write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`",
            ),
            (
                "1.5h10m",
                "`1.5h10m` has a fraction before its last unit: write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`",
            ),
            (
                "0.1ns",
                "`0.1ns` is finer than 1ns: write whole nanoseconds",
            ),
            (
                "600y",
                "`y` is not a unit of a duration: write days, such as `7d`",
            ),
            (
                "300000d",
                "`300000d` is longer than 584 years: write a shorter one",
            ),
            (
                "1..5s",
                "`1..5s` is not a duration: write a number and a unit (ns, us, ms, s, m, h, d), such as `1.5s` or `1h30m`",
            ),
        ] {
            assert_eq!(parse(text), Err(message.to_owned()), "{text}");
        }
    }
}
