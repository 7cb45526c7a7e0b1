//! Run: one seed from its first event to its last check.

use quell_core::fleet::apportion::{Claim, apportion};

use crate::check::Violation;
use crate::fault::Counts;
use crate::mix;
use crate::rng::Rng;
use crate::schedules::Schedule;
use crate::setup::{Setup, Wish};
use crate::world::World;

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which seed.
    pub seed: u64,
    /// What was broken first, if anything.
    pub violation: Option<Violation>,
    /// What was injected.
    pub counts: Counts,
    /// Parts in a thousand of what could have been used that members were allowed to use, at the end
    /// of the quiet time; the mean over limits.
    pub utilisation: u64,
    /// Events.
    pub steps: u64,
    /// Members times simulated nanoseconds.
    pub member_time: u64,
    /// Every event, when asked for.
    pub trace: Vec<String>,
}

/// Of what it wants and is due, a member has at least so many percent when all is quiet.
const ENOUGH: u64 = 90;

/// Of what all want and the limit allows, members may use at least so many parts in a thousand. A
/// fifth more than is wanted is set aside for those who want little, so this can fall to 800 where
/// one wants much and many want a little.
const WORK_CONSERVED: u64 = 780;

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
    let utilisation = if schedule.is_none() {
        let used = settled(&mut world);
        used.unwrap_or(0)
    } else {
        0
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

/// L1 and L2 after a quiet time: everybody has what it is due, and all together what they can use.
pub fn settled(world: &mut World) -> Option<u64> {
    let mut worst = None;
    let mut mean = 0;
    let limits = world.store.record.plan.limits.clone();
    for (limit, quota) in limits.iter().enumerate() {
        let mut claims = Vec::new();
        for node in &world.nodes {
            claims.push(Claim {
                key: u64::from(node.id.0),
                weight: node.weight,
                floor: 0,
                want: node.demand[limit],
                last: 0,
            });
        }
        let mut due = Vec::new();
        apportion(quota.rate, &claims, 0, &mut due);
        let weights: u64 = claims.iter().map(|c| u64::from(c.weight)).sum();
        let (mut wanted, mut used) = (0, 0);
        for node in &world.nodes {
            let local = node.clock.local(world.now);
            let may = node
                .buckets
                .get(limit)
                .map_or(0, |b| b.schedule().at(local).rate);
            let may = if node.alive { may } else { 0 };
            let want = node.demand[limit];
            wanted += want;
            used += may.min(want);
            let base = quota.rate / weights * u64::from(node.weight);
            let entitled = want.min(base);
            // Demand is counted in whole units; two per second are within what that rounds.
            if may * 100 < entitled.saturating_sub(2_000_000) * ENOUGH {
                worst = Some(Violation {
                    at: world.now,
                    promise: "L2",
                    text: format!(
                        "member {} may use {}/s and is due {entitled}/s (in millionths)",
                        node.id.0, may
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
    Some(mean / u64::try_from(limits.len().max(1)).unwrap_or(1))
}

/// Rate, then for each member its weight, what it wants and what it may use.
fn describe(world: &World, limit: usize) -> String {
    let mut text = format!(
        "{}/s",
        world.store.record.plan.limits[limit].rate / 1_000_000
    );
    for node in &world.nodes {
        let local = node.clock.local(world.now);
        let may = node
            .buckets
            .get(limit)
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
