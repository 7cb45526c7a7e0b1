//! Fleet share: how the nodes of a fleet share a limit, and which limits can be shared.
//!
//! On the rung `shares` each node decides in memory, by a part of the fleet's limit that is its own for
//! some seconds. All parts together are at most the limit, so nothing exceeds it. A part must be worth
//! having: a node that may admit less than a few units between two of its reports is starved by rounding,
//! and a node whose burst is below the cost of a call never admits it.

use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::token_bucket::TokenBucket;
use crate::cost::Cost;
use crate::limit::Limit;

/// Interval of the nodes' reports, unless their coordinator sets another.
const REPORT: Duration = Duration::from_millis(500);

/// The least units that the limit must admit for each node between two reports.
const LEAST_UNITS: u64 = 5;

/// Rules by which a fleet shares a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharesPolicy {
    /// Number of nodes that share the limit.
    pub size: FleetSize,
    /// Quota of a node that no coordinator answers any more.
    pub cut_off: CutOff,
}

/// Number of nodes that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FleetSize {
    /// This many: each has its part by its weight, whether the others are there or not.
    Nodes(NonZeroU32),
    /// As many as there are: the parts follow.
    Auto,
}

/// Quota that a node keeps of a limit when no coordinator answers any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CutOff {
    /// Its static share, for some minutes; then a tenth of it.
    #[default]
    Share,
    /// A tenth of its static share.
    Floor,
    /// No quota.
    Deny,
}

/// Reason why a fleet cannot share a limit, or not well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShared {
    /// Its parts would not be limits of its kind; the text says why.
    Unable(&'static str),
    /// A node's part would be less than a few units between two reports.
    SmallRate {
        /// The least rate that would do, in units per second.
        least: u64,
    },
    /// A node's part of the burst would be less than a call costs.
    SmallBurst {
        /// The least burst that would do.
        least: u64,
    },
}

impl CutOff {
    /// Its name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Floor => "floor",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for FleetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => nodes.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unable(why) => f.write_str(why),
            Self::SmallRate { least } => write!(
                f,
                "a node's part would be less than {LEAST_UNITS} units between two of its reports: shares of \
                 so many nodes need a rate of at least {least}/s"
            ),
            Self::SmallBurst { least } => write!(
                f,
                "a node's part of the burst would be less than one call costs: shares of so many nodes need a \
                 burst of at least {least}"
            ),
        }
    }
}

impl SharesPolicy {
    /// Checks that the nodes can share `limit`, of which a call costs `cost` units, and that their parts are
    /// worth having.
    ///
    /// # Errors
    /// [`NotShared`]; small parts are safe, so a limit that is in force may be cut to them. A fleet whose size
    /// follows its nodes is checked when they are known.
    #[doc(hidden)]
    pub fn check(self, limit: &Limit, cost: Option<Cost>) -> Result<(), NotShared> {
        let bucket = shared_bucket(limit)?;
        let FleetSize::Nodes(nodes) = self.size else {
            return Ok(());
        };
        let nodes = u64::from(nodes.get());
        // rate * REPORT >= LEAST_UNITS * nodes, without a fraction.
        let units = u128::from(bucket.count) * REPORT.as_nanos();
        if units < u128::from(LEAST_UNITS * nodes) * bucket.period.as_nanos() {
            let least = u128::from(LEAST_UNITS * nodes) * 1_000_000_000 / REPORT.as_nanos();
            let least = u64::try_from(least).unwrap_or(u64::MAX);
            return Err(NotShared::SmallRate { least });
        }
        let least = nodes.saturating_mul(cost.map_or(1, Cost::get));
        if limit.max() < least {
            return Err(NotShared::SmallBurst { least });
        }
        Ok(())
    }
}

/// The bucket of a limit that a fleet can share.
///
/// # Errors
/// [`NotShared::Unable`] if it is anything but a plain token bucket.
pub fn shared_bucket(limit: &Limit) -> Result<TokenBucket, NotShared> {
    if limit.ban().is_some() {
        let why = "a ban counts the refusals of all nodes, and each sees its own";
        return Err(NotShared::Unable(why));
    }
    let Algorithm::TokenBucket(bucket) = limit.algorithm() else {
        return Err(NotShared::Unable("a fleet shares token buckets only"));
    };
    if bucket.in_batches || bucket.debt || bucket.warm_up.is_some() {
        let why = "parts of a token bucket with refill, debt or warm_up do not make up the whole";
        return Err(NotShared::Unable(why));
    }
    if bucket.initial.is_some() {
        return Err(NotShared::Unable("a node always begins without tokens"));
    }
    Ok(bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(nodes: u32, limit: TokenBucket, cost: u64) -> Result<(), NotShared> {
        let size = NonZeroU32::new(nodes).map_or(FleetSize::Auto, FleetSize::Nodes);
        let policy = SharesPolicy {
            size,
            cut_off: CutOff::Share,
        };
        policy.check(&limit.build().unwrap(), Cost::new(cost))
    }

    #[test]
    fn parts_must_be_worth_having() {
        let small_rate = |least| Err(NotShared::SmallRate { least });
        let small_burst = |least| Err(NotShared::SmallBurst { least });
        for (nodes, rate, burst, cost, expected) in [
            (2, 20, 20, 1, Ok(())),
            (2, 19, 20, 1, small_rate(20)),
            (10, 1_000, 10, 1, Ok(())),
            (10, 1_000, 9, 1, small_burst(10)),
            (10, 1_000, 1_000, 101, small_burst(1_010)),
            // Nobody knows yet.
            (0, 1, 1, 1, Ok(())),
        ] {
            let limit = Limit::per_second(rate).burst(burst);
            assert_eq!(check(nodes, limit, cost), expected, "{nodes} of {rate}");
        }
        assert_eq!(check(2, Limit::per_minute(1_200), 1), Ok(()));
        assert_eq!(check(2, Limit::per_minute(1_199), 1), small_rate(20));
    }

    #[test]
    fn only_plain_token_buckets_are_shared() {
        let window = Limit::fixed_window(1_000, Duration::from_secs(1));
        let leaky =
            Limit::leaky_bucket(crate::rate::Rate::new(1_000, Duration::from_secs(1)).unwrap());
        let token = Limit::per_second(1_000);
        let mut debt = token.clone();
        debt.debt = true;
        for limit in [
            window.build(),
            leaky.build(),
            debt.build(),
            token.clone().initial(5).build(),
        ] {
            let limit = limit.unwrap();
            assert!(shared_bucket(&limit).is_err(), "{limit}");
        }
        assert!(shared_bucket(&token.build().unwrap()).is_ok());
    }
}
