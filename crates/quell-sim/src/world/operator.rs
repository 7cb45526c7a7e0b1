//! Operator: what operators and orchestrators ask of the leader.

use quell_shares::ledger::Operation;
use quell_shares::message::MemberSnapshot;

use super::World;
use super::changes::changed_plan;
use crate::fault::Fault;

/// Makes a fault happen.
pub(super) fn inject(world: &mut World, fault: Fault) {
    match fault {
        Fault::Fence(node) if world.nodes[node].alive => {}
        Fault::Fence(node) => fence(world, node),
        Fault::Drain(node) => {
            let member = world.nodes[node].id;
            let drain = true;
            let done = operate(world, Operation::Drain { member, drain });
            world.counts.drains += u64::from(done);
        }
        Fault::Weigh(node, weight) => {
            let member = world.nodes[node].id;
            let done = operate(world, Operation::SetWeight { member, weight });
            world.counts.weighings += u64::from(done);
        }
        Fault::Regroup(node) => {
            let group = world.setup.plan.groups.first();
            let groups = group.map(|group| group.name.clone());
            let node = &mut world.nodes[node];
            if groups.is_some() {
                world.counts.regroupings += 1;
            }
            node.groups = if node.groups.is_empty() {
                groups.into_iter().collect()
            } else {
                Vec::new()
            };
        }
        Fault::RollOut(change, stage) => {
            if let Some(plan) = changed_plan(world, change) {
                let done = operate(
                    world,
                    Operation::RollOut {
                        plan,
                        stage,
                        band: None,
                    },
                );
                world.counts.rollouts += u64::from(done);
            }
        }
        Fault::Advance(stage) => {
            let done = operate(world, Operation::Advance(stage, None));
            world.counts.stages += u64::from(done);
        }
        Fault::Complete => {
            let lasts = world.store.record.rollout.is_some();
            let done = lasts && operate(world, Operation::Complete);
            world.counts.stages += u64::from(done);
        }
        Fault::TakeBack => {
            let lasts = world.store.record.rollout.is_some();
            let done = lasts && operate(world, Operation::TakeBack);
            world.counts.taken_back += u64::from(done);
        }
        _ => {}
    }
}

fn fence(world: &mut World, node: usize) {
    let member = world.nodes[node].id;
    let Some(seat) = world.store.record.seat(member) else {
        return;
    };
    let incarnation = seat.incarnation;
    if operate(
        world,
        Operation::Fence {
            member,
            incarnation,
        },
    ) {
        world.counts.fences += 1;
        // Its disk is gone with it.
        world.nodes[node].snapshot = MemberSnapshot::default();
    }
}

/// Asks the leader, if there is one. Returns whether it takes the operation.
pub(crate) fn operate(world: &mut World, operation: Operation) -> bool {
    let Some(chair) = world.store.leader(world.now) else {
        return false;
    };
    let one = &mut world.chairs[chair];
    if !one.alive || one.paused > world.now {
        return false;
    }
    let local = one.clock.local(world.now);
    let taken = one.core.operate(local, operation, &mut world.effects);
    world.perform(chair, 0);
    taken.is_ok()
}
