//! Over-admission: how far a rule may exceed its limit for a moment, and how many units each node may
//! hold for that.
//!
//! On the rung `leased` a node charges several units at once on the shared store, and decides in memory
//! while they last. Every admission was charged before it happened. So in any interval all nodes together
//! admit what the limit allows, and at most what they held when it began:
//!
//! ```text
//! admitted in an interval <= limit + nodes * cap        bound = nodes * cap
//! ```
//!
//! Units only move in time: what is admitted later was charged earlier. On the rung `synced` it is the other
//! way round: a node admits from memory, and what it admits is charged afterwards. At most `cap` units of a
//! node are not charged yet, so the bound is the same. A rule states the bound that it accepts
//! ([`OverAdmission`]), of the units that its limit admits in one second from rest (`rate * 1s + burst`) or
//! in its window.

use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::cost::Cost;
use crate::limit::Limit;
use crate::time::saturating_nanos;

/// The whole, in millionths.
const WHOLE: u128 = 1_000_000;

/// A node holds at most the n-th part of this fraction of what its limit can hold: so all leases together
/// are a quarter of it, and no node drains what is left.
const PART_OF_LIMIT: u64 = 4;

/// Number of calls that the smallest lease covers: one call saves no round trip.
const MIN_CALLS: u64 = 2;

/// A node asks the store about a key that is asked for less often than this per second on each call: 4 in 100 ms
/// make a key busy.
const SELDOM: u64 = 40;

/// Amount by which all nodes together may exceed a limit, for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverAdmission {
    /// By this many units.
    Units(u64),
    /// By this many millionths of `rate * 1s + burst`, or of the limit of a window.
    Millionths(u32),
}

/// Over-admission that a rule accepts, and the number of nodes that decide on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeasePolicy {
    /// Amount by which the nodes may exceed the limit together.
    pub over: OverAdmission,
    /// Greatest number of nodes.
    pub nodes: NonZeroU32,
}

/// Terms on which a limit is leased or synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Units that one node may hold at most, or may have admitted before they are charged; at least 2.
    pub cap: u64,
    /// Greatest number of nodes.
    pub nodes: NonZeroU32,
    /// Units that the limit admits from rest.
    pub max: u64,
    /// Way in which units come back to the limit.
    pub supply: Supply,
}

/// Way in which units come back to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// One by one: this many in this time.
    Steady(u64, Duration),
    /// As they were charged, one after the other or a segment at a time: on average this many in this time.
    ByEntry(u64, Duration),
    /// Units that come at once, each time.
    InBatches(u64, Duration),
    /// All at once when a window of this length, at least, ends. A lease ends with its window.
    AtOnce(Duration),
}

/// Reason why a limit is not leased or synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLeased {
    /// The limit's answers depend on all other calls at that moment; the text says which.
    Unable(&'static str),
    /// A node could hold less than two calls cost.
    TooSmall {
        /// True if the limit itself sets the bound; false if the rule's over-admission does.
        by_limit: bool,
        /// The least number of units that would do: as the limit's burst, or as the bound.
        least: u64,
    },
}

impl fmt::Display for NotLeased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unable(why) => f.write_str(why),
            Self::TooSmall {
                by_limit: true,
                least,
            } => write!(
                f,
                "the limit is too small to be divided: leases need a burst or limit of at least {least}"
            ),
            Self::TooSmall {
                by_limit: false,
                least,
            } => write!(
                f,
                "each server's part of the bound would not cover 2 calls: it needs a bound of at least {least} \
                 units"
            ),
        }
    }
}

impl OverAdmission {
    /// Units, rounded down.
    #[must_use]
    pub fn units(self, limit: &Limit) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Millionths(part) => {
                let units = u128::from(basis(limit)) * u128::from(part) / WHOLE;
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }

    /// Twice as much; of fractions at most the whole, which is the most that a rules file may say.
    #[must_use]
    pub const fn doubled(self) -> Self {
        match self {
            Self::Units(units) => Self::Units(units.saturating_mul(2)),
            Self::Millionths(part) if part > 500_000 => Self::Millionths(1_000_000),
            Self::Millionths(part) => Self::Millionths(part * 2),
        }
    }

    /// Returns true if nothing above the limit is accepted.
    #[must_use]
    pub const fn is_none(self) -> bool {
        matches!(self, Self::Units(0) | Self::Millionths(0))
    }
}

impl fmt::Display for OverAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => units.fmt(f),
            Self::Millionths(part) => {
                write!(f, "{}", part / 10_000)?;
                let mut rest = part % 10_000;
                let mut digits = 4;
                while rest > 0 && rest.is_multiple_of(10) {
                    (rest, digits) = (rest / 10, digits - 1);
                }
                if rest > 0 {
                    write!(f, ".{rest:0digits$}")?;
                }
                f.write_str("%")
            }
        }
    }
}

/// Base of a fraction: the units that the limit admits in a second from rest, or in its window.
fn basis(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) => in_a_second(bucket.count, bucket.period),
        Algorithm::LeakyBucket(bucket) => in_a_second(bucket.rate.count(), bucket.rate.period()),
        _ => 0,
    }
    .saturating_add(limit.max())
}

fn in_a_second(count: u64, period: Duration) -> u64 {
    let units = u128::from(count) * 1_000_000_000 / u128::from(saturating_nanos(period)).max(1);
    u64::try_from(units).unwrap_or(u64::MAX)
}

impl LeasePolicy {
    /// Terms of the lease of `limit` for calls that all have this cost; `None` if each call says its own.
    ///
    /// # Errors
    /// [`NotLeased`] if the store has to decide on each call.
    #[doc(hidden)]
    pub fn terms(&self, limit: &Limit, cost: Option<Cost>) -> Result<LeaseTerms, NotLeased> {
        let of_limit = limit.max() / (PART_OF_LIMIT * u64::from(self.nodes.get()));
        let mut terms = self.synced_terms(limit, cost);
        if of_limit < least_cap(cost) && !matches!(terms, Err(NotLeased::Unable(_))) {
            return Err(NotLeased::TooSmall {
                by_limit: true,
                least: self.least_limit(cost),
            });
        }
        if let Ok(terms) = &mut terms {
            terms.cap = terms.cap.min(of_limit);
        }
        terms
    }

    /// Terms of the sync of `limit`: those of its lease, but a node takes nothing out of the store in
    /// advance, so the limit may be smaller.
    ///
    /// # Errors
    /// [`NotLeased`] if the store has to decide on each call.
    #[doc(hidden)]
    pub fn synced_terms(&self, limit: &Limit, cost: Option<Cost>) -> Result<LeaseTerms, NotLeased> {
        let supply = supply(limit)?;
        let accepted = self.over.units(limit) / u64::from(self.nodes.get());
        if accepted < least_cap(cost) {
            return Err(NotLeased::TooSmall {
                by_limit: false,
                least: self.least_bound(cost),
            });
        }
        Ok(LeaseTerms {
            // No node admits more than the limit before it is charged.
            cap: accepted.min(limit.max()).max(least_cap(cost)),
            nodes: self.nodes,
            max: limit.max(),
            supply,
        })
    }

    /// The smallest bound, in units, with which calls of this cost are leased or synced.
    #[must_use]
    pub fn least_bound(&self, cost: Option<Cost>) -> u64 {
        least_cap(cost).saturating_mul(self.nodes.get().into())
    }

    /// The smallest burst, or limit of a window, of which calls of this cost are leased.
    #[must_use]
    pub fn least_limit(&self, cost: Option<Cost>) -> u64 {
        self.least_bound(cost).saturating_mul(PART_OF_LIMIT)
    }
}

/// The units that a node must be able to hold.
fn least_cap(cost: Option<Cost>) -> u64 {
    cost.map_or(1, Cost::get).saturating_mul(MIN_CALLS)
}

impl LeaseTerms {
    /// By how many units all nodes together may exceed the limit in any interval.
    #[must_use]
    pub fn bound(&self) -> u64 {
        self.cap.saturating_mul(self.nodes.get().into())
    }
}

impl LeaseTerms {
    /// Returns true if the limit can hold two batches: then what is left of one is not lost when the next
    /// comes.
    #[must_use]
    pub const fn keeps_batches(&self) -> bool {
        matches!(self.supply, Supply::InBatches(units, _) if units.saturating_mul(2) <= self.max)
    }

    /// Approximate calls per second that one leased key costs the store, for all nodes together, whatever
    /// is offered in calls of this cost; beside [`LeaseTerms::store_calls_from_rest`].
    #[must_use]
    pub fn store_calls(&self, cost: Cost) -> u64 {
        let nodes = u64::from(self.nodes.get());
        let calls = match self.supply {
            // A window, or a batch of which nothing is kept, is used up each time.
            Supply::AtOnce(time) => per_second(self.calls_of(self.max, cost), time),
            Supply::InBatches(units, time) if !self.keeps_batches() => {
                per_second(self.calls_of(units, cost), time)
            }
            // Guided requests get less than a whole lease. Entries come back as they were charged, not when a pause
            // ends.
            Supply::ByEntry(..) => self.fills(cost).saturating_mul(5).div_ceil(2),
            _ => self.fills(cost).saturating_mul(2),
        };
        calls.max(SELDOM.saturating_mul(nodes))
    }

    /// Approximate number of further store calls that use up what the limit has at rest.
    #[must_use]
    pub fn store_calls_from_rest(&self, cost: Cost) -> u64 {
        self.calls_of(self.max, cost)
    }

    /// The number of calls that use up so many units, about, however many callers there are.
    ///
    /// Nodes that use units faster than the store answers ask for the next before the last are gone, so for half a lease
    /// at a time: two calls for a lease. Calls that wait for three leases in vain are asked for together, and a node that
    /// has done so pauses for three round trips before it does so again: one call in addition for four of the others. When
    /// fewer units are left than the nodes may hold twice over, each gets the 2n-th part of the rest; in the end one
    /// call's, and each is refused once.
    ///
    /// ```text
    /// 5/2 * (units - 2n*most) / most  +  n * (2 * ln(part / cost) + 3)
    /// ```
    fn calls_of(&self, units: u64, cost: Cost) -> u64 {
        let nodes = u64::from(self.nodes.get());
        let most = self.used(cost);
        let guided = nodes.saturating_mul(2).saturating_mul(most);
        let whole = units.saturating_sub(guided).saturating_mul(5);
        let whole = whole.div_ceil(most.saturating_mul(2));
        // 2n * ln(part): from the part that each gets first to the cost of a call.
        let part = most.min(units / (2 * nodes)).max(1);
        let halvings = u64::from((part / cost.get()).max(1).ilog2()) + 1;
        let tail = (halvings * 14).div_ceil(10) + 3;
        whole.saturating_add(nodes.saturating_mul(tail))
    }

    /// The same per second for a synced key. Some syncs find nothing left, and a few calls find no room for more that
    /// is not charged.
    #[must_use]
    pub fn sync_calls(&self, cost: Cost) -> u64 {
        self.fills(cost).saturating_mul(5)
    }

    /// The same for a synced key as [`LeaseTerms::store_calls_from_rest`].
    #[must_use]
    pub fn sync_calls_from_rest(&self, cost: Cost) -> u64 {
        self.max.div_ceil(self.used(cost)).saturating_mul(5)
    }

    /// Number of times per second that all nodes use up what one of them may hold; at least ten times each.
    fn fills(&self, cost: Cost) -> u64 {
        let nodes = u64::from(self.nodes.get());
        let (units, time) = match self.supply {
            Supply::Steady(units, time)
            | Supply::ByEntry(units, time)
            | Supply::InBatches(units, time) => (units, time),
            Supply::AtOnce(time) => (self.max, time),
        };
        per_second(units, time)
            .div_ceil(self.used(cost))
            .max(nodes.saturating_mul(10))
    }

    /// Units of a lease that calls of this cost use. What is left of it, less than one call costs, is used together
    /// with the next lease.
    fn used(&self, cost: Cost) -> u64 {
        (self.cap - self.cap % cost.get()).max(1)
    }
}

/// Units per second for this count in this time, rounded up.
fn per_second(count: u64, time: Duration) -> u64 {
    let nanos = u128::from(saturating_nanos(time)).max(1);
    let all = (u128::from(count) * 1_000_000_000).div_ceil(nanos);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Way in which units come back to a limit that can be leased.
fn supply(limit: &Limit) -> Result<Supply, NotLeased> {
    if limit.ban().is_some() {
        return Err(NotLeased::Unable(
            "a ban counts the refusals of all servers, so the store decides on each call",
        ));
    }
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) if bucket.debt => Err(NotLeased::Unable(
            "with `debt` any cost passes while a unit is stored, so the store decides on each call",
        )),
        Algorithm::TokenBucket(bucket) if bucket.warm_up.is_some() => Err(NotLeased::Unable(
            "with `warm_up` each call's cost depends on the calls before, so the store decides on each",
        )),
        Algorithm::TokenBucket(bucket) if bucket.in_batches => {
            Ok(Supply::InBatches(bucket.count, bucket.period))
        }
        Algorithm::TokenBucket(bucket) => Ok(Supply::Steady(bucket.count, bucket.period)),
        Algorithm::LeakyBucket(_) if limit.may_delay() => Err(NotLeased::Unable(
            "the delays of `leaky_bucket` put all calls in one line, so the store decides on each",
        )),
        Algorithm::LeakyBucket(bucket) => {
            Ok(Supply::Steady(bucket.rate.count(), bucket.rate.period()))
        }
        Algorithm::FixedWindow(window) if window.overdraft => Err(NotLeased::Unable(
            "with an overdraft each refusal is remembered, so the store decides on each call",
        )),
        Algorithm::FixedWindow(_) => Ok(Supply::AtOnce(limit.full_refill())),
        Algorithm::SlidingWindow(window) => Ok(Supply::ByEntry(window.limit, window.window)),
        Algorithm::SlidingLog(log) => Ok(Supply::ByEntry(log.limit, log.window)),
        Algorithm::Concurrency(_) => Err(NotLeased::Unable(
            "permits of `concurrency` are held under ids, which the store keeps",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(over: OverAdmission, nodes: u32) -> LeasePolicy {
        LeasePolicy {
            over,
            nodes: NonZeroU32::new(nodes).unwrap(),
        }
    }

    #[test]
    fn the_bound_is_a_part_of_a_second_and_the_burst_or_of_the_window() {
        let bucket = Limit::per_minute(6_000).burst(1_000).build().unwrap();
        let window = Limit::fixed_window(5_000, Duration::from_secs(3_600));
        let window = window.build().unwrap();
        let one = OverAdmission::Millionths(10_000);
        for (over, limit, nodes, cap, bound) in [
            // 1 % of 100 + 1,000.
            (one, &bucket, 2, 5, 10),
            (one, &window, 2, 25, 50),
            (one, &window, 7, 7, 49),
            (OverAdmission::Units(500), &window, 2, 250, 500),
            // At most a quarter of the limit is held.
            (OverAdmission::Units(500), &bucket, 2, 125, 250),
            (OverAdmission::Units(4), &bucket, 2, 2, 4),
        ] {
            let terms = policy(over, nodes).terms(limit, None).unwrap();
            assert_eq!(
                (terms.cap, terms.bound()),
                (cap, bound),
                "{over} of {limit}"
            );
            assert!(terms.bound() <= over.units(limit));
        }
    }

    #[test]
    fn what_is_too_small_for_a_lease_says_what_would_do() {
        let limit = |burst| Limit::per_second(100).burst(burst).build().unwrap();
        let few = policy(OverAdmission::Units(3), 2).terms(&limit(100), None);
        let small = policy(OverAdmission::Units(100), 2).terms(&limit(15), None);
        assert_eq!(
            few.unwrap_err().to_string(),
            "each server's part of the bound would not cover 2 calls: it needs a bound of at least 4 units"
        );
        assert_eq!(
            small.unwrap_err().to_string(),
            "the limit is too small to be divided: leases need a burst or limit of at least 16"
        );
        let terms = policy(OverAdmission::Units(4), 2).terms(&limit(16), None);
        assert_eq!(terms.map(|terms| terms.cap), Ok(2));
        // Nothing is taken from a limit that is synced.
        for (over, cap) in [(100, 15), (20, 10)] {
            let synced = policy(OverAdmission::Units(over), 2).synced_terms(&limit(15), None);
            assert_eq!(synced.map(|terms| (terms.cap, terms.max)), Ok((cap, 15)));
        }
        let synced = policy(OverAdmission::Units(3), 2).synced_terms(&limit(15), None);
        assert_eq!(synced, few);
    }

    #[test]
    fn a_lease_covers_two_calls_at_least() {
        let limit = Limit::per_second(100).burst(80).build().unwrap();
        let too_small = |by_limit, least| Err(NotLeased::TooSmall { by_limit, least });
        for (over, cost, leased, synced) in [
            (20, 5, Ok(10), Ok(10)),
            (19, 5, too_small(false, 20), too_small(false, 20)),
            // A node may hold 10 units of this limit.
            (24, 6, too_small(true, 96), Ok(12)),
            (23, 6, too_small(true, 96), too_small(false, 24)),
        ] {
            let (policy, cost) = (policy(OverAdmission::Units(over), 2), Cost::new(cost));
            let cap = |terms: Result<LeaseTerms, NotLeased>| terms.map(|terms| terms.cap);
            assert_eq!(cap(policy.terms(&limit, cost)), leased, "{over}");
            assert_eq!(cap(policy.synced_terms(&limit, cost)), synced, "{over}");
        }
    }

    #[test]
    fn a_bound_is_written_as_in_a_rules_file() {
        for (over, text) in [
            (OverAdmission::Units(500), "500"),
            (OverAdmission::Millionths(10_000), "1%"),
            (OverAdmission::Millionths(5_000), "0.5%"),
            (OverAdmission::Millionths(1), "0.0001%"),
            (OverAdmission::Millionths(123_400), "12.34%"),
        ] {
            assert_eq!(over.to_string(), text);
        }
    }
}
