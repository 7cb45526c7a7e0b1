//! Warm-up: a token bucket on credit that starts slowly after rest and reaches its rate after a while.
//!
//! The simplest idea, a lower rate for the first seconds, has a step in it and ignores how long a key
//! was idle. In Guava's `SmoothWarmingUp` (`RateLimiter.create(rate, warmupPeriod)`) idle time stores
//! permits as in a bucket, but stored permits cost *more*: the more are stored, the colder the service
//! is, and the longer the next caller waits for each of them. With T the interval of the rate, W the
//! warm-up and c the cold factor:
//!
//! ```text
//! interval
//!   c*T |                /        the colder, the dearer: W is the area under the slope, what it
//!       |              /          takes to get from cold to the rate
//!     T |------------/
//!       +----------------------- stored
//!       0     half W/T    most    and idle time stores all of it in W
//! ```
//!
//! A charge of n takes n permits from the right of the curve; its wait is the area above them. It passes
//! at once if nothing is owed, and the next call waits (as with `debt`).
//!
//! Kept: the TAT, and the *heat*: how much is missing of the most that can be stored. So a key at rest
//! is cold, and so is a key that was never seen. In units of `1/(2 + 2c)` of a nanosecond of the steady
//! rate all numbers are whole: the most is `W*(5+c)`, the slope begins at `W*(1+c)` and is `4W` wide,
//! and a nanosecond cools by `5+c`. A charge of n costs `n*T`, to the tick, and on the slope
//! additionally `F(A) - F(B)`, where A and B are the amounts above the slope's beginning before and
//! after it, and
//!
//! ```text
//! F(x) = (c-1) * x^2 / (16W * (1+c))          rounded up to a nanosecond
//! ```
//!
//! Rounding errors do not add up, because each cost is a difference of rounded values: all charges from
//! cold to here cost F(cold) - F(here). Below the slope's beginning a charge costs n*T, so a hot key
//! keeps its rate exactly.
//!
//! A store whose numbers end at 2^53 takes the same steps: `(c-1) * x` and `16W * (1+c)` stay below 2^52
//! because `W*(5+c)` is at most 2^48. If nanoseconds would exceed that, as with a day and c = 3, or if
//! an interval of years is too long, everything is counted in *quanta* of 10, 100 or 1,000 of them.
//!
//! Example, 2/s, W = 4 s, c = 3: single calls from cold wait 0, 1.375, 1.125, 0.875, 0.625 and then 0.5
//! s each; after 2 s of idleness 0.5 s again, after 4 s it is cold.
//!
//! Bound: over any interval of length d at most `1 + rate*d` units and the excess of one call. Bad at:
//! keys with few calls, which are never warm.

use core::time::Duration;

use super::At;
use super::gcra::Gcra;
use crate::limit_error::LimitError;
use crate::rate::{Rate, gcd};
use crate::time::{duration_from_nanos, saturating_nanos};
use crate::usage::Usage;

/// The longest warm-up, a day: with it every product stays below 2^127.
pub const MAX_WARM_UP: Duration = Duration::from_secs(86_400);

/// The default cold factor: Guava's.
pub const DEFAULT_COLD_FACTOR: u32 = 3;

/// The largest cold factor.
pub const MAX_COLD_FACTOR: u32 = 1_000;

/// The most heat, so that 53 bits are enough for every step.
const MAX_HEAT: u64 = 1 << 48;

/// The same for the two numbers of an interval.
const MAX_PARTS: u128 = 1 << 52;

/// A warm-up with precomputed numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarmUp {
    /// In quanta.
    window: u64,
    factor: u64,
    /// Quanta per microsecond.
    per_micro: u64,
}

/// Parameters of a warm-up for a store that does its own arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warming {
    /// Duration of the warm-up, in quanta, rounded up; times `5 + factor` at most 2^48.
    pub window: u64,
    /// Factor between the coldest interval and the steady one.
    pub factor: u64,
    /// Quanta per microsecond: 1,000, 100, 10 or 1, the largest of them that fits.
    pub per_micro: u64,
}

/// Returns true if the interval of a rate is a fraction of a microsecond whose parts are whole parts of a
/// quantum, and both of its numbers are short enough for every store.
fn has_whole_quanta(rate: Rate, per_micro: u64) -> bool {
    let ticks = rate.ticks();
    let (interval, parts) = (
        u128::from(ticks.interval),
        u128::from(ticks.per_nano) * 1_000,
    );
    let common = gcd(interval, parts);
    let (interval, parts) = (interval / common, parts / common);
    let quanta = u128::from(per_micro);
    let times = quanta / gcd(parts, quanta);
    interval.max(parts) * times <= MAX_PARTS
}

impl WarmUp {
    pub(super) fn new(window: Duration, factor: u32, rate: Rate) -> Result<Self, LimitError> {
        if window.is_zero() || window > MAX_WARM_UP {
            return Err(LimitError::WarmUp);
        }
        if !(2..=MAX_COLD_FACTOR).contains(&factor) {
            return Err(LimitError::ColdFactor);
        }
        let (nanos, factor) = (saturating_nanos(window), u64::from(factor));
        let mut per_micro = 1_000;
        let fits = |per_micro: u64| {
            nanos.div_ceil(1_000 / per_micro) * (5 + factor) <= MAX_HEAT
                && has_whole_quanta(rate, per_micro)
        };
        while per_micro > 1 && !fits(per_micro) {
            per_micro /= 10;
        }
        Ok(Self {
            window: nanos.div_ceil(1_000 / per_micro),
            factor,
            per_micro,
        })
    }

    pub(super) const fn window(&self) -> Duration {
        Duration::from_nanos(self.window * self.quantum())
    }

    pub(crate) const fn numbers(&self) -> Warming {
        Warming {
            window: self.window,
            factor: self.factor,
            per_micro: self.per_micro,
        }
    }

    /// In nanoseconds.
    const fn quantum(&self) -> u64 {
        1_000 / self.per_micro
    }

    /// By how much a quantum of idleness cools.
    const fn cooling(&self) -> u64 {
        5 + self.factor
    }

    /// The heat of a key with nothing stored.
    const fn most(&self) -> u64 {
        self.window * self.cooling()
    }

    /// Parts of a quantum.
    const fn parts(&self) -> u64 {
        2 + 2 * self.factor
    }

    /// Heat that is left of `heat` after this many nanoseconds.
    pub(super) fn cooled(&self, heat: u64, nanos: u64) -> u64 {
        let quanta = nanos / self.quantum();
        heat.min(self.most())
            .saturating_sub(quanta.saturating_mul(self.cooling()))
    }

    /// Time until `heat` is gone.
    fn until_cold(&self, heat: u64) -> Duration {
        let quanta = heat.min(self.most()).div_ceil(self.cooling());
        duration_from_nanos(u128::from(quanta) * u128::from(self.quantum()))
    }

    /// The extra cost, in quanta, of taking everything that is stored.
    fn dearness(&self, stored: u64) -> u64 {
        let slope = self.window * (1 + self.factor);
        let above = u128::from(stored.saturating_sub(slope));
        let width = 16 * u128::from(self.window) * u128::from(1 + self.factor);
        let quanta = (above * u128::from(self.factor - 1) * above).div_ceil(width);
        u64::try_from(quanta).unwrap_or(u64::MAX)
    }

    /// Takes this many ticks at the steady rate. Returns the ticks that this really costs, and the heat
    /// after it.
    fn charge(&self, heat: u64, steady: u128, per_nano: u64) -> (u128, u64) {
        let stored = self.most() - heat.min(self.most());
        let quantum = u128::from(per_nano) * u128::from(self.quantum());
        let taken = steady.saturating_mul(u128::from(self.parts())) / quantum;
        let left = stored.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        let dearer = self.dearness(stored) - self.dearness(left);
        let dearer = u128::from(dearer) * quantum;
        (steady.saturating_add(dearer), self.most() - left)
    }

    /// Brings a usage to an instant.
    pub(super) fn settle(&self, gcra: &Gcra, usage: &mut Usage, at: &At) {
        let now = at.now.monotonic;
        let (tat, heat) = match usage {
            Usage::WarmingUp { tat, heat, as_of } => {
                (gcra.settle_owing(*tat, *as_of, now).0, *heat)
            }
            Usage::TokenBucket { tat } | Usage::Owing { tat, .. } => (gcra.settle(*tat, now), 0),
            _ => (0, 0),
        };
        let heat = heat.min(self.most());
        let as_of = now;
        let is_cold = self.cooled(heat, gcra.idle(tat, now)) == 0;
        *usage = if is_cold && tat <= gcra.ticks(now) {
            Usage::Rest
        } else {
            Usage::WarmingUp { tat, heat, as_of }
        };
    }

    /// Charges whether it fits or not.
    pub(super) fn take(&self, gcra: &Gcra, usage: &mut Usage, at: &At, cost: u64) {
        let now = at.now.monotonic;
        let (tat, heat) = match usage {
            Usage::WarmingUp { tat, heat, .. } => (*tat, *heat),
            Usage::TokenBucket { tat } | Usage::Owing { tat, .. } => (*tat, 0),
            _ => (0, 0),
        };
        let heat = self.cooled(heat, gcra.idle(tat, now));
        let (ticks, heat) = self.charge(heat, gcra.cost(cost), gcra.per_nano);
        let tat = gcra.owed(tat.max(gcra.ticks(now)).saturating_add(ticks), now);
        *usage = Usage::WarmingUp {
            tat: tat.0,
            heat,
            as_of: now,
        };
    }

    /// Returns true if `cost` units can ever be repaid, even if all of them are as expensive as possible.
    pub(super) fn can_ever(&self, gcra: &Gcra, cost: u64) -> bool {
        gcra.can_owe(cost.saturating_mul(self.factor))
    }

    /// Time until nothing is owed and the key is cold.
    pub(super) fn reset_after(&self, gcra: &Gcra, usage: &Usage, at: &At) -> Duration {
        let Usage::WarmingUp { tat, heat, .. } = usage else {
            return Duration::ZERO;
        };
        let now = at.now.monotonic;
        let heat = self.cooled(*heat, gcra.idle(*tat, now));
        gcra.reset_after(*tat, now)
            .saturating_add(self.until_cold(heat))
    }

    /// The heat under `to` that is as warm as `heat` is under these numbers.
    pub(super) fn carried(&self, to: &Self, heat: u64) -> u64 {
        let heat = u128::from(heat.min(self.most())) * u128::from(to.most());
        u64::try_from(heat / u128::from(self.most())).unwrap_or(to.most())
    }
}
