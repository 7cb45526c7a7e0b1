//! Limit: one quota that the members of a group share, known by the rule's name and by a number.

use alloc::sync::Arc;
use core::time::Duration;

use super::MICRO;
use crate::schedule::Right;

/// A name that an operator gives: a limit's is that of its rule, a group's is any label.
pub type Name = Arc<str>;

/// The number of a limit. A [`Record`](super::Record) gives it once and never again: a limit that is
/// removed and added again under the same name has another one. Its upper bits are the
/// [`generation`](crate::generation) in which it was given. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u64);

/// Quota of a member that no coordinator answers any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Its static share for the time of `hold`, then the floor.
    Share,
    /// A tenth of its static share.
    Floor,
    /// No quota: the share of a member that died is free again when its lease ends.
    Deny,
}

/// The numbers of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Micro-units per second for all members together.
    pub rate: u64,
    /// Micro-units that all members together may admit at one instant.
    pub burst: u64,
    /// The burst in micro-units of any member whose rate is not zero: the largest cost of one call, or
    /// in a [`Record`](super::Record) a part of the burst, if that is smaller.
    pub least_burst: u64,
    /// Quota of a member that is cut off.
    pub fallback: Fallback,
}

impl Quota {
    /// With a least burst that the burst gives so many seats.
    pub(super) fn for_seats(self, seats: u32) -> Self {
        let part = self.burst / u64::from(seats.max(1));
        Self {
            least_burst: self.least_burst.min(part),
            ..self
        }
    }
}

/// The fewest micro-units that a member's part has between two reports, to be worth having.
const LEAST_PART: u64 = 5 * MICRO;

/// One limit that members share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its number; given when a record takes the plan.
    pub id: LimitId,
    /// The rule's name.
    pub name: Name,
    /// The group of members that share it; `None` for all members. A limit that moves to another
    /// group is another limit.
    pub group: Option<Name>,
    /// Its numbers.
    pub quota: Quota,
}

impl Limit {
    /// Number of members that can have 5 units each between two reports.
    #[must_use]
    pub fn members_by_rate(&self, report: Duration) -> u64 {
        let per_report = u128::from(self.quota.rate) * report.as_nanos() / 1_000_000_000;
        u64::try_from(per_report / u128::from(LEAST_PART)).unwrap_or(u64::MAX)
    }

    /// The least rate, in whole units as micro-units per second, of which so many members can have that.
    pub(super) fn least_rate(members: u32, report: Duration) -> u64 {
        let needed = u128::from(LEAST_PART) * u128::from(members);
        let least = (needed * 1_000_000_000).div_ceil(report.as_nanos() * u128::from(MICRO));
        u64::try_from(least).map_or(u64::MAX, |units| units.saturating_mul(MICRO))
    }

    /// Number of members that can have a call each while half of the burst is left to be moved.
    #[must_use]
    pub fn members_by_burst(&self) -> u64 {
        self.quota.burst / self.quota.least_burst.max(1) / 2
    }

    /// A limit that all members share.
    #[must_use]
    pub fn new(name: impl Into<Name>, quota: Quota) -> Self {
        Self {
            id: LimitId(0),
            name: name.into(),
            group: None,
            quota,
        }
    }

    /// The same limit, shared by the members of a group.
    #[must_use]
    pub fn of_group(self, group: impl Into<Name>) -> Self {
        Self {
            group: Some(group.into()),
            ..self
        }
    }

    /// Its rate and burst.
    #[must_use]
    pub const fn whole(&self) -> Right {
        Right {
            rate: self.quota.rate,
            burst: self.quota.burst,
        }
    }

    /// Names that make it this limit, whatever its quota.
    #[must_use]
    pub const fn identity(&self) -> (&Name, Option<&Name>) {
        (&self.name, self.group.as_ref())
    }
}
