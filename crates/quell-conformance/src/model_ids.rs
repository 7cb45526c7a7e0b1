//! Model ids: what the model knows about the ids of holds.

use std::collections::BTreeMap;
use std::time::Duration;

use quell::store::HoldStatus;
use quell_core::actual::CostOrigin;
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

/// Ids that the model knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) known: BTreeMap<HoldId, Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct Id {
    pub(crate) status: HoldStatus,
    pub(crate) places: Vec<Place>,
    pub(crate) descriptors: usize,
    pub(crate) decisions: Vec<Decision>,
    /// The delay that follows its turn.
    pub(crate) delay: Duration,
    pub(crate) keep: Duration,
    pub(crate) due: Monotonic,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    pub(crate) cost: Cost,
    pub(crate) origin: CostOrigin,
}

impl Id {
    /// Lets an id wait for `wait` more.
    pub(crate) fn postpone(&mut self, wait: Duration, now: Monotonic) {
        let stay = self.delay.saturating_add(self.keep);
        self.due = now.saturating_add(wait.saturating_add(stay));
    }
}
