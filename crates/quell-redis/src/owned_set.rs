//! An owned copy of a limit set, for a task that may outlive its caller.

use quell_core::algorithm::Edges;
use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::limit::ActiveLimit;

/// What a store is told of a set, with limits of its own.
#[derive(Debug)]
pub(crate) struct OwnedSet {
    charges: Vec<OwnedCharge>,
}

#[derive(Debug)]
struct OwnedCharge {
    key: Vec<u8>,
    scope: usize,
    active: ActiveLimit,
    cost: Cost,
    shadow: bool,
    edges: Option<Edges>,
}

impl OwnedSet {
    pub(crate) fn new(set: &LimitSet<'_>) -> Self {
        let charges = set.charges().iter().map(|charge| {
            let key = set.key(charge);
            OwnedCharge {
                key: key.as_bytes().to_vec(),
                scope: key.scope().len(),
                active: charge.active.clone(),
                cost: charge.cost,
                shadow: charge.shadow,
                edges: charge.edges,
            }
        });
        Self {
            charges: charges.collect(),
        }
    }

    pub(crate) fn as_set(&self) -> LimitSet<'_> {
        let mut set = LimitSet::new();
        for owned in &self.charges {
            let mut charge = Charge::alone(&owned.active, owned.cost);
            charge.shadow = owned.shadow;
            charge.edges = owned.edges;
            set.add(&owned.key, owned.scope, &charge);
        }
        set
    }
}
