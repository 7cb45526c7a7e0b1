//! Utilisation: the part of a limit that a fleet admits while its nodes are offered twice as much.
//!
//! Ten equal nodes share 1,000,000/s. Each is offered 65 % of what the next busier one is, so half of
//! them want more than they get, and half want less. Then demand stays where it is, or moves to
//! other nodes. What the fleet does not admit was planned for nodes that do not use it: as a margin,
//! for idle nodes, or for a lull that no report has shown yet.

use std::time::Duration;

use quell_shares::plan::{Fallback, Limit, MICRO, Quota, Sizing};
use serde_json::{Value, json};

use crate::node::rule_name;
use crate::rng::Rng;
use crate::setup::{DRIFT, MILLI, SECOND, Setup, Wish, timing};
use crate::stories::running;
use crate::world::World;

const NODES: usize = 10;

/// Units per second.
const LIMIT: u64 = 1_000_000;

/// Time for which one fleet is measured.
const LASTS: u64 = 60 * SECOND;

/// Number of fleets over which a skew is measured.
const FLEETS: u64 = 10;

/// Interval at which the demand moves, and that at which members report.
#[derive(Clone, Copy, Debug)]
pub struct Skew {
    /// Seconds between moves; `None` if it stays.
    pub moves: Option<u64>,
    /// T, in milliseconds.
    pub report: u64,
}

/// Skews that are shown: those that have a target, then how T changes them.
const SHOWN: [Skew; 7] = [
    skew(None, 500),
    skew(Some(10), 500),
    skew(Some(10), 1_000),
    skew(Some(10), 100),
    skew(Some(2), 500),
    skew(Some(2), 250),
    skew(Some(2), 100),
];

const fn skew(moves: Option<u64>, report: u64) -> Skew {
    Skew { moves, report }
}

/// The part of the limit that is admitted, in ten-thousandths: the mean over several fleets.
///
/// # Panics
/// If a promise is broken.
#[must_use]
pub fn admitted(skew: Skew) -> u64 {
    (1..=FLEETS).map(|seed| of_fleet(seed, skew)).sum::<u64>() / FLEETS
}

fn of_fleet(seed: u64, skew: Skew) -> u64 {
    let mut world = ten(seed, skew);
    for node in 0..NODES {
        world.start_node(node, true);
    }
    offer(&mut world);
    world.quiet = true;
    world.run(20 * SECOND);
    let (start, before) = (world.now, total(&mut world));
    let every = skew.moves.map_or(LASTS, |seconds| seconds * SECOND);
    while world.now < start + LASTS && world.violation.is_none() {
        let end = world.now + every;
        world.run(end);
        total(&mut world);
        offer(&mut world);
    }
    let units = total(&mut world) - before;
    assert!(world.violation.is_none(), "{:?}", world.violation);
    units * 10_000 / (LIMIT * ((world.now - start) / SECOND))
}

/// Units admitted so far, by callers up to now.
fn total(world: &mut World) -> u64 {
    for node in 0..NODES {
        world.serve(node);
    }
    world.nodes.iter().map(|node| node.admitted[0]).sum()
}

/// Offers twice the limit, by a random order of the nodes.
fn offer(world: &mut World) {
    let mut parts = [1_000_000_000_u64; NODES];
    for busier in 1..NODES {
        parts[busier] = parts[busier - 1] / 100 * 65;
    }
    let whole: u64 = parts.iter().sum();
    let mut nodes: Vec<usize> = (0..NODES).collect();
    for part in parts {
        let node = nodes.swap_remove(world.rng.index(nodes.len()));
        world.nodes[node].demand[0] = 2 * LIMIT * part / whole * MICRO;
    }
}

fn ten(seed: u64, skew: Skew) -> World {
    let wish = Wish {
        seed,
        members: Some(NODES),
        limits: Some(1),
        seconds: 500,
        drift: DRIFT,
    };
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(wish, &mut rng);
    setup.weights = vec![1; NODES];
    setup.coordinators = 2;
    setup.loss = 0;
    setup.slow = false;
    setup.begins_with = 1;
    let quota = Quota {
        rate: LIMIT * MICRO,
        burst: LIMIT * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    };
    setup.plan.limits = vec![Limit::new(rule_name(0), quota)];
    setup.plan.size.total_weight = 10;
    setup.plan.size.seats = 10;
    setup.plan.size.sizing = Sizing::Fixed;
    let (lease, hold) = (Duration::from_secs(10), Duration::from_secs(300));
    let report = Duration::from_nanos(skew.report * MILLI);
    setup.plan.timing = timing(setup.drift, report, lease, hold);
    running(setup, rng)
}

/// Each skew with what is admitted, as text for a person.
#[must_use]
pub fn text() -> String {
    let mut text = String::from(
        "ten nodes, 1,000,000/s, offered 2,000,000/s; admitted of the limit, T, demand:\n",
    );
    for skew in SHOWN {
        let part = admitted(skew);
        let moves = skew
            .moves
            .map_or_else(|| "stays".to_owned(), |s| format!("moves every {s} s"));
        text += &format!(
            "  {:>3}.{:02} %  {:>4} ms  {moves}\n",
            part / 100,
            part % 100,
            skew.report
        );
    }
    text
}

/// The same as JSON for a program.
#[must_use]
pub fn json() -> Value {
    let one = |skew: &Skew| {
        json!({
            "moves_every_s": skew.moves,
            "report_ms": skew.report,
            "admitted_per_ten_thousand": admitted(*skew),
        })
    };
    SHOWN.iter().map(one).collect()
}
