//! Rights: what nodes may use, checked at every change.

use quell_shares::plan::{MICRO, Plan};

use super::World;
use crate::check::Violation;
use crate::node::Node;
use crate::setup::MILLI;

impl World {
    /// Records the plan in force, and drops those that no node follows.
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
                    || node.snapshot.revision == plan.revision
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
        self.count_follower(node);
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

    /// If a promise was broken, writes into the trace what every node may use.
    pub(super) fn describe_rights(&mut self) {
        let Some(mut trace) = self.trace.take() else {
            return;
        };
        let mut curve = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for limit in 0..self.judges.len() {
                node.curve(limit, self.now, &mut curve);
                let mut text = format!("node {index} limit {limit} revision {}", node.revision);
                for (from, rate) in &curve {
                    let millis = (from - self.now) / MILLI;
                    text += &format!("; in {millis} ms {}/s", rate / MICRO);
                }
                trace.push(text);
            }
        }
        self.trace = Some(trace);
    }

    pub(super) fn blame(&mut self, wrong: Option<Violation>) {
        if self.violation.is_none() {
            self.violation = wrong;
        }
    }

    /// Counts which plan a node follows, if it runs.
    fn count_follower(&mut self, node: usize) {
        let one = &mut self.nodes[node];
        let follows = one.alive.then_some(one.revision);
        if follows == one.counted {
            return;
        }
        let before = std::mem::replace(&mut one.counted, follows);
        if let Some(count) = before.and_then(|plan| self.followers.get_mut(&plan)) {
            *count -= 1;
        }
        if let Some(plan) = follows {
            *self.followers.entry(plan).or_default() += 1;
        }
        self.bounded = None;
    }

    /// Sets the bounds: members may use as much as the largest plan that any of
    /// them follows allows.
    fn bounds(&mut self) {
        let record = &self.store.record;
        if self.bounded == Some(record.version) {
            return;
        }
        self.bounded = Some(record.version);
        self.followers.retain(|_, count| *count > 0);
        for (limit, judge) in self.judges.iter_mut().enumerate() {
            // No node may use a limit that is not yet in force.
            let Some(mut bound) = record.plan.limits.get(limit).copied() else {
                continue;
            };
            let followed = |plan: &&Plan| self.followers.contains_key(&plan.revision);
            for plan in self.counts.plans.iter().filter(followed) {
                if let Some(quota) = plan.limits.get(limit) {
                    bound.rate = bound.rate.max(quota.rate);
                    bound.burst = bound.burst.max(quota.burst);
                }
            }
            judge.change(self.now, bound);
        }
    }
}
