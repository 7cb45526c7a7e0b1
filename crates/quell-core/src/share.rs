//! Share: the part of a limit that one of several nodes may use by itself.
//!
//! Rates divide exactly: 7 a minute on 2 nodes is 7 in two minutes each. Counts (bursts, limits,
//! batches) round down, so that all shares together never hold more than the limit. A count below
//! the number of nodes leaves nothing, and there is no share: nobody is left with a limit that
//! admits none.
//!
//! ```text
//! 100/s burst 200 on 3 nodes: 100/3s burst 66 each;  5 a minute in a window on 2: 2 each
//! ```

use core::num::NonZeroU32;
use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::token_bucket::TokenBucket;
use crate::limit::Limit;
use crate::rate::{MAX_PERIOD, Rate, gcd};

impl Limit {
    /// The share of one of `nodes`; `None` if that would be nothing. A ban is as long for everyone.
    #[must_use]
    pub fn share(&self, nodes: NonZeroU32) -> Option<Self> {
        if nodes.get() == 1 {
            return Some(self.clone());
        }
        let part = |count: u64| count / u64::from(nodes.get());
        let share = match self.algorithm() {
            Algorithm::TokenBucket(spec) => {
                let mut share = match spec.batches() {
                    Some(refill) => TokenBucket::refill(part(refill.amount), refill.every),
                    None => {
                        let rate = rate(spec.count(), spec.period(), nodes)?;
                        Self::token_bucket(rate)
                    }
                };
                share = match spec.warming() {
                    // As long for everyone: each begins slowly by itself.
                    Some((window, factor)) => share.warm_up(window).cold_factor(factor),
                    None => share.burst(part(self.max())).debt(spec.is_on_credit()),
                };
                if let Some(initial) = spec.initial_tokens() {
                    share = share.initial(part(initial));
                }
                share.build()
            }
            Algorithm::LeakyBucket(spec) => {
                let rate = rate(spec.rate().count(), spec.rate().period(), nodes)?;
                Self::leaky_bucket(rate)
                    .burst(part(spec.burst_size()))
                    .delay_after(part(spec.undelayed()))
                    .build()
            }
            Algorithm::FixedWindow(spec) => fixed(spec, part(spec.limit())).build(),
            Algorithm::SlidingWindow(spec) => {
                Self::sliding_window(part(spec.limit()), spec.window())
                    .segments(spec.segment_count())
                    .build()
            }
            Algorithm::SlidingLog(spec) => Self::sliding_log(part(spec.limit()), spec.window())
                .max_entries(spec.entry_bound())
                .build(),
            Algorithm::Concurrency(spec) => {
                let mut share = Self::concurrency(part(spec.max()))
                    .queue(part(spec.queue_size()))
                    .lease(spec.lease_length())
                    .unit_delay(spec.first_unit_delay());
                if let Some(min) = spec.min() {
                    share = share.adaptive(part(min));
                }
                share.build()
            }
        };
        let share = share.ok()?.on_expiry(self.at_expiry());
        Some(match self.ban() {
            Some(ban) => share.with_ban(ban.clone()),
            None => share,
        })
    }
}

impl Limit {
    /// The same limit for counting units: a bucket that warms up charges more for them while it is
    /// cold.
    #[must_use]
    pub fn without_warm_up(&self) -> Self {
        let warms_up = match self.algorithm() {
            Algorithm::TokenBucket(spec) => spec.warming().map(|_| (spec.count(), spec.period())),
            _ => None,
        };
        let rate = warms_up.and_then(|(count, period)| Rate::new(count, period).ok());
        let plain = rate.and_then(|rate| Self::token_bucket(rate).build().ok());
        plain.unwrap_or_else(|| self.clone())
    }
}

fn fixed(spec: &FixedWindow, limit: u64) -> FixedWindow {
    match spec.window() {
        Window::FirstRequest(window) => Limit::fixed_window(limit, *window),
        Window::Calendar(calendar) => Limit::calendar_window(limit, calendar.unit, &calendar.zone),
    }
}

/// A part of a rate, exact; where its period would be longer than any may be, the count rounds down.
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
        assert_eq!((share.count(), share.period()), (1, MAX_PERIOD));
        let slowest = Rate::new(1, MAX_PERIOD).unwrap();
        let slowest = Limit::token_bucket(slowest).burst(8).build().unwrap();
        assert_eq!(shared(&slowest, 2), None);
    }
}
