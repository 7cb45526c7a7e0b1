//! Schedules about processes that come and go.

use quell_shares::plan::{LimitId, MemberId};

use super::{at_least, begin, cut, expect, leader, pass, serve_all, to_and_fro, want, want_all};
use crate::fault::{Change, Fault};
use crate::setup::MILLI;
use crate::world::World;

pub(super) fn leave_doubled(world: &mut World) {
    begin(world);
    for node in [0, 1] {
        want(world, node, 2_000);
        pass(world, 5_000);
        world.double_leaves = 8_000 * MILLI;
        world.inject(Fault::LeaveNode(node));
        pass(world, 3_000);
        world.inject(Fault::StartNode(node));
        // The other member takes what the second leave seems to free.
        want(world, 1 - node, 2_000);
        pass(world, 15_000);
    }
}

pub(super) fn two_processes(world: &mut World) {
    let twin = world.nodes[0].clone();
    begin(world);
    world.add_twin(twin);
    pass(world, 3_000);
    want(world, 1, 2_000);
    want(world, 4, 2_000);
    pass(world, 30_000);
}

pub(super) fn join_storm(world: &mut World) {
    world.start_node(0, true);
    want(world, 0, 40_000);
    pass(world, 20_000);
    for node in 1..200 {
        want(world, node, 300);
        world.start_node(node, true);
    }
    pass(world, 30_000);
    for node in 0..200 {
        at_least(world, "L1", node, 80);
    }
}

pub(super) fn leave_storm(world: &mut World) {
    begin(world);
    for node in 0..4 {
        world.inject(Fault::LeaveNode(node));
    }
    pass(world, 5_000);
    for node in 0..4 {
        world.inject(Fault::StartNode(node));
        want(world, node, 1_000);
    }
    pass(world, 20_000);
    for node in 0..4 {
        at_least(world, "L1", node, 240);
    }
}

pub(super) fn member_dies(world: &mut World) {
    begin(world);
    world.inject(Fault::KillNode(3));
    pass(world, 5_000);
    at_least(world, "L2", 0, 850);
    pass(world, 15_000);
    at_least(world, "L1", 0, 600);
    pass(world, 10_000);
    world.inject(Fault::StartNode(3));
    want(world, 3, 2_000);
    pass(world, 10_000);
    at_least(world, "L1", 3, 400);
    // The member is gone for good: an operator deregisters it, which frees its base.
    world.inject(Fault::KillNode(3));
    pass(world, 20_000);
    world.inject(Fault::Deregister(3));
    pass(world, 5_000);
    at_least(world, "L1", 0, 850);
}

pub(super) fn restarts(world: &mut World) {
    begin(world);
    for _ in 0..12 {
        world.inject(Fault::KillNode(0));
        pass(world, 100);
        world.inject(Fault::StartNode(0));
        pass(world, 2_400);
    }
}

pub(super) fn old_join(world: &mut World) {
    begin(world);
    for late in [4_000, 6_000] {
        world.double_joins = late * MILLI;
        for _ in 0..2 {
            world.inject(Fault::KillNode(0));
            pass(world, 200);
            world.inject(Fault::StartNode(0));
            pass(world, 2_500);
        }
        world.double_joins = 0;
        pass(world, 3_000);
        want(world, 1, 2_000);
        pass(world, 8_000);
        want(world, 1, 0);
        pass(world, 4_000);
    }
}

pub(super) fn old_reports(world: &mut World) {
    begin(world);
    want(world, 0, 0);
    for late in [6_000, 7_000, 8_000, 9_000] {
        world.double_reports = late * MILLI;
        pass(world, 15_000);
        world.inject(Fault::KillNode(0));
        pass(world, 100);
        world.inject(Fault::StartNode(0));
        want(world, 0, 2_000);
        pass(world, 4_000);
        want(world, 1, 2_000);
        cut(world, 0, true, false, 6_000);
        pass(world, 8_000);
        want(world, 0, 0);
        want(world, 1, 0);
        world.double_reports = 0;
        pass(world, 10_000);
    }
}

pub(super) fn crash_loop(world: &mut World) {
    begin(world);
    want_all(world, 0..4, 2_000);
    pass(world, 5_000);
    for _ in 0..40 {
        for node in 0..4 {
            world.inject(Fault::KillNode(node));
            world.inject(Fault::StartNode(node));
        }
        pass(world, 600);
    }
}

pub(super) fn leave_under_load(world: &mut World) {
    begin(world);
    for node in [0, 1, 2] {
        want(world, node, 2_000);
        pass(world, 6_000);
        world.slow_seal = Some((node, 3_000 * MILLI));
        world.inject(Fault::LeaveNode(node));
        want(world, 3, 2_000);
        pass(world, 10_000);
        want(world, 3, 0);
        world.inject(Fault::StartNode(node));
        pass(world, 5_000);
    }
}

pub(super) fn more_than_seats(world: &mut World) {
    begin(world);
    for _ in 0..3 {
        want_all(world, 0..6, 0);
        pass(world, 12_000);
        want_all(world, 0..6, 2_000);
        serve_all(world, 0..6);
        pass(world, 2_000);
    }
    let refused = |node: usize| !world.nodes[node].is_active();
    let refused = (0..6).filter(|node| refused(*node)).count();
    let text = format!("{refused} of 6 members have no seat; the plan has 4");
    expect(world, "L1", refused == 2, text);
}

pub(super) fn fewer_seats(world: &mut World) {
    begin(world);
    world.inject(Fault::Change(Change::FewerSeats(1)));
    pass(world, 3_000);
    for _ in 0..4 {
        to_and_fro(world, 1, 4_000);
        want_all(world, 0..4, 2_000);
        serve_all(world, 0..4);
        pass(world, 500);
        want_all(world, 0..4, 0);
        pass(world, 3_000);
    }
}

pub(super) fn limit_removed(world: &mut World) {
    begin(world);
    world.inject(Fault::Change(Change::NoLimit));
    pass(world, 20_000);
    want(world, 1, 2_000);
    pass(world, 8_000);
    at_least(world, "L1", 1, 400);
}

pub(super) fn deregistered_alive(world: &mut World) {
    begin(world);
    want(world, 0, 0);
    pass(world, 5_000);
    // No member wants what is free now, so none is given it before the deregistered
    // member hears of it.
    world.inject(Fault::Mistaken(3));
    // That member must stop quickly: until then there is one too many.
    world.quiet = true;
    pass(world, 8_000);
    world.quiet = false;
    want(world, 3, 2_000);
    pass(world, 4_000);
    at_least(world, "L1", 3, 850);
    cut(world, 3, true, true, 60_000);
    pass(world, 15_000);
    at_least(world, "L2", 3, 250);
}

pub(super) fn joins_beside_dead(world: &mut World) {
    for node in 0..2 {
        world.start_node(node, true);
        want(world, node, 2_000);
    }
    pass(world, 20_000);
    world.inject(Fault::KillNode(0));
    pass(world, 1_000);
    for node in 2..14 {
        world.start_node(node, true);
        want(world, node, 500);
        pass(world, 700);
    }
    pass(world, 2_000);
    // Until its hold ends, half of the limit is the dead member's, and a leader says so.
    short_because_of(world, &[MemberId(0)]);
    pass(world, 25_000);
    short_because_of(world, &[]);
    for chair in 0..world.chairs.len() {
        world.inject(Fault::KillChair(chair));
    }
    pass(world, 14_000);
    for node in 1..14 {
        at_least(world, "L3", node, 1_000 / 14);
    }
}

/// Expects that some member lacks its static share because of these; with none of them, that no
/// member does.
fn short_because_of(world: &mut World, silent: &[MemberId]) {
    let chair = &world.chairs[leader(world)];
    let ledger = chair.core.leads(chair.clock.local(world.now));
    let shortage = ledger.map(|ledger| ledger.base_shortage(LimitId(1)));
    let holds = match &shortage {
        None => false,
        Some(None) => silent.is_empty(),
        Some(Some(shortage)) => !silent.is_empty() && shortage.held_by == silent,
    };
    let text = format!("{silent:?} should be in the way of static shares: {shortage:?}");
    expect(world, "L2", holds, text);
}
