//! Stories: how a small fleet reacts to a change, in numbers.
//!
//! Four equal nodes share 1000/s; no message is lost, and none takes longer than 10 ms.

use std::time::Duration;

use quell_shares::plan::{MICRO, Timing};
use serde_json::{Value, json};

use crate::fault::Fault;
use crate::rng::Rng;
use crate::schedules::{SCHEDULES, Schedule, begin, may};
use crate::setup::{DRIFT, MILLI, REPORT, SECOND, Setup, Wish, timing};
use crate::world::World;

/// Number of starts over which the lag is measured.
const LAGS: u64 = 100;

/// Number of fleets over which utilisation is measured, five minutes each.
const FLEETS: u64 = 10;

pub(crate) fn fleet(seed: u64) -> World {
    fleet_reporting(seed, REPORT)
}

fn fleet_reporting(seed: u64, report: Duration) -> World {
    let wish = Wish {
        seed,
        members: Some(4),
        limits: Some(1),
        seconds: 500,
        drift: DRIFT,
    };
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(wish, &mut rng);
    let four = |schedule: &&Schedule| schedule.name == "leader-dies";
    if let Some(schedule) = SCHEDULES.iter().find(four) {
        (schedule.prepare)(&mut setup);
    }
    let Timing { lease, hold, .. } = setup.plan.timing;
    setup.plan.timing = timing(setup.drift, report, lease, hold);
    running(setup, rng)
}

/// A world whose coordinators run.
pub(crate) fn running(setup: Setup, rng: Rng) -> World {
    let mut world = World::new(setup, rng);
    world.note_plan();
    for chair in 0..world.chairs.len() {
        world.start_chair(chair);
    }
    world
}

/// Seconds after a fault, and the rate that a member may use at that time.
type Rates = Vec<(u64, u64)>;

/// Reactions of the fleet to each change.
#[derive(Clone, Debug)]
pub struct Stories {
    /// The [`lags`] at the default report period.
    pub lag: (u64, u64, u64),
    /// Part (in thousandths) of the demand within the limit that members may use while demand moves, on
    /// average.
    pub moving: u64,
    /// Quota of the busy member, by seconds after the leader's death.
    pub leader: Rates,
    /// Quota of a borrower, by seconds after an idle member's death.
    pub member: Rates,
    /// The same after the death of both at once.
    pub both: Rates,
}

/// Measures all of them.
#[must_use]
pub fn stories() -> Stories {
    let kill_leader = |world: &mut World| {
        let leader = world.store.leader(world.now).unwrap_or(0);
        world.inject(Fault::KillChair(leader));
    };
    Stories {
        lag: lags(REPORT),
        moving: (1..=FLEETS).map(moving).sum::<u64>() / FLEETS,
        leader: after(kill_leader),
        member: after(|world| world.inject(Fault::KillNode(3))),
        both: after(|world| {
            kill_leader(world);
            world.inject(Fault::KillNode(3));
        }),
    }
}

/// Milliseconds until a member that wants more has nine tenths of it, over several starts: the
/// median, the 90th percentile and the longest.
#[must_use]
pub fn lags(report: Duration) -> (u64, u64, u64) {
    let mut lags: Vec<u64> = (1..=LAGS).map(|seed| lag(seed, report)).collect();
    lags.sort_unstable();
    let last = lags.len() - 1;
    (lags[last / 2 + 1], lags[lags.len() / 10 * 9], lags[last])
}

/// A fleet in which one member borrows. Messages are no longer late, so the leader stays the same.
fn settled(seed: u64, report: Duration) -> World {
    let mut world = fleet_reporting(seed, report);
    begin(&mut world);
    world.quiet = true;
    let end = world.now + 10 * SECOND;
    world.run(end);
    world
}

fn lag(seed: u64, report: Duration) -> u64 {
    let mut world = settled(seed, report);
    // A random instant between two reports.
    let end = world.now + world.rng.between(0, SECOND);
    world.run(end);
    let start = world.now;
    for node in 0..2 {
        world.serve(node);
    }
    world.nodes[0].demand[0] = 0;
    world.nodes[1].demand[0] = 800 * MICRO;
    while may(&world, 1) < 720 && world.now < start + 30 * SECOND {
        let end = world.now + 10 * MILLI;
        world.run(end);
    }
    (world.now - start) / MILLI
}

/// The part of what members want and the limit allows that they may use, while demand changes every
/// 5 to 90 seconds.
fn moving(seed: u64) -> u64 {
    let mut world = settled(seed, REPORT);
    let mut changes = [world.now; 4];
    let (mut used, mut could) = (0, 0);
    for _ in 0..3_000 {
        for (node, change) in changes.iter_mut().enumerate() {
            if *change <= world.now {
                let want = [0, 50, 250, 500, 900, 1_500][world.rng.index(6)];
                world.nodes[node].demand[0] = want * MICRO;
                *change = world.now + world.rng.between(5 * SECOND, 90 * SECOND);
            }
        }
        let end = world.now + 100 * MILLI;
        world.run(end);
        let wants = world.nodes.iter().map(|node| node.demand[0] / MICRO);
        could += wants.clone().sum::<u64>().min(1_000);
        let uses = wants
            .enumerate()
            .map(|(node, want)| want.min(may(&world, node)));
        used += uses.sum::<u64>();
    }
    used * 1_000 / could.max(1)
}

fn after(fault: impl Fn(&mut World)) -> Rates {
    let mut world = fleet(1);
    begin(&mut world);
    let start = world.now;
    fault(&mut world);
    let mut rates = Vec::new();
    for seconds in [0, 2, 5, 8, 10, 12, 15, 20, 30, 60] {
        world.run(start + seconds * SECOND);
        rates.push((seconds, may(&world, 0)));
    }
    rates
}

impl Stories {
    fn deaths(&self) -> [(&'static str, &'static str, &Rates); 3] {
        [
            ("after_leader_death", "the leader's death", &self.leader),
            ("after_member_death", "an idle member's death", &self.member),
            ("after_both_deaths", "the death of both", &self.both),
        ]
    }

    /// As text for a person.
    #[must_use]
    pub fn text(&self) -> String {
        let (median, most, longest) = self.lag;
        let mut text = format!(
            "four nodes, 1000/s:\n  rebalance lag, until 90 % of the demand is granted: median {median} ms, \
             nine of ten {most} ms, longest {longest} ms\n  \
             used of what could be, while demand moves: {}.{} %\n",
            self.moving / 10,
            self.moving % 10,
        );
        for (_, title, rates) in self.deaths() {
            let one = |(seconds, rate): &(u64, u64)| format!("{seconds} s: {rate}");
            let rates = rates.iter().map(one).collect::<Vec<_>>().join(", ");
            text += &format!("  rate of a borrower after {title}: {rates}\n");
        }
        text
    }

    /// As JSON for a program.
    #[must_use]
    pub fn json(&self) -> Value {
        let (median, most, longest) = self.lag;
        let mut object = json!({
            "rebalance_lag_ms": {"median": median, "nine_of_ten": most, "longest": longest},
            "utilisation_while_demand_moves_permille": self.moving,
        });
        for (name, _, rates) in self.deaths() {
            let one =
                |(seconds, rate): &(u64, u64)| json!({"after_s": seconds, "rate_per_s": rate});
            object[name] = rates.iter().map(one).collect();
        }
        object
    }
}
