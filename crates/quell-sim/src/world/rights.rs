//! Rights: what nodes may use, checked at every change.

use quell_shares::generation;
use quell_shares::plan::{LimitId, MICRO, Plan, Quota};

use super::World;
use crate::check::{Judge, Violation};
use crate::node::Node;
use crate::setup::MILLI;

impl World {
    /// Records the plans in force, and drops those that no node follows.
    pub fn note_plan(&mut self) {
        let record = &self.store.record;
        let newest = record.revisions;
        for plan in record.current() {
            let revision = plan.revision;
            if self
                .counts
                .plans
                .iter()
                .all(|plan| plan.revision != revision)
            {
                self.counts.plans.push(plan.clone());
            }
            for limit in &plan.limits {
                if !self.judged.contains(&limit.id) {
                    self.judged.push(limit.id);
                    let members = self.setup.weights.len() + 1;
                    let judge = Judge::new(limit.quota, members, self.setup.drift);
                    self.judges.push(judge);
                }
            }
        }
        let nodes = &self.nodes;
        let older = &record.older;
        self.counts.plans.retain(|plan| {
            let followed = |node: &Node| {
                node.revision == plan.revision
                    || node.snapshot.revision == plan.revision
                    || node.member.revision() == plan.revision
            };
            record.current().any(|now| now.revision == plan.revision)
                || nodes.iter().any(followed)
                || older.iter().any(|old| old.revision == plan.revision)
                || plan.revision + 4 > newest
                || generation::of(plan.revision) < generation::of(newest)
        });
    }

    /// Takes the new curves of a node into the sums and checks S1.
    pub fn rights_changed(&mut self, node: usize) {
        self.count_follower(node);
        self.bounds();
        let mut curve = std::mem::take(&mut self.curve);
        for limit in 0..self.judges.len() {
            let id = self.judged[limit];
            self.nodes[node].curve(id, self.now, &mut curve);
            let whole = self.followed(self.nodes[node].revision, id);
            let judge = &mut self.judges[limit];
            judge.follow(self.now, node, &mut curve, whole);
            let wrong = judge.rates(self.now).or_else(|| judge.parts(self.now));
            self.blame(wrong);
        }
        self.curve = curve;
    }

    /// The rate of a limit by a plan.
    fn followed(&self, revision: u64, limit: LimitId) -> Option<u64> {
        let mut plans = self.counts.plans.iter();
        let plan = plans.find(|plan| plan.revision == revision)?;
        Some(plan.limit(limit)?.quota.rate)
    }

    /// If a promise was broken, writes into the trace what every node may use.
    pub(super) fn describe_rights(&mut self) {
        let Some(mut trace) = self.trace.take() else {
            return;
        };
        let mut curve = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for limit in 0..self.judges.len() {
                let id = self.judged[limit];
                node.curve(id, self.now, &mut curve);
                let mut text = format!("node {index} limit {} revision {}", id.0, node.revision);
                for (from, rate) in &curve {
                    let millis = (from - self.now) / MILLI;
                    text += &format!("; in {millis} ms {}/s", rate / MICRO);
                }
                trace.push(text);
            }
        }
        self.trace = Some(trace);
    }

    /// Checks a leader's view of each limit: all members together may use at most its line, and at least
    /// what its members have, by the plans that it knows; and the line is the limit once all follow it.
    pub(super) fn look(&mut self, chair: usize) {
        let chair = &self.chairs[chair];
        let local = chair.clock.local(self.now);
        let Some(ledger) = chair.core.leads(local) else {
            return;
        };
        let (view, record) = (ledger.view(local), ledger.record());
        let all_follow = view.applied == view.members.len() && !view.restored;
        let mut wrong = None;
        let mut curve = Vec::new();
        for limit in &view.limits {
            let (id, largest) = (limit.limit, record.largest_rate(limit.limit));
            let mut has = 0;
            for node in self
                .nodes
                .iter()
                .filter(|one| record.seat(one.id).is_some())
            {
                let is_known = |rate: u64| rate <= largest;
                if self.followed(node.revision, id).is_none_or(is_known) {
                    node.curve(id, self.now, &mut curve);
                    has += curve.first().map_or(0, |(_, rate)| *rate);
                }
            }
            let now = record.current().map(|plan| plan.whole(id).rate).max();
            let is_right = has <= limit.in_use
                && limit.in_use <= limit.most
                && (!all_follow || Some(limit.most) == now);
            if !is_right {
                let text = format!("the view of members that may use {has}: {limit:?}");
                wrong = Some(Violation {
                    at: self.now,
                    promise: "S1",
                    text,
                });
            }
        }
        self.blame(wrong);
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
            let id = self.judged[limit];
            let followed = |plan: &&Plan| self.followers.contains_key(&plan.revision);
            let plans = self.counts.plans.iter().filter(followed);
            let quotas = plans
                .chain([&record.plan])
                .filter_map(|plan| plan.limit(id));
            let bound = quotas.map(|limit| limit.quota).reduce(|one, other| Quota {
                rate: one.rate.max(other.rate),
                burst: one.burst.max(other.burst),
                ..one
            });
            // A limit that is gone keeps its bound until nobody holds any of it.
            if let Some(bound) = bound {
                judge.change(self.now, bound);
            }
        }
    }
}
