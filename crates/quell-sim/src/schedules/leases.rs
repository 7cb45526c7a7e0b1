//! Schedules about grants, pushes and their timing.

use super::{at_least, begin, cut, leader, may, pass, serve_all, to_and_fro, want, want_all};
use crate::fault::{Change, Fault};
use crate::setup::{MILLI, SECOND};
use crate::world::World;

pub(super) fn reply_lost(world: &mut World) {
    begin(world);
    at_least(world, "L1", 0, 850);
    for lost in [500, 3_000, 9_000, 11_000, 14_000] {
        want(world, 1, 900);
        cut(world, 0, false, true, lost);
        pass(world, lost + 8_000);
        want(world, 1, 0);
        pass(world, 8_000);
    }
}

pub(super) fn older_grant(world: &mut World) {
    begin(world);
    for late in [1_000, 2_000, 5_000, 8_000] {
        world.slow_next = Some((0, late * MILLI));
        pass(world, 400);
        want(world, 1, 2_000);
        pass(world, 15_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

pub(super) fn late_grant(world: &mut World) {
    begin(world);
    for late in [6_000, 9_990, 10_500, 12_000, 25_000] {
        world.slow_next = Some((0, late * MILLI));
        pass(world, 600);
        cut(world, 0, true, false, late + 2_000);
        want(world, 1, 2_000);
        pass(world, late + 20_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

pub(super) fn answered_then_cut(world: &mut World) {
    begin(world);
    let before = may(world, 0);
    cut(world, 0, true, true, 60_000);
    pass(world, 5_000);
    at_least(world, "L2", 0, before.min(250));
    want(world, 1, 2_000);
    pass(world, 15_000);
    at_least(world, "L2", 0, 250);
    at_least(world, "L1", 1, 600);
    pass(world, 60_000);
    at_least(world, "L1", 1, 400);
}

pub(super) fn all_cut(world: &mut World) {
    begin(world);
    for node in 0..4 {
        cut(world, node, true, true, 120_000);
    }
    pass(world, 5_000);
    at_least(world, "L2", 0, 250);
    pass(world, 15_000);
    for node in 0..4 {
        want(world, node, 2_000);
        at_least(world, "L2", node, 250);
    }
    pass(world, 90_000);
    for node in 0..4 {
        at_least(world, "L3", node, 250);
    }
    pass(world, 40_000);
}

pub(super) fn half_cut(world: &mut World) {
    begin(world);
    cut(world, 0, true, true, 40_000);
    cut(world, 3, true, true, 40_000);
    want(world, 1, 2_000);
    pass(world, 30_000);
    at_least(world, "L2", 0, 250);
    at_least(world, "L2", 3, 250);
    at_least(world, "L1", 1, 400);
    pass(world, 20_000);
    cut(world, 1, true, false, 30_000);
    cut(world, 2, false, true, 30_000);
    want(world, 2, 2_000);
    pass(world, 60_000);
}

pub(super) fn rates(world: &mut World) {
    begin(world);
    for percent in [200, 100, 300, 100, 150, 100] {
        world.inject(Fault::Change(Change::Rates(percent)));
        want(world, 1, if percent == 100 { 0 } else { 3_000 });
        cut(world, 2, true, true, 6_000);
        pass(world, 4_000);
    }
    pass(world, 20_000);
    at_least(world, "L1", 0, 700);
}

pub(super) fn lowered(world: &mut World) {
    begin(world);
    world.inject(Fault::Change(Change::Weight(60)));
    pass(world, 5_000);
    world.inject(Fault::Change(Change::Rates(300)));
    pass(world, 5_000);
    cut(world, 3, true, true, 20_000);
    world.inject(Fault::Change(Change::Rates(100)));
    for _ in 0..50 {
        pass(world, 100);
        // Members that can be reached keep their part of the limit meanwhile.
        at_least(world, "L2", 0, 300);
    }
    pass(world, 40_000);
    at_least(world, "L1", 0, 700);
}

pub(super) fn lease_shortened(world: &mut World) {
    begin(world);
    for seconds in [20, 4, 15, 5] {
        world.inject(Fault::Change(Change::Lease(seconds)));
        pass(world, 6_000);
        cut(world, 0, true, true, 30_000);
        want(world, 1, 2_000);
        pass(world, 3_000);
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        pass(world, 25_000);
        world.inject(Fault::StartChair(chair));
        want(world, 1, 0);
        pass(world, 15_000);
    }
}

pub(super) fn lease_shortened_silent(world: &mut World) {
    begin(world);
    for silent in [2_000, 2_500, 4_000, 6_000] {
        world.inject(Fault::Change(Change::Lease(20)));
        pass(world, 8_000);
        // Their bases begin before leases that are granted from now on end.
        for node in [2, 3] {
            cut(world, node, true, true, 40_000);
        }
        pass(world, silent);
        want(world, 1, 400);
        pass(world, 3_000);
        cut(world, 0, true, true, 30_000);
        world.inject(Fault::Change(Change::Lease(4)));
        pass(world, 45_000);
        want(world, 1, 0);
        pass(world, 20_000);
    }
}

pub(super) fn suspend(world: &mut World) {
    begin(world);
    for fault in [
        Fault::PauseNode(0, 40 * SECOND),
        Fault::StallNode(0, 40 * SECOND),
    ] {
        world.inject(fault);
        want(world, 1, 2_000);
        pass(world, 60_000);
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

pub(super) fn push_late(world: &mut World) {
    begin(world);
    for late in [2_000, 5_000, 8_000, 9_500] {
        world.slow_pushes = late * MILLI;
        want(world, 1, 2_000);
        pass(world, 1_100);
        cut(world, 0, true, false, 15_000);
        pass(world, 600);
        cut(world, 1, true, false, 15_000);
        want(world, 2, 2_000);
        pass(world, 22_000);
        world.slow_pushes = 0;
        want(world, 1, 0);
        want(world, 2, 0);
        pass(world, 6_000);
    }
}

pub(super) fn push_past_lease(world: &mut World) {
    begin(world);
    for late in [8_500, 9_500, 10_200, 11_000] {
        // Both want everything, so each has half; then the first wants nothing and receives a push.
        want(world, 1, 2_000);
        pass(world, 10_000);
        world.slow_pushes = late * MILLI;
        want(world, 0, 0);
        cut(world, 0, false, true, 0);
        pass(world, 700);
        want(world, 2, 2_000);
        pass(world, 300);
        cut(world, 0, false, true, late + 4_000);
        pass(world, late + 1_000);
        world.slow_pushes = 0;
        pass(world, 12_000);
        want(world, 0, 2_000);
        want(world, 1, 0);
        want(world, 2, 0);
        pass(world, 10_000);
    }
}

pub(super) fn small_bursts(world: &mut World) {
    begin(world);
    for _ in 0..12 {
        to_and_fro(world, 1, 4_000);
        // One member borrows and the others have full buckets; now all callers come at once.
        want_all(world, 0..4, 2_000);
        serve_all(world, 0..4);
        pass(world, 500);
        want_all(world, 0..4, 300);
        pass(world, 3_000);
    }
}

pub(super) fn late_beyond_hold(world: &mut World) {
    begin(world);
    for late in [22_000, 25_000] {
        world.slow_next = Some((0, late * MILLI));
        pass(world, 600);
        cut(world, 0, true, true, late + 20_000);
        want(world, 1, 2_000);
        pass(world, late + 40_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

pub(super) fn floor_before_promise(world: &mut World) {
    begin(world);
    for late in [14_000, 15_000, 16_000] {
        // The next leader receives one report of the third node before any newer one.
        world.double_reports = late * MILLI;
        pass(world, 600);
        world.double_reports = 0;
        cut(world, 2, true, false, late + 10_000);
        pass(world, late - 2_500);
        // The borrower is silent from now on. Of the other members the next leader at first knows
        // only that their bases may begin: there is no room left, not even for a floor.
        cut(world, 0, true, true, 20_000);
        for node in [1, 3] {
            cut(world, node, true, true, 4_000);
        }
        world.inject(Fault::HandOver);
        for _ in 0..400 {
            pass(world, 10);
            if may(world, 2) == 0 {
                break;
            }
        }
        // The member acknowledges the answer, and receives nothing more.
        cut(world, 2, true, false, 0);
        cut(world, 2, false, true, 20_000);
        want(world, 1, 2_000);
        pass(world, 40_000);
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

pub(super) fn larger_calls(world: &mut World) {
    begin(world);
    // The borrower keeps its bucket and its plan; the others may save up for larger calls.
    want(world, 0, 0);
    cut(world, 0, true, true, 30_000);
    world.inject(Fault::Change(Change::Least(200)));
    pass(world, 8_500);
    want_all(world, 0..4, 5_000);
    serve_all(world, 0..4);
    pass(world, 30_000);
    want_all(world, 0..4, 0);
    pass(world, 20_000);
}

pub(super) fn long_sleep(world: &mut World) {
    begin(world);
    for round in 0..3 {
        // Every member has its base, saves up and spends all of it.
        for node in 0..4 {
            want(world, node, if node == 3 { 400 } else { 130 });
        }
        pass(world, 20_000);
        want_all(world, 0..4, 0);
        pass(world, 80_000);
        want_all(world, 0..4, 8_000);
        pass(world, 20_000);
        want(world, 3, 0);
        pass(world, 4_000);
        world.inject(Fault::PauseNode(3, (24 + round) * SECOND));
        want(world, 3, 2_000);
        pass(world, 40_000);
    }
}

pub(super) fn rebalance(world: &mut World) {
    begin(world);
    // Messages are no longer late, so no member changes leaders.
    world.quiet = true;
    pass(world, 10_000);
    for round in 0..10 {
        let (from, to) = (round % 2, 1 - round % 2);
        want(world, from, 0);
        want(world, to, 800);
        pass(world, 3 * 500 + 4 * 20);
        at_least(world, "L1", to, 720);
        want(world, to, 2_000);
        pass(world, 5_000 + u64::try_from(round).unwrap_or(0) * 77);
    }
}

pub(super) fn rebalance_many(world: &mut World) {
    let nodes = world.nodes.len();
    for node in 0..nodes {
        world.start_node(node, true);
        want(world, node, 200 * u64::from(node % 2 == 0));
    }
    pass(world, 30_000);
    world.quiet = true;
    pass(world, 10_000);
    for round in 1..4 {
        for node in 0..nodes {
            want(world, node, 200 * u64::from(node % 2 == round % 2));
        }
        pass(world, 4 * 500 + 4 * 20);
        // Idle members keep their floors, which leaves 190 for each of the others.
        for node in (round % 2..nodes).step_by(2) {
            at_least(world, "L1", node, 171);
        }
        pass(world, 5_077);
    }
}
