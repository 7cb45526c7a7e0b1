//! Changes of the plan that the console makes.

use std::time::Duration;

use quell_shares::plan::{Limit, MICRO, Plan, ReturnSeats, Timing};

use super::World;
use crate::fault::Change;
use crate::setup::timing;

/// The plan in force with a change, if that can be used.
pub(super) fn changed_plan(world: &mut World, change: Change) -> Option<Plan> {
    let mut plan = world.store.record.plan.clone();
    let first = &world.setup.plan.limits;
    let weights: u64 = world.setup.weights.iter().copied().map(u64::from).sum();
    let members = u32::try_from(world.setup.weights.len()).unwrap_or(u32::MAX);
    match change {
        Change::Rates(percent) => set_rates(&mut plan, first, percent),
        Change::Cut(units) => {
            for limit in &mut plan.limits {
                let quota = &mut limit.quota;
                (quota.rate, quota.burst, quota.least_burst) =
                    (units * MICRO, units * MICRO, MICRO);
            }
        }
        Change::Lease(seconds) => {
            let lease = Duration::from_secs(seconds);
            let Timing { report, hold, .. } = plan.timing;
            plan.timing = timing(world.setup.drift, report, lease, hold);
        }
        Change::Report(millis) => {
            let Timing { lease, hold, .. } = plan.timing;
            let report = Duration::from_millis(millis);
            plan.timing = timing(world.setup.drift, report, lease, hold);
        }
        Change::Hold(seconds) => {
            plan.timing.hold = Duration::from_secs(seconds).max(plan.timing.promise);
        }
        Change::Fallback(fallback) => {
            for limit in &mut plan.limits {
                limit.quota.fallback = fallback;
            }
        }
        Change::Weight(percent) => plan.size.total_weight = (weights * percent / 100).max(1),
        Change::Least(units) => {
            for limit in &mut plan.limits {
                limit.quota.least_burst = units * MICRO;
            }
        }
        Change::Seats(more) => plan.size.seats = members + more,
        Change::FewerSeats(seats) => plan.size.seats = seats,
        Change::NoLimit => {
            if plan.limits.len() > 1 && plan.limits.pop().is_some() {
                world.counts.limits_removed += 1;
            }
        }
        Change::Sizing(sizing) => plan.size.sizing = sizing,
        Change::ReturnSeats(None) => plan.return_seats = ReturnSeats::Never,
        Change::ReturnSeats(Some(seconds)) => {
            plan.return_seats = ReturnSeats::After(Duration::from_secs(seconds));
        }
        Change::Limit => {
            let missing = |limit: &&Limit| plan.named(&limit.name).is_none();
            let limit = first.iter().find(missing)?;
            world.counts.limits_added += 1;
            plan.limits.push(limit.clone());
        }
    }
    let drift = world.setup.drift;
    // Members whose parts are small may admit nothing, which is no fault: only cuts make them so.
    let is_useful = match change {
        Change::Rates(_)
        | Change::Least(_)
        | Change::Report(_)
        | Change::Seats(_)
        | Change::FewerSeats(_) => plan.check_after(None, drift).is_ok(),
        _ => plan.check(drift).is_ok(),
    };
    is_useful.then_some(plan)
}

/// Sets rates and bursts to a percentage of their first values.
fn set_rates(plan: &mut Plan, first: &[Limit], percent: u64) {
    for limit in &mut plan.limits {
        let Some(first) = first.iter().find(|first| first.name == limit.name) else {
            continue;
        };
        let first = &first.quota;
        limit.quota.rate = first.rate / 100 * percent;
        let burst = first.burst + first.rate / 100 * percent;
        limit.quota.burst = burst.saturating_sub(first.rate);
    }
}

/// Returns true if the plan has a seat for every node.
pub(crate) fn has_seats(world: &World) -> bool {
    usize::try_from(world.store.record.plan.size.seats)
        .is_ok_and(|seats| seats >= world.nodes.len())
}
