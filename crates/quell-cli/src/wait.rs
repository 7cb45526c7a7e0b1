//! Wait: milliseconds as people say them, `1h1m15s`.

/// Units from the longest to the shortest, in milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// How many units are said at most; milliseconds only below a minute.
const SAID: usize = 3;

/// `milliseconds` in a few of these units, rounded up: who waits that long has waited long enough.
pub(crate) fn words(milliseconds: u64) -> String {
    let first = UNITS.iter().position(|(_, length)| milliseconds >= *length);
    let first = first.unwrap_or(UNITS.len() - 1);
    let said = UNITS.get(first..).unwrap_or_default();
    let said = match said {
        [coarse @ .., _] if coarse.len() > 1 => coarse,
        all => all,
    };
    let said = said.get(..SAID).unwrap_or(said);
    let finest = said.last().map_or(1, |(_, length)| *length);
    let mut left = milliseconds.div_ceil(finest).saturating_mul(finest);
    if left > milliseconds {
        // 59m59.9s are 1h, not 60m.
        return words(left);
    }
    let mut words = String::new();
    for (unit, length) in said {
        let number = left / length;
        left %= length;
        if number > 0 {
            words.push_str(&format!("{number}{unit}"));
        }
    }
    if words.is_empty() {
        words.push_str("0s");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_said_in_a_few_units_and_rounded_up() {
        for (milliseconds, text) in [
            (0, "0s"),
            (1, "1ms"),
            (12_000, "12s"),
            (12_345, "12s345ms"),
            (60_001, "1m1s"),
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
