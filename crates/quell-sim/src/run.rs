//! Run: one seed, from its first event to its last check.

use quell_shares::apportion::{Claim, apportion};
use quell_shares::plan::MICRO;
use quell_shares::schedule::Bucket;

use crate::check::Violation;
use crate::fault::Counts;
use crate::mix;
use crate::node::{Node, rule_name};
use crate::rng::Rng;
use crate::schedules::{Schedule, expect};
use crate::setup::{SECOND, Setup, Wish};
use crate::world::World;
use crate::world::changes::has_seats;

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// The first violation, if any.
    pub violation: Option<Violation>,
    /// The faults that were injected.
    pub counts: Counts,
    /// Part (in thousandths) of their quotas that the members were allowed to use at the end of the quiet
    /// time; the mean over limits. Only for random runs in which every member has a seat.
    pub utilisation: Option<u64>,
    /// Events.
    pub steps: u64,
    /// Members times simulated nanoseconds.
    pub member_time: u64,
    /// Every event, if a trace was requested.
    pub trace: Vec<String>,
}

/// In quiet times a member may use at least this percentage of what it wants and is due.
const ENOUGH: u64 = 90;

/// In quiet times members may use at least this many thousandths of what they want and the limit
/// allows. Demand is counted in whole calls: two or three in a report seem to move all the time, so
/// up to a fifth more than is wanted, and a call, may be set aside for a member that wants so little.
const WORK_CONSERVED: u64 = 850;

/// Runs a seed, with random faults or by a schedule.
#[must_use]
pub fn run(wish: Wish, schedule: Option<&Schedule>, trace: bool) -> Outcome {
    let mut rng = Rng::new(wish.seed);
    let mut setup = Setup::new(wish, &mut rng);
    if let Some(schedule) = schedule {
        (schedule.prepare)(&mut setup);
    }
    let mut world = World::new(setup, rng);
    world.trace = trace.then(Vec::new);
    world.note_plan();
    for chair in 0..world.chairs.len() {
        world.start_chair(chair);
    }
    match schedule {
        None => {
            for node in 0..world.nodes.len() {
                world.start_node(node, true);
            }
            mix::random(&mut world);
            let end = world.setup.ends;
            world.run(end);
        }
        Some(schedule) => (schedule.play)(&mut world),
    }
    // If a plan could not be changed back, some member has no seat; the protocol allows that.
    let utilisation = if schedule.is_none() && has_seats(&world) {
        let used = settled(&mut world);
        alone(&mut world);
        used
    } else {
        None
    };
    let members = u64::try_from(world.nodes.len()).unwrap_or(0);
    Outcome {
        seed: wish.seed,
        violation: world.violation,
        utilisation,
        steps: world.steps,
        member_time: members * world.now,
        counts: world.counts,
        trace: world.trace.unwrap_or_default(),
    }
}

/// The nodes that share the limit of a rule, with their weights.
fn sharing(world: &World, rule: usize) -> Vec<(&Node, u32)> {
    let record = &world.store.record;
    let limit = record.plan.named(&rule_name(rule));
    let group = limit.and_then(|limit| limit.group.as_ref());
    let nodes = world.nodes.iter().filter_map(|node| {
        let seat = record.seat(node.id)?;
        seat.is_in(group).then_some((node, seat.weight))
    });
    nodes.collect()
}

fn weight_of(world: &World, rule: usize) -> u64 {
    let weights = sharing(world, rule).into_iter();
    weights
        .map(|(_, weight)| u64::from(weight))
        .sum::<u64>()
        .max(1)
}

/// Part of each member in a limit by weighted max-min, if the planned part of each is its demand with the
/// largest margin, a fifth, and a whole call.
fn fair_parts(world: &World, limit: usize, call: u64) -> Vec<u64> {
    let plan = &world.store.record.plan;
    let rate = plan
        .named(&rule_name(limit))
        .map_or(0, |limit| limit.quota.rate);
    let weights: u64 = world.nodes.iter().map(|n| u64::from(n.weight)).sum();
    let claim = |(node, weight): &(&Node, u32)| Claim {
        key: u64::from(node.id.0),
        weight: *weight,
        floor: rate / weights * u64::from(*weight) / 100,
        want: node.demand[limit] / 5 * 6 + call,
        last: 0,
    };
    let members = sharing(world, limit);
    let claims: Vec<Claim> = members.iter().map(claim).collect();
    let mut fair = Vec::new();
    apportion(rate, &claims, 0, &mut fair);
    fair
}

/// L1 and L2 after a quiet time: every member has its base and its fair part of what others leave, as
/// far as it wants them, and together they have what they can use.
pub fn settled(world: &mut World) -> Option<u64> {
    let mut worst = None;
    let mut mean = 0;
    let plan = world.store.record.plan.clone();
    let report = Node::period(plan.timing.report);
    let rounding = MICRO * SECOND / report.max(1);
    let mut judged = 0;
    for limit in 0..world.setup.plan.limits.len() {
        let Some(quota) = plan.named(&rule_name(limit)).map(|limit| limit.quota) else {
            continue;
        };
        judged += 1;
        let weights = weight_of(world, limit);
        let fair = fair_parts(world, limit, rounding);
        let (mut wanted, mut used) = (0, 0);
        for ((node, weight), fair) in sharing(world, limit).into_iter().zip(fair) {
            let local = node.clock.local(world.now);
            let may = node
                .bucket(limit)
                .map_or(0, |b| b.schedule().at(local).rate);
            let may = if node.alive { may } else { 0 };
            let want = node.demand[limit];
            wanted += want;
            used += may.min(want);
            let base = quota.rate / weights * u64::from(weight);
            let entitled = want.min(base);
            // Demand is counted in whole units; one in a report is within the rounding error.
            if may * 100 < entitled.saturating_sub(rounding) * ENOUGH {
                worst = Some(Violation {
                    at: world.now,
                    promise: "L2",
                    text: format!(
                        "member {} may use {}/s and is due {entitled}/s (in millionths)",
                        node.id.0, may
                    ),
                });
            }
            let fair = want.min(fair);
            if may * 100 < fair.saturating_sub(rounding) * ENOUGH {
                worst = Some(Violation {
                    at: world.now,
                    promise: "L1",
                    text: format!(
                        "member {} may use {may}/s, and its fair part is {fair}/s (in millionths): {}",
                        node.id.0,
                        describe(world, limit)
                    ),
                });
            }
        }
        let could = wanted.min(quota.rate).max(1);
        let part = used * 1_000 / could;
        mean += part;
        if part < WORK_CONSERVED && wanted > 0 {
            worst = Some(Violation {
                at: world.now,
                promise: "L1",
                text: format!(
                    "{part} in 1000 of what limit {limit} allows may be used: {}",
                    describe(world, limit)
                ),
            });
        }
    }
    if world.violation.is_none() {
        world.violation = worst;
    }
    Some(mean / judged.max(1))
}

/// Current quota of each member, by rule.
fn may(world: &World) -> Vec<Vec<u64>> {
    let rates = |node: &Node| {
        let local = node.clock.local(world.now);
        let rate = |bucket: &Bucket| bucket.schedule().at(local).rate;
        let rules = 0..node.demand.len();
        rules
            .map(|rule| node.bucket(rule).map_or(0, rate))
            .collect()
    };
    world.nodes.iter().map(rates).collect()
}

/// L2 and L3 after the quiet time, when every coordinator dies: at first every member keeps at least
/// the smaller of what it has and its static share, later it has its static share, and no member
/// stops admitting.
fn alone(world: &mut World) {
    if world.violation.is_some() {
        return;
    }
    for chair in &mut world.chairs {
        chair.alive = false;
    }
    // Wait until messages on their way have arrived.
    let start = world.now + SECOND;
    world.run(start);
    let before = may(world);
    let plan = world.store.record.plan.clone();
    let promise = u64::try_from(plan.timing.promise.as_nanos()).unwrap_or(0);
    let admitted: Vec<Vec<u64>> = world
        .nodes
        .iter()
        .map(|node| node.admitted.clone())
        .collect();
    // The static shares of fast clocks may have ended when those of slow clocks begin.
    let drift = world.setup.drift;
    let late = drift.longest(promise) + 3 * SECOND;
    let hold = u64::try_from(plan.timing.hold.as_nanos()).unwrap_or(0);
    // Check once while leases last, and once when static shares apply.
    for (at, is_static) in [(promise / 3, false), (late, true)] {
        world.run(start + at);
        if is_static && drift.shortest(hold) < late + 2 * SECOND {
            break;
        }
        for (node, had) in before.iter().enumerate() {
            let Some(seat) = world.store.record.seat(world.nodes[node].id).cloned() else {
                continue;
            };
            let has = may(world).swap_remove(node);
            for limit in 0..has.len() {
                let Some(of) = plan.named(&rule_name(limit)) else {
                    continue;
                };
                // If the members weigh more than the plan says, they keep what was left for them.
                let group = of.group.as_ref();
                let weight = world.store.record.weight_of(group);
                let fits = plan
                    .size_of_group(group)
                    .is_some_and(|s| weight <= s.total_weight);
                let base = if fits { plan.base(of, &seat) } else { 0 };
                let due = if is_static {
                    base
                } else {
                    had[limit].min(base)
                };
                if has[limit] < due {
                    let text = format!(
                        "without coordinators member {node} has {} and is due {due}",
                        has[limit]
                    );
                    expect(world, "L3", false, text);
                }
            }
        }
    }
    admits_still(world, &admitted);
}

/// L3: every member that wants something and may use it goes on admitting, unless a cut left the seats less
/// than a call each.
fn admits_still(world: &mut World, admitted: &[Vec<u64>]) {
    for (node, before) in admitted.iter().enumerate() {
        for (limit, before) in before.iter().enumerate() {
            let one = &world.nodes[node];
            let local = one.clock.local(world.now);
            let bucket = one.bucket(limit);
            let rate = bucket.map_or(0, |bucket| bucket.schedule().at(local).rate);
            let plan = world.store.record.plan.named(&rule_name(limit));
            let has_call = plan.is_some_and(|limit| limit.quota.least_burst >= MICRO);
            // Two units a second, wanted and allowed, mean some admissions in ten seconds.
            let some = has_call && rate.min(one.demand[limit]) > 2 * MICRO;
            let text = format!("without coordinators member {node} admits nothing");
            let admits = !some || one.admitted[limit] > *before;
            expect(world, "L3", admits, text);
        }
    }
}

/// The rate, then each member's weight, demand and right.
fn describe(world: &World, limit: usize) -> String {
    let mut text = format!(
        "{}/s",
        world
            .store
            .record
            .plan
            .named(&rule_name(limit))
            .map_or(0, |limit| limit.quota.rate / 1_000_000)
    );
    for node in &world.nodes {
        let local = node.clock.local(world.now);
        let may = node
            .bucket(limit)
            .map_or(0, |b| b.schedule().at(local).rate);
        let want = node.demand[limit] / 1_000_000;
        text += &format!(
            "; weight {} wants {want} has {}",
            node.weight,
            may / 1_000_000
        );
    }
    text
}
