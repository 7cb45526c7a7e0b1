//! `CL.THROTTLE key max_burst count period [quantity]`: the command of redis-cell, and its reply.
//!
//! The limit is a token bucket of `count` units per `period` seconds whose burst is `max_burst + 1`:
//! redis-cell's terms, translated only here. A quantity of 0 asks without charging.

use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::rate::{MAX_COUNT, MAX_PERIOD, Rate};

use super::args::Args;
use super::encode::Encoder;
use super::number::integer;
use crate::rounding::{seconds, signed};

/// A call with its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle<'a> {
    /// The key: any bytes.
    pub key: &'a [u8],
    /// The limit on the key.
    pub limit: ThrottleLimit,
    /// Units to charge; `None` for a quantity of 0, which is answered by a peek at
    /// [`Cost::ONE`].
    pub cost: Option<Cost>,
}

/// The numbers of the limit, already checked. Equal numbers are one limit: build it once and keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThrottleLimit {
    rate: Rate,
    burst: u64,
}

impl ThrottleLimit {
    /// Units per period.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The largest cost from rest: `max_burst + 1`.
    #[must_use]
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// The token bucket.
    ///
    /// # Errors
    /// None if the numbers came from [`Command::parse`](super::Command::parse).
    pub fn build(self) -> Result<Limit, LimitError> {
        Limit::token_bucket(self.rate).burst(self.burst).build()
    }
}

/// Reason why the arguments of `CL.THROTTLE` are not a valid limit. The text says what to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// An argument, named as in the synopsis, is not an integer of 64 bits.
    #[error(
        "{0} is not an integer or out of range: write whole decimal digits, at most 9223372036854775807"
    )]
    NotInteger(&'static str),
    /// An argument is below its least value.
    #[error("{argument} is too small: write at least {least}")]
    TooSmall {
        /// As named in the synopsis.
        argument: &'static str,
        /// Its least value.
        least: i64,
    },
    /// `max_burst + 1` is not an integer of 64 bits.
    #[error("max_burst is too large: write at most 9223372036854775806")]
    LargeBurst,
    /// More than 10^12 units a second.
    #[error(
        "count is too large for this period: write at most {most} (1000000000000 for each second)"
    )]
    FastRate {
        /// The most units of the period.
        most: u64,
    },
    /// A period above [`MAX_PERIOD`].
    #[error("period is too large: write at most {}", MAX_PERIOD.as_secs())]
    LongPeriod,
    /// The rate is impossible for another reason.
    #[error("count and period make no rate: {0}")]
    Rate(LimitError),
}

impl<'a> Throttle<'a> {
    /// Reads the arguments after the command's name; there are 4 or 5.
    pub(super) fn parse(args: Args<'a>) -> Result<Self, ThrottleError> {
        let max_burst = at_least(args, 1, "max_burst", 0)?;
        let count = at_least(args, 2, "count", 1)?;
        let period = at_least(args, 3, "period", 1)?;
        let cost = if args.len() > 4 {
            Cost::new(at_least(args, 4, "quantity", 0)?)
        } else {
            Some(Cost::ONE)
        };
        let burst = max_burst + 1;
        if i64::try_from(burst).is_err() {
            return Err(ThrottleError::LargeBurst);
        }
        let rate = Rate::new(count, Duration::from_secs(period)).map_err(|error| match error {
            LimitError::FastRate | LimitError::LargeCount => ThrottleError::FastRate {
                most: period.saturating_mul(1_000_000_000_000).min(MAX_COUNT),
            },
            LimitError::LongPeriod => ThrottleError::LongPeriod,
            other => ThrottleError::Rate(other),
        })?;
        Ok(Self {
            key: args.get(0).unwrap_or_default(),
            limit: ThrottleLimit { rate, burst },
            cost,
        })
    }

    /// Writes the reply: limited (0 or 1), limit, remaining, `retry_after` and `reset_after` in whole
    /// seconds, rounded up. `retry_after` is -1 if the call is allowed, was a peek (quantity 0) or
    /// can never pass. Larger numbers are written as `i64::MAX`.
    ///
    /// `decision` is the answer to [`Self::cost`], or to a peek if there is none.
    pub fn write_reply(&self, decision: &Decision, encoder: &mut Encoder<'_>) {
        let refused = match self.cost {
            Some(_) => decision.retry_after(),
            None => None,
        };
        let retry_after = match refused {
            None | Some(RetryAfter::Never) => -1,
            Some(RetryAfter::After(wait)) => signed(seconds(wait).max(1)),
        };
        encoder.integers([
            i64::from(refused.is_some()),
            signed(decision.limit),
            signed(decision.remaining),
            retry_after,
            signed(seconds(decision.reset_after)),
        ]);
    }
}

fn at_least(
    args: Args<'_>,
    index: usize,
    argument: &'static str,
    least: i64,
) -> Result<u64, ThrottleError> {
    let text = args.get(index).unwrap_or_default();
    let value = integer(text).ok_or(ThrottleError::NotInteger(argument))?;
    match u64::try_from(value) {
        Ok(natural) if value >= least => Ok(natural),
        _ => Err(ThrottleError::TooSmall { argument, least }),
    }
}
