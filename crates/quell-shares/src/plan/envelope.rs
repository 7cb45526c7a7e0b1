//! Envelope: older plans as one, which allows whatever any of them does.
//!
//! A member that is cut off may follow any plan since it was last heard, so a leader that has not
//! heard it must count with all of them. If only so many plans could be kept, a silent member would
//! stop every change after the last of them. But a leader needs to know only the largest part of each
//! limit that any plan gives a seat, and the least that any plan sets aside; and these can be merged.

use alloc::vec::Vec;

use super::{Fallback, Group, Limit, LimitId, MICRO, Name, Plan, Quota, ReturnSeats, Size};

/// The rate and burst of every limit in an envelope, which contains parts and no amounts: the
/// largest that a plan may have, so that parts lose nothing by rounding.
const WHOLE: u64 = MICRO * MICRO * MICRO;

/// Older plans that members may still follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Gives every seat at least the part of each limit that any of them gives it, for at least as
    /// long.
    pub most: Plan,
    /// The smallest least burst of each of these limits, in the same order.
    pub least_bursts: Vec<u64>,
    /// The largest rate of each of them, which a silent member may still have a part of.
    pub rates: Vec<u64>,
    /// The fewest seats of the group of all.
    pub seats: u32,
    /// The fewest seats of each other group, in the order of `most`.
    pub group_seats: Vec<u32>,
}

impl Envelope {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut most = plan.clone();
        // One seat sets aside the least, so that it leaves the most for a rate.
        most.size.seats = 1;
        for group in &mut most.groups {
            group.size.seats = 1;
        }
        for limit in &mut most.limits {
            limit.quota = parts(&limit.quota);
        }
        let least = |limit: &Limit| limit.quota.least_burst;
        Self {
            most,
            least_bursts: plan.limits.iter().map(least).collect(),
            rates: plan.limits.iter().map(|limit| limit.quota.rate).collect(),
            seats: plan.size.seats,
            group_seats: plan.groups.iter().map(|group| group.size.seats).collect(),
        }
    }

    /// Merges a plan.
    pub(super) fn add(&mut self, newer: &Plan) {
        let newer = Self::new(newer);
        self.seats = self.seats.min(newer.seats);
        self.add_groups(&newer.most.groups, &newer.group_seats);
        self.add_limits(&newer);
        let (most, newer) = (&mut self.most, newer.most);
        most.revision = newer.revision;
        most.size = lighter(most.size, newer.size);
        let (timing, other) = (&mut most.timing, newer.timing);
        timing.lease = timing.lease.max(other.lease);
        timing.promise = timing.promise.max(other.promise);
        timing.hold = timing.hold.max(other.hold);
        most.return_seats = later(most.return_seats, newer.return_seats);
    }

    fn add_groups(&mut self, groups: &[Group], seats: &[u32]) {
        for (group, seats) in groups.iter().zip(seats) {
            let known = self.most.groups.iter();
            if let Some(at) = known.clone().position(|other| other.name == group.name) {
                let known = &mut self.most.groups[at];
                known.size = lighter(known.size, group.size);
                self.group_seats[at] = self.group_seats[at].min(*seats);
            } else {
                self.most.groups.push(group.clone());
                self.group_seats.push(*seats);
            }
        }
    }

    fn add_limits(&mut self, newer: &Self) {
        let numbers = newer.least_bursts.iter().zip(&newer.rates);
        for (limit, (least, rate)) in newer.most.limits.iter().zip(numbers) {
            let found = self.most.limits.binary_search_by_key(&limit.id, |l| l.id);
            match found {
                Ok(at) => {
                    self.least_bursts[at] = self.least_bursts[at].min(*least);
                    self.rates[at] = self.rates[at].max(*rate);
                    let known = &mut self.most.limits[at].quota;
                    known.least_burst = known.least_burst.max(limit.quota.least_burst);
                    known.fallback = more(known.fallback, limit.quota.fallback);
                }
                Err(at) => {
                    self.most.limits.insert(at, limit.clone());
                    self.least_bursts.insert(at, *least);
                    self.rates.insert(at, *rate);
                }
            }
        }
    }

    /// Forgets all limits but these: the others are never given again.
    pub(super) fn keep(&mut self, ids: &[LimitId]) {
        let kept = |limit: &Limit| ids.binary_search(&limit.id).is_ok();
        for numbers in [&mut self.least_bursts, &mut self.rates] {
            let both = self.most.limits.iter().zip(&*numbers);
            *numbers = both.filter(|(l, _)| kept(l)).map(|(_, n)| *n).collect();
        }
        self.most.limits.retain(kept);
        let limits = &self.most.limits;
        let used = |group: &Group| limits.iter().any(|l| l.group.as_ref() == Some(&group.name));
        let both = self.most.groups.iter().zip(&self.group_seats);
        self.group_seats = both.filter(|(g, _)| used(g)).map(|(_, s)| *s).collect();
        self.most.groups.retain(used);
    }

    /// The smallest least burst and the largest rate of a limit.
    pub(super) fn numbers(&self, id: LimitId) -> Option<(u64, u64)> {
        let found = self.most.limits.binary_search_by_key(&id, |limit| limit.id);
        let at = found.ok()?;
        Some((*self.least_bursts.get(at)?, *self.rates.get(at)?))
    }

    pub(super) fn seats(&self, group: Option<&Name>) -> Option<u32> {
        let Some(name) = group else {
            return Some(self.seats);
        };
        let at = self
            .most
            .groups
            .iter()
            .position(|group| group.name == *name);
        at.and_then(|at| self.group_seats.get(at).copied())
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

/// The lighter a group, the more is a seat's part.
fn lighter(one: Size, other: Size) -> Size {
    Size {
        total_weight: one.total_weight.min(other.total_weight),
        ..one
    }
}

fn later(one: ReturnSeats, other: ReturnSeats) -> ReturnSeats {
    match (one, other) {
        (ReturnSeats::After(one), ReturnSeats::After(other)) => ReturnSeats::After(one.max(other)),
        _ => ReturnSeats::Never,
    }
}

fn more(one: Fallback, other: Fallback) -> Fallback {
    match (one, other) {
        (Fallback::Share, _) | (_, Fallback::Share) => Fallback::Share,
        (Fallback::Floor, _) | (_, Fallback::Floor) => Fallback::Floor,
        (Fallback::Deny, Fallback::Deny) => Fallback::Deny,
    }
}
