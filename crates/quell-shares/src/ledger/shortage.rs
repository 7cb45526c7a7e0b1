//! Shortage: members that would have less than their static share if every coordinator died, why,
//! and what an operator can do.

use alloc::vec::Vec;
use core::fmt;

use super::Ledger;
use crate::plan::{MemberId, Seat};

/// Members without their whole static share of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseShortage {
    /// The members that are short.
    pub members: Vec<MemberId>,
    /// Silent members that still hold more than the plan gives them.
    pub held_by: Vec<MemberId>,
    /// Whether the seats weigh more than the plan's total weight.
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
            f.write_str("; wait for the end of their hold, or deregister those that are dead")
        } else if self.overweight {
            f.write_str("; the seats weigh more than the plan's total weight: raise it")
        } else {
            f.write_str("; they get it when the others have acknowledged the plan")
        }
    }
}

impl Ledger {
    /// The members that report and would have less than their static share of a limit if every
    /// coordinator died now, if there are any.
    #[must_use]
    pub fn base_shortage(&self, limit: usize) -> Option<BaseShortage> {
        let plan = &self.record.plan;
        let due = |seat: Seat| {
            let seat = Seat {
                based: true,
                ..seat
            };
            plan.base(limit, &seat)
        };
        let (mut members, mut held_by) = (Vec::new(), Vec::new());
        for (member, account) in self.accounts.iter().filter(|(_, account)| !account.left) {
            let Some(holding) = account.holdings.get(limit) else {
                continue;
            };
            if account.planned && holding.sure_base() < due(account.seat) {
                members.push(*member);
            }
            if !account.planned && holding.tail() > due(account.seat) {
                held_by.push(*member);
            }
        }
        (!members.is_empty()).then(|| BaseShortage {
            members,
            held_by,
            overweight: self.record.seated_weight() > plan.total_weight,
        })
    }
}
