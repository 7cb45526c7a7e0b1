//! An owned copy of a limit set, for a task that may outlive its caller.

use quell_core::account::Account;
use quell_core::algorithm::Edges;
use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::limit::ActiveLimit;
use quell_core::over_admission::LeaseTerms;
use quell_core::policy::Policy;
use quell_core::time::Wall;

/// An owned copy of what a store needs to know about a set. It contains no rules.
#[derive(Clone, Debug)]
pub struct OwnedSet {
    charges: Vec<OwnedCharge>,
    account: Account,
}

#[derive(Clone, Debug)]
struct OwnedCharge {
    key: Vec<u8>,
    scope: usize,
    active: ActiveLimit,
    cost: Cost,
    is_check: bool,
    shadow: bool,
    edges: Option<Edges>,
    exists_until: Option<Wall>,
    counts_calls: bool,
    tag: u32,
    policy: Policy,
    terms: Option<LeaseTerms>,
}

impl OwnedSet {
    /// A copy of `set`.
    #[must_use]
    pub fn new(set: &LimitSet<'_>) -> Self {
        let charges = set.charges().iter().map(|charge| {
            let key = set.key(charge);
            OwnedCharge {
                key: key.as_bytes().to_vec(),
                scope: key.scope().len(),
                active: charge.active.clone(),
                cost: charge.cost,
                is_check: charge.is_check,
                shadow: charge.shadow,
                edges: charge.edges,
                exists_until: charge.exists_until,
                counts_calls: charge.counts_calls,
                tag: charge.tag,
                policy: charge.policy,
                terms: charge.terms.copied(),
            }
        });
        Self {
            charges: charges.collect(),
            account: set.account(),
        }
    }

    /// The set, borrowed from this copy.
    #[must_use]
    pub fn as_set(&self) -> LimitSet<'_> {
        let mut set = LimitSet::new();
        set.set_account(self.account);
        for owned in &self.charges {
            let mut charge = Charge::alone(&owned.active, owned.cost);
            charge.is_check = owned.is_check;
            charge.shadow = owned.shadow;
            charge.edges = owned.edges;
            charge.exists_until = owned.exists_until;
            charge.counts_calls = owned.counts_calls;
            charge.tag = owned.tag;
            charge.policy = owned.policy;
            charge.terms = owned.terms.as_ref();
            set.add(&owned.key, owned.scope, &charge);
        }
        set
    }
}
