//! Token bucket: a burst at once, then a steady rate. The default.
//!
//! A bucket holds `burst` tokens and fills at `rate`. A call of cost n takes n tokens or is refused. The
//! state is one instant (see `gcra.rs`) and not a count of tokens, so no fraction is lost and no timer
//! is needed.
//!
//! Bound: over any interval of length d at most `burst + rate*d` units. "100 per minute with burst 100"
//! therefore admits almost 200 in one minute: 100 at once, 100 more as they trickle in. For "never more
//! than 100 in any minute" use `sliding_window` or `sliding_log`.
//!
//! With `refill: {amount, every}` tokens come in whole batches instead, at ticks that count from
//! the first charge after rest: at most `burst + amount` x ticks inside the interval.
//!
//! `initial` is the number of tokens when the rule comes into force. From then on the bucket of every
//! key fills, even without calls. So a restart gives no free burst, and a key's first refusal need not
//! be stored.
//!
//! Bad at: smooth output. A full bucket is emptied as fast as the caller can send.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::gcra::Gcra;
use super::refill::RefillEngine;
use super::warm_up::{DEFAULT_COLD_FACTOR, WarmUp};
use super::{Algorithm, At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::limit_error::LimitError;
use crate::rate::{Rate, write_rate};
use crate::time::{Exact, Monotonic};
use crate::usage::Usage;

/// The numbers of a token bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// Units per period, at least 1 and at most 10^12 a second.
    pub count: u64,
    /// The period, above 0 and at most [`MAX_PERIOD`](crate::rate::MAX_PERIOD).
    pub period: Duration,
    /// True if all `count` units come at once, every period. Default: they come one by one.
    pub in_batches: bool,
    /// The largest cost admitted at one instant from rest, in units, at least 1. Default: the rate's
    /// count, or 1 with `warm_up`; filled in when the limit is built.
    pub burst: Option<u64>,
    /// Units in the bucket when the rule comes into force, at most the burst. Default: the burst.
    pub initial: Option<u64>,
    /// Grants a cost above what is stored at once, on credit: the next call waits until it is repaid.
    /// Not with batches.
    ///
    /// Such a call passes if at least one unit is stored, whatever it costs. So the bound is `burst +
    /// rate*d` and the excess of one call. `remaining` is what is stored. A cost that would take longer
    /// to repay than 64 full refills (or an hour, if that is longer) is refused.
    pub debt: bool,
    /// Time from rest until the bucket reaches its rate, on credit: see [`warm_up`](super::warm_up). Above
    /// 0 and at most [`MAX_WARM_UP`](super::warm_up::MAX_WARM_UP). Not together with a burst, `initial` or
    /// batches. Default: it has its rate at once.
    pub warm_up: Option<Duration>,
    /// Factor between the coldest interval and the steady one, 2 to 1000; only with `warm_up`. Default:
    /// [`DEFAULT_COLD_FACTOR`], filled in when the limit is built.
    pub cold_factor: Option<u32>,
}

impl TokenBucket {
    /// A bucket of `count` units per `period` whose burst is `count`.
    #[must_use]
    pub const fn new(count: u64, period: Duration) -> Self {
        Self {
            count,
            period,
            in_batches: false,
            burst: None,
            initial: None,
            debt: false,
            warm_up: None,
            cold_factor: None,
        }
    }

    /// A bucket that gets `amount` units at every interval `every`; its burst is `amount`.
    #[must_use]
    pub const fn refill(amount: u64, every: Duration) -> Self {
        let mut bucket = Self::new(amount, every);
        bucket.in_batches = true;
        bucket
    }

    setters! {
        burst(u64) => Some(burst);
        initial(u64) => Some(initial);
        debt(bool) => debt;
        warm_up(Duration) => Some(warm_up);
        cold_factor(u32) => Some(cold_factor);
    }

    pub(crate) fn prove(self) -> Result<(Algorithm, Engine), LimitError> {
        if self.in_batches && self.count == 0 {
            return Err(LimitError::ZeroRefill);
        }
        let rate = Rate::new(self.count, self.period)?;
        let warm_up = self.proved_warm_up(rate)?;
        let burst = match (warm_up, self.burst) {
            (Some(_), _) => 1,
            (None, said) => said.unwrap_or(self.count),
        };
        if burst == 0 {
            return Err(LimitError::ZeroBurst);
        }
        if self.debt && self.in_batches {
            return Err(LimitError::DebtInBatches);
        }
        let initial = self.initial.unwrap_or(burst);
        if initial > burst {
            return Err(LimitError::InitialAboveBurst);
        }
        let missing = burst - initial;
        let engine = if self.in_batches {
            Engine::Refill(RefillEngine::new(rate, burst, missing))
        } else {
            Engine::Token(TokenEngine {
                gcra: Gcra::new(rate, burst),
                missing,
                debt: self.is_on_credit(),
                warm_up: warm_up.map(Box::new),
            })
        };
        let spec = Self {
            burst: Some(burst),
            cold_factor: self.warm_up.map(|_| self.factor()),
            ..self
        };
        Ok((Algorithm::TokenBucket(spec), engine))
    }

    fn proved_warm_up(&self, rate: Rate) -> Result<Option<WarmUp>, LimitError> {
        let Some(window) = self.warm_up else {
            let is_alone = self.cold_factor.is_none();
            return is_alone.then_some(None).ok_or(LimitError::ColdFactorAlone);
        };
        // A built limit states its burst of 1.
        let has_burst = self.burst.is_some_and(|burst| burst != 1);
        if has_burst || self.initial.is_some() || self.in_batches {
            return Err(LimitError::WarmUpWithBurst);
        }
        WarmUp::new(window, self.factor(), rate).map(Some)
    }

    fn factor(&self) -> u32 {
        self.cold_factor.unwrap_or(DEFAULT_COLD_FACTOR)
    }

    /// Returns true if costs above what is stored are granted on credit.
    #[must_use]
    pub const fn is_on_credit(&self) -> bool {
        self.debt || self.warm_up.is_some()
    }
}

impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let burst = self.burst.unwrap_or(self.count);
        if self.in_batches {
            write!(f, "{} every {}", self.count, Exact(self.period))?;
        } else {
            write_rate(f, self.count, self.period)?;
        }
        if let Some(window) = self.warm_up {
            let factor = self.factor();
            return write!(f, ", warm_up {}, cold_factor {factor}", Exact(window));
        }
        write!(f, ", burst {burst}")?;
        if let Some(initial) = self.initial.filter(|initial| *initial != burst) {
            write!(f, ", initial {initial}")?;
        }
        f.write_str(if self.debt { ", debt" } else { "" })
    }
}

/// A token bucket with continuous refill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenEngine {
    gcra: Gcra,
    /// Units that are already used when the rule comes into force.
    missing: u64,
    /// True if a cost above what is stored is granted on credit.
    debt: bool,
    /// The warm-up, if there is one; then the burst is 1 and costs are on credit.
    warm_up: Option<Box<WarmUp>>,
}

impl TokenEngine {
    /// One that is full at the start, without debts and warm-up.
    pub(crate) const fn plain(gcra: Gcra) -> Self {
        Self {
            gcra,
            missing: 0,
            debt: false,
            warm_up: None,
        }
    }

    #[inline]
    pub(crate) const fn gcra(&self) -> &Gcra {
        &self.gcra
    }

    /// On credit any cost fits if anything is stored, unless it could not be repaid in time.
    fn check_on_credit(&self, tat: u128, now: Monotonic, cost: u64) -> Outcome {
        if self.can_ever(cost) {
            self.gcra.check(tat, now, cost.min(1))
        } else {
            Outcome::Deny(RetryAfter::Never)
        }
    }

    pub(crate) fn warm_up(&self) -> Option<&WarmUp> {
        self.warm_up.as_deref()
    }

    pub(crate) fn can_ever(&self, cost: u64) -> bool {
        if let Some(warm_up) = &self.warm_up {
            warm_up.can_ever(&self.gcra, cost)
        } else if self.debt {
            self.gcra.can_owe(cost)
        } else {
            cost <= self.gcra.burst()
        }
    }

    /// Returns true if a key that was never charged always has all its tokens, and debts are impossible.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.missing == 0 && !self.debt
    }

    pub(crate) fn used(&self, usage: &Usage, at: &At) -> u64 {
        self.gcra.used(tat(usage), at.now.monotonic)
    }

    /// Takes over the use of another token bucket, and how warm it was.
    pub(super) fn adopt(&self, from: &Self, usage: &Usage, at: &At) -> Usage {
        let mut adopted = self.with_used(from.used(usage, at), at);
        if let (Usage::WarmingUp { heat: to, .. }, Usage::WarmingUp { tat, heat, .. }) =
            (&mut adopted, usage)
            && let (Some(new), Some(old)) = (&self.warm_up, &from.warm_up)
        {
            *to = old.carried(new, *heat);
            // It cools from the new TAT on; the cooling since the old one is already applied.
            *to = new.cooled(*to, from.gcra.idle(*tat, at.now.monotonic));
        }
        adopted
    }

    /// A bucket with `used` units used, but at least as many as one that was never charged.
    pub(crate) fn with_used(&self, used: u64, at: &At) -> Usage {
        let tat = self.gcra.with_used(used, at.now.monotonic);
        if self.warm_up.is_some() {
            return Usage::WarmingUp {
                tat,
                heat: 0,
                as_of: at.now.monotonic,
            };
        }
        Usage::TokenBucket {
            tat: tat.max(self.fresh(at)),
        }
    }

    /// The TAT of a key that was never charged: what is missing at the start is refilled from then on.
    /// While the clock reads earlier than the start, all of it is missing.
    fn fresh(&self, at: &At) -> u128 {
        if self.missing == 0 {
            return 0;
        }
        let since = at.since.min(at.now.monotonic);
        let tat = self.gcra.with_used(self.missing, since);
        self.gcra.settle(tat, at.now.monotonic)
    }
}

fn tat(usage: &Usage) -> u128 {
    match usage {
        Usage::TokenBucket { tat } | Usage::Owing { tat, .. } | Usage::WarmingUp { tat, .. } => {
            *tat
        }
        _ => 0,
    }
}

impl Mechanics for TokenEngine {
    fn limit(&self) -> u64 {
        self.gcra.burst()
    }

    fn full_refill(&self) -> Duration {
        let cooling = self.warm_up().map_or(Duration::ZERO, WarmUp::window);
        self.gcra.full_refill().saturating_add(cooling)
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        if let Some(warm_up) = &self.warm_up {
            warm_up.settle(&self.gcra, usage, at);
            return;
        }
        if self.gcra.settle_debt(usage, at) {
            return;
        }
        let tat = match usage {
            Usage::TokenBucket { tat } | Usage::Owing { tat, .. } => {
                match self.gcra.settle(*tat, at.now.monotonic) {
                    // The bucket is full again before the start, because the clock went back. It stays
                    // full.
                    0 if self.fresh(at) > 0 => return,
                    settled => settled,
                }
            }
            _ => self.fresh(at),
        };
        *usage = match tat {
            0 => Usage::Rest,
            tat => Usage::TokenBucket { tat },
        };
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        let now = at.now.monotonic;
        if self.debt {
            return self.check_on_credit(tat(usage), now, cost);
        }
        self.gcra.check(tat(usage), now, cost)
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        if let Some(warm_up) = &self.warm_up {
            warm_up.take(&self.gcra, usage, at, cost);
            return;
        }
        if self.debt {
            self.gcra.charge_on_credit(usage, tat(usage), at, cost);
            return;
        }
        let tat = self.gcra.take(tat(usage), at.now.monotonic, cost);
        *usage = Usage::TokenBucket { tat };
    }

    fn remaining(&self, usage: &Usage, at: &At) -> u64 {
        self.gcra.remaining(tat(usage), at.now.monotonic)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        if let Some(warm_up) = &self.warm_up {
            return warm_up.reset_after(&self.gcra, usage, at);
        }
        self.gcra.reset_after(tat(usage), at.now.monotonic)
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::TokenBucket { tat }
        | Usage::Owing { tat, .. }
        | Usage::WarmingUp { tat, .. } = usage
        {
            *tat = self.gcra.shift(*tat, nanos);
        }
        if let Usage::Owing { as_of, .. } | Usage::WarmingUp { as_of, .. } = usage {
            *as_of = as_of.shifted(nanos);
        }
    }
}
