//! Mix: random faults of every kind, at random times.

use quell_shares::plan::{Fallback, MemberId, Sizing, Stage};

use crate::fault::{Change, Fault};
use crate::rng::Rng;
use crate::setup::{MILLI, SECOND};
use crate::world::{Event, World};

/// Fills the queue with random demand and random faults.
pub fn random(world: &mut World) {
    let mut rng = Rng::new(world.rng.number());
    let (from, to) = world.setup.faults;
    let (nodes, chairs) = (world.nodes.len(), world.chairs.len());
    demands(world, &mut rng, to);
    // About one fault every `every` nanoseconds: some seeds have many faults, some a single
    // one.
    let every = [4, 8, 15, 40][rng.index(4)] * SECOND;
    let mut at = from;
    while at < to {
        let fault = one(&mut rng, nodes, chairs);
        for (after, fault) in fault {
            world.at(at + after, Event::Fault(fault));
        }
        at += rng.between(every / 10, 2 * every);
    }
    if rng.chance(30) {
        restore(world, &mut rng, (from, to));
    }
    world.at(to, Event::Fault(Fault::Quiet));
}

/// A backup, and later a store that is restored from it. Its generation is raised before a leader is
/// elected, and a leader of before may hear of it late.
fn restore(world: &mut World, rng: &mut Rng, (from, to): (u64, u64)) {
    let backup = rng.between(from / 2, to - to / 5);
    let at = backup + rng.between(SECOND, to / 4);
    let bump = rng.chance(50);
    let word = at + rng.between(20 * SECOND, 120 * SECOND);
    if rng.chance(50) {
        for chair in 0..world.chairs.len() {
            let late = rng.between(0, 8 * SECOND);
            world.at(at - MILLI, Event::Fault(Fault::CutChair(chair, late)));
        }
    }
    for (at, fault) in [
        (backup, Fault::Backup),
        (at, Fault::Restore { bump }),
        (at, Fault::Raise),
        (word, Fault::NoStrangers),
    ] {
        world.at(at, Event::Fault(fault));
    }
}

/// Demand that changes: most demands are small, some exceed the whole limit.
fn demands(world: &mut World, rng: &mut Rng, to: u64) {
    for node in 0..world.nodes.len() {
        for limit in 0..world.setup.plan.limits.len() {
            let rate = world.setup.plan.limits[limit].quota.rate;
            let mut at = 0;
            while at < to {
                let want = match rng.index(4) {
                    0 => 0,
                    1 => rate / 20,
                    2 => rng.between(0, rate / 2),
                    _ => rng.between(rate / 2, 2 * rate),
                };
                world.at(at, Event::Fault(Fault::Demand(node, limit, want)));
                at += rng.between(5 * SECOND, 90 * SECOND);
            }
        }
    }
}

/// The nodes that a fault hits: usually one; in a large fleet sometimes a tenth of the nodes,
/// or all.
fn group(rng: &mut Rng, nodes: usize) -> Vec<usize> {
    let many = match rng.index(6) {
        0 if nodes > 8 => nodes / 10,
        1 if nodes > 8 => nodes,
        _ => 1,
    };
    let first = rng.index(nodes);
    (first..first + many.max(1))
        .map(|node| node % nodes)
        .collect()
}

fn one(rng: &mut Rng, nodes: usize, chairs: usize) -> Vec<(u64, Fault)> {
    let chair = rng.index(chairs);
    let short = rng.between(SECOND, 25 * SECOND);
    let down = rng.between(SECOND / 2, 80 * SECOND);
    match rng.index(32) {
        kind @ 0..=9 => {
            let group = group(rng, nodes);
            let mut faults = Vec::new();
            for node in group {
                // The nodes of a group fail within one second, and come back independently.
                let later = rng.between(0, SECOND);
                let back = down + rng.between(0, SECOND);
                faults.extend(of_node(kind, node, short, back).map(|(at, f)| (later + at, f)));
            }
            faults
        }
        10..=13 => partition(rng, nodes, chairs),
        14..=16 => vec![
            (0, Fault::KillChair(chair)),
            (down / 2, Fault::StartChair(chair)),
        ],
        17 | 18 => vec![(0, Fault::PauseChair(chair, short))],
        19 => vec![(0, Fault::StopChair(chair, short))],
        20 => vec![(0, Fault::CutChair(chair, short))],
        21 => vec![(0, Fault::HandOver)],
        22 => vec![(0, Fault::Revoke)],
        23 => vec![(0, Fault::Linger(rng.between(SECOND, 20 * SECOND)))],
        24 => vec![(0, Fault::StoreDown(short * 2))],
        25 | 26 => vec![(0, Fault::Change(change(rng)))],
        27 => vec![(0, Fault::Weigh(rng.index(nodes), small(rng, 1, 4)))],
        28 | 29 => rollout(rng, nodes, short),
        30 => vec![
            (0, Fault::Drain(rng.index(nodes))),
            (down, Fault::StartNode(rng.index(nodes))),
        ],
        _ => absence(rng, nodes, down),
    }
}

fn small(rng: &mut Rng, least: u64, most: u64) -> u32 {
    u32::try_from(rng.between(least, most)).unwrap_or(1)
}

/// A plan for one node, then for more, then for all or none.
fn rollout(rng: &mut Rng, nodes: usize, stage: u64) -> Vec<(u64, Fault)> {
    let one = MemberId(u32::try_from(rng.index(nodes)).unwrap_or(0));
    let part = u8::try_from(rng.between(1, 100)).unwrap_or(50);
    let end = if rng.chance(50) {
        Fault::Complete
    } else {
        Fault::TakeBack
    };
    vec![
        (0, Fault::RollOut(change(rng), Stage::Member(one))),
        (stage, Fault::Advance(Stage::Percent(part))),
        (2 * stage, end),
    ]
}

/// A node dies, and comes back after an orchestrator fenced it, or in other groups.
fn absence(rng: &mut Rng, nodes: usize, down: u64) -> Vec<(u64, Fault)> {
    let node = rng.index(nodes);
    let meanwhile = if rng.chance(50) {
        Fault::Fence(node)
    } else {
        Fault::Regroup(node)
    };
    vec![
        (0, Fault::KillNode(node)),
        (down / 2, meanwhile),
        (down, Fault::StartNode(node)),
    ]
}

/// The faults of one node, with their delay after the first fault of its group.
fn of_node(kind: usize, node: usize, short: u64, down: u64) -> impl Iterator<Item = (u64, Fault)> {
    let start = Some((down, Fault::StartNode(node)));
    let faults = match kind {
        0..=3 => [Some((0, Fault::KillNode(node))), start, None],
        4 | 5 => [Some((0, Fault::PauseNode(node, short))), None, None],
        6 => [Some((0, Fault::StallNode(node, short))), None, None],
        9 => [Some((0, Fault::StopNode(node, short))), None, None],
        7 => [Some((0, Fault::LeaveNode(node))), start, None],
        _ => [
            Some((0, Fault::KillNode(node))),
            Some((down / 2, Fault::Deregister(node))),
            start,
        ],
    };
    faults.into_iter().flatten()
}

fn change(rng: &mut Rng) -> Change {
    match rng.index(11) {
        0 if rng.chance(30) => Change::Cut(rng.between(1, 30)),
        0..=3 => Change::Rates(rng.between(100, 300)),
        4 | 5 => Change::Lease(rng.between(4, 20)),
        6 if rng.chance(30) => Change::Report([100, 250, 500, 1_000][rng.index(4)]),
        6 => Change::Hold(rng.between(0, 100)),
        7 => Change::Fallback([Fallback::Share, Fallback::Floor, Fallback::Deny][rng.index(3)]),
        8 => Change::Weight(rng.between(50, 200)),
        9 if rng.chance(70) => Change::ReturnSeats(Some(rng.between(0, 40))),
        9 => Change::ReturnSeats(None),
        _ if rng.chance(50) => Change::Limit,
        _ if rng.chance(60) => Change::Least(rng.between(1, 40)),
        _ if rng.chance(50) => Change::Seats(u32::try_from(rng.between(1, 4)).unwrap_or(1)),
        _ if rng.chance(40) => Change::FewerSeats(u32::try_from(rng.between(1, 6)).unwrap_or(1)),
        _ if rng.chance(40) => Change::NoLimit,
        _ => Change::Sizing([Sizing::Auto, Sizing::Fixed][rng.index(2)]),
    }
}

/// Cuts off some or all nodes, from one coordinator or all, in one direction or both.
fn partition(rng: &mut Rng, nodes: usize, chairs: usize) -> Vec<(u64, Fault)> {
    let lasts = rng.between(2 * SECOND, 90 * SECOND);
    let (up, down) = [(true, true), (true, true), (true, false), (false, true)][rng.index(4)];
    let all_chairs = rng.chance(60);
    let chair = rng.index(chairs);
    let share = [20, 50, 100][rng.index(3)];
    let mut cuts = Vec::new();
    for node in 0..nodes {
        if !rng.chance(share) {
            continue;
        }
        for other in 0..chairs {
            if all_chairs || other == chair {
                let cut = Fault::Cut {
                    node,
                    chair: other,
                    up,
                    down,
                    lasts,
                };
                cuts.push((0, cut));
            }
        }
    }
    cuts
}
