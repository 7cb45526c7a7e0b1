//! Schedules: faults made by hand, each at the place where it hurts most.
//!
//! Most of them let one member be idle and another want everything, because a lent base is what
//! can be used twice.

use std::time::Duration;

use quell_core::fleet::plan::{Fallback, MICRO, Quota, Sizing};

use crate::check::Violation;
use crate::fault::{Change, Fault, happen};
use crate::setup::{MILLI, SECOND, Setup, timing};
use crate::world::{Event, World};

/// A schedule made by hand.
#[derive(Clone, Copy)]
pub struct Schedule {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Changes the numbers of the run.
    pub prepare: fn(&mut Setup),
    /// Plays it.
    pub play: fn(&mut World),
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! schedules {
    ($($name:literal $play:ident $prepare:ident $about:literal,)*) => {
        /// Every schedule.
        pub const SCHEDULES: &[Schedule] = &[$(
            Schedule { name: $name, about: $about, prepare: $prepare, play: $play },
        )*];
    };
}
schedules! {
    "reply-lost-after-shrink" reply_lost four "the answer that shrinks a borrower is lost",
    "older-larger-grant" older_grant four "after a shrink is acknowledged an older, larger grant arrives",
    "grant-past-lease" late_grant four "a grant arrives when its lease is over",
    "answered-then-cut-off" answered_then_cut four "a member is cut off as soon as it has a grant",
    "all-cut-off" all_cut four "no member reaches a coordinator for two minutes",
    "half-cut-off" half_cut four "half of the members are cut off, the idle ones among them",
    "pause-before-sending" pause_before_sending four "a leader is paused between deciding and sending",
    "leave-doubled" leave_doubled four "a leave arrives again after its member rejoined",
    "two-processes" two_processes four "a second process uses the id of a living one",
    "rates-up-and-down" rates four "a limit is raised and lowered within a lease",
    "lease-shortened" lease_shortened four "the lease is shortened while longer ones are out",
    "join-storm" join_storm storm "199 members join at once",
    "leave-storm" leave_storm four "all members leave at once, while one borrows",
    "store-down" store_down four "the store is down for ten minutes",
    "suspend" suspend four "a member sleeps for 40 s, its agent alone for another 40",
    "leader-dies" leader_dies four "a leader dies; members keep their rates",
    "member-dies" member_dies four "an idle member dies; what was lent of its base is given back",
    "early-revocation" early_revocation four "the store takes a leader's key early, five times",
    "restart-and-failover" restart_and_failover four "members restart while leaders change",
    "hand-over" hand_overs four "leaders hand over in order, ten times",
    "push-late" push_late four "pushes arrive late",
    "push-past-lease" push_past_lease four "a push arrives when the lease that it changes is over",
    "replan-silent" replan_silent auto "a member is cut off while others join and leaders change",
    "small-bursts" small_bursts tight "bursts of one call per member, moved to and fro",
    "restarts" restarts four "the hungry member restarts every few seconds",
    "old-join" old_join four "a join arrives after that of a later process",
    "old-leader-goes-on" old_leader_goes_on four "a leader that lost its key goes on for as long as it may, for one member",
    "report-before-fence" report_before_fence four "reports reach the leader after next, and its successor",
    "old-reports" old_reports four "reports arrive again after their process restarted",
    "grant-past-hold" late_beyond_hold brief "a grant arrives when even the base is over",
    "crash-loop" crash_loop bulky "all members restart again and again",
    "leave-under-load" leave_under_load four "a busy member leaves, and is slow to stop",
}

/// Four equal members, 1000/s and burst 1000, no random loss or delay.
fn four(setup: &mut Setup) {
    setup.weights = vec![1; 4];
    setup.coordinators = 2;
    setup.loss = 0;
    setup.slow = false;
    setup.plan.limits = vec![Quota {
        rate: 1_000 * MICRO,
        burst: 1_000 * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    }];
    setup.plan.total_weight = 4;
    setup.plan.seats = 5;
    setup.plan.sizing = Sizing::Fixed;
    let hold = Duration::from_secs(300);
    setup.plan.timing = timing(setup.drift, Duration::from_secs(10), hold);
}

/// As [`four`], but everybody's base follows the number of seats.
fn auto(setup: &mut Setup) {
    four(setup);
    setup.plan.sizing = Sizing::Auto;
}

/// As [`four`], with the smallest burst there is.
fn tight(setup: &mut Setup) {
    four(setup);
    setup.plan.seats = 4;
    setup.plan.limits[0].burst = 4 * MICRO;
}

/// As [`four`], with a hold of 20 s.
fn brief(setup: &mut Setup) {
    four(setup);
    let hold = Duration::from_secs(20);
    setup.plan.timing = timing(setup.drift, Duration::from_secs(10), hold);
}

/// As [`four`], with calls that cost up to 200.
fn bulky(setup: &mut Setup) {
    four(setup);
    setup.plan.limits[0].least_burst = 200 * MICRO;
}

/// 200 members that share 20,000/s.
fn storm(setup: &mut Setup) {
    four(setup);
    setup.weights = vec![1; 200];
    setup.plan.sizing = Sizing::Auto;
    setup.plan.seats = 200;
    setup.plan.limits[0].rate = 20_000 * MICRO;
    setup.plan.limits[0].burst = 20_000 * MICRO;
}

/// Lets a fault happen so many milliseconds from now.
fn after(world: &mut World, millis: u64, fault: Fault) {
    world.at(world.now + millis * MILLI, Event::Fault(fault));
}

/// Runs for so many milliseconds.
fn pass(world: &mut World, millis: u64) {
    let end = world.now + millis * MILLI;
    world.run(end);
}

fn want(world: &mut World, node: usize, units: u64) {
    world.nodes[node].demand[0] = units * MICRO;
}

/// Everybody starts; the first member wants everything; 20 s pass.
pub fn begin(world: &mut World) {
    for node in 0..world.nodes.len() {
        world.start_node(node, true);
        want(world, node, 0);
    }
    want(world, 0, 2_000);
    pass(world, 20_000);
}

/// What a member may use now, in units per second.
#[must_use]
pub fn may(world: &World, node: usize) -> u64 {
    let node = &world.nodes[node];
    let local = node.clock.local(world.now);
    let bucket = node.buckets.first().filter(|_| node.alive);
    bucket.map_or(0, |bucket| bucket.schedule().at(local).rate) / MICRO
}

fn expect(world: &mut World, promise: &'static str, holds: bool, text: String) {
    if !holds && world.violation.is_none() {
        world.violation = Some(Violation {
            at: world.now,
            promise,
            text,
        });
    }
}

/// A member may use at least so much.
fn at_least(world: &mut World, promise: &'static str, node: usize, units: u64) {
    let may = may(world, node);
    let text = format!("member {node} may use {may}/s, and {units}/s is promised");
    expect(world, promise, may >= units, text);
}

fn cut(world: &mut World, node: usize, up: bool, down: bool, millis: u64) {
    for chair in 0..world.chairs.len() {
        let lasts = millis * MILLI;
        let cut = Fault::Cut {
            node,
            chair,
            up,
            down,
            lasts,
        };
        happen(world, cut);
    }
}

fn leader(world: &World) -> usize {
    world.store.leader(world.now).unwrap_or(0)
}

/// Demand goes from member to member; every member wants all for a while.
fn to_and_fro(world: &mut World, rounds: usize, millis: u64) {
    for round in 0..rounds {
        for node in 0..world.nodes.len() {
            want(
                world,
                node,
                if round % world.nodes.len() == node {
                    2_000
                } else {
                    0
                },
            );
        }
        pass(world, millis);
    }
}

fn reply_lost(world: &mut World) {
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

fn older_grant(world: &mut World) {
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

fn late_grant(world: &mut World) {
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

fn answered_then_cut(world: &mut World) {
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

fn all_cut(world: &mut World) {
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

fn half_cut(world: &mut World) {
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

fn pause_before_sending(world: &mut World) {
    begin(world);
    for pause in [2_000, 4_000, 9_000, 11_000, 20_000] {
        world.pause_next = Some(pause * MILLI);
        want(world, 1, 2_000);
        pass(world, pause + 15_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

fn leave_doubled(world: &mut World) {
    begin(world);
    for node in [0, 1] {
        want(world, node, 2_000);
        pass(world, 5_000);
        world.double_leaves = 8_000 * MILLI;
        happen(world, Fault::LeaveNode(node));
        pass(world, 3_000);
        happen(world, Fault::StartNode(node));
        // The other one takes what the second leave seems to free.
        want(world, 1 - node, 2_000);
        pass(world, 15_000);
    }
}

fn two_processes(world: &mut World) {
    let twin = world.nodes[0].clone();
    begin(world);
    world.add_twin(twin);
    pass(world, 3_000);
    want(world, 1, 2_000);
    want(world, 4, 2_000);
    pass(world, 30_000);
}

fn rates(world: &mut World) {
    begin(world);
    for percent in [200, 100, 300, 100, 150, 100] {
        happen(world, Fault::Change(Change::Rates(percent)));
        want(world, 1, if percent == 100 { 0 } else { 3_000 });
        cut(world, 2, true, true, 6_000);
        pass(world, 4_000);
    }
    pass(world, 20_000);
    at_least(world, "L1", 0, 700);
}

fn lease_shortened(world: &mut World) {
    begin(world);
    for seconds in [20, 4, 15, 5] {
        happen(world, Fault::Change(Change::Lease(seconds)));
        pass(world, 6_000);
        cut(world, 0, true, true, 30_000);
        want(world, 1, 2_000);
        pass(world, 3_000);
        let chair = leader(world);
        happen(world, Fault::KillChair(chair));
        pass(world, 25_000);
        happen(world, Fault::StartChair(chair));
        want(world, 1, 0);
        pass(world, 15_000);
    }
}

fn join_storm(world: &mut World) {
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

fn leave_storm(world: &mut World) {
    begin(world);
    for node in 0..4 {
        happen(world, Fault::LeaveNode(node));
    }
    pass(world, 5_000);
    for node in 0..4 {
        happen(world, Fault::StartNode(node));
        want(world, node, 1_000);
    }
    pass(world, 20_000);
    for node in 0..4 {
        at_least(world, "L1", node, 240);
    }
}

fn store_down(world: &mut World) {
    begin(world);
    happen(world, Fault::StoreDown(600 * SECOND));
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

fn suspend(world: &mut World) {
    begin(world);
    for fault in [
        Fault::PauseNode(0, 40 * SECOND),
        Fault::StallNode(0, 40 * SECOND),
    ] {
        happen(world, fault);
        want(world, 1, 2_000);
        pass(world, 60_000);
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

fn leader_dies(world: &mut World) {
    begin(world);
    let chair = leader(world);
    let before = may(world, 0);
    happen(world, Fault::KillChair(chair));
    for _ in 0..60 {
        pass(world, 500);
        at_least(world, "L3", 0, before * 9 / 10);
    }
    happen(world, Fault::StartChair(chair));
    to_and_fro(world, 4, 10_000);
    // Again, while a member is about to be served.
    let chair = leader(world);
    want(world, 2, 2_000);
    pass(world, 700);
    happen(world, Fault::KillChair(chair));
    pass(world, 40_000);
    at_least(world, "L1", 2, 400);
}

fn member_dies(world: &mut World) {
    begin(world);
    happen(world, Fault::KillNode(3));
    pass(world, 5_000);
    at_least(world, "L2", 0, 850);
    pass(world, 15_000);
    at_least(world, "L1", 0, 600);
    pass(world, 10_000);
    happen(world, Fault::StartNode(3));
    want(world, 3, 2_000);
    pass(world, 10_000);
    at_least(world, "L1", 3, 400);
    // Gone for good: an operator says so, and its base is free.
    happen(world, Fault::KillNode(3));
    pass(world, 20_000);
    happen(world, Fault::Deregister(3));
    pass(world, 5_000);
    at_least(world, "L1", 0, 850);
}

fn early_revocation(world: &mut World) {
    begin(world);
    for round in 0..5 {
        let chair = leader(world);
        happen(world, Fault::CutChair(chair, 6 * SECOND));
        happen(world, Fault::Revoke);
        pass(world, 1_000 + round * 400);
        want(world, 1, 2_000);
        pass(world, 12_000);
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

fn restart_and_failover(world: &mut World) {
    begin(world);
    for round in 0..6 {
        let chair = leader(world);
        happen(world, Fault::KillNode(0));
        after(world, 200, Fault::StartNode(0));
        pass(world, 1_500 + round * 700);
        happen(world, Fault::KillChair(chair));
        want(world, 1, 2_000);
        pass(world, 9_000);
        happen(world, Fault::StartChair(chair));
        pass(world, 9_000);
        want(world, 1, 0);
        pass(world, 5_000);
    }
}

fn hand_overs(world: &mut World) {
    begin(world);
    let before = may(world, 0);
    for round in 0..10 {
        want(world, 1, if round % 2 == 1 { 2_000 } else { 0 });
        happen(world, Fault::HandOver);
        pass(world, 6_000);
        if round == 0 {
            at_least(world, "L1", 0, before * 9 / 10);
        }
    }
    pass(world, 20_000);
    at_least(world, "L1", 1, 400);
}

fn push_late(world: &mut World) {
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

fn push_past_lease(world: &mut World) {
    begin(world);
    for late in [8_500, 9_500, 10_200, 11_000] {
        // Both want all, so each has half; then the first wants nothing and is pushed.
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

fn replan_silent(world: &mut World) {
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
    happen(world, Fault::KillChair(chair));
    pass(world, 50_000);
    happen(world, Fault::StartChair(chair));
    pass(world, 30_000);
    at_least(world, "L1", 0, 200);
}

fn small_bursts(world: &mut World) {
    begin(world);
    to_and_fro(world, 12, 4_000);
    for node in 0..4 {
        want(world, node, 300);
    }
    pass(world, 20_000);
}

fn restarts(world: &mut World) {
    begin(world);
    for _ in 0..12 {
        happen(world, Fault::KillNode(0));
        pass(world, 100);
        happen(world, Fault::StartNode(0));
        pass(world, 2_400);
    }
}

fn old_join(world: &mut World) {
    begin(world);
    for late in [4_000, 6_000] {
        world.double_joins = late * MILLI;
        for _ in 0..2 {
            happen(world, Fault::KillNode(0));
            pass(world, 200);
            happen(world, Fault::StartNode(0));
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

fn old_leader_goes_on(world: &mut World) {
    begin(world);
    for round in 0..3 {
        let chair = leader(world);
        // The hungry one hears the old leader alone, and the old leader not the store.
        for other in (0..world.chairs.len()).filter(|other| *other != chair) {
            let cut = Fault::Cut {
                node: 0,
                chair: other,
                up: true,
                down: true,
                lasts: 30 * SECOND,
            };
            happen(world, cut);
        }
        happen(world, Fault::CutChair(chair, 20 * SECOND));
        pass(world, 200 * round);
        happen(world, Fault::Revoke);
        want(world, 1, 2_000);
        pass(world, 30_000);
        want(world, 1, 0);
        pass(world, 15_000);
    }
}

fn report_before_fence(world: &mut World) {
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
        happen(world, Fault::KillChair(first));
        pass(world, 4_500);
        happen(world, Fault::StartChair(first));
        want(world, 0, 2_000);
        pass(world, 4_000);
        let second = leader(world);
        world.double_reports = 0;
        cut(world, 0, true, true, 20_000);
        happen(world, Fault::KillChair(second));
        want(world, 1, 2_000);
        pass(world, 15_000);
        happen(world, Fault::StartChair(second));
        want(world, 1, 0);
        pass(world, 10_000);
    }
}

fn old_reports(world: &mut World) {
    begin(world);
    want(world, 0, 0);
    for late in [6_000, 7_000, 8_000, 9_000] {
        world.double_reports = late * MILLI;
        pass(world, 15_000);
        happen(world, Fault::KillNode(0));
        pass(world, 100);
        happen(world, Fault::StartNode(0));
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

fn late_beyond_hold(world: &mut World) {
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

fn crash_loop(world: &mut World) {
    begin(world);
    for node in 0..4 {
        want(world, node, 2_000);
    }
    pass(world, 5_000);
    for _ in 0..40 {
        for node in 0..4 {
            happen(world, Fault::KillNode(node));
            happen(world, Fault::StartNode(node));
        }
        pass(world, 600);
    }
}

fn leave_under_load(world: &mut World) {
    begin(world);
    for node in [0, 1, 2] {
        want(world, node, 2_000);
        pass(world, 6_000);
        world.slow_seal = Some(3_000 * MILLI);
        happen(world, Fault::LeaveNode(node));
        want(world, 3, 2_000);
        pass(world, 10_000);
        want(world, 3, 0);
        happen(world, Fault::StartNode(node));
        pass(world, 5_000);
    }
}
