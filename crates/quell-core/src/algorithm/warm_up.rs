//! Warm-up: a token bucket on credit that begins slowly and takes its time to get to its rate.
//!
//! The simplest idea, a lower rate for the first seconds, has a step in it and forgets how long a key
//! was idle. Guava's `SmoothWarmingUp` (`RateLimiter.create(rate, warmupPeriod)`) lets idle time store
//! permits as a bucket does, but makes stored permits *dear*: the more are stored, the colder is what
//! is behind the limit, and the longer the next caller waits for each. With T the interval of the
//! rate, W the warm-up and c the cold factor:
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
//! A charge of n takes n from the right; its wait is the area above them. It passes at once if
//! nothing is owed, and who comes next waits (the contract of `debt`).
//!
//! Kept: the TAT, and the *heat*, which is what is missing of the most that can be stored, so that
//! at rest is cold and a key that was never seen is too. In `1/(2 + 2c)` of a nanosecond of the
//! steady rate all of it is whole: the most is `W*(5+c)`, the slope begins at `W*(1+c)` and is `4W`
//! wide, and a nanosecond cools by `5+c`. The area of a charge is
//!
//! ```text
//! (8W*(a - b) + (c-1)*(A^2 - B^2)) / (8W * (2 + 2c))
//! ```
//!
//! from stored a to b, where A and B are what stands above the slope's beginning; rounded up, once in
//! a charge. With nothing stored a charge costs n*T to the tick, so a hot key keeps its rate exactly.
//!
//! Example, 2/s, W = 4 s, c = 3: calls of one from cold wait 0, 1.375, 1.125, 0.875, 0.625 and then
//! 0.5 s each; after 2 s of idleness 0.5 s again, after 4 s it is cold.
//!
//! Bound: over any interval of length d at most `1 + rate*d` units and what one call took too much.
//! Bad at: keys that are asked once in a while, which are never warm.

use core::time::Duration;

use super::At;
use super::gcra::Gcra;
use crate::limit::LimitError;
use crate::state::Usage;
use crate::time::{duration_from_nanos, saturating_nanos};

/// The longest warm-up, a day: with it every product stays below 2^127.
pub const MAX_WARM_UP: Duration = Duration::from_secs(86_400);

/// How many times as long the coldest interval is, unless said: what Guava takes.
pub const DEFAULT_COLD_FACTOR: u32 = 3;

/// The largest cold factor.
pub const MAX_COLD_FACTOR: u32 = 1_000;

/// A warm-up with its numbers worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarmUp {
    /// In nanoseconds.
    window: u64,
    factor: u64,
}

impl WarmUp {
    pub(super) fn new(window: Duration, factor: u32) -> Result<Self, LimitError> {
        if window.is_zero() || window > MAX_WARM_UP {
            return Err(LimitError::WarmUp);
        }
        if !(2..=MAX_COLD_FACTOR).contains(&factor) {
            return Err(LimitError::ColdFactor);
        }
        Ok(Self {
            window: saturating_nanos(window),
            factor: u64::from(factor),
        })
    }

    pub(super) const fn window(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// What a nanosecond of idleness cools.
    const fn cooling(&self) -> u64 {
        5 + self.factor
    }

    /// The heat of a key with nothing stored.
    const fn most(&self) -> u64 {
        self.window * self.cooling()
    }

    /// Parts of a nanosecond.
    const fn parts(&self) -> u64 {
        2 + 2 * self.factor
    }

    /// What is left of `heat` after so many nanoseconds.
    pub(super) fn cooled(&self, heat: u64, nanos: u64) -> u64 {
        heat.min(self.most())
            .saturating_sub(nanos.saturating_mul(self.cooling()))
    }

    /// How long until `heat` is gone.
    fn until_cold(&self, heat: u64) -> Duration {
        let heat = heat.min(self.most());
        duration_from_nanos(u128::from(heat.div_ceil(self.cooling())))
    }

    /// Takes so many ticks at the steady rate; the ticks that this costs in truth, and the heat after
    /// it.
    fn charge(&self, heat: u64, steady: u128, per_nano: u64) -> (u128, u64) {
        let per_nano = u128::from(per_nano);
        let parts = u128::from(self.parts());
        let stored = u128::from(self.most() - heat.min(self.most()));
        let taken = steady.saturating_mul(parts) / per_nano;
        let (left, fresh) = match stored.checked_sub(taken) {
            Some(left) => (left, 0),
            None => (0, steady.saturating_sub(stored * per_nano / parts)),
        };
        let window = u128::from(self.window);
        let slope = window * u128::from(1 + self.factor);
        let (above, below) = (stored.saturating_sub(slope), left.saturating_sub(slope));
        let steep = u128::from(self.factor - 1) * (above * above - below * below);
        let area = 8 * window * (stored - left) + steep;
        let unit = 8 * window * parts;
        // Whole nanoseconds first, so that the product stays in 128 bits.
        let rest = (area % unit * per_nano).div_ceil(unit);
        let ticks = (area / unit * per_nano + rest).saturating_add(fresh);
        let heat = u128::from(self.most()) - left;
        (ticks, u64::try_from(heat).unwrap_or(self.most()))
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
        let (ticks, heat) = self.charge(heat, gcra.cost(cost), gcra.per_nano());
        let tat = gcra.owed(tat.max(gcra.ticks(now)).saturating_add(ticks), now);
        *usage = Usage::WarmingUp {
            tat: tat.0,
            heat,
            as_of: now,
        };
    }

    /// Whether `cost` units can ever be repaid, were they all as dear as can be.
    pub(super) fn can_ever(&self, gcra: &Gcra, cost: u64) -> bool {
        gcra.can_owe(cost.saturating_mul(self.factor))
    }

    /// Time until nothing is owed and it is cold.
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
