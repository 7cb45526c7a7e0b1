//! Schedules about what operators and orchestrators do.

use quell_shares::ledger::{MemberState, Operation};
use quell_shares::plan::{LimitId, MICRO, MemberId, Plan, Stage};

use super::{at_least, begin, cut, expect, leader, may, pass, want, want_all};
use crate::fault::{Change, Fault};
use crate::node::rule_name;
use crate::world::World;
use crate::world::operator::operate;

/// A Deployment: every pod is replaced by one with another id, and none leaves.
pub(super) fn pods_replaced(world: &mut World) {
    for node in 0..4 {
        world.start_node(node, true);
        want(world, node, 400);
    }
    pass(world, 10_000);
    for old in 0..world.nodes.len() - 4 {
        world.inject(Fault::KillNode(old));
        pass(world, 1_000);
        world.start_node(old + 4, true);
        want(world, old + 4, 400);
        pass(world, 14_000);
        let active = world.nodes[old + 4].is_active();
        let text = format!("pod {} has no seat", old + 4);
        expect(world, "L1", active, text);
    }
    pass(world, 40_000);
    let last = world.nodes.len();
    for node in last - 4..last {
        at_least(world, "L1", node, 220);
    }
    let seats = world.store.record.seats.len();
    let text = format!("{seats} seats for 4 pods");
    expect(world, "L1", seats == 4, text);
}

/// A busy member is cut off for longer than seats are kept, and its place is taken.
pub(super) fn silent_for_long(world: &mut World) {
    begin(world);
    want_all(world, 1..4, 2_000);
    pass(world, 5_000);
    cut(world, 0, true, true, 90_000);
    pass(world, 15_000);
    at_least(world, "L2", 0, 250);
    pass(world, 10_000);
    at_least(world, "L2", 0, 25);
    pass(world, 15_000);
    let text = format!("silent for 40 s it may use {}/s", may(world, 0));
    let rest = may(world, 0);
    expect(world, "S1", rest == 0, text);
    for node in 1..4 {
        at_least(world, "L1", node, 320);
    }
    pass(world, 60_000);
    at_least(world, "L1", 0, 220);
}

/// Members are drained while they have all of the limit, and are slow to stop.
pub(super) fn drained(world: &mut World) {
    begin(world);
    for node in [0, 1] {
        want(world, node, 2_000);
        pass(world, 6_000);
        world.slow_seal = Some((node, 3_000 * crate::setup::MILLI));
        want(world, 3, 2_000);
        world.inject(Fault::Drain(node));
        pass(world, 12_000);
        let alive = world.nodes[node].alive;
        let seat = world
            .store
            .record
            .seat(MemberId(u32::try_from(node).unwrap_or(0)));
        let (gone, free) = (!alive, seat.is_none());
        let text = format!("drained member {node}: gone {gone}, seat free {free}");
        expect(world, "L1", gone && free, text);
        at_least(world, "L1", 3, 850);
        want(world, 3, 0);
        world.inject(Fault::StartNode(node));
        pass(world, 5_000);
        at_least(world, "L1", node, 850);
        want(world, node, 0);
    }
}

/// The weight of a member that is cut off is lowered, and then a leader dies.
pub(super) fn weight_lowered(world: &mut World) {
    begin(world);
    want(world, 3, 2_000);
    pass(world, 5_000);
    cut(world, 3, true, true, 60_000);
    world.inject(Fault::Weigh(3, 1));
    want_all(world, 0..4, 2_000);
    pass(world, 3_000);
    world.inject(Fault::KillChair(leader(world)));
    pass(world, 40_000);
    at_least(world, "L2", 3, 500);
    pass(world, 30_000);
    at_least(world, "L1", 3, 220);
    world.inject(Fault::Weigh(3, 3));
    pass(world, 10_000);
    at_least(world, "L1", 3, 470);
}

fn plan(world: &World, edit: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = world.store.record.plan.clone();
    edit(&mut plan);
    plan
}

/// A limit is removed and added again, while one member is cut off.
pub(super) fn limit_again(world: &mut World) {
    begin(world);
    cut(world, 0, true, true, 40_000);
    let all = world.setup.plan.limits.clone();
    let without = plan(world, |plan| {
        plan.limits.retain(|limit| limit.id != LimitId(1));
    });
    operate(world, Operation::SetPlan(without));
    pass(world, 2_000);
    let with = plan(world, |plan| plan.limits = all);
    operate(world, Operation::SetPlan(with));
    want_all(world, 1..4, 2_000);
    pass(world, 3_000);
    let held = world.nodes[0].buckets.len();
    let text = format!("a member that is cut off has {held} limits of 2");
    expect(world, "L2", held == 2, text);
    for node in 1..4 {
        // What the silent member may use is of another limit.
        at_least(world, "L1", node, 200);
    }
    pass(world, 50_000);
    let name = rule_name(0);
    let newest = world.store.record.plan.named(&name).map(|limit| limit.id);
    let text = format!("the limit has the number {newest:?}");
    expect(world, "L1", newest == Some(LimitId(3)), text);
    for node in 0..4 {
        at_least(world, "L1", node, 220);
    }
}

/// A plan with a tenth of the limit, for one member, for half of them, and taken back; then for
/// one, which is cut off, and for all.
pub(super) fn staged(world: &mut World) {
    begin(world);
    want_all(world, 0..4, 2_000);
    pass(world, 5_000);
    let one = Stage::Member(MemberId(1));
    for (percent, stages) in [(10, true), (300, true), (10, false)] {
        world.inject(Fault::RollOut(Change::Rates(percent), one));
        pass(world, 8_000);
        let units = 250 * percent / 100;
        // More than its part of the plan that it follows is a breach, whatever the sum is.
        let has = may(world, 1);
        let text = format!("in the stage member 1 may use {has}/s, and its part is {units}/s");
        expect(world, "S1", has <= units, text.clone());
        expect(world, "L1", has >= units - units / 10, text);
        at_least(world, "L1", 0, 220);
        if stages {
            world.inject(Fault::Advance(Stage::Percent(50)));
            pass(world, 8_000);
            at_least(world, "L1", 0, units.min(250) * 9 / 10);
            shows(world, units);
            world.inject(Fault::TakeBack);
            pass(world, 8_000);
            for node in 0..4 {
                at_least(world, "L1", node, 220);
            }
        }
    }
    cut(world, 1, true, true, 30_000);
    pass(world, 500);
    world.inject(Fault::Complete);
    pass(world, 40_000);
    for node in 0..4 {
        let may = may(world, node);
        let text = format!("under the new plan member {node} may use {may}/s");
        expect(world, "L1", (22..=28).contains(&may), text);
    }
}

/// Expects that the leader's view shows two members in the stage, and what they may use: so many units each.
fn shows(world: &mut World, units: u64) {
    let chair = &world.chairs[leader(world)];
    let local = chair.clock.local(world.now);
    let Some(view) = chair.core.leads(local).map(|ledger| ledger.view(local)) else {
        return;
    };
    let active = |state: MemberState| state == MemberState::Active;
    let all = view.members.iter().all(|member| active(member.state));
    let used = view.limits.iter().all(|limit| limit.in_use <= limit.most);
    let text = format!("the view: {view:?}");
    let sum: u64 = view
        .members
        .iter()
        .flat_map(|m| &m.limits)
        .map(|l| l.may_use)
        .sum();
    let all_may = 2 * (units + 250) * MICRO;
    let right = sum.abs_diff(all_may) <= all_may / 10 && view.applied == 4;
    expect(world, "L1", view.staged == 2 && all && used && right, text);
}

/// Members of two groups, each with a limit of its own; one member moves to the other group.
pub(super) fn groups(world: &mut World) {
    begin(world);
    for node in 0..4 {
        world.nodes[node].demand[1] = 2_000 * MICRO;
    }
    pass(world, 10_000);
    let rates = |world: &World| -> Vec<u64> {
        let of = |node: &crate::node::Node| {
            let local = node.clock.local(world.now);
            let bucket = node.bucket(1).filter(|_| node.alive);
            bucket.map_or(0, |bucket| bucket.schedule().at(local).rate / MICRO)
        };
        world.nodes.iter().map(of).collect()
    };
    let shared = rates(world);
    let text = format!("of the group's limit members may use {shared:?}");
    let half = |rate: u64| (450..=510).contains(&rate);
    let fits = half(shared[0]) && half(shared[1]) && shared[2] == 0 && shared[3] == 0;
    expect(world, "L1", fits, text);
    // A member is cut off, restarts in no group, and a leader dies before it hears of that.
    world.inject(Fault::Regroup(1));
    world.inject(Fault::KillNode(1));
    pass(world, 200);
    world.inject(Fault::StartNode(1));
    pass(world, 12_000);
    let shared = rates(world);
    let text = format!("alone in the group a member may use {shared:?}");
    expect(world, "L1", shared[0] >= 900 && shared[1] == 0, text);
    world.inject(Fault::Regroup(3));
    world.inject(Fault::KillNode(3));
    world.inject(Fault::StartNode(3));
    world.inject(Fault::KillChair(leader(world)));
    pass(world, 30_000);
    let shared = rates(world);
    let text = format!("with another member in the group they may use {shared:?}");
    expect(world, "L1", half(shared[0]) && half(shared[3]), text);
}

/// An orchestrator fences a dead borrower; a fence of a start that was replaced does nothing.
pub(super) fn fenced(world: &mut World) {
    begin(world);
    let member = MemberId(0);
    let incarnation = world
        .store
        .record
        .seat(member)
        .map_or(0, |seat| seat.incarnation);
    world.inject(Fault::KillNode(0));
    world.inject(Fault::StartNode(0));
    pass(world, 3_000);
    let late = Operation::Fence {
        member,
        incarnation,
    };
    let taken = operate(world, late);
    expect(world, "L1", !taken, "a late fence is taken".to_owned());
    pass(world, 5_000);
    at_least(world, "L1", 0, 850);
    want(world, 1, 2_000);
    world.inject(Fault::KillNode(0));
    world.inject(Fault::Fence(0));
    pass(world, 2_000);
    at_least(world, "L1", 1, 900);
    world.inject(Fault::StartNode(0));
    pass(world, 5_000);
    at_least(world, "L1", 0, 450);
}
