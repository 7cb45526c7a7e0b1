//! Envelope: older plans as one, which allows whatever any of them does.
//!
//! A member that is cut off may follow any plan since it was last heard, so a leader that has not
//! heard it must count with all of them. If only so many plans could be kept, a silent member would
//! stop every change after the last of them. But a leader needs to know only the largest part of each
//! limit that any plan gives a seat, and the least that any plan sets aside; and these can be merged.

use alloc::vec::Vec;

use super::{Fallback, MICRO, Plan, Quota};

/// The rate and burst of every limit in an envelope, which contains parts and no amounts: the
/// largest that a plan may have, so that parts lose nothing by rounding.
const WHOLE: u64 = MICRO * MICRO * MICRO;

/// Older plans that members may still follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Gives every seat at least the part of each limit that any of them gives it, for at least as
    /// long.
    pub(super) most: Plan,
    /// The smallest least burst of each limit.
    pub(super) least_bursts: Vec<u64>,
    /// The fewest seats.
    pub(super) seats: u32,
}

impl Envelope {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut most = plan.clone();
        // One seat sets aside the least, so that it leaves the most for a rate.
        most.seats = 1;
        most.limits = plan.limits.iter().map(parts).collect();
        Self {
            most,
            least_bursts: plan.limits.iter().map(|quota| quota.least_burst).collect(),
            seats: plan.seats,
        }
    }

    /// Merges a plan. No plan has fewer limits than an older one.
    pub(super) fn add(&mut self, newer: &Plan) {
        let newer = Self::of(newer);
        self.seats = self.seats.min(newer.seats);
        for (least, other) in self.least_bursts.iter_mut().zip(&newer.least_bursts) {
            *least = (*least).min(*other);
        }
        let known = self.least_bursts.len();
        self.least_bursts
            .extend(newer.least_bursts.iter().skip(known));
        let (most, newer) = (&mut self.most, newer.most);
        most.revision = newer.revision;
        most.total_weight = most.total_weight.min(newer.total_weight);
        let (timing, other) = (&mut most.timing, newer.timing);
        timing.lease = timing.lease.max(other.lease);
        timing.promise = timing.promise.max(other.promise);
        timing.hold = timing.hold.max(other.hold);
        for (quota, other) in most.limits.iter_mut().zip(&newer.limits) {
            quota.least_burst = quota.least_burst.max(other.least_burst);
            quota.fallback = more(quota.fallback, other.fallback);
        }
        most.limits.extend(newer.limits.iter().skip(known));
    }
}

/// The quota with its least burst as a part of [`WHOLE`], rounded up.
fn parts(quota: &Quota) -> Quota {
    let least = u128::from(quota.least_burst) * u128::from(WHOLE);
    let least = least.div_ceil(u128::from(quota.burst.max(1)));
    Quota {
        rate: WHOLE,
        burst: WHOLE,
        least_burst: u64::try_from(least).unwrap_or(WHOLE).min(WHOLE),
        fallback: quota.fallback,
    }
}

fn more(one: Fallback, other: Fallback) -> Fallback {
    match (one, other) {
        (Fallback::Share, _) | (_, Fallback::Share) => Fallback::Share,
        (Fallback::Floor, _) | (_, Fallback::Floor) => Fallback::Floor,
        (Fallback::Deny, Fallback::Deny) => Fallback::Deny,
    }
}
