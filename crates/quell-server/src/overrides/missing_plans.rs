//! Missing plans: stored overrides that name a plan which the rules in force do not have. They have no effect.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use quell::override_store::{AppliedChange, OverrideId, StoredNumbers};
use quell_core::rule::RuleSet;
use quell_core::time::Wall;
use quell_rules::StoredFields;

/// The most plans that the log names.
const MAX_NAMED: usize = 5;

/// Overrides that name plans which their domains do not have, each with its plan.
#[derive(Debug, Default)]
pub(crate) struct MissingPlans {
    all: Mutex<HashMap<OverrideId, Arc<str>>>,
    /// Number that the log has told.
    told: Mutex<usize>,
}

impl MissingPlans {
    /// Number of them.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Notes changes of overrides. A domain that this server does not have is that of others on the same store.
    pub(super) fn note(
        &self,
        changes: &[AppliedChange],
        (rules, fields): (&RuleSet, &StoredFields),
        wall: Wall,
    ) {
        let mut all = self.all.lock();
        for change in changes {
            let missing = match change {
                AppliedChange::Put(record) => {
                    let is_over = record.until.is_some_and(|until| until <= wall);
                    let is_missing = |plan: &&Arc<str>| {
                        let domain = &record.id.domain;
                        !is_over && rules.has_domain(domain) && !fields.has_plan(domain, plan)
                    };
                    plan_of(&record.numbers).filter(is_missing)
                }
                AppliedChange::Deleted { .. } => None,
            };
            match missing {
                Some(plan) => drop(all.insert(change.id().clone(), Arc::clone(plan))),
                None => drop(all.remove(change.id())),
            }
        }
    }

    /// Replaces them by those of a list of all overrides.
    pub(super) fn replace(&self, listed: Self) {
        *self.all.lock() = listed.all.into_inner();
    }

    /// Writes a warning if there are others than before.
    pub(super) fn tell(&self) {
        let all = self.all.lock();
        let before = std::mem::replace(&mut *self.told.lock(), all.len());
        if all.is_empty() || all.len() == before {
            return;
        }
        let names = all.iter().map(|(id, plan)| format!("{}/{plan}", id.domain));
        let names: BTreeSet<String> = names.collect();
        let more = names.len().saturating_sub(MAX_NAMED);
        let mut plans: Vec<String> = names.into_iter().take(MAX_NAMED).collect();
        if more > 0 {
            plans.push(format!("and {more} more"));
        }
        tracing::warn!(
            overrides = all.len(),
            plans = plans.join(", "),
            "stored overrides name plans that the rules do not have: they have no effect, and their keys have other \
             numbers, such as those of the rule"
        );
    }
}

const fn plan_of(numbers: &StoredNumbers) -> Option<&Arc<str>> {
    match numbers {
        StoredNumbers::Plan(plan) | StoredNumbers::PlanFrom { plan, .. } => Some(plan),
        StoredNumbers::Fields(_) | StoredNumbers::Unlimited | StoredNumbers::Refuse => None,
    }
}
