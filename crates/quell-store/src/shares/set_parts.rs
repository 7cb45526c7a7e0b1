//! Set parts: a set, some of whose limits a fleet shares, in its two parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_core::charge::{Charge, LimitSet};
use quell_core::decision::{Decision, Decisions, Outcome};
use quell_core::time::Monotonic;
use quell_shares::cell::Held;

use super::share::{Share, decision, micro, without_share};
use super::table::{Shares, is_shared};

/// A charge on a share. It counts as admitted when it is final, so that a count never has to be taken back:
/// the report that it was in may be gone.
#[derive(Debug)]
pub(super) struct ShareCharge {
    share: Arc<Share>,
    cost: u64,
    degraded: bool,
    held: Option<Held>,
}

impl ShareCharge {
    pub(super) fn put_back(mut self, now: Monotonic) {
        if let Some(held) = self.held.take()
            && !self.share.cell.put_back(now, held)
        {
            self.count();
        }
    }

    fn count(&self) {
        self.share.admitted.fetch_add(self.cost, Ordering::Relaxed);
        self.share.count_degraded(self.cost, self.degraded);
    }
}

impl Drop for ShareCharge {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.share.cell.keep(held);
            self.count();
        }
    }
}

/// Answers of shares to charges.
pub(super) struct Take {
    pub(super) decisions: Vec<Decision>,
    pub(super) taken: Vec<ShareCharge>,
}

/// A set, some of whose limits a fleet shares.
pub(super) struct SetParts<'a, 'r> {
    set: &'a LimitSet<'r>,
    /// The charges that are not shared, and their indices in the whole set.
    pub(super) others: LimitSet<'r>,
    pub(super) places: Vec<usize>,
    /// The indices of the others, with their shares.
    shared: Vec<(usize, Option<Arc<Share>>)>,
}

impl<'a, 'r> SetParts<'a, 'r> {
    pub(super) fn new(set: &'a LimitSet<'r>, shares: &Shares) -> Self {
        let charges = || set.charges().iter().enumerate();
        let others = charges().filter(|(_, charge)| !is_shared(charge));
        let places: Vec<usize> = others.map(|(place, _)| place).collect();
        let shared = charges().filter(|(_, charge)| is_shared(charge));
        let shared = shared.map(|(place, charge)| (place, shares.find(set.key(charge))));
        let shared = shared.collect();
        let mut others = set.clone();
        others.keep(&places);
        Self {
            set,
            others,
            places,
            shared,
        }
    }

    fn charge(&self, place: usize) -> Option<&'a Charge<'r>> {
        self.set.charges().get(place)
    }

    pub(super) fn peek(&self, now: Monotonic) -> Vec<Decision> {
        let peek = |(place, share): &(usize, Option<Arc<Share>>)| {
            let charge = self.charge(*place)?;
            Some(match share {
                Some(share) => decision(&share.cell.peek(now, micro(charge)), charge),
                None => without_share(charge),
            })
        };
        self.shared.iter().filter_map(peek).collect()
    }

    /// Returns true if no share refuses, apart from those of limits in shadow.
    pub(super) fn pass(&self, decisions: &[Decision]) -> bool {
        let mut each = self.shared.iter().zip(decisions);
        each.all(|((place, _), decision)| {
            let is_shadow = self.charge(*place).is_some_and(|charge| charge.shadow);
            decision.outcome.is_allow() || is_shadow
        })
    }

    /// Charges the shares.
    ///
    /// # Errors
    /// One refuses. What others gave is to be put back.
    pub(super) fn take(&self, now: Monotonic) -> Result<Take, Take> {
        let mut decisions = Vec::with_capacity(self.shared.len());
        let mut taken = Vec::with_capacity(self.shared.len());
        for (place, share) in &self.shared {
            let Some(charge) = self.charge(*place) else {
                continue;
            };
            let Some(share) = share else {
                decisions.push(without_share(charge));
                continue;
            };
            let cost = micro(charge);
            let (answer, held) = share.cell.try_hold(now, cost);
            decisions.push(decision(&answer, charge));
            if let Some(held) = held {
                taken.push(ShareCharge {
                    share: Arc::clone(share),
                    cost,
                    degraded: !share.is_granted(now),
                    held: Some(held),
                });
            }
        }
        let passes = self.pass(&decisions);
        let take = Take { decisions, taken };
        if passes { Ok(take) } else { Err(take) }
    }

    /// The decisions of a set that was refused, after what was taken is put back: a share that
    /// refused has still refused, whatever it would answer now.
    pub(super) fn after_refusal(&self, refused: &[Decision], now: Monotonic) -> Vec<Decision> {
        let both = self.peek(now).into_iter().zip(refused);
        both.map(|(seen, refused)| match refused.outcome {
            Outcome::Allow => seen,
            Outcome::Deny(_) => *refused,
        })
        .collect()
    }

    /// Counts what was asked for, of the shares that refuse.
    pub(super) fn count_refusals(&self, decisions: &[Decision], now: Monotonic) {
        for ((place, share), decision) in self.shared.iter().zip(decisions) {
            let cost = self.charge(*place).map_or(0, micro);
            if let (Some(share), false) = (share, decision.outcome.is_allow()) {
                share.denied.fetch_add(cost, Ordering::Relaxed);
                share.count_degraded(cost, !share.is_granted(now));
            }
        }
    }

    /// The decisions of both parts, in the set's order.
    pub(super) fn merge(&self, shared: &[Decision], others: &[Decision]) -> Decisions {
        let shared = self.shared.iter().map(|(place, _)| place).zip(shared);
        let all = self.places.iter().zip(others).chain(shared);
        let mut all: Vec<(usize, Decision)> = all.map(|(place, one)| (*place, *one)).collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, decision)| decision).collect()
    }
}
