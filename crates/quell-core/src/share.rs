//! Share: the part of a limit that one of several nodes may use by itself.
//!
//! Rates divide exactly: 7 a minute on 2 nodes is 7 in two minutes each. Counts (bursts, limits, batches)
//! round down, so that all shares together never exceed the limit. If a count is below the number of
//! nodes, there is no share, because a limit of 0 admits nothing.
//!
//! ```text
//! 100/s burst 200 on 3 nodes: 100/3s burst 66 each;  5 a minute in a window on 2: 2 each
//! ```

use core::num::NonZeroU32;
use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::token_bucket::TokenBucket;
use crate::limit::Limit;
use crate::rate::{MAX_PERIOD, Rate, gcd};

impl Limit {
    /// The share of one of `nodes`; `None` if that would be nothing. A ban lasts as long on every node.
    #[must_use]
    pub fn share(&self, nodes: NonZeroU32) -> Option<Self> {
        if nodes.get() == 1 {
            return Some(self.clone());
        }
        let part = |count: u64| count / u64::from(nodes.get());
        let mut share = self.spec();
        match &mut share.algorithm {
            Algorithm::TokenBucket(spec) => {
                if spec.in_batches {
                    spec.count = part(spec.count);
                } else {
                    let rate = rate(spec.count, spec.period, nodes)?;
                    (spec.count, spec.period) = (rate.count(), rate.period());
                }
                // A warm-up has a burst of 1 on each node, and takes as long: each node begins slowly by
                // itself.
                if spec.warm_up.is_none() {
                    spec.burst = spec.burst.map(part);
                }
                spec.initial = spec.initial.map(part);
            }
            Algorithm::LeakyBucket(spec) => {
                spec.rate = rate(spec.rate.count(), spec.rate.period(), nodes)?;
                spec.burst = part(spec.burst);
                spec.delay_after = part(spec.delay_after);
            }
            Algorithm::FixedWindow(spec) => spec.limit = part(spec.limit),
            Algorithm::SlidingWindow(spec) => spec.limit = part(spec.limit),
            Algorithm::SlidingLog(spec) => spec.limit = part(spec.limit),
            Algorithm::Concurrency(spec) => {
                spec.max = part(spec.max);
                spec.min = spec.min.map(part);
                spec.queue = part(spec.queue);
            }
        }
        share.build().ok()
    }

    /// The same limit without warm-up, for counting units: with it, units cost more while a key is cold.
    #[must_use]
    pub fn without_warm_up(&self) -> Self {
        let plain = match self.algorithm() {
            Algorithm::TokenBucket(spec) if spec.warm_up.is_some() => {
                TokenBucket::new(spec.count, spec.period).build().ok()
            }
            _ => None,
        };
        plain.unwrap_or_else(|| self.clone())
    }
}

/// A part of a rate, exact; if its period would be too long, the count is rounded down.
fn rate(count: u64, period: Duration, nodes: NonZeroU32) -> Option<Rate> {
    let nodes = u64::from(nodes.get());
    let divisor = gcd(count, nodes);
    let longer = u32::try_from(nodes / divisor).ok()?;
    let count = count / divisor;
    match period
        .checked_mul(longer)
        .filter(|long| *long <= MAX_PERIOD)
    {
        Some(period) => Rate::new(count, period).ok(),
        None => {
            let nanos = period.as_nanos().checked_mul(u128::from(longer))?;
            let count = u128::from(count) * MAX_PERIOD.as_nanos() / nanos;
            Rate::new(u64::try_from(count).ok()?, MAX_PERIOD).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::fixed_window::CalendarUnit;
    use crate::ban::Ban;

    const SECOND: Duration = Duration::from_secs(1);

    fn shared(limit: &Limit, nodes: u32) -> Option<Limit> {
        limit.share(NonZeroU32::new(nodes).unwrap())
    }

    #[test]
    fn rates_divide_exactly_and_counts_round_down() {
        let same = |of: Limit, nodes, expected: Limit| {
            let share = shared(&of, nodes).unwrap();
            assert_eq!(
                share.full_refill(),
                expected.full_refill(),
                "{of} on {nodes}"
            );
            assert_eq!(share.engine(), expected.engine(), "{of} on {nodes}");
        };
        let bucket = |count, seconds, burst| {
            let rate = Rate::new(count, SECOND * seconds).unwrap();
            Limit::token_bucket(rate).burst(burst)
        };
        let built = |bucket: TokenBucket| bucket.build().unwrap();
        same(built(bucket(100, 60, 100)), 2, built(bucket(50, 60, 50)));
        same(built(bucket(100, 1, 200)), 3, built(bucket(100, 3, 66)));
        same(built(bucket(7, 60, 7)), 2, built(bucket(7, 120, 3)));
        same(
            built(bucket(10, 1, 10).initial(5)),
            2,
            built(bucket(5, 1, 5).initial(2)),
        );
        let slow = |rate: u64| {
            let slow = Limit::per_second(rate).warm_up(SECOND * 3);
            slow.cold_factor(5).build().unwrap()
        };
        same(slow(4), 2, slow(2));
        let batches = |amount, burst| TokenBucket::refill(amount, SECOND).burst(burst);
        same(built(batches(5, 11)), 2, built(batches(2, 5)));
        let leaky = |count, burst, free| {
            let leaky = Limit::leaky_bucket(Rate::new(count, SECOND).unwrap());
            leaky.burst(burst).delay_after(free).build().unwrap()
        };
        same(leaky(4, 9, 5), 2, leaky(2, 4, 2));
        let window = |limit| Limit::fixed_window(limit, SECOND).build().unwrap();
        same(window(5), 2, window(2));
        let month = |limit| Limit::calendar_window(limit, CalendarUnit::Month, "UTC");
        same(month(9).build().unwrap(), 4, month(2).build().unwrap());
        let sliding = |limit| Limit::sliding_window(limit, SECOND).segments(4);
        same(sliding(7).build().unwrap(), 3, sliding(2).build().unwrap());
        let log = |limit| Limit::sliding_log(limit, SECOND).build().unwrap();
        same(log(7), 7, log(1));
    }

    #[test]
    fn a_count_below_the_nodes_leaves_no_share() {
        let one = Limit::per_second(1).build().unwrap();
        assert_eq!(shared(&one, 2), None);
        assert_eq!(shared(&one, 1), Some(one.clone()));
        let batch = TokenBucket::refill(1, SECOND).burst(10).build().unwrap();
        assert_eq!(shared(&batch, 2), None);
        let log = Limit::sliding_log(2, SECOND).build().unwrap();
        assert_eq!(shared(&log, 3), None);
    }

    #[test]
    fn units_of_a_bucket_that_warms_up_are_counted_without_it() {
        let warm = Limit::per_second(4).warm_up(SECOND * 3).build().unwrap();
        let plain = Limit::per_second(4).build().unwrap();
        assert_eq!(warm.without_warm_up(), plain);
        assert_eq!(plain.without_warm_up(), plain);
    }

    #[test]
    fn a_ban_goes_with_the_share() {
        let ban = Ban::new(1, None, [SECOND].into()).unwrap();
        let limit = Limit::per_second(10).build().unwrap().with_ban(ban.clone());
        assert_eq!(shared(&limit, 2).unwrap().ban(), Some(&ban));
    }

    #[test]
    fn a_period_that_would_be_too_long_stays_the_longest() {
        let slow = Rate::new(3, MAX_PERIOD).unwrap();
        let slow = Limit::token_bucket(slow).burst(8).build().unwrap();
        let Some(Algorithm::TokenBucket(share)) =
            shared(&slow, 2).map(|share| share.algorithm().clone())
        else {
            panic!("it is a token bucket");
        };
        assert_eq!((share.count, share.period), (1, MAX_PERIOD));
        let slowest = Rate::new(1, MAX_PERIOD).unwrap();
        let slowest = Limit::token_bucket(slowest).burst(8).build().unwrap();
        assert_eq!(shared(&slowest, 2), None);
    }
}
