//! Sharing: plans each member's share with [`apportion`], a few times per report period.

use alloc::vec::Vec;

use quell_core::time::saturating_nanos;

use super::Ledger;
use crate::apportion::{Claim, apportion, steady};
use crate::errs;
use crate::plan::MICRO;

/// How often per report period shares are planned at most, in a fleet of [`MANY`] or more members;
/// in a smaller fleet proportionally more often. A plan costs n log n, so all plans of a period
/// cost the same.
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
        for limit in 0..self.dirty.len() {
            if core::mem::take(&mut self.dirty[limit]) {
                self.share(limit, &mut claims, &mut shares);
            }
        }
    }

    fn share(&mut self, limit: usize, claims: &mut Vec<Claim>, shares: &mut Vec<u64>) {
        let plan = &self.record.plan;
        let Some(quota) = plan.limits.get(limit) else {
            return;
        };
        claims.clear();
        let mut reserved: u64 = 0;
        for (member, account) in &self.accounts {
            let Some(holding) = account.holdings.get(limit) else {
                continue;
            };
            if account.left {
                continue;
            }
            if !account.planned {
                reserved = reserved.saturating_add(holding.tail());
                continue;
            }
            let mut claim = Claim {
                key: u64::from(member.0),
                weight: account.seat.weight,
                floor: plan.planned_floor(limit, &account.seat),
                want: holding.want,
                last: holding.target,
            };
            if errs!(self, MoreToTheLouder) {
                claim.floor = plan.base(limit, &account.seat).min(claim.want);
                claim.weight = u32::try_from(claim.want / MICRO).unwrap_or(u32::MAX);
            }
            claims.push(claim);
        }
        let rate = quota.rate.saturating_sub(reserved);
        // The turn among fractions of a micro-unit changes so slowly that shares do not flicker.
        apportion(rate, claims, self.rotation / 64, shares);
        steady(rate, claims, shares);
        let planned = self.accounts.iter_mut().filter(|(_, account)| {
            account.planned && !account.left && account.holdings.len() > limit
        });
        for ((member, account), share) in planned.zip(shares.iter()) {
            let holding = &mut account.holdings[limit];
            holding.target = *share;
            if holding.sent.abs_diff(*share) > *share / 20 {
                Self::wants_push(&mut self.hungry, *member);
            }
        }
    }
}
