//! Schedules about coordinators and the store.

use std::time::Duration;

use super::{after, at_least, begin, cut, expect, leader, may, pass, saves, to_and_fro, want};
use quell_shares::plan::MICRO;

use crate::fault::{Change, Fault};
use crate::node::Node;
use crate::setup::{MILLI, SECOND};
use crate::world::World;

pub(super) fn pause_before_sending(world: &mut World) {
    begin(world);
    for pause in [2_000, 4_000, 9_000, 11_000, 20_000] {
        world.pause_next = Some(pause * MILLI);
        want(world, 1, 2_000);
        pass(world, pause + 15_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

pub(super) fn store_down(world: &mut World) {
    begin(world);
    world.inject(Fault::StoreDown(600 * SECOND));
    pass(world, 30_000);
    for node in 0..4 {
        want(world, node, 2_000);
        at_least(world, "L3", node, 250);
    }
    pass(world, 240_000);
    at_least(world, "L3", 0, 250);
    pass(world, 100_000);
    for node in 0..4 {
        at_least(world, "L3", node, 25);
    }
    pass(world, 250_000);
    at_least(world, "L1", 0, 200);
}

pub(super) fn leader_dies(world: &mut World) {
    begin(world);
    let chair = leader(world);
    let before = may(world, 0);
    world.inject(Fault::KillChair(chair));
    for _ in 0..60 {
        pass(world, 500);
        at_least(world, "L3", 0, before * 9 / 10);
        let burst = saves(world, 0);
        let text = format!("the borrower may save {burst} and had 900");
        expect(world, "L3", burst >= 800, text);
    }
    world.inject(Fault::StartChair(chair));
    to_and_fro(world, 4, 10_000);
    // The same once more, while a member is about to be served.
    let chair = leader(world);
    want(world, 2, 2_000);
    pass(world, 700);
    world.inject(Fault::KillChair(chair));
    pass(world, 40_000);
    at_least(world, "L1", 2, 400);
}

pub(super) fn early_revocation(world: &mut World) {
    begin(world);
    for round in 0..5 {
        let chair = leader(world);
        world.inject(Fault::CutChair(chair, 6 * SECOND));
        world.inject(Fault::Revoke);
        pass(world, 1_000 + round * 400);
        want(world, 1, 2_000);
        pass(world, 12_000);
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

pub(super) fn restart_and_failover(world: &mut World) {
    begin(world);
    for round in 0..6 {
        let chair = leader(world);
        world.inject(Fault::KillNode(0));
        after(world, 200, Fault::StartNode(0));
        pass(world, 1_500 + round * 700);
        world.inject(Fault::KillChair(chair));
        want(world, 1, 2_000);
        pass(world, 9_000);
        world.inject(Fault::StartChair(chair));
        pass(world, 9_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

pub(super) fn hand_overs(world: &mut World) {
    begin(world);
    let before = may(world, 0);
    for round in 0..10 {
        want(world, 1, if round % 2 == 1 { 2_000 } else { 0 });
        world.inject(Fault::HandOver);
        pass(world, 6_000);
        if round == 0 {
            at_least(world, "L1", 0, before * 9 / 10);
        }
    }
    pass(world, 20_000);
    at_least(world, "L1", 1, 400);
}

pub(super) fn replan_silent(world: &mut World) {
    for node in 0..2 {
        world.start_node(node, true);
        want(world, node, 2_000);
    }
    pass(world, 20_000);
    cut(world, 0, true, true, 60_000);
    pass(world, 1_000);
    for node in 2..4 {
        world.start_node(node, true);
        want(world, node, 2_000);
    }
    pass(world, 3_000);
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    pass(world, 50_000);
    world.inject(Fault::StartChair(chair));
    pass(world, 30_000);
    at_least(world, "L1", 0, 200);
}

pub(super) fn base_of_a_stranger(world: &mut World) {
    for node in 0..3 {
        world.start_node(node, true);
        want(world, node, 0);
    }
    pass(world, 20_000);
    // The leader's answers are lost: each member keeps a third, and the joining member does
    // not know that it has joined.
    for node in 0..3 {
        cut(world, node, false, true, 90_000);
    }
    world.start_node(3, true);
    cut(world, 3, false, true, 25_000);
    pass(world, 3_000);
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    pass(world, 60_000);
    world.inject(Fault::StartChair(chair));
    pass(world, 60_000);
    at_least(world, "L2", 3, 200);
}

pub(super) fn old_leader_goes_on(world: &mut World) {
    begin(world);
    for round in 0..3 {
        let chair = leader(world);
        // The busy member hears only the old leader, and the old leader does not hear the
        // store.
        for other in (0..world.chairs.len()).filter(|other| *other != chair) {
            let cut = Fault::Cut {
                node: 0,
                chair: other,
                up: true,
                down: true,
                lasts: 30 * SECOND,
            };
            world.inject(cut);
        }
        world.inject(Fault::CutChair(chair, 20 * SECOND));
        pass(world, 200 * round);
        world.inject(Fault::Revoke);
        want(world, 1, 2_000);
        pass(world, 30_000);
        want(world, 1, 0);
        pass(world, 15_000);
    }
}

pub(super) fn report_before_fence(world: &mut World) {
    for node in 0..4 {
        world.start_node(node, true);
        want(world, node, 0);
    }
    pass(world, 20_000);
    for late in [6_000, 8_000, 9_000, 10_000, 11_000] {
        want(world, 0, 0);
        pass(world, 8_000);
        let first = leader(world);
        world.double_reports = late * MILLI;
        world.inject(Fault::KillChair(first));
        pass(world, 4_500);
        world.inject(Fault::StartChair(first));
        want(world, 0, 2_000);
        pass(world, 4_000);
        let second = leader(world);
        world.double_reports = 0;
        cut(world, 0, true, true, 20_000);
        world.inject(Fault::KillChair(second));
        want(world, 1, 2_000);
        pass(world, 15_000);
        world.inject(Fault::StartChair(second));
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

pub(super) fn slow_seal(world: &mut World) {
    begin(world);
    for round in 0..3 {
        want(world, 1, 2_000);
        world.slow_seal = Some((0, (9_000 + round * 500) * MILLI));
        for _ in 0..200 {
            pass(world, 10);
            if world.slow_seal.is_none() {
                break;
            }
        }
        // The borrower was told to use less, but is slow; no leader knows any more what it
        // had.
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        pass(world, 15_000);
        world.inject(Fault::StartChair(chair));
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

pub(super) fn lease_shortened(world: &mut World) {
    begin(world);
    for _ in 0..2 {
        world.inject(Fault::Change(Change::Lease(20)));
        pass(world, 8_000);
        cut(world, 0, true, true, 30_000);
        world.inject(Fault::Change(Change::Lease(4)));
        pass(world, 1_500);
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        want(world, 1, 2_000);
        pass(world, 35_000);
        world.inject(Fault::StartChair(chair));
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

/// The static share of a member ends while the leader before may still decide, and that leader gives it to
/// a member that was short of its own, and that the next leader does not hear.
pub(super) fn base_ends(world: &mut World) {
    right_ends(world, world.store.record.plan.timing.hold, false);
}

/// The same, and the store is restored from a backup; then the words of that member reach the next leader
/// when it already grants.
pub(super) fn base_ends_restored(world: &mut World) {
    right_ends(world, world.store.record.plan.timing.hold, true);
}

/// The same with its tenth.
pub(super) fn floor_ends(world: &mut World) {
    let ends = world.store.record.plan.ends().unwrap_or_default();
    right_ends(world, ends, false);
}

fn right_ends(world: &mut World, ends: Duration, restored: bool) {
    let heard = Node::period(ends) / MILLI - 2_000;
    begin(world);
    for round in 0..6 {
        world.inject(Fault::Backup);
        world.inject(Fault::Weigh(1, 2));
        let old = leader(world);
        let next = 1 - old;
        for (node, chair, millis) in [(3, old, 90_000), (3, next, heard), (1, next, 90_000)] {
            let lasts = millis * MILLI;
            let (up, down) = (true, true);
            world.inject(Fault::Cut {
                node,
                chair,
                up,
                down,
                lasts,
            });
        }
        pass(world, heard + 100 + 100 * round);
        world.nodes[3].talks_to = next;
        world.inject(Fault::CutChair(old, 30 * SECOND));
        world.inject(Fault::KillChair(next));
        world.inject(Fault::StartChair(next));
        if restored {
            world.inject(Fault::Restore { bump: false });
            world.inject(Fault::Raise);
        }
        world.inject(Fault::Revoke);
        if restored {
            world.slow_held = Some((3, 17_000 * MILLI));
            while world.slow_held.is_some() && world.violation.is_none() {
                pass(world, 10);
            }
            cut(world, 3, true, false, 20_000);
        }
        pass(world, 60_000);
        world.inject(Fault::NoStrangers);
        world.inject(Fault::Weigh(1, 1));
        pass(world, 30_000);
    }
    for node in 0..4 {
        at_least(world, "L2", node, if node == 0 { 900 } else { 2 });
    }
}

pub(super) fn hungry_failover(world: &mut World) {
    begin(world);
    cut(world, 0, true, true, 40_000);
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    want(world, 1, 2_000);
    // The promise after the dead leader's last answer has ended, by the slowest clock; its successor
    // still waits for the borrower.
    let promise = Node::period(world.store.record.plan.timing.promise);
    let slowest = promise * MICRO / (MICRO - world.setup.drift.ppm());
    pass(world, slowest / MILLI + 640);
    at_least(world, "L2", 1, 250);
    pass(world, 40_000);
    at_least(world, "L1", 1, 400);
}

pub(super) fn leader_and_member_die(world: &mut World) {
    begin(world);
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    world.inject(Fault::KillNode(3));
    for _ in 0..60 {
        pass(world, 500);
        at_least(world, "L2", 0, 250);
    }
    at_least(world, "L1", 0, 650);
}

pub(super) fn grant_after_fence(world: &mut World) {
    begin(world);
    for late in [7_000, 8_000, 9_000] {
        for (node, units) in [(0, 0), (1, 0), (2, 2_000)] {
            want(world, node, units);
        }
        pass(world, 10_000);
        // The grant that makes this member a borrower is late, and no other arrives before it.
        want(world, 2, 0);
        want(world, 0, 2_000);
        cut(world, 0, false, true, 3_000);
        pass(world, 3_000);
        world.slow_next = Some((0, late * MILLI));
        while world.slow_next.is_some() && world.violation.is_none() {
            pass(world, 10);
        }
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        want(world, 1, 2_000);
        // The member reports to the next leader, but does not receive its grant.
        pass(world, 5_300);
        cut(world, 0, false, true, 6_000);
        pass(world, 10_000);
        world.inject(Fault::StartChair(chair));
    }
}

pub(super) fn late_first_words(world: &mut World) {
    begin(world);
    for late in [4_000, 5_000] {
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        world.slow_held = Some((3, late * MILLI));
        while world.slow_held.is_some() && world.violation.is_none() {
            pass(world, 10);
        }
        cut(world, 3, true, true, 30_000);
        pass(world, 40_000);
        world.inject(Fault::StartChair(chair));
        pass(world, 10_000);
    }
}

pub(super) fn changes_beside_silent(world: &mut World) {
    begin(world);
    cut(world, 3, true, true, 200_000);
    for percent in [150, 175, 200, 225, 250, 275, 300, 325, 350] {
        world.inject(Fault::Change(Change::Weight(percent)));
        pass(world, 1_500);
    }
    // The next leader has not heard the silent member, which has a quarter of the first plan.
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    want(world, 1, 2_000);
    pass(world, 40_000);
    world.inject(Fault::StartChair(chair));
    world.inject(Fault::Change(Change::Rates(10)));
    pass(world, 6_000);
    let rate = world.store.record.plan.limits[0].quota.rate / MICRO;
    let used: u64 = (0..3).map(|node| may(world, node)).sum();
    let text = format!("the limit is {rate}/s and members may use {used}/s after a cut to 100/s");
    expect(world, "S1", rate == 100 && used <= 100, text);
    pass(world, 20_000);
}

/// Two of four members are dead and one is cut off, when 1000/s are cut to 10/s, which is two units for
/// each between two reports, and to 1/s, of which no member has a call; then a leader dies.
pub(super) fn cut_below_parts(world: &mut World) {
    begin(world);
    world.inject(Fault::KillNode(2));
    world.inject(Fault::KillNode(3));
    cut(world, 1, true, true, 30_000);
    let chair = leader(world);
    for units in [10, 1] {
        world.inject(Fault::Change(Change::Cut(units)));
        pass(world, 6_000);
        let rate = world.store.record.plan.limits[0].quota.rate / MICRO;
        let used = may(world, 0);
        let text =
            format!("the limit is {rate}/s and a member may use {used}/s after a cut to {units}/s");
        expect(world, "S1", rate == units && used <= units, text);
        let burst = saves(world, 0);
        let text = format!("a member saves {burst} of {units}");
        expect(world, "S2", burst <= units, text);
    }
    world.inject(Fault::KillChair(chair));
    pass(world, 40_000);
    world.inject(Fault::StartChair(chair));
    world.inject(Fault::StartNode(2));
    pass(world, 20_000);
    world.inject(Fault::Change(Change::Rates(100)));
    pass(world, 10_000);
    at_least(world, "L1", 0, 700);
}
