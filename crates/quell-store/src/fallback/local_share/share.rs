//! One share: what this node has admitted of one key, and what it may admit still.

use std::sync::Arc;

use quell_core::bucket_replay::{charge_anyway, state_with_use};
use quell_core::charge::{Entry, Operation, ban, decide_one};
use quell_core::cost::Cost;
use quell_core::state::State;
use quell_core::time::Now;
use tokio::time::Instant;

use super::LocalCharge;
use crate::fallback::denial_cache::{DenialCache, LastAnswer};
use crate::fallback::local_debt::LocalDebt;
use crate::fallback::shared_limit::SharedLimit;

/// Bytes of a key in addition to its name and its states: its share with the allocator's overhead, a slot
/// of the table just after it grew, and the pointers and counts of its name.
pub(super) const OVERHEAD: usize = size_of::<LocalShare>() + 16 + 64 + 32 + 32;

/// A share that is out of the table, and its name there.
pub(super) type HeldShare = (Arc<[u8]>, Box<LocalShare>);

/// Units that this node has admitted of one key.
#[derive(Clone, Debug)]
pub(super) struct LocalShare {
    pub(super) limits: Arc<SharedLimit>,
    /// The state that decides.
    pub(super) state: State,
    /// The store's answer with which the share began.
    pub(super) began_with: Option<LastAnswer>,
    /// Admitted units that the store has not charged yet.
    pub(super) debt: LocalDebt,
    /// Instant until which the key needs room in its share beside the store, once the store decides again.
    pub(super) recovers_until: Option<Instant>,
    /// True if the store decides the key again. If it fails again, the deciding state starts anew from its
    /// last answer.
    pub(super) is_settled: bool,
    /// The length of the key's scope in bytes; `None` for a state of several keys, which is never repaid.
    pub(super) scope: Option<u32>,
    /// True if the key is in the queue of those to be paid.
    pub(super) is_queued: bool,
}

impl LocalShare {
    /// A share that begins with the store's last answer, less this many units that it may have charged
    /// since.
    pub(super) fn new(
        local: &LocalCharge<'_, '_>,
        uncertain: u64,
        denial_cache: &DenialCache,
        now: Now,
    ) -> Self {
        let limits = Arc::clone(&local.limits);
        let share = &limits.share;
        let last = denial_cache.starting_point(local.key, local.charge.active, now.monotonic);
        let used = last.map_or(0, |last| {
            let left = last.left / u64::from(limits.nodes.get());
            share.limit.max().saturating_sub(left)
        });
        let used = used.saturating_add(uncertain);
        let mut state = state_with_use(share, used, local.charge, now);
        if let Some(left) = last.and_then(|last| last.ban) {
            ban(&mut state, &share.limit, &local.charge.at(now), left);
        }
        // An unknown key may be fully used.
        let rests_after = local.charge.active.limit.full_refill();
        let rests = last.map_or_else(|| now.monotonic.saturating_add(rests_after), |l| l.rest);
        Self {
            state,
            began_with: last.map(|last| last.noted),
            debt: LocalDebt::new(&limits, rests),
            limits,
            recovers_until: None,
            is_settled: false,
            scope: u32::try_from(local.key.scope().len()).ok(),
            is_queued: false,
        }
    }

    /// Converts the share to another limit, for example after a change of rules.
    pub(super) fn adopt_limit(&mut self, local: &LocalCharge<'_, '_>, now: Now) {
        if Arc::ptr_eq(&self.limits, &local.limits) {
            return;
        }
        let from = std::mem::replace(&mut self.limits, Arc::clone(&local.limits));
        let to = &self.limits;
        let at = local.charge.at(now);
        self.state.carry(&from.share.limit, &to.share, &at);
        self.debt.carry(&from, to, &at);
    }

    /// Starts again after the store has failed once more.
    pub(super) fn resume(
        &mut self,
        local: &LocalCharge<'_, '_>,
        denial_cache: &DenialCache,
        now: Now,
    ) {
        let at = local.charge.at(now);
        let (uncertain, units) = self.debt.take_uncertain(&self.limits, &at);
        *self = Self {
            scope: self.scope,
            is_queued: self.is_queued,
            ..Self::new(local, units, denial_cache, now)
        };
        self.debt.uncertain = uncertain;
    }

    /// The store has failed again after it decided beside this share: what it said last to be used counts as well,
    /// whoever used it. A call in flight may be part of that and count twice; without it, it might not count.
    pub(super) fn join(
        &mut self,
        local: &LocalCharge<'_, '_>,
        denial_cache: &DenialCache,
        now: Now,
    ) {
        let mut fresh = Self::new(local, 0, denial_cache, now);
        let left = |share: &mut Self| {
            let charge = &local.under_share(Cost::ONE);
            let state = &mut share.state;
            decide_one(now, Operation::Peek, &mut Entry { charge, state }).remaining
        };
        let missing = left(self).saturating_sub(left(&mut fresh));
        let at = local.charge.at(now);
        charge_anyway(&self.limits.share.limit, &mut self.state, missing, &at);
    }

    pub(super) fn is_recovering(&self, now: Instant, waits_for_others: bool) -> bool {
        self.recovers_until
            .is_some_and(|until| waits_for_others || now < until)
    }

    /// Returns true if the share is no longer needed.
    pub(super) fn is_over(&self, now: Now) -> bool {
        let rests = || {
            let limit = &self.limits.share.limit;
            self.state.time_to_rest(limit, now).is_zero()
        };
        let is_known = self.is_settled && self.debt.is_certain();
        !self.debt.owes() && (is_known || rests())
    }

    pub(super) fn bytes(&self, name: &[u8]) -> usize {
        OVERHEAD + name.len() + self.state.heap_bytes() + self.debt.heap_bytes()
    }
}
