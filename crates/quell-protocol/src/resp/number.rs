//! Integers in arguments.

/// `text` as an integer: an optional sign and digits, nothing else; `None` if it does not fit.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] | digits => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(sign * digit)
    })
}

/// `text` as a whole number of at least 0: digits, nothing else; `None` if it does not fit.
pub(super) fn natural(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+7", Some(7)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("", None),
            ("-", None),
            ("1.0", None),
            (" 1", None),
            ("1 ", None),
            ("0x1", None),
            ("--1", None),
        ] {
            assert_eq!(integer(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn naturals() {
        for (text, expected) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("+1", None),
            ("", None),
        ] {
            assert_eq!(natural(text.as_bytes()), expected, "{text:?}");
        }
    }
}
