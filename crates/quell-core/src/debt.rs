//! Debt: what a node admitted under its share of a limit, and has not yet charged to the shared store.
//!
//! A debt is the use that is missing in the store's state. In a bucket, the store's state and the debt
//! must not drain at the same time: the rate that refills what the store knows cannot refill the debt as
//! well, or every unit of it would be granted twice:
//!
//! ```text
//! 20/s, burst 200, all of it used at 0 s, when the store is lost; 160 admitted until 8 s
//! the store's state at 8 s    200 - 8 * 20 = 40 used
//! the debt at 8 s             160: nothing of it has drained
//! ```
//!
//! So a debt in a bucket begins to drain when the store's own state is at rest (`drains_from`), and then
//! at the rate of the share, so that the debts of all nodes together drain at the rate of the limit. In
//! a window each charge expires on its own, so such a debt drains independently of the store's state.

use crate::algorithm::{At, Mechanics};
use crate::limit::Limit;
use crate::time::Monotonic;
use crate::usage::Usage;

/// Units that are still to be charged to a shared store for one key, under the node's share of its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    usage: Usage,
    drains_from: Monotonic,
}

impl Debt {
    /// No debt yet; later debts under a bucket drain from `drains_from` on.
    #[must_use]
    pub const fn new(drains_from: Monotonic) -> Self {
        Self {
            usage: Usage::Rest,
            drains_from,
        }
    }

    /// Adds `units`, whether or not they fit the share.
    pub fn add(&mut self, share: &Limit, units: u64, at: &At) {
        let at = self.settle(share, at);
        share.engine().owe(&mut self.usage, units, &at);
    }

    /// Units that are still to be charged, rounded up.
    pub fn units(&mut self, share: &Limit, at: &At) -> u64 {
        let at = self.settle(share, at);
        let engine = share.engine();
        match &self.usage {
            // A window may count more than its limit.
            Usage::FixedWindow { used, .. } | Usage::CalendarWindow { used, .. } => *used,
            Usage::SlidingWindow { segments } => sum(segments.iter().map(|(_, used)| *used)),
            Usage::SlidingLog { entries } => sum(entries.iter().map(|(_, used)| *used)),
            usage => {
                let left = engine.remaining(usage, &at);
                let fit = engine.limit().saturating_sub(left);
                fit.saturating_add(engine.units_owed(usage, &at))
            }
        }
    }

    /// Clears the debt, and returns what was owed.
    #[must_use]
    pub const fn take(&mut self) -> Self {
        let left = self.emptied();
        core::mem::replace(self, left)
    }

    /// An empty debt that begins to drain when this one does.
    #[must_use]
    pub const fn emptied(&self) -> Self {
        Self::new(self.drains_from)
    }

    /// Sets when the store's own state will be at rest, according to its latest answer.
    pub fn drain_from(&mut self, share: &Limit, instant: Monotonic, at: &At) {
        let before = self.settle(share, at).now.monotonic;
        self.drains_from = instant;
        let after = self.instant(share, at.now.monotonic);
        let nanos = i128::from(after.as_nanos()) - i128::from(before.as_nanos());
        let nanos = i64::try_from(nanos).unwrap_or(0);
        share.engine().shift(&mut self.usage, nanos);
    }

    /// Converts the debt to another share, for example when rules change. All of it stays owed, even if
    /// it exceeds the other share: the store may know a larger version of the limit.
    pub fn carry(&mut self, from: &Limit, to: &Limit, at: &At) {
        let (old, new) = (from.engine(), to.engine());
        if old == new {
            return;
        }
        let owed = self.units(from, at);
        let settled = self.settle(from, at);
        let usage = core::mem::take(&mut self.usage);
        if !old.is_kin(&new) {
            return;
        }
        // For a bucket only the amount counts; for a window also when it was used.
        if !new.is_bucket() {
            self.usage = old.carry(usage, &new, &settled);
        }
        let kept = self.units(to, at);
        self.add(to, owed.saturating_sub(kept), at);
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.usage.heap_bytes()
    }

    /// Brings the debt to `at`. Returns the instant up to which it has drained.
    fn settle(&mut self, share: &Limit, at: &At) -> At {
        // A share that fills up from its start has no effect on debts.
        let at = At {
            since: Monotonic::ORIGIN,
            ..at.moved_to(self.instant(share, at.now.monotonic))
        };
        share.engine().settle(&mut self.usage, &at);
        at
    }

    /// The instant up to which it has drained at `now`; bounded, because clocks jump.
    fn instant(&self, share: &Limit, now: Monotonic) -> Monotonic {
        if !share.engine().is_bucket() {
            return now;
        }
        let latest = now.saturating_add(share.full_refill());
        now.max(self.drains_from.min(latest))
    }
}

fn sum(used: impl Iterator<Item = u64>) -> u64 {
    used.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;
    use core::time::Duration;

    use super::*;
    use crate::algorithm::token_bucket::TokenBucket;
    use crate::time::Now;

    const SECOND: Duration = Duration::from_secs(1);
    const START: u64 = 1_774_656_000_000_000_000;

    /// This many milliseconds after the start.
    fn at(millis: u64) -> At {
        At::plain(Now::from_nanos(START + millis * 1_000_000))
    }

    fn instant(millis: u64) -> Monotonic {
        at(millis).now.monotonic
    }

    fn share(limit: &Limit, nodes: u32) -> Limit {
        limit.share(NonZeroU32::new(nodes).unwrap()).unwrap()
    }

    fn buckets() -> [Limit; 2] {
        [
            Limit::per_second(20).burst(200).build().unwrap(),
            Limit::leaky_bucket(crate::rate::Rate::new(20, SECOND).unwrap())
                .burst(200)
                .build()
                .unwrap(),
        ]
    }

    #[test]
    fn a_bucket_drains_no_debt_while_the_store_drains_its_own_state() {
        for bucket in buckets() {
            // The store's state is at rest after 10 s.
            let mut debt = Debt::new(instant(10_000));
            for second in 0..8 {
                debt.add(&bucket, 20, &at(second * 1_000));
            }
            assert_eq!(debt.units(&bucket, &at(8_000)), 160, "{bucket}");
            assert_eq!(debt.units(&bucket, &at(10_000)), 160, "{bucket}");
            assert_eq!(debt.units(&bucket, &at(12_500)), 110, "{bucket}");
            assert_eq!(debt.units(&bucket, &at(12_501)), 110, "rounded up");
            assert_eq!(debt.units(&bucket, &at(18_000)), 0, "{bucket}");
        }
    }

    #[test]
    fn the_debts_of_all_nodes_drain_at_the_rate_of_the_limit() {
        for bucket in buckets() {
            let share = share(&bucket, 4);
            let mut debt = Debt::new(Monotonic::ORIGIN);
            // More than the share holds at once.
            debt.add(&share, 80, &at(0));
            assert_eq!(debt.units(&share, &at(0)), 80);
            assert_eq!(debt.units(&share, &at(4_000)), 60, "5 in a second");
        }
    }

    #[test]
    fn batches_wait_for_the_store_as_well() {
        let limit = TokenBucket::refill(10, SECOND).burst(40).build().unwrap();
        let mut debt = Debt::new(instant(3_000));
        debt.add(&limit, 30, &at(0));
        assert_eq!(debt.units(&limit, &at(3_500)), 30);
        assert_eq!(debt.units(&limit, &at(4_000)), 20);
    }

    #[test]
    fn what_a_window_counts_leaves_with_age() {
        let window = Limit::sliding_log(100, SECOND * 10).build().unwrap();
        let mut debt = Debt::new(instant(60_000));
        debt.add(&window, 30, &at(0));
        debt.add(&window, 20, &at(5_000));
        assert_eq!(debt.units(&window, &at(9_999)), 50);
        assert_eq!(debt.units(&window, &at(10_000)), 20);
        assert_eq!(debt.units(&window, &at(15_000)), 0);
        let fixed = Limit::fixed_window(100, SECOND * 10).build().unwrap();
        let mut debt = Debt::new(instant(60_000));
        debt.add(&fixed, 30, &at(0));
        assert_eq!(debt.units(&fixed, &at(9_999)), 30);
        assert_eq!(debt.units(&fixed, &at(10_000)), 0);
    }

    /// After a payment the store says how long its state takes to rest: the remaining debt waits for
    /// that.
    #[test]
    fn what_is_left_waits_for_what_was_paid() {
        for bucket in buckets() {
            let mut debt = Debt::new(Monotonic::ORIGIN);
            debt.add(&bucket, 100, &at(0));
            let paid = debt.take();
            assert_eq!(debt.units(&bucket, &at(0)), 0);
            debt.add(&bucket, 7, &at(0));
            debt.drain_from(&bucket, instant(5_000), &at(0));
            assert_eq!(debt.units(&bucket, &at(5_000)), 7, "{bucket}");
            assert_eq!(debt.units(&bucket, &at(5_200)), 3, "{bucket}");
            assert_eq!(paid.clone().units(&bucket, &at(1_000)), 80);
        }
    }

    /// A rule is lowered while something is owed, and then raised again: none of the debt is forgiven.
    #[test]
    fn a_debt_outlives_a_smaller_share() {
        let limits = |limit| {
            let rate = crate::rate::Rate::new(1, SECOND).unwrap();
            [
                Limit::fixed_window(limit, SECOND * 100).build().unwrap(),
                Limit::sliding_window(limit, SECOND * 100).build().unwrap(),
                Limit::sliding_log(limit, SECOND * 100).build().unwrap(),
                Limit::token_bucket(rate).burst(limit).build().unwrap(),
                TokenBucket::refill(1, SECOND).burst(limit).build().unwrap(),
                Limit::leaky_bucket(rate).burst(limit).build().unwrap(),
            ]
        };
        for (large, small) in limits(50).into_iter().zip(limits(10)) {
            let mut debt = Debt::new(instant(5_000));
            debt.add(&large, 50, &at(0));
            debt.carry(&large, &small, &at(1_000));
            assert_eq!(debt.units(&small, &at(1_000)), 50, "{small}");
            debt.carry(&small, &large, &at(2_000));
            assert_eq!(debt.units(&large, &at(2_000)), 50, "{large}");
        }
        // Another algorithm starts fresh.
        let [bucket, _] = buckets();
        let log = Limit::sliding_log(10, SECOND).build().unwrap();
        let mut debt = Debt::new(instant(0));
        debt.add(&bucket, 50, &at(0));
        debt.carry(&bucket, &log, &at(0));
        assert_eq!(debt.units(&log, &at(0)), 0);
    }

    #[test]
    fn a_clock_that_steps_back_holds_no_debt_for_longer_than_a_refill() {
        for bucket in buckets() {
            let mut debt = Debt::new(instant(3_600_000));
            debt.add(&bucket, 200, &at(3_600_000));
            assert_eq!(debt.units(&bucket, &at(0)), 200);
            assert_eq!(debt.units(&bucket, &at(5_000)), 100, "{bucket}");
            assert_eq!(debt.units(&bucket, &at(10_000)), 0, "{bucket}");
        }
    }
}
