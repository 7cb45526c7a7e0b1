//! A token bucket whose tokens come in whole batches.
//!
//! Kept: units used, and the last tick that was counted. Ticks count from the first charge after
//! rest, so a key that was idle for a day is owed nothing but a full bucket.
//!
//! ```text
//! ticks = floor((now - anchor) / every);  used = max(0, used - ticks*amount);  anchor += ticks*every
//! allow iff used + n <= burst
//! retry_after = ceil((used + n - burst) / amount) * every - (now - anchor)
//! ```
//!
//! Example, 100 every 1 s, burst 1000: 1000 taken at 0 s, deny until 1 s, then 100 more.

use core::time::Duration;

use super::{At, DEBT_REFILLS, LONGEST_DEBT_AT_LEAST, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::hold::Mark;
use crate::rate::Rate;
use crate::time::{Monotonic, duration_from_nanos, saturating_nanos};
use crate::usage::Usage;

/// A bucket filled in batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefillEngine {
    amount: u64,
    every: u64,
    burst: u64,
    missing: u64,
}

/// Units used.
pub(crate) fn used(usage: &Usage) -> u64 {
    match usage {
        Usage::Refill { used, .. } | Usage::OwingBatches { used, .. } => *used,
        _ => 0,
    }
}

impl RefillEngine {
    /// All units of `rate` at once, every period.
    pub(crate) fn new(rate: Rate, burst: u64, missing: u64) -> Self {
        Self {
            amount: rate.count(),
            every: saturating_nanos(rate.period()),
            burst,
            missing,
        }
    }

    /// A bucket with `used` units used, but at least as many as one that was never charged. Ticks
    /// count from now if nothing is missing, and otherwise from the start.
    pub(crate) fn with_used(&self, used: u64, at: &At) -> Usage {
        let (anchor, missing) = self.fresh(at);
        let used = used.min(self.burst);
        if missing == 0 {
            let anchor = at.now.monotonic;
            return Usage::Refill { anchor, used };
        }
        Usage::Refill {
            anchor,
            used: used.max(missing),
        }
    }

    /// Takes over the use of another such bucket, and its ticks. No batch is credited for the time
    /// under the other limit.
    pub(crate) fn adopt(&self, usage: Usage, at: &At) -> Usage {
        let (Usage::Refill { anchor: last, used } | Usage::OwingBatches { anchor: last, used }) =
            usage
        else {
            return Usage::Rest;
        };
        let now = at.now.monotonic.as_nanos();
        let since_tick = now.saturating_sub(last.as_nanos()) % self.every;
        let mut adopted = self.with_used(used, at);
        if let (Usage::Refill { anchor, .. }, (_, 0)) = (&mut adopted, self.fresh(at)) {
            *anchor = Monotonic::from_nanos(now - since_tick);
        }
        adopted
    }

    /// The last tick and the use of a key that was never charged: what is missing at the start is
    /// refilled from then on. While the clock reads earlier than the start, all of it is missing.
    fn fresh(&self, at: &At) -> (Monotonic, u64) {
        let since = at.since.min(at.now.monotonic);
        self.ticked(since, self.missing, at.now.monotonic)
    }

    /// Counts the ticks from `anchor`, which is not after `now`, until `now`.
    fn ticked(&self, anchor: Monotonic, used: u64, now: Monotonic) -> (Monotonic, u64) {
        let elapsed = now.as_nanos().saturating_sub(anchor.as_nanos());
        let ticks = elapsed / self.every;
        let last = Monotonic::from_nanos(now.as_nanos() - elapsed % self.every);
        (last, used.saturating_sub(ticks.saturating_mul(self.amount)))
    }

    /// Time from `now` to the tick that gives back at least `units`.
    fn until_back(&self, units: u64, anchor: Monotonic, now: Monotonic) -> Duration {
        let ticks = u128::from(units.div_ceil(self.amount));
        let elapsed = u128::from(now.as_nanos().saturating_sub(anchor.as_nanos()));
        duration_from_nanos((ticks * u128::from(self.every)).saturating_sub(elapsed))
    }

    fn parts(&self, usage: &Usage, at: &At) -> (Monotonic, u64) {
        match usage {
            Usage::Refill { anchor, used } => {
                ((*anchor).min(at.now.monotonic), (*used).min(self.burst))
            }
            Usage::OwingBatches { anchor, used } => {
                let most = self.burst.saturating_add(self.owable());
                ((*anchor).min(at.now.monotonic), (*used).min(most))
            }
            _ => (at.now.monotonic, 0),
        }
    }

    /// The most units that may be owed beyond a full bucket.
    fn owable(&self) -> u64 {
        let hour = saturating_nanos(LONGEST_DEBT_AT_LEAST).div_ceil(self.every);
        let in_an_hour = self.amount.saturating_mul(hour);
        self.burst
            .saturating_mul(u64::from(DEBT_REFILLS))
            .max(in_an_hour)
    }

    /// Charges units whether they fit or not.
    pub(super) fn owe(&self, usage: &mut Usage, at: &At, units: u64) {
        let (anchor, used) = self.parts(usage, at);
        let used = used.saturating_add(units);
        *usage = self.with_debt(anchor, used);
    }

    fn with_debt(&self, anchor: Monotonic, used: u64) -> Usage {
        if used > self.burst {
            Usage::OwingBatches { anchor, used }
        } else {
            Usage::Refill { anchor, used }
        }
    }

    /// Units owed beyond a full bucket.
    pub(super) fn units_owed(&self, usage: &Usage) -> u64 {
        used(usage).saturating_sub(self.burst)
    }

    /// The mark of the charge that was just made.
    pub(super) fn mark(&self, usage: &Usage, at: &At) -> Mark {
        let (anchor, used) = self.parts(usage, at);
        Mark::Batches { anchor, used }
    }

    /// Gives back `units` of the charge at the mark, except those that batches have refilled
    /// already. Returns how many that were.
    pub(super) fn give_back(
        &self,
        usage: &mut Usage,
        at: &At,
        units: u64,
        mark: (Monotonic, u64),
    ) -> u64 {
        let (_, left) = self.ticked(mark.0.min(at.now.monotonic), mark.1, at.now.monotonic);
        if !matches!(usage, Usage::Refill { .. } | Usage::OwingBatches { .. }) {
            return 0;
        }
        let (anchor, used) = self.parts(usage, at);
        let back = units.min(left).min(used);
        *usage = self.with_debt(anchor, used - back);
        back
    }

    /// The mark under other numbers of a charge at `mark` under these.
    pub(super) fn moved_mark(&self, mark: (Monotonic, u64), to: &Self, at: &At) -> Mark {
        let (_, left) = self.ticked(mark.0.min(at.now.monotonic), mark.1, at.now.monotonic);
        Mark::Batches {
            anchor: at.now.monotonic,
            used: left.min(to.burst),
        }
    }
}

impl Mechanics for RefillEngine {
    fn limit(&self) -> u64 {
        self.burst
    }

    fn full_refill(&self) -> Duration {
        duration_from_nanos(u128::from(self.burst.div_ceil(self.amount)) * u128::from(self.every))
    }

    fn settle(&self, usage: &mut Usage, at: &At) {
        let is_charged = matches!(usage, Usage::Refill { .. } | Usage::OwingBatches { .. });
        let (anchor, used) = if is_charged {
            let (anchor, used) = self.parts(usage, at);
            self.ticked(anchor, used, at.now.monotonic)
        } else {
            self.fresh(at)
        };
        // The bucket is full again before the start, because the clock went back. It stays full.
        let stays = is_charged && self.missing > 0 && self.fresh(at).1 > 0;
        *usage = if used > 0 || stays {
            self.with_debt(anchor, used)
        } else {
            Usage::Rest
        };
    }

    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome {
        if cost > self.burst {
            return Outcome::Deny(RetryAfter::Never);
        }
        let (anchor, used) = self.parts(usage, at);
        match used.checked_sub(self.burst - cost) {
            None | Some(0) => Outcome::Allow,
            Some(excess) => Outcome::Deny(RetryAfter::After(self.until_back(
                excess,
                anchor,
                at.now.monotonic,
            ))),
        }
    }

    fn take(&self, usage: &mut Usage, at: &At, cost: u64) {
        let (anchor, used) = self.parts(usage, at);
        *usage = Usage::Refill {
            anchor,
            used: used.saturating_add(cost),
        };
    }

    fn remaining(&self, usage: &Usage, at: &At) -> u64 {
        self.burst.saturating_sub(self.parts(usage, at).1)
    }

    fn reset_after(&self, usage: &Usage, at: &At) -> Duration {
        let (anchor, used) = self.parts(usage, at);
        self.until_back(used, anchor, at.now.monotonic)
    }

    fn shift(&self, usage: &mut Usage, nanos: i64) {
        if let Usage::Refill { anchor, .. } | Usage::OwingBatches { anchor, .. } = usage {
            *anchor = anchor.shifted(nanos);
        }
    }
}
