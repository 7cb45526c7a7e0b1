//! Sharing: plans each member's share with [`apportion`], a few times per report period.

use alloc::vec::Vec;

use quell_core::time::saturating_nanos;

use super::{Account, Ledger};
use crate::apportion::{Claim, apportion, steady};
use crate::plan::{Limit, Plan, part};

/// Number of plans of shares per report period, at most, in a fleet of [`MANY`] or more members; in a
/// smaller fleet proportionally more. A plan costs n log n, so all plans of a period cost the same.
const PER_REPORT: u64 = 4;

/// From this many members on, waiting a moment saves more than it costs.
const MANY: u64 = 256;

impl Ledger {
    /// Plans the limits that have changed, unless that was just done.
    pub(super) fn share_if_due(&mut self, now: u64) {
        let members = u64::try_from(self.accounts.len()).unwrap_or(MANY).min(MANY);
        let longest = saturating_nanos(self.record.plan.timing.report) / PER_REPORT;
        let every = longest / MANY * members;
        if now < self.shared.saturating_add(every) || !self.dirty.contains(&true) {
            return;
        }
        self.shared = now;
        self.rotation = self.rotation.wrapping_add(1);
        let mut claims = Vec::with_capacity(self.accounts.len());
        let mut shares = Vec::with_capacity(self.accounts.len());
        for at in 0..self.dirty.len() {
            if core::mem::take(&mut self.dirty[at]) {
                self.share(at, &mut claims, &mut shares);
            }
        }
    }

    fn share(&mut self, at: usize, claims: &mut Vec<Claim>, shares: &mut Vec<u64>) {
        let Some(id) = self.limits.get(at).copied() else {
            return;
        };
        let unit = self.record.whole(id).rate;
        let plans = [
            Some(&self.record.plan),
            self.record.rollout.as_ref().map(|rollout| &rollout.plan),
        ];
        // Each plan with its limit, if it has that.
        let plans = plans.map(|plan| plan.and_then(|plan| Some((plan, plan.limit(id)?))));
        claims.clear();
        let mut reserved = self.reserved(at);
        for (member, account) in &self.accounts {
            let Some(holding) = account.holding(id, at) else {
                continue;
            };
            if !account.planned && !account.left {
                reserved = reserved.saturating_add(holding.tail());
            }
            let Some((plan, limit)) = taking_part(account, plans) else {
                continue;
            };
            // What the member wants, and what it is due, as parts of the unit.
            let part_of = |amount: u64| match limit.quota.rate {
                rate if rate == unit => amount,
                rate => part(amount, unit, rate),
            };
            claims.push(Claim {
                key: u64::from(member.0),
                weight: account.seat.weight,
                floor: part_of(plan.planned_floor(limit, &account.seat)),
                want: part_of(holding.want),
                last: holding.target,
            });
        }
        let rate = unit.saturating_sub(reserved);
        // The turn among fractions of a micro-unit changes so slowly that shares do not flicker.
        apportion(rate, claims, self.rotation / 64, shares);
        steady(rate, claims, shares);
        let mut shares = shares.iter();
        for (member, account) in &mut self.accounts {
            let takes_part = taking_part(account, plans).is_some();
            let Some(holding) = account.holding_mut(id, at) else {
                continue;
            };
            let target = match takes_part {
                true => shares.next().copied().unwrap_or(0),
                false => 0,
            };
            holding.aim(self.shared, target);
            if takes_part && holding.sent.abs_diff(holding.target) > holding.target / 20 {
                Self::wants_push(&mut self.push_queue, *member);
            }
        }
    }
}

/// The plan of a member, if shares of this limit are planned for it.
fn taking_part<'a>(
    account: &Account,
    plans: [Option<(&'a Plan, &'a Limit)>; 2],
) -> Option<(&'a Plan, &'a Limit)> {
    let seat = &account.seat;
    if account.left || !account.planned || seat.draining {
        return None;
    }
    let found = plans.get(account.side()).copied().flatten();
    found.filter(|(_, limit)| seat.is_in(limit.group.as_ref()))
}
