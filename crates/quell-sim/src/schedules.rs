//! Schedules: hand-made faults, each at the point where it does most harm.
//!
//! In most of them one member is idle and another wants everything, because a base that was
//! lent is what might be used twice.

mod leaders;
mod leases;
mod operators;
mod restored;
mod seats;

use std::time::Duration;

use quell_shares::plan::{Fallback, Group, Limit, MICRO, Name, Quota, ReturnSeats, Size, Sizing};

use crate::check::Violation;
use crate::fault::Fault;
use crate::node::rule_name;
use crate::setup::{MILLI, REPORT, Setup, timing};
use crate::world::{Event, World};

/// A hand-made schedule.
#[derive(Clone, Copy)]
pub struct Schedule {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description of the schedule.
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
    ($($name:literal ($play:path) $prepare:ident $about:literal,)*) => {
        /// Every schedule.
        pub const SCHEDULES: &[Schedule] = &[$(
            Schedule { name: $name, about: $about, prepare: $prepare, play: $play },
        )*];
    };
}
schedules! {
    "reply-lost-after-shrink" (leases::reply_lost) four "the answer that shrinks a borrower is lost",
    "older-larger-grant" (leases::older_grant) four "after a shrink is acknowledged an older, larger grant arrives",
    "grant-past-lease" (leases::late_grant) four "a grant arrives when its lease is over",
    "answered-then-cut-off" (leases::answered_then_cut) four "a member is cut off as soon as it has a grant",
    "all-cut-off" (leases::all_cut) four "no member reaches a coordinator for two minutes",
    "half-cut-off" (leases::half_cut) four "half of the members are cut off, the idle ones among them",
    "pause-before-sending" (leaders::pause_before_sending) four "a leader is paused between deciding and sending",
    "leave-doubled" (seats::leave_doubled) four "a leave arrives again after its member rejoined",
    "two-processes" (seats::two_processes) four "a second process uses the id of a living one",
    "rates-up-and-down" (leases::rates) four "a limit is raised and lowered within a lease",
    "lowered-with-more-weight" (leases::lowered) four "members weigh more than the plan says, and a limit is raised and lowered",
    "lease-shortened" (leases::lease_shortened) four "the lease is shortened while longer ones are out",
    "join-storm" (seats::join_storm) storm "199 members join at once",
    "leave-storm" (seats::leave_storm) four "all members leave at once, while one borrows",
    "store-down" (leaders::store_down) four "the store is down for ten minutes",
    "lease-shortened-silent" (leases::lease_shortened_silent) four "the lease is shortened while a silent borrower has a longer one, and others fall to their base within it",
    "suspend" (leases::suspend) four "a member sleeps for 40 s, its agent alone for another 40",
    "leader-dies" (leaders::leader_dies) four "a leader dies; members keep their rates",
    "member-dies" (seats::member_dies) four "an idle member dies; what was lent of its base is given back",
    "early-revocation" (leaders::early_revocation) four "the store takes a leader's key early, five times",
    "restart-and-failover" (leaders::restart_and_failover) four "members restart while leaders change",
    "hand-over" (leaders::hand_overs) four "leaders hand over in order, ten times",
    "push-late" (leases::push_late) four "pushes arrive late",
    "push-past-lease" (leases::push_past_lease) four "a push arrives when the lease that it changes is over",
    "replan-silent" (leaders::replan_silent) auto "a member is cut off while others join and leaders change",
    "base-of-a-stranger" (leaders::base_of_a_stranger) auto "a leader dies before it announces a join, and its successor hears only the member that joined",
    "small-bursts" (leases::small_bursts) tight "bursts of one call per member move from member to member and are used at one instant",
    "restarts" (seats::restarts) four "the hungry member restarts every few seconds",
    "old-join" (seats::old_join) four "a join arrives after that of a later process",
    "old-leader-goes-on" (leaders::old_leader_goes_on) four "a leader that lost its key goes on leading one member for as long as it may",
    "report-before-fence" (leaders::report_before_fence) four "reports reach the leader after next, and its successor",
    "old-reports" (seats::old_reports) four "reports arrive again after their process restarted",
    "floor-before-promise" (leases::floor_before_promise) brief "a new leader answers a report so old that the base ends before the promise does",
    "grant-past-hold" (leases::late_beyond_hold) brief "a grant arrives after even the base has ended",
    "crash-loop" (seats::crash_loop) bulky "all members restart again and again",
    "more-than-seats" (seats::more_than_seats) crowded "more members join than there are seats",
    "slow-seal-failover" (leaders::slow_seal) four "a leader dies while a borrower is slow to use less",
    "lease-shortened-failover" (leaders::lease_shortened) four "a leader dies after it shortened the lease, while a borrower has a longer one",
    "larger-calls" (leases::larger_calls) four "calls may cost more, while one member still has a large bucket from the previous plan",
    "long-sleep" (leases::long_sleep) saving "a member with a large bucket sleeps while its right changes",
    "fewer-seats" (seats::fewer_seats) tight "a plan has fewer seats than members",
    "limit-removed" (seats::limit_removed) pair "a plan has one limit less than the previous one",
    "deregistered-alive" (seats::deregistered_alive) four "a member is deregistered while it lives",
    "rebalance" (leases::rebalance) four "what one member no longer wants another gets within 3T and four round trips",
    "rebalance-many" (leases::rebalance_many) storm "what a hundred members no longer want a hundred others get within 4T",
    "hungry-failover" (leaders::hungry_failover) four "a leader dies as an idle member becomes busy, and the borrower is silent",
    "base-ends-in-failover" (leaders::base_ends) patient "a silent member's base ends while the old leader still decides, and the next one has just heard it",
    "base-ends-restored" (leaders::base_ends_restored) patient "the same, the store goes back, and the words of the member are late",
    "floor-ends-in-failover" (leaders::floor_ends) expiring "the same, and its floor ends",
    "leader-and-member-die" (leaders::leader_and_member_die) four "a leader and an idle member die at once",
    "grant-after-fence" (leaders::grant_after_fence) four "a grant of a dead leader arrives after its member was fenced",
    "late-first-words" (leaders::late_first_words) four "the report that tells a new leader what an idle member holds is late, and no other follows",
    "changes-beside-a-silent-member" (leaders::changes_beside_silent) four "nine plans and a failover while a member is cut off, then the limit is cut by 90 %",
    "cut-below-parts" (leaders::cut_below_parts) auto "a limit is cut to less than a call for each member, beside dead and silent ones",
    "joins-beside-a-dead-member" (seats::joins_beside_dead) growing "a member dies, and twelve others join",
    "pods-replaced" (operators::pods_replaced) deployment "every node is replaced by one with another id, again and again, and none leaves",
    "silent-for-long" (operators::silent_for_long) returning "a busy member is cut off until its seat is given back",
    "drained" (operators::drained) four "busy members are drained, and are slow to stop",
    "weight-lowered" (operators::weight_lowered) weighted "a member's weight is lowered while it is cut off, and a leader dies",
    "limit-again" (operators::limit_again) pair "a limit is removed and added again while a member is cut off",
    "staged-plan" (operators::staged) four "a plan is given to one member, to half of them, taken back, and given to all",
    "groups" (operators::groups) grouped "members move from one group to another while leaders change",
    "fenced" (operators::fenced) four "an orchestrator says that a borrower is dead",
    "restored" (restored::older_record) four "the store goes back before two joins and two leaders, and the generation is raised",
    "restored-bumped" (restored::bumped) four "the store goes back, but its revisions go on",
    "restored-stranger" (restored::silent) patient "the store goes back to before a borrower joined, which is cut off",
    "restored-plan" (restored::unknown_plan) four "the store goes back to before a plan with longer leases that a silent borrower follows",
    "restored-not-raised" (restored::not_raised) four "the store goes back and nobody raises the generation for a minute",
    "restored-bumped-not-raised" (restored::bumped_not_raised) four "the same, but its revisions go on",
    "restored-one-witness" (restored::not_raised_one_witness) four "the same with fresh coordinators, and only one member that has its seat has heard a later leader",
    "liar" (restored::liar) four "somebody without a seat names the highest numbers that there are",
    "restored-under-leader" (restored::under_its_leader) four "the store goes back, and its leader has the key in the backup, too",
    "restored-snapshot" (restored::handed_over) four "the store goes back to a snapshot that was used long ago",
    "restored-drained" (restored::drained) patient "after a restore a member is drained that the leader has not heard",
    "restored-floors" (restored::floors) brief "members weigh more than the plan says, and after a restore all but one are heard when they are on their floors",
    "restored-floors-unheard" (restored::floors_unheard) brief "the same, and only one of them is heard",
    "restored-handed-over" (restored::handed_over_unheard) four "after a restore a leader hands over that has not heard a member, and then there are no strangers",
    "restored-given-back" (restored::seat_was_given_back) returning "the store goes back to before a member joined, whose seat was given back since, and who is heard",
    "restored-all" (restored::all_restart) four "the store goes back while every process restarts",
    "leave-under-load" (seats::leave_under_load) four "a busy member leaves, and is slow to stop",
}

/// Four equal members, 1000/s and burst 1000, no random loss or delay.
fn four(setup: &mut Setup) {
    setup.weights = vec![1; 4];
    setup.coordinators = 2;
    setup.loss = 0;
    setup.slow = false;
    setup.begins_with = 1;
    let quota = Quota {
        rate: 1_000 * MICRO,
        burst: 1_000 * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    };
    setup.plan.limits = vec![Limit::new(rule_name(0), quota)];
    setup.plan.groups = Vec::new();
    setup.plan.return_seats = ReturnSeats::Never;
    setup.plan.size.total_weight = 4;
    setup.plan.size.seats = 5;
    setup.plan.size.sizing = Sizing::Fixed;
    let hold = Duration::from_secs(300);
    setup.plan.timing = timing(setup.drift, REPORT, Duration::from_secs(10), hold);
}

/// As [`four`], with two limits.
fn pair(setup: &mut Setup) {
    four(setup);
    let quota = setup.plan.limits[0].quota;
    setup.plan.limits.push(Limit::new(rule_name(1), quota));
    setup.begins_with = 2;
}

/// As [`four`], but every member's base follows the number of seats.
fn auto(setup: &mut Setup) {
    four(setup);
    setup.plan.size.sizing = Sizing::Auto;
}

/// As [`auto`], with up to 14 members and a hold of 20 s.
fn growing(setup: &mut Setup) {
    brief(setup);
    setup.weights = vec![1; 14];
    setup.plan.size.sizing = Sizing::Auto;
    setup.plan.size.seats = 14;
}

/// As [`brief`], with the seats of silent members given back 10 s after the hold.
fn returning(setup: &mut Setup) {
    brief(setup);
    setup.plan.size.sizing = Sizing::Auto;
    setup.plan.return_seats = ReturnSeats::After(Duration::from_secs(10));
}

/// As [`returning`], with eight seats, of which four are used at a time by 24 members.
fn deployment(setup: &mut Setup) {
    returning(setup);
    setup.weights = vec![1; 24];
    setup.plan.size.seats = 8;
}

/// As [`auto`], with half of the limit for the last member.
fn weighted(setup: &mut Setup) {
    auto(setup);
    setup.weights = vec![1, 1, 1, 3];
}

/// As [`pair`], with the second limit for the first two members only.
fn grouped(setup: &mut Setup) {
    pair(setup);
    let size = Size {
        total_weight: 4,
        sizing: Sizing::Auto,
        ..setup.plan.size
    };
    let name: Name = "most".into();
    let limit = setup.plan.limits.remove(1);
    setup.plan.limits.push(limit.of_group(name.clone()));
    setup.plan.groups = vec![Group { name, size }];
    setup.memberships = vec![true, true, false, false];
}

/// As [`four`], with 60/s and the smallest possible burst.
fn tight(setup: &mut Setup) {
    four(setup);
    setup.plan.size.seats = 4;
    setup.plan.limits[0].quota.rate = 60 * MICRO;
    setup.plan.limits[0].quota.burst = 4 * MICRO;
}

/// As [`tight`], with six members and calls that cost 15.
fn crowded(setup: &mut Setup) {
    tight(setup);
    setup.weights = vec![1; 6];
    setup.plan.limits[0].quota.burst = 60 * MICRO;
    setup.plan.limits[0].quota.least_burst = 15 * MICRO;
}

/// As [`four`], with a burst of one minute and half of the limit for the last member.
fn saving(setup: &mut Setup) {
    four(setup);
    setup.weights = vec![1, 1, 1, 3];
    setup.plan.size.total_weight = 6;
    setup.plan.limits[0].quota.burst = 60_000 * MICRO;
}

/// As [`four`], with a hold of 20 s.
fn brief(setup: &mut Setup) {
    four(setup);
    let hold = Duration::from_secs(20);
    setup.plan.timing = timing(setup.drift, REPORT, Duration::from_secs(10), hold);
}

/// As [`four`], with a hold of 40 s.
fn patient(setup: &mut Setup) {
    four(setup);
    let hold = Duration::from_secs(40);
    setup.plan.timing = timing(setup.drift, REPORT, Duration::from_secs(10), hold);
}

/// As [`patient`], with the seats of silent members given back 10 s after the hold.
fn expiring(setup: &mut Setup) {
    patient(setup);
    setup.plan.return_seats = ReturnSeats::After(Duration::from_secs(10));
}

/// As [`four`], with 400/s and calls that cost up to 200.
fn bulky(setup: &mut Setup) {
    four(setup);
    setup.plan.limits[0].quota.rate = 400 * MICRO;
    setup.plan.limits[0].quota.least_burst = 200 * MICRO;
}

/// 200 members that share 20,000/s.
fn storm(setup: &mut Setup) {
    four(setup);
    setup.weights = vec![1; 200];
    setup.plan.size.sizing = Sizing::Auto;
    setup.plan.size.seats = 200;
    setup.plan.limits[0].quota.rate = 20_000 * MICRO;
    setup.plan.limits[0].quota.burst = 20_000 * MICRO;
}

/// Injects a fault after this many milliseconds.
fn after(world: &mut World, millis: u64, fault: Fault) {
    world.at(world.now + millis * MILLI, Event::Fault(fault));
}

/// Runs for this many milliseconds.
fn pass(world: &mut World, millis: u64) {
    let end = world.now + millis * MILLI;
    world.run(end);
}

fn want(world: &mut World, node: usize, units: u64) {
    world.nodes[node].demand[0] = units * MICRO;
}

fn want_all(world: &mut World, nodes: impl IntoIterator<Item = usize>, units: u64) {
    for node in nodes {
        want(world, node, units);
    }
}

/// Lets all callers come at once.
fn serve_all(world: &mut World, nodes: impl IntoIterator<Item = usize>) {
    for node in nodes {
        world.serve(node);
    }
}

/// Starts all nodes, lets the first member want everything, and runs for 20 s.
pub fn begin(world: &mut World) {
    for node in 0..world.nodes.len() {
        world.start_node(node, true);
        want(world, node, 0);
    }
    want(world, 0, 2_000);
    pass(world, 20_000);
}

/// Current quota of a member, in units per second.
#[must_use]
pub fn may(world: &World, node: usize) -> u64 {
    let node = &world.nodes[node];
    let local = node.clock.local(world.now);
    let bucket = node.bucket(0).filter(|_| node.alive);
    bucket.map_or(0, |bucket| bucket.schedule().at(local).rate) / MICRO
}

/// Units that a member may save up now.
fn saves(world: &World, node: usize) -> u64 {
    let node = &world.nodes[node];
    let local = node.clock.local(world.now);
    let bucket = node.bucket(0).filter(|_| node.alive);
    bucket.map_or(0, |bucket| bucket.schedule().at(local).burst) / MICRO
}

/// Records a violation if a promise does not hold.
pub(crate) fn expect(world: &mut World, promise: &'static str, holds: bool, text: String) {
    if !holds && world.violation.is_none() {
        world.violation = Some(Violation {
            at: world.now,
            promise,
            text,
        });
    }
}

/// Expects that a member may use at least `units` per second.
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
        world.inject(cut);
    }
}

fn leader(world: &World) -> usize {
    world.store.leader(world.now).unwrap_or(0)
}

/// Demand moves from member to member; each of them wants everything for a while.
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
