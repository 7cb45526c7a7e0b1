//! Shortage: members that would have less than their static share if every coordinator died, why,
//! and what an operator can do.

use alloc::vec::Vec;
use core::fmt;

use super::{Ledger, shared};
use crate::plan::{LimitId, MemberId, Seat, part};

/// Members without their whole static share of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseShortage {
    /// The members that are short.
    pub members: Vec<MemberId>,
    /// Silent members that still hold more than the plan gives them.
    pub held_by: Vec<MemberId>,
    /// Members that report and still hold more than the plan gives them, because they follow
    /// another plan or have not acknowledged this one.
    pub waits_for: Vec<MemberId>,
    /// True if the seats weigh more than the plan's total weight.
    pub overweight: bool,
}

impl fmt::Display for BaseShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, members: &[MemberId]| {
            members.iter().enumerate().try_for_each(|(index, member)| {
                f.write_str(if index > 0 { ", " } else { "" })?;
                write!(f, "{}", member.0)
            })
        };
        f.write_str("without their whole static share: ")?;
        list(f, &self.members)?;
        if !self.held_by.is_empty() {
            f.write_str("; silent members still hold it: ")?;
            list(f, &self.held_by)?;
            f.write_str(
                "; wait for the end of their hold, or fence or deregister those that are dead",
            )
        } else if self.overweight {
            f.write_str(
                "; the nodes weigh more than `cluster_size`: raise it in the rules, or lower weights \
                 (`quell fleet weight`)",
            )
        } else if self.waits_for.is_empty() {
            f.write_str("; they get it with their next grant")
        } else {
            f.write_str("; they get it when these have acknowledged the plan: ")?;
            list(f, &self.waits_for)
        }
    }
}

impl Ledger {
    /// The members that report and would have less than their static share of a limit if every
    /// coordinator died now, if there are any.
    #[must_use]
    pub fn base_shortage(&self, limit: LimitId) -> Option<BaseShortage> {
        let guess = self.limits.binary_search(&limit).unwrap_or(0);
        let of = self.record.current().find_map(|plan| plan.limit(limit))?;
        let (mut members, mut held_by, mut waits_for) = (Vec::new(), Vec::new(), Vec::new());
        for (member, account) in self.accounts.iter().filter(|(_, account)| !account.left) {
            let Some(holding) = account.holding(limit, guess) else {
                continue;
            };
            let due = self.due_base(&account.seat.with_base(), limit);
            match account.planned {
                true if holding.sure_base() < due => members.push(*member),
                true if holding.tail() > due => waits_for.push(*member),
                false if holding.tail() > due => held_by.push(*member),
                _ => {}
            }
        }
        let group = of.group.as_ref();
        let size = self.record.plan.size_of_group(group);
        let weight = self.record.weight_of(group);
        (!members.is_empty()).then(|| BaseShortage {
            members,
            held_by,
            waits_for,
            overweight: size.is_some_and(|size| weight > size.total_weight),
        })
    }

    /// The static share that the plan gives a seat, counted as the ledger counts the limit.
    pub(super) fn due_base(&self, seat: &Seat, limit: LimitId) -> u64 {
        let plan = self.record.plan_of(seat);
        let Some(limit) = shared(plan, seat, limit) else {
            return 0;
        };
        let due = plan.base(limit, seat);
        let unit = self.record.whole(limit.id).rate;
        if unit == limit.quota.rate {
            return due;
        }
        part(due, unit, limit.quota.rate)
    }
}
