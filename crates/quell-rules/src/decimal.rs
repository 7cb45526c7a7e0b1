//! Decimal: an exact number with a fraction, such as `0.001`.

/// `digits / 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u64,
    scale: u32,
}

/// The most digits after the point: 10^18 fits 64 bits.
const MAX_SCALE: usize = 18;

impl Decimal {
    /// Reads digits, perhaps with a point between them; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return None,
            Some((whole, fraction)) => (whole, fraction.trim_end_matches('0')),
            None => (text, ""),
        };
        if !all_digits(whole)
            || !(fraction.is_empty() || all_digits(fraction))
            || fraction.len() > MAX_SCALE
        {
            return None;
        }
        let scale = u32::try_from(fraction.len()).ok()?;
        let whole: u64 = whole.parse().ok()?;
        let fraction: u64 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().ok()?
        };
        let digits = whole
            .checked_mul(10_u64.checked_pow(scale)?)?
            .checked_add(fraction)?;
        Some(Self { digits, scale })
    }

    pub(crate) const fn has_fraction(self) -> bool {
        self.scale > 0
    }

    const fn denominator(self) -> u64 {
        10_u64.saturating_pow(self.scale)
    }

    /// The whole part.
    pub(crate) const fn floor(self) -> u64 {
        self.digits / self.denominator()
    }

    /// This many times `unit`; `None` if that is no whole number.
    pub(crate) fn times(self, unit: u64) -> Option<u128> {
        let product = u128::from(self.digits) * u128::from(unit);
        let denominator = u128::from(self.denominator());
        (product % denominator == 0).then_some(product / denominator)
    }

    /// As `(numerator, denominator)` without a common factor.
    pub(crate) const fn fraction(self) -> (u64, u64) {
        let denominator = self.denominator();
        let divisor = greatest_common_divisor(self.digits, denominator);
        (self.digits / divisor, denominator / divisor)
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_exact() {
        for (text, fraction, floor) in [
            ("5", (5, 1), 5),
            ("1.5", (3, 2), 1),
            ("0.001", (1, 1000), 0),
            ("100.000", (100, 1), 100),
            ("0.0", (0, 1), 0),
            ("0.000000000000000001", (1, 1_000_000_000_000_000_000), 0),
            ("18446744073709551615", (u64::MAX, 1), u64::MAX),
        ] {
            let decimal = Decimal::parse(text).unwrap();
            assert_eq!(
                (decimal.fraction(), decimal.floor()),
                (fraction, floor),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in [
            "",
            ".",
            ".5",
            "5.",
            "1e3",
            "+1",
            "-1",
            "1_000",
            "1.2.3",
            "18446744073709551616",
            "0.0000000000000000001",
            "99.000000000000000001",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }
}
