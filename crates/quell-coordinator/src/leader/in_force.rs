//! In force: how an office puts what is wanted into force, if that does not wait for an operator.

use quell_core::time::Monotonic;
use quell_shares::plan::{Drift, Name, Plan, Record};

use super::leader_task::{LeaderTask, WriteOrigin};
use super::{Changes, Refused};
use crate::codec::check_room;
use crate::store::ConfigStore;

impl<S: ConfigStore> LeaderTask<S> {
    /// Writes another plan, if the wanted one differs from the plan in force.
    pub(super) fn put_wanted_into_force(&mut self, now: Monotonic) {
        let Some(ledger) = self.core.leads(now) else {
            return;
        };
        let record = ledger.record();
        self.compare = false;
        let (plan, left_out) = self.wanted.borrow_and_update().beside(record);
        let left_out = (!left_out.is_empty()).then_some(Refused::Limits(left_out));
        let differs = !record.plan.is_like(&plan);
        // A plan taken back is never put into force by itself.
        let was_taken_back = record.taken_back.is_some();
        let is_staged = was_taken_back || self.wanted.borrow().changes == Changes::Staged;
        self.waits = is_staged && differs;
        // A plan without text waits for nobody.
        if let (None, Some(rules)) = (&record.plan.rules, &plan.rules) {
            let mut next = record.clone();
            if let Some(rollout) = &mut next.rollout {
                let rules = || rules.clone();
                rollout.plan.rules.get_or_insert_with(rules);
            }
            return self.put_rules_into_force(next, plan.rules);
        }
        // An operator tries another plan on some members: this would end it.
        if record.rollout.is_some() || !differs || is_staged {
            return self.set_refused(left_out);
        }
        let (before, rules) = (record.clone(), plan.rules.clone());
        if plan.shares_like(&record.plan) {
            self.set_refused(left_out);
            return self.put_rules_into_force(before, rules);
        }
        let drift = self.session.options().drift;
        let none_can_begin = plan.limits.is_empty();
        let (next, refused) = match after(record, plan, drift) {
            Ok(next) => (Some(next), left_out),
            Err(refused) => {
                // A cut of limits that are in force does not wait for others.
                let plan = self.wanted.borrow().without_new(record);
                let differs = !record.plan.shares_like(&plan);
                let next = after(record, plan, drift).ok().filter(|_| differs);
                (next, left_out.filter(|_| none_can_begin).or(Some(refused)))
            }
        };
        self.set_refused(refused);
        match next {
            Some(next) => self.write(next, WriteOrigin::Desired),
            // Rules of other rungs do not wait for limits that are refused.
            None => self.put_rules_into_force(before, rules),
        }
    }

    /// Has nodes given another text of the rules, which changes nothing of what they share.
    fn put_rules_into_force(&mut self, mut record: Record, rules: Option<Name>) {
        if record.plan.rules != rules {
            record.plan.rules = rules;
            record.version += 1;
            self.write(record, WriteOrigin::Desired);
        }
    }
}

/// The record with another plan.
fn after(record: &Record, plan: Plan, drift: Drift) -> Result<Record, Refused> {
    plan.check_after(Some(&record.plan), drift)?;
    let mut next = record.clone();
    next.replace_plan(plan)?;
    // Other numbers of the same limits, such as those of a cut, are never refused.
    if next.plan.limits.len() > record.plan.limits.len() {
        check_room(&next)?;
    }
    next.version += 1;
    Ok(next)
}
