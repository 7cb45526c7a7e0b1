//! A rate as whole numbers that the script can add exactly.
//!
//! The emission interval of a rate is often a fraction of a microsecond. A TAT is stored as whole units
//! and `parts`-ths of one, so that adding intervals is exact. A unit is a microsecond, or 2^k of them if a
//! full refill is longer than 2^52 microseconds (142 years).

use std::time::Duration;

use quell_core::rate::gcd;

/// The largest number that the script handles: one bit below 2^53, to leave room for a sum.
const MOST: u128 = 1 << 52;

/// The most units that a limit holds on this store, and a call costs: sums of some of them stay exact.
/// Rules with a larger limit are refused.
pub(crate) const MAX_UNITS: u64 = 1 << 50;

/// An emission interval, `interval / parts` units of `2^shift` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) interval: u64,
    pub(crate) parts: u64,
    pub(crate) shift: u32,
}

/// A span of time in whole units and parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickSpan {
    pub(crate) units: u64,
    pub(crate) parts: u64,
}

impl Ticks {
    /// The ticks of `count` per `period`, a possible rate, for a bucket that holds `burst` units.
    ///
    /// Exact, but for rates whose fraction, fully reduced, has a part above 2^52 (such as counts above
    /// 4*10^12 per second that share no factor with it): these are rounded to 2^-51 of the interval, up.
    pub(crate) fn new(count: u64, period: Duration, burst: u64) -> Self {
        let interval = period.as_nanos();
        let parts = u128::from(count) * 1_000;
        let mut shift = 0;
        // At most 2^100 microseconds: at most 50 steps.
        while (u128::from(burst) * interval / parts) >> shift >= MOST {
            shift += 1;
        }
        let parts = parts << shift;
        let divisor = gcd(interval, parts);
        let (mut interval, mut parts) = (interval / divisor, parts / divisor);
        if interval > MOST || parts > MOST {
            (interval, parts) = round_up(interval, parts);
        }
        Self {
            interval: narrow(interval),
            parts: narrow(parts),
            shift,
        }
    }

    /// The same with parts that are multiples of `quanta` per microsecond, for a limit whose numbers were
    /// checked to allow that.
    pub(crate) fn in_quanta(self, quanta: u64) -> Self {
        let common = gcd(u128::from(self.parts), u128::from(quanta));
        let times = u128::from(quanta) / common;
        Self {
            interval: narrow(u128::from(self.interval) * times),
            parts: narrow(u128::from(self.parts) * times),
            shift: self.shift,
        }
    }

    /// Time that `count` units take.
    pub(crate) fn span(&self, count: u64) -> TickSpan {
        let ticks = u128::from(count) * u128::from(self.interval);
        let parts = u128::from(self.parts);
        TickSpan {
            units: narrow(ticks / parts),
            parts: narrow(ticks % parts),
        }
    }

    /// A span in ticks.
    pub(crate) fn ticks(&self, span: TickSpan) -> u128 {
        u128::from(span.units) * u128::from(self.parts) + u128::from(span.parts)
    }

    /// Microseconds from `now` until the `ticks` counted from the unit that holds `now` are over.
    pub(crate) fn micros(&self, ticks: u128, now: u64) -> u128 {
        if ticks == 0 {
            return 0;
        }
        let units = ticks.div_ceil(u128::from(self.parts));
        let into = u128::from(now) & ((1 << self.shift) - 1);
        (units << self.shift) - into
    }
}

/// The smallest fraction from `interval / parts` on, of which at least one number does not fit, whose
/// numbers both do: a walk down the Stern-Brocot tree. It differs by less than 2^-51 of the interval.
fn round_up(interval: u128, parts: u128) -> (u128, u128) {
    let (mut low, mut high) = ((0, 1), (1, 0));
    // The fraction is (low * b + high * a), numerators and denominators each.
    let (mut a, mut b) = (interval, parts);
    loop {
        let steps = a / b;
        if steps > most_steps(low, high) {
            return high;
        }
        low = (low.0 + steps * high.0, low.1 + steps * high.1);
        a -= steps * b;
        if a == 0 {
            return low;
        }
        let steps = b / a;
        let most = most_steps(high, low);
        let taken = steps.min(most);
        high = (high.0 + taken * low.0, high.1 + taken * low.1);
        b -= taken * a;
        if steps > most || b == 0 {
            return high;
        }
    }
}

/// Number of times that `by` can be added to a fraction whose numbers fit.
fn most_steps(from: (u128, u128), by: (u128, u128)) -> u128 {
    let most = |from: u128, by: u128| MOST.saturating_sub(from).checked_div(by).unwrap_or(MOST);
    most(from.0, by.0).min(most(from.1, by.1))
}

pub(crate) fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use quell_core::rate::Rate;

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    #[test]
    fn usual_rates_are_exact() {
        let second = Duration::from_secs(1);
        let exact = |interval, parts| Ticks {
            interval,
            parts,
            shift: 0,
        };
        assert_eq!(Ticks::new(100, second, 200), exact(10_000, 1));
        assert_eq!(Ticks::new(7, 60 * second, 7), exact(60_000_000, 7));
        assert_eq!(
            Ticks::new(1_000_003, second, 10),
            exact(1_000_000, 1_000_003)
        );
        assert_eq!(
            Ticks::new(999_999_999, second, 999_999_999),
            exact(1_000_000, 999_999_999)
        );
        assert_eq!(Ticks::new(1, Duration::from_nanos(1), 1), exact(1, 1_000));
        let trillion = 1_000_000_000_000;
        assert_eq!(Ticks::new(trillion, second, 1), exact(1, 1_000_000));
        assert_eq!(
            Ticks::new(trillion - 1, second, trillion),
            exact(1_000_000, trillion - 1)
        );
    }

    #[test]
    fn a_long_refill_has_a_longer_unit() {
        let slow = Ticks::new(1, YEAR, 1_000);
        assert_eq!(slow.shift, 3);
        let full = slow.span(1_000);
        assert_eq!((full.units << 3, full.parts), (31_536_000_000_000_000, 0));
        // An answer is exact to the microsecond all the same.
        assert_eq!(slow.micros(slow.ticks(full), 5), 31_535_999_999_999_995);
    }

    #[test]
    fn everything_fits_and_is_as_said() {
        let large = [
            999_999_999_989,
            86_399_999_999_999_989,
            4_611_686_018_427_387_847,
        ];
        let counts = [1, 3, 7, 997, 1_000_003]
            .into_iter()
            .chain(large)
            .chain([1 << 61]);
        let counts: Vec<u64> = counts.collect();
        let day = 86_400_000_000_000;
        let periods = [
            1,
            999_999_937,
            1_000_000_000,
            day,
            3_153_599_999_999_999_989,
        ];
        let periods = periods.map(Duration::from_nanos);
        for (count, period) in counts.iter().flat_map(|c| periods.map(|p| (*c, p))) {
            let Ok(rate) = Rate::new(count, period) else {
                continue;
            };
            for burst in [1, 1_000, MAX_UNITS] {
                let ticks = Ticks::new(count, period, burst);
                let fits = |number: u64| u128::from(number) <= MOST;
                assert!(
                    fits(ticks.interval) && fits(ticks.parts),
                    "{rate} {ticks:?}"
                );
                assert!(fits(ticks.span(burst).units), "{rate} {burst} {ticks:?}");
                let unit = 2_f64.powi(i32::try_from(ticks.shift).unwrap());
                let got = ticks.interval as f64 / ticks.parts as f64 * unit;
                let said = period.as_nanos() as f64 / 1_000.0 / count as f64;
                assert!((got / said - 1.0).abs() < 1e-15, "{rate}: {ticks:?}");
            }
        }
    }
}
