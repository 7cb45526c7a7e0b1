//! Calls in flight: what a call may charge to the store, from before it is sent until its answer is
//! noted.
//!
//! The store may admit it at any moment in between, and a share of the same key must not admit the same
//! units: see `denial_cache` and `local_share`.

use std::sync::Arc;

use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::on_failure::OnFailure;
use quell_core::time::{Now, Wall};
use tokio::time::Instant;

use super::Inner;
use super::denial_cache::{AnswerTime, InFlightCharge};
use super::local_share::AnsweredCharge;
use crate::remote::RemoteStore;
use quell::clock::read_again;
use quell::store::Paid;

/// A call in flight, with a place for each charge of its set.
#[derive(Debug)]
pub(super) struct InFlightSet<S: RemoteStore> {
    inner: Arc<Inner<S>>,
    operation: Operation,
    /// `None` if nothing is charged, or if there is no share that must take it into account.
    each: Vec<Option<InFlightCharge>>,
    /// The charges that this node's shares had to have room for as well, by their indices, and how much they had.
    beside: Vec<(usize, u64)>,
}

impl<S: RemoteStore> InFlightSet<S> {
    pub(super) fn new(inner: &Arc<Inner<S>>, set: &LimitSet<'_>, operation: Operation) -> Self {
        let (cache, is_charged) = (&inner.denial_cache, operation == Operation::Acquire);
        let each = set.charges().iter().map(|charge| {
            let is_shared = matches!(charge.policy.on_failure, Some(OnFailure::Share { .. }));
            let is_counted = is_charged && is_shared && has_rate(charge);
            is_counted.then(|| cache.add_in_flight(set.key(charge), charge.cost.get()))
        });
        Self {
            inner: Arc::clone(inner),
            operation,
            each: each.collect(),
            beside: Vec::new(),
        }
    }

    /// The same, for charges that this node's shares have room for.
    pub(super) fn beside(mut self, beside: Vec<(usize, u64)>) -> Self {
        self.beside = beside;
        self
    }

    /// Returns true if shares had to have room for the call.
    pub(super) fn is_capped(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Records that the store, asked at `now`, decided the set, at `decided` by its clock. No more is left
    /// than shares have that the set needs as well.
    pub(super) fn complete(
        self,
        set: &LimitSet<'_>,
        decisions: &mut [Decision],
        now: Now,
        decided: Wall,
    ) {
        let is_charged = self.operation == Operation::Acquire && set.passes(decisions);
        let charged = |charge: &Charge<'_>, decision: &Decision| {
            let is_charged = is_charged && decision.outcome.is_allow();
            if is_charged { charge.cost.get() } else { 0 }
        };
        let beside = self.beside.clone();
        self.note(set, decisions, charged, now, decided);
        for (place, room) in beside {
            if let (Some(charge), Some(decision)) =
                (set.charges().get(place), decisions.get_mut(place))
            {
                let room = room.saturating_sub(charged(charge, decision));
                decision.remaining = decision.remaining.min(room);
            }
        }
    }

    /// Records that the store was told of a total, and charged so much of it.
    pub(super) fn complete_total(self, set: &LimitSet<'_>, paid: &Paid, charged: u64, now: Now) {
        let next = std::slice::from_ref(&paid.next);
        self.note(set, next, |_, _| charged, now, paid.store_time);
    }

    fn note(
        mut self,
        set: &LimitSet<'_>,
        decisions: &[Decision],
        charged: impl Fn(&Charge<'_>, &Decision) -> u64,
        now: Now,
        decided: Wall,
    ) {
        let inner = Arc::clone(&self.inner);
        let (shares, cache) = (&inner.shares, &inner.denial_cache);
        let answered = AnswerTime {
            asked: now.monotonic,
            heard: inner.clock.monotonic(),
            decided,
        };
        let each = set.charges().iter().zip(decisions);
        let each = each.zip(std::mem::take(&mut self.each)).enumerate();
        for (place, ((charge, decision), flight)) in each {
            if !has_rate(charge) {
                continue;
            }
            let answer = AnsweredCharge {
                key: set.key(charge),
                flight: flight.as_ref(),
                charge,
                decision,
                answered,
                units: charged(charge, decision),
                is_beside: self.beside.iter().any(|(beside, _)| *beside == place),
            };
            let now = || read_again(now, &*inner.clock);
            shares.complete(cache, &answer, now, Instant::now());
        }
    }
}

impl<S: RemoteStore> Drop for InFlightSet<S> {
    fn drop(&mut self) {
        for flight in self.each.iter().flatten() {
            self.inner.denial_cache.remove_in_flight(flight);
        }
    }
}

/// Permits come back, so the number of held ones is not cached, and no share has any.
pub(super) fn has_rate(charge: &Charge<'_>) -> bool {
    charge.active.limit.lease().is_none()
}
