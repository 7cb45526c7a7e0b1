//! Entitled: what a grant must leave a member, checked at every grant.

use quell_core::time::Monotonic;
use quell_shares::member::Adopt;
use quell_shares::message::{Grant, Granted};
use quell_shares::plan::{Plan, Seat, Sizing};
use quell_shares::schedule::Schedule;

use super::World;
use crate::check::Violation;
use crate::node::Node;

impl World {
    /// L2: while there is one plan, and seats weigh no more than it says and none is counted with
    /// another weight or group as well, and all had time to follow, a grant leaves a member
    /// `min(its last rate, f)` after its lease, then f, then a tenth of it.
    pub(super) fn entitled(&mut self, node: usize, grant: &Grant, adopt: &Adopt) {
        let one = &self.nodes[node];
        let record = &self.store.record;
        let plan = &record.plan;
        let Some(seat) = record.seat(one.id) else {
            return;
        };
        let is_steady = !self.restored
            && record.plans().count() == 1
            && plan
                .sizes()
                .all(|(group, size)| record.weight_of(group) <= size.total_weight)
            && record.seats.iter().all(is_steady);
        if !is_steady {
            self.unsteady = self.now;
        }
        let lease = Node::period(plan.timing.lease);
        let current = grant.record == record.version && seat.incarnation == grant.incarnation;
        if !current || self.now <= self.unsteady + lease {
            return;
        }
        self.counts.judged[usize::from(plan.size.sizing == Sizing::Auto)] += 1;
        let local = one.clock.local(self.now);
        let each = grant.rights.iter().zip(&adopt.schedules);
        let wrong = each
            .filter_map(|(granted, one)| missing(plan, seat, granted, (local, &one.schedule)))
            .next();
        let wrong = wrong.map(|text| Violation {
            at: self.now,
            promise: "L2",
            text: format!("member {}: {text}", one.id.0),
        });
        self.blame(wrong);
    }
}

fn is_steady(seat: &Seat) -> bool {
    seat.former_weight == 0 && seat.former_groups.is_empty() && !seat.draining
}

fn missing(
    plan: &Plan,
    seat: &Seat,
    granted: &Granted,
    (now, schedule): (Monotonic, &Schedule),
) -> Option<String> {
    let limit = plan.limit(granted.limit)?;
    let (base, floor) = (plan.base(limit, seat), plan.floor(limit, seat));
    if granted.base.rate != base || granted.floor.rate != floor {
        return Some(format!(
            "is granted a base of {} and is due {base}, a floor of {} and is due {floor}",
            granted.base.rate, granted.floor.rate
        ));
    }
    let leases = granted.leases.iter().filter(|(_, lasts)| !lasts.is_zero());
    let lowest = leases.map(|(right, _)| right.rate).min().unwrap_or(0);
    let due = lowest.min(base);
    if granted.gap.rate < due {
        let gap = granted.gap.rate;
        return Some(format!(
            "is granted {gap} between lease and base, and is due {due}"
        ));
    }
    // After the base comes the floor, or less if the answer was so late that the base has ended.
    let ended = granted.gap.rate.min(floor);
    let steps = schedule.steps().iter().filter(|step| step.until > now);
    let rates: Vec<u64> = steps.map(|step| step.right.rate).collect();
    let has_base = rates.contains(&base);
    let mut until_base = rates.into_iter().take_while(|rate| *rate != base);
    let less = until_base.find(|rate| *rate < due && (has_base || *rate != ended));
    less.map(|rate| format!("is left with {rate} before its base, and is due {due}"))
}
