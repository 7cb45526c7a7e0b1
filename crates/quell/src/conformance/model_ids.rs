//! Model ids: what the model knows about the ids of holds.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::actual::CostOrigin;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

use crate::store::HoldStatus;

/// Ids that the model knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    pub(super) known: BTreeMap<HoldId, Id>,
}

#[derive(Clone, Debug)]
pub(super) struct Id {
    pub(super) status: HoldStatus,
    pub(super) places: Vec<Place>,
    pub(super) descriptors: usize,
    pub(super) decisions: Vec<Decision>,
    /// The delay that follows its turn.
    pub(super) delay: Duration,
    pub(super) keep: Duration,
    pub(super) due: Monotonic,
}

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Vec<u8>,
    pub(super) cost: Cost,
    pub(super) origin: CostOrigin,
}

impl Id {
    /// It waits for `wait` more.
    pub(super) fn postpone(&mut self, wait: Duration, now: Monotonic) {
        let stay = self.delay.saturating_add(self.keep);
        self.due = now.saturating_add(wait.saturating_add(stay));
    }
}
