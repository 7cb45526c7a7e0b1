//! Entitled: what a grant must leave a member, checked at every grant.

use quell_core::time::Monotonic;
use quell_shares::member::Adopt;
use quell_shares::message::{Grant, Granted};
use quell_shares::plan::{Plan, Seat};
use quell_shares::schedule::Schedule;

use super::World;
use crate::check::Violation;

impl World {
    /// L2: while there is one plan, and seats weigh no more than it says, a grant leaves a member
    /// at least `min(its last rate, f)` after its lease, then f, then a tenth of it.
    pub(super) fn entitled(&mut self, node: usize, grant: &Grant, adopt: &Adopt) {
        let one = &self.nodes[node];
        let record = &self.store.record;
        let plan = &record.plan;
        let Some(seat) = record.seat(one.id) else {
            return;
        };
        let settled = !self.restored
            && self.counts.plans.len() == 1
            && record.weight_of(None) <= plan.size.total_weight
            && seat.incarnation == grant.incarnation
            && !seat.draining;
        if !settled {
            return;
        }
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
    // After the base comes the floor, or less if the answer was so late that the base has ended.
    let ended = granted.gap.rate.min(floor);
    let steps = schedule.steps().iter().filter(|step| step.until > now);
    let mut until_base = steps.scan(false, |after, step| {
        let over = *after;
        *after |= step.right.rate == base;
        (!over).then_some(step.right.rate)
    });
    let less = until_base.find(|rate| *rate < due && *rate != ended);
    less.map(|rate| format!("is left with {rate} before its base, and is due {due}"))
}
