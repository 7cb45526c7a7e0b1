//! Decimal: an exact number with a fraction, such as `0.001`.

use quell_core::rate::gcd;

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

    /// This many times `unit`; `None` if that is not a whole number.
    pub(crate) fn times(self, unit: u64) -> Option<u128> {
        let product = u128::from(self.digits) * u128::from(unit);
        let denominator = u128::from(self.denominator());
        (product % denominator == 0).then_some(product / denominator)
    }

    /// As [`simplest`] finds it.
    pub(crate) fn simplest(self) -> Option<(u64, u64)> {
        let dropped = 10_u64.pow(self.scale.saturating_sub(16));
        let scale = u128::from(self.denominator() / dropped);
        simplest_of(u128::from(self.digits / dropped), scale)
    }

    /// As `(numerator, denominator)` without a common factor.
    pub(crate) fn fraction(self) -> (u64, u64) {
        let denominator = self.denominator();
        let divisor = gcd(self.digits, denominator);
        (self.digits / divisor, denominator / divisor)
    }
}

/// The simplest fraction, as `(numerator, denominator)`, that `text` may be a decimal of: the difference is no larger
/// than the rounding error of a float. For 0.7692307692307693 it is 10/13. `None` if the text is not a decimal, or no
/// fraction is simpler than the text itself.
pub(crate) fn simplest(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.')?;
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let fraction = fraction.get(..MAX_DIGITS).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole: u64 = whole.parse().ok()?;
    let numerator = u128::from(whole).checked_mul(scale)? + fraction.parse::<u128>().ok()?;
    simplest_of(numerator, scale)
}

/// [`simplest`] of `numerator / scale`.
fn simplest_of(numerator: u128, scale: u128) -> Option<(u64, u64)> {
    // A float has 53 bits, so the last digits of a large number are less exact.
    let tolerance = 2.max((numerator >> 52).min(scale / 1_000));
    // Convergents of the continued fraction, each the best for its size.
    let (mut rest, mut divisor) = (numerator, scale);
    let (mut last, mut next) = ((0_u128, 1_u128), (1_u128, 0_u128));
    while divisor > 0 {
        let digit = rest / divisor;
        let step = |a: u128, b: u128| digit.checked_mul(b)?.checked_add(a);
        (last, next) = (next, (step(last.0, next.0)?, step(last.1, next.1)?));
        (rest, divisor) = (divisor, rest % divisor);
        let (above, below) = next;
        let difference = numerator
            .checked_mul(below)?
            .abs_diff(above.checked_mul(scale)?);
        if difference <= below.checked_mul(tolerance)? {
            let simpler = above > 0 && below < scale;
            let found = (u64::try_from(above).ok()?, u64::try_from(below).ok()?);
            return simpler.then_some(found);
        }
    }
    None
}

/// The most digits after the point that [`simplest`] uses: further ones come from a float that was printed too long.
const MAX_DIGITS: usize = 16;

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
    fn decimals_of_fractions_are_found() {
        for (text, expected) in [
            ("0.7692307692307693", Some((10, 13))),
            ("0.3333333333", Some((1, 3))),
            ("0.333333333333333314829616256247", Some((1, 3))),
            ("16.666666666666668", Some((50, 3))),
            ("33.333333333333336", Some((100, 3))),
            ("14.285714285714286", Some((100, 7))),
            ("90.90909090909091", Some((1_000, 11))),
            ("0.000016534391534391536", Some((1, 60_480))),
            ("0.1428571428571428571", Some((1, 7))),
            ("0.333333333333333315", Some((1, 3))),
            ("1.00000000001", Some((1, 1))),
            ("0.000000000000000001", None),
            ("0.000000000000000000001", None),
            ("0.25", Some((1, 4))),
            ("3", None),
            ("1e-3", None),
            (".5", None),
            ("99999999999999999999.5", None),
            ("18446744073709551615.333333333333333333", None),
        ] {
            assert_eq!(simplest(text), expected, "{text}");
            if let Some(decimal) = Decimal::parse(text).filter(|decimal| decimal.has_fraction()) {
                assert_eq!(decimal.simplest(), expected, "{text}");
            }
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
