//! Faults in the world: how each happens, and how it is repaired.

use std::time::Duration;

use quell_shares::generation;
use quell_shares::leader::Why;
use quell_shares::member;
use quell_shares::message::MemberSnapshot;
use quell_shares::plan::{Record, Restored};

use super::changes::{changed_plan, has_seats};
use super::{Event, World, operator};
use crate::fault::{Change, Fault};
use crate::node::Node;
use crate::setup::{MILLI, SECOND};
use crate::store::Ask;

impl World {
    /// Makes a fault happen.
    pub fn inject(&mut self, fault: Fault) {
        let now = self.now;
        if self.quiet && !matches!(fault, Fault::NoStrangers) {
            return;
        }
        match fault {
            Fault::KillNode(node) => {
                if self.nodes[node].alive {
                    self.counts.node_kills += 1;
                    self.stop_node(node);
                }
            }
            Fault::StartNode(node) => {
                if !self.nodes[node].alive {
                    self.counts.node_starts += 1;
                    self.start_node(node, true);
                }
            }
            Fault::PauseNode(node, lasts) => {
                self.counts.node_pauses += 1;
                self.nodes[node].paused = self.nodes[node].paused.max(now + lasts);
            }
            Fault::StallNode(node, lasts) => {
                self.counts.node_stalls += 1;
                self.nodes[node].stalled = now + lasts;
            }
            // A node that is stopped already is not stopped again.
            Fault::StopNode(node, _) if self.nodes[node].paused > now => {}
            Fault::StopNode(node, lasts) => {
                self.counts.node_stops += 1;
                let life = self.nodes[node].life;
                self.nodes[node].paused = now + lasts;
                self.at(
                    now + lasts,
                    Event::Fault(Fault::WakeNode(node, life, lasts)),
                );
            }
            Fault::WakeNode(node, life, hidden) => wake_node(self, node, life, hidden),
            Fault::LeaveNode(node) => leave(self, node),
            Fault::Deregister(node) if !self.nodes[node].alive => deregister(self, node),
            Fault::Deregister(_) => {}
            Fault::Mistaken(node) => deregister(self, node),
            Fault::Fence(_)
            | Fault::Drain(_)
            | Fault::Weigh(..)
            | Fault::Regroup(_)
            | Fault::RollOut(..)
            | Fault::Advance(_)
            | Fault::Complete
            | Fault::TakeBack => operator::inject(self, fault),
            Fault::Cut {
                node,
                chair,
                up,
                down,
                lasts,
            } => cut(self, node, chair, (up, down), lasts),
            Fault::Demand(node, limit, want) => self.nodes[node].demand[limit] = want,
            Fault::Change(change) => change_plan(self, change),
            Fault::Quiet => quiet(self),
            fault => self.inject_above(fault),
        }
    }

    /// Faults of coordinators and the store.
    fn inject_above(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::KillChair(chair) => {
                self.counts.chair_kills += 1;
                self.chairs[chair].alive = false;
            }
            Fault::StartChair(chair) if !self.chairs[chair].alive => self.start_chair(chair),
            Fault::PauseChair(chair, lasts) => {
                self.counts.chair_pauses += 1;
                self.chairs[chair].paused = self.chairs[chair].paused.max(now + lasts);
            }
            Fault::StopChair(chair, _) if self.chairs[chair].paused > now => {}
            Fault::StopChair(chair, lasts) => {
                self.counts.chair_stops += 1;
                let life = self.chairs[chair].life;
                self.chairs[chair].paused = now + lasts;
                let wake = Fault::WakeChair(chair, life, lasts);
                self.at(now + lasts, Event::Fault(wake));
            }
            Fault::WakeChair(chair, life, hidden) => {
                let one = &mut self.chairs[chair];
                if one.alive && one.life == life {
                    one.clock.stand_still(hidden);
                    one.core.step_down(Why::ClockStoodStill, &mut self.effects);
                    self.perform(chair, 0);
                }
            }
            Fault::CutChair(chair, lasts) => {
                self.counts.chair_cuts += 1;
                self.chairs[chair].cut_off = now + lasts;
            }
            Fault::HandOver => hand_over(self),
            Fault::Revoke => {
                self.counts.early_revocations += 1;
                self.store.revoke();
            }
            Fault::Linger(lasts) => {
                self.counts.late_revocations += 1;
                self.store.linger(lasts);
            }
            Fault::StoreDown(lasts) => {
                self.counts.store_outages += 1;
                self.store_down = now + lasts;
            }
            Fault::Backup => self.backup = Some(self.store.clone()),
            Fault::Restore { bump } => {
                self.counts.restores += 1;
                self.restore(bump);
            }
            Fault::Raise => raise(self),
            Fault::NoStrangers => mark_all_heard(self),
            // The process runs already; all other faults concern nodes and callers.
            _ => {}
        }
    }
}

fn raise(world: &mut World) {
    let plans = world.counts.plans.iter().map(|plan| plan.timing);
    let longest = Restored {
        lease: plans.map(|timing| timing.lease).max().unwrap_or_default(),
    };
    // A generation that was never used.
    world.generation += 1;
    let to = world.generation;
    world.store.edit(|record| {
        let raised = record.raise_generation(to, longest);
        debug_assert!(raised.is_ok(), "{raised:?}");
    });
    world.publish();
}

fn mark_all_heard(world: &mut World) {
    if world.quiet && world.store.record.rollout.is_some() {
        // It was on its way when all became quiet.
        world.store.edit(|record| {
            record.take_back();
        });
        world.publish();
    }
    let record = &world.store.record;
    if record.restored.is_none() {
        return;
    }
    let of = record.generation();
    // The operator knows that a process is dead, reports, or finds no seat.
    let seated = |node: &Node| record.seat(node.id).is_some();
    let waits = |node: &Node| node.member.stage() == member::Stage::Joining && !seated(node);
    let reports = |node: &Node| generation::of(node.revision) == of && node.is_active();
    let known = |node: &Node| !node.alive || reports(node) && seated(node) || waits(node);
    if !world.nodes.iter().all(known) {
        let later = world.now + 5 * SECOND;
        world.at(later, Event::Fault(Fault::NoStrangers));
        return;
    }
    let waiting: Vec<bool> = world
        .nodes
        .iter()
        .map(|node| node.alive && waits(node))
        .collect();
    for (node, waits) in waiting.into_iter().enumerate() {
        if waits {
            world.stop_node(node);
        }
        let one = &mut world.nodes[node];
        if waits || !one.alive && generation::of(one.snapshot.revision) < of {
            one.snapshot = MemberSnapshot::default();
        }
        if waits {
            world.start_node(node, true);
        }
    }
    world.store.edit(Record::mark_all_heard);
    world.publish();
}

/// A node continues after a pause that its clock does not show: first it looks at the wall
/// clock.
fn wake_node(world: &mut World, node: usize, life: u32, hidden: u64) {
    let one = &mut world.nodes[node];
    if !one.alive || one.life != life {
        return;
    }
    one.clock.stand_still(hidden);
    let adopt = one.member.stood_still(Duration::from_nanos(hidden));
    let ticket = adopt.ticket;
    one.begin(adopt);
    one.seal(world.now, ticket);
    world.rights_changed(node);
}

fn leave(world: &mut World, node: usize) {
    if world.nodes[node].is_active() {
        world.counts.leaves += 1;
        let adopt = world.nodes[node].member.leave();
        world.adopt(node, adopt);
    }
}

fn deregister(world: &mut World, node: usize) {
    world.counts.deregistrations += 1;
    let id = world.nodes[node].id;
    // The operator who deregisters a node also deletes its snapshot.
    world.nodes[node].snapshot = MemberSnapshot::default();
    world
        .store
        .edit(|record| record.seats.retain(|seat| seat.member != id));
    world.publish();
}

fn cut(world: &mut World, node: usize, chair: usize, (up, down): (bool, bool), lasts: u64) {
    if up && down {
        world.counts.partitions += 1;
    } else {
        world.counts.one_way_partitions += 1;
    }
    let until = world.now + lasts;
    let index = node * world.chairs.len() + chair;
    let cut = &mut world.cuts[index];
    if up {
        cut.0 = until;
    }
    if down {
        cut.1 = until;
    }
}

fn hand_over(world: &mut World) {
    let Some(chair) = world.store.leader(world.now) else {
        return;
    };
    let local = world.chairs[chair].clock.local(world.now);
    let epoch = world.chairs[chair].core.leads(local).map(|l| l.epoch());
    if !world.chairs[chair].alive || world.chairs[chair].paused > world.now {
        return;
    }
    let core = &mut world.chairs[chair].core;
    let snapshot = core.hand_over(local, &mut world.effects);
    if let (Some(epoch), true) = (epoch, snapshot.is_some()) {
        world.counts.hand_overs += 1;
        let life = world.chairs[chair].life;
        let ask = Ask::Resign { epoch, snapshot };
        world.at(world.now + 5 * MILLI, Event::Ask(chair, life, ask));
    }
    world.perform(chair, 0);
}

fn change_plan(world: &mut World, change: Change) {
    let Some(plan) = changed_plan(world, change) else {
        return;
    };
    let mut taken = false;
    world
        .store
        .edit(|record| taken = record.replace_plan(plan).is_ok());
    world.counts.plan_changes += u64::from(taken);
    world.publish();
}

fn quiet(world: &mut World) {
    world.quiet = true;
    world.store.edit(|record| {
        record.take_back();
        for seat in &mut record.seats {
            seat.draining = false;
        }
    });
    world.publish();
    // One call is more than a share of what a cut has left.
    let plan = &world.store.record.plan;
    if plan.check_after(None, world.setup.drift).is_err() {
        change_plan(world, Change::Rates(300));
    }
    let later = world.now + 20 * SECOND;
    world.at(later, Event::Fault(Fault::NoStrangers));
    if !has_seats(world) {
        change_plan(world, Change::Seats(1));
    }
    world.store_down = 0;
    for cut in &mut world.cuts {
        *cut = (0, 0);
    }
    for node in 0..world.nodes.len() {
        world.nodes[node].paused = 0;
        world.nodes[node].stalled = 0;
        if !world.nodes[node].alive {
            world.start_node(node, true);
        }
    }
    for chair in 0..world.chairs.len() {
        world.chairs[chair].paused = 0;
        world.chairs[chair].cut_off = 0;
        if !world.chairs[chair].alive {
            world.start_chair(chair);
        }
    }
}
