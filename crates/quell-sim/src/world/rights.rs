//! Rights: what nodes may use, checked whenever it changes.

use super::World;
use crate::check::Violation;
use crate::node::Node;

impl World {
    /// Remembers the plan in force, and forgets those that nobody follows.
    pub fn note_plan(&mut self) {
        let newest = self.store.record.plan.revision;
        if self.counts.plans.iter().all(|plan| plan.revision != newest) {
            self.counts.plans.push(self.store.record.plan.clone());
        }
        let nodes = &self.nodes;
        let older = &self.store.record.older;
        self.counts.plans.retain(|plan| {
            let followed = |node: &Node| {
                node.revision == plan.revision
                    || node.snapshot_revision == plan.revision
                    || node.member.revision() == plan.revision
            };
            plan.revision == newest
                || nodes.iter().any(followed)
                || older.iter().any(|old| old.revision == plan.revision)
                || plan.revision + 4 > newest
        });
    }

    /// Takes the new curves of a node into the sums and checks S1.
    pub fn rights_changed(&mut self, node: usize) {
        self.bounds();
        let mut curve = std::mem::take(&mut self.curve);
        for limit in 0..self.judges.len() {
            self.nodes[node].curve(limit, self.now, &mut curve);
            let judge = &mut self.judges[limit];
            judge.sum.set(self.now, node, &curve);
            let wrong = judge.rates(self.now);
            self.blame(wrong);
        }
        self.curve = curve;
    }

    pub(super) fn blame(&mut self, wrong: Option<Violation>) {
        if self.violation.is_none() {
            self.violation = wrong;
        }
    }

    /// What may be used is what the largest plan says that anybody follows.
    pub fn bounds(&mut self) {
        let record = &self.store.record;
        if record.older.is_empty() && record.plan.revision == 1 {
            return;
        }
        for (limit, judge) in self.judges.iter_mut().enumerate() {
            let mut bound = record.plan.limits[limit];
            for plan in &self.counts.plans {
                let follows = |node: &Node| node.alive && node.revision == plan.revision;
                if self.nodes.iter().any(follows) {
                    bound.rate = bound.rate.max(plan.limits[limit].rate);
                    bound.burst = bound.burst.max(plan.limits[limit].burst);
                }
            }
            judge.change(self.now, bound);
        }
    }
}
