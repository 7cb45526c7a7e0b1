//! Fault: what breaks and when, with a count of each fault.

pub(crate) mod operator;

use std::time::Duration;

use quell_shares::generation;
use quell_shares::leader::Why;
use quell_shares::member;
use quell_shares::message::MemberSnapshot;
use quell_shares::plan::{
    Fallback, Limit, MICRO, Plan, Record, Restored, ReturnSeats, Sizing, Stage, Timing,
};

use crate::node::Node;
use crate::setup::{MILLI, SECOND, timing};
use crate::store::Ask;
use crate::world::{Event, World};

/// A fault or a change that the simulation can inject. Fields without a name are indices and
/// nanoseconds.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A node's process dies.
    KillNode(usize),
    /// A node's process starts, if none runs.
    StartNode(usize),
    /// A node does nothing for this long.
    PauseNode(usize, u64),
    /// A node's agent does nothing for this long; its callers are still served.
    StallNode(usize, u64),
    /// A node and its clock of durations are stopped for this long.
    StopNode(usize, u64),
    /// A stopped node continues, if its process is still the same.
    WakeNode(usize, u32, u64),
    /// A node leaves in an orderly way.
    LeaveNode(usize),
    /// An operator declares that a dead node will not come back.
    Deregister(usize),
    /// An operator declares this by mistake of a node that is alive.
    Mistaken(usize),
    /// An orchestrator says that a dead node's process is dead.
    Fence(usize),
    /// An operator drains a node.
    Drain(usize),
    /// An operator gives a node another weight.
    Weigh(usize, u32),
    /// A node names another group when it starts next, or none.
    Regroup(usize),
    /// An operator gives a changed plan to some nodes only.
    RollOut(Change, Stage),
    /// Or to more of them.
    Advance(Stage),
    /// Or to all.
    Complete,
    /// Or takes it back.
    TakeBack,
    /// Messages between a node and a coordinator are lost, in one direction or both.
    Cut {
        /// Number of the node.
        node: usize,
        /// Number of the coordinator.
        chair: usize,
        /// Requests are lost.
        up: bool,
        /// Answers are lost.
        down: bool,
        /// For how long.
        lasts: u64,
    },
    /// A coordinator's process dies.
    KillChair(usize),
    /// A coordinator's process starts, if none runs.
    StartChair(usize),
    /// A coordinator does nothing for this long.
    PauseChair(usize, u64),
    /// A coordinator and its clock of durations are stopped for this long.
    StopChair(usize, u64),
    /// A stopped coordinator continues.
    WakeChair(usize, u32, u64),
    /// Messages between a coordinator and the store are lost for this long.
    CutChair(usize, u64),
    /// The leader hands over in an orderly way.
    HandOver,
    /// The store takes the key away early.
    Revoke,
    /// The store keeps a key for this much longer.
    Linger(u64),
    /// The store does not answer anyone for this long.
    StoreDown(u64),
    /// A backup of the store is made.
    Backup,
    /// The store is restored from the backup.
    Restore {
        /// True if the store's revisions go on from a higher number.
        bump: bool,
    },
    /// An operator raises the generation.
    Raise,
    /// An operator says that there are no members that the record does not know. If some may be alive,
    /// the operator waits.
    NoStrangers,
    /// Callers of a node want this many micro-units per second of a limit.
    Demand(usize, usize, u64),
    /// The console changes the plan.
    Change(Change),
    /// Everything is repaired, and no more faults happen.
    Quiet,
}

/// Change through the console.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Sets rates and bursts to this percentage of their first values.
    Rates(u64),
    /// Sets rates and bursts to this many units, however little that is for each member; calls cost one.
    Cut(u64),
    /// Sets the lease to this many seconds, and the promise with it.
    Lease(u64),
    /// Sets the report period to this many milliseconds, and the promise with it.
    Report(u64),
    /// Sets the hold to this many seconds, but at least to the promise.
    Hold(u64),
    /// Sets what a member that is cut off may still use, for all limits.
    Fallback(Fallback),
    /// Sets the total weight to this percentage of the members' weight.
    Weight(u64),
    /// Sets the least burst to this many units.
    Least(u64),
    /// Sets the number of seats to this many more than there are members.
    Seats(u32),
    /// Sets the number of seats, even if more members than that have one.
    FewerSeats(u32),
    /// Removes the newest limit, if there are two.
    NoLimit,
    /// Sets after how many seconds beyond the hold silent members lose their seats; `None` for never.
    ReturnSeats(Option<u64>),
    /// Sets whether static shares follow the number of seats.
    Sizing(Sizing),
    /// Adds one limit, if the setup has one that is not in the plan.
    Limit,
}

/// Number of times that each fault happened.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct Counts {
    pub lost: u64,
    pub doubled: u64,
    pub pushes: u64,
    pub delayed: u64,
    pub cut: u64,
    pub slow_seals: u64,
    pub node_kills: u64,
    pub node_starts: u64,
    pub node_pauses: u64,
    pub node_stalls: u64,
    pub node_stops: u64,
    pub leaves: u64,
    pub deregistrations: u64,
    pub partitions: u64,
    pub one_way_partitions: u64,
    pub chair_kills: u64,
    pub chair_pauses: u64,
    pub chair_stops: u64,
    pub paused_leaders: u64,
    pub chair_cuts: u64,
    pub hand_overs: u64,
    pub early_revocations: u64,
    pub late_revocations: u64,
    pub store_outages: u64,
    pub plan_changes: u64,
    pub limits_added: u64,
    pub limits_removed: u64,
    pub fences: u64,
    pub drains: u64,
    pub weighings: u64,
    pub regroupings: u64,
    pub rollouts: u64,
    pub stages: u64,
    pub taken_back: u64,
    pub elections: u64,
    pub steps_down: u64,
    pub restores: u64,
    /// Not a fault: grants of which L2 was judged, under fixed and under automatic sizing.
    pub judged: [u64; 2],
    /// Not a fault: how often a leader said that the store went back.
    pub alarms: u64,
    /// Every plan that was ever in force.
    pub plans: Vec<Plan>,
}

impl Counts {
    /// Each count with its name.
    #[must_use]
    pub fn list(&self) -> [(&'static str, u64); 39] {
        [
            ("messages lost", self.lost),
            ("messages doubled", self.doubled),
            ("pushes", self.pushes),
            ("messages delayed", self.delayed),
            ("messages cut off", self.cut),
            ("slow seals", self.slow_seals),
            ("node kills", self.node_kills),
            ("node starts", self.node_starts),
            ("node pauses", self.node_pauses),
            ("agent stalls", self.node_stalls),
            ("node pauses that its clock does not show", self.node_stops),
            ("leaves", self.leaves),
            ("deregistrations", self.deregistrations),
            ("partitions", self.partitions),
            ("one-way partitions", self.one_way_partitions),
            ("coordinator kills", self.chair_kills),
            ("coordinator pauses", self.chair_pauses),
            (
                "coordinator pauses that its clock does not show",
                self.chair_stops,
            ),
            ("pauses between deciding and sending", self.paused_leaders),
            ("coordinators cut off from the store", self.chair_cuts),
            ("hand-overs", self.hand_overs),
            ("early revocations", self.early_revocations),
            ("late revocations", self.late_revocations),
            ("store outages", self.store_outages),
            ("plan changes", self.plan_changes),
            ("limits added", self.limits_added),
            ("limits removed", self.limits_removed),
            ("fences", self.fences),
            ("drains", self.drains),
            ("changes of weight", self.weighings),
            ("changes of groups", self.regroupings),
            ("rollouts of a plan", self.rollouts),
            ("further stages", self.stages),
            ("rollouts taken back", self.taken_back),
            ("elections", self.elections),
            ("leaders that stepped down", self.steps_down),
            ("restores of the store from a backup", self.restores),
            ("grants judged by L2, fixed sizing", self.judged[0]),
            ("grants judged by L2, automatic sizing", self.judged[1]),
        ]
    }
}

/// Applies a fault.
pub fn happen(world: &mut World, fault: Fault) {
    let now = world.now;
    if world.quiet && !matches!(fault, Fault::NoStrangers) {
        return;
    }
    match fault {
        Fault::KillNode(node) => {
            if world.nodes[node].alive {
                world.counts.node_kills += 1;
                world.stop_node(node);
            }
        }
        Fault::StartNode(node) => {
            if !world.nodes[node].alive {
                world.counts.node_starts += 1;
                world.start_node(node, true);
            }
        }
        Fault::PauseNode(node, lasts) => {
            world.counts.node_pauses += 1;
            world.nodes[node].paused = world.nodes[node].paused.max(now + lasts);
        }
        Fault::StallNode(node, lasts) => {
            world.counts.node_stalls += 1;
            world.nodes[node].stalled = now + lasts;
        }
        // A node that is stopped already is not stopped again.
        Fault::StopNode(node, _) if world.nodes[node].paused > now => {}
        Fault::StopNode(node, lasts) => {
            world.counts.node_stops += 1;
            let life = world.nodes[node].life;
            world.nodes[node].paused = now + lasts;
            world.at(
                now + lasts,
                Event::Fault(Fault::WakeNode(node, life, lasts)),
            );
        }
        Fault::WakeNode(node, life, hidden) => wake_node(world, node, life, hidden),
        Fault::LeaveNode(node) => leave(world, node),
        Fault::Deregister(node) if !world.nodes[node].alive => deregister(world, node),
        Fault::Deregister(_) => {}
        Fault::Mistaken(node) => deregister(world, node),
        Fault::Fence(_)
        | Fault::Drain(_)
        | Fault::Weigh(..)
        | Fault::Regroup(_)
        | Fault::RollOut(..)
        | Fault::Advance(_)
        | Fault::Complete
        | Fault::TakeBack => operator::happen(world, fault),
        Fault::Cut {
            node,
            chair,
            up,
            down,
            lasts,
        } => cut(world, node, chair, (up, down), lasts),
        Fault::Demand(node, limit, want) => world.nodes[node].demand[limit] = want,
        Fault::Change(change) => change_plan(world, change),
        Fault::Quiet => quiet(world),
        fault => happen_above(world, fault),
    }
}

/// Faults of coordinators and the store.
fn happen_above(world: &mut World, fault: Fault) {
    let now = world.now;
    match fault {
        Fault::KillChair(chair) => {
            world.counts.chair_kills += 1;
            world.chairs[chair].alive = false;
        }
        Fault::StartChair(chair) if !world.chairs[chair].alive => world.start_chair(chair),
        Fault::PauseChair(chair, lasts) => {
            world.counts.chair_pauses += 1;
            world.chairs[chair].paused = world.chairs[chair].paused.max(now + lasts);
        }
        Fault::StopChair(chair, _) if world.chairs[chair].paused > now => {}
        Fault::StopChair(chair, lasts) => {
            world.counts.chair_stops += 1;
            let life = world.chairs[chair].life;
            world.chairs[chair].paused = now + lasts;
            let wake = Fault::WakeChair(chair, life, lasts);
            world.at(now + lasts, Event::Fault(wake));
        }
        Fault::WakeChair(chair, life, hidden) => {
            let one = &mut world.chairs[chair];
            if one.alive && one.life == life {
                one.clock.stand_still(hidden);
                one.core.step_down(Why::ClockStoodStill, &mut world.effects);
                world.perform(chair, 0);
            }
        }
        Fault::CutChair(chair, lasts) => {
            world.counts.chair_cuts += 1;
            world.chairs[chair].cut_off = now + lasts;
        }
        Fault::HandOver => hand_over(world),
        Fault::Revoke => {
            world.counts.early_revocations += 1;
            world.store.revoke();
        }
        Fault::Linger(lasts) => {
            world.counts.late_revocations += 1;
            world.store.linger(lasts);
        }
        Fault::StoreDown(lasts) => {
            world.counts.store_outages += 1;
            world.store_down = now + lasts;
        }
        Fault::Backup => world.backup = Some(world.store.clone()),
        Fault::Restore { bump } => {
            world.counts.restores += 1;
            world.restore(bump);
        }
        Fault::Raise => raise(world),
        Fault::NoStrangers => mark_all_heard(world),
        // The process runs already; all other faults concern nodes and callers.
        _ => {}
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

/// The plan in force with a change, if that can be used.
fn changed_plan(world: &mut World, change: Change) -> Option<Plan> {
    let mut plan = world.store.record.plan.clone();
    let first = &world.setup.plan.limits;
    let weights: u64 = world.setup.weights.iter().copied().map(u64::from).sum();
    let members = u32::try_from(world.setup.weights.len()).unwrap_or(u32::MAX);
    match change {
        Change::Rates(percent) => set_rates(&mut plan, first, percent),
        Change::Cut(units) => {
            for limit in &mut plan.limits {
                let quota = &mut limit.quota;
                (quota.rate, quota.burst, quota.least_burst) =
                    (units * MICRO, units * MICRO, MICRO);
            }
        }
        Change::Lease(seconds) => {
            let lease = Duration::from_secs(seconds);
            let Timing { report, hold, .. } = plan.timing;
            plan.timing = timing(world.setup.drift, report, lease, hold);
        }
        Change::Report(millis) => {
            let Timing { lease, hold, .. } = plan.timing;
            let report = Duration::from_millis(millis);
            plan.timing = timing(world.setup.drift, report, lease, hold);
        }
        Change::Hold(seconds) => {
            plan.timing.hold = Duration::from_secs(seconds).max(plan.timing.promise);
        }
        Change::Fallback(fallback) => {
            for limit in &mut plan.limits {
                limit.quota.fallback = fallback;
            }
        }
        Change::Weight(percent) => plan.size.total_weight = (weights * percent / 100).max(1),
        Change::Least(units) => {
            for limit in &mut plan.limits {
                limit.quota.least_burst = units * MICRO;
            }
        }
        Change::Seats(more) => plan.size.seats = members + more,
        Change::FewerSeats(seats) => plan.size.seats = seats,
        Change::NoLimit => {
            if plan.limits.len() > 1 && plan.limits.pop().is_some() {
                world.counts.limits_removed += 1;
            }
        }
        Change::Sizing(sizing) => plan.size.sizing = sizing,
        Change::ReturnSeats(None) => plan.return_seats = ReturnSeats::Never,
        Change::ReturnSeats(Some(seconds)) => {
            plan.return_seats = ReturnSeats::After(Duration::from_secs(seconds));
        }
        Change::Limit => {
            let missing = |limit: &&Limit| plan.named(&limit.name).is_none();
            let limit = first.iter().find(missing)?;
            world.counts.limits_added += 1;
            plan.limits.push(limit.clone());
        }
    }
    let drift = world.setup.drift;
    // Members whose parts are small may admit nothing, which is no fault: only cuts make them so.
    let is_useful = match change {
        Change::Rates(_)
        | Change::Least(_)
        | Change::Report(_)
        | Change::Seats(_)
        | Change::FewerSeats(_) => plan.check_after(None, drift).is_ok(),
        _ => plan.check(drift).is_ok(),
    };
    is_useful.then_some(plan)
}

/// Sets rates and bursts to a percentage of their first values.
fn set_rates(plan: &mut Plan, first: &[Limit], percent: u64) {
    for limit in &mut plan.limits {
        let Some(first) = first.iter().find(|first| first.name == limit.name) else {
            continue;
        };
        let first = &first.quota;
        limit.quota.rate = first.rate / 100 * percent;
        let burst = first.burst + first.rate / 100 * percent;
        limit.quota.burst = burst.saturating_sub(first.rate);
    }
}

/// Returns true if the plan has a seat for every node.
pub(crate) fn has_seats(world: &World) -> bool {
    usize::try_from(world.store.record.plan.size.seats)
        .is_ok_and(|seats| seats >= world.nodes.len())
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
