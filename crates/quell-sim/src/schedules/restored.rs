//! Schedules in which the store is restored from a backup.

use std::ops::RangeInclusive;

use quell_shares::message::{Join, Report, Request};
use quell_shares::plan::MemberId;

use super::{at_least, begin, cut, expect, leader, may, pass, want, want_all};
use crate::fault::{Change, Fault};
use crate::world::{Event, World};

/// Two members, of which the first wants everything; then a backup.
fn two_and_backup(world: &mut World) {
    for node in 0..2 {
        world.start_node(node, true);
    }
    want(world, 0, 2_000);
    want(world, 1, 0);
    pass(world, 20_000);
    world.inject(Fault::Backup);
}

/// Lets things happen that the backup does not know: two more members, two starts of the second, two
/// leaders.
fn much_happens(world: &mut World) {
    two_join(world);
    for _ in 0..2 {
        world.inject(Fault::KillNode(1));
        pass(world, 500);
        world.inject(Fault::StartNode(1));
        pass(world, 2_500);
    }
    two_lead(world);
}

fn two_join(world: &mut World) {
    for node in 2..4 {
        world.start_node(node, true);
        want(world, node, 0);
    }
    pass(world, 2_000);
}

fn two_lead(world: &mut World) {
    for _ in 0..2 {
        let chair = leader(world);
        world.inject(Fault::KillChair(chair));
        pass(world, 12_000);
        world.inject(Fault::StartChair(chair));
    }
}

/// These members want everything, and get equal parts of `units`.
fn all_share(world: &mut World, nodes: &[usize], units: u64) {
    for node in nodes {
        want(world, *node, 2_000);
    }
    pass(world, 10_000);
    let units = units / u64::try_from(nodes.len()).unwrap_or(1);
    for node in nodes {
        at_least(world, "L1", *node, units);
    }
}

fn restore(world: &mut World, bump: bool) {
    world.inject(Fault::Restore { bump });
    world.inject(Fault::Raise);
}

pub(super) fn older_record(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    restore(world, false);
    for _ in 0..40 {
        pass(world, 500);
        // While it is learned what they hold, all have at least their static share; then members that the
        // record does not know have a planned floor, and what they had is set aside.
        at_least(world, "L2", 0, 240);
    }
    mark_all_heard(world, &[0, 1, 2, 3]);
}

pub(super) fn bumped(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    restore(world, true);
    pass(world, 20_000);
    mark_all_heard(world, &[0, 1, 2, 3]);
    // A member that comes later gets its static share of what was free.
    world.inject(Fault::KillNode(3));
    pass(world, 20_000);
    world.inject(Fault::StartNode(3));
    pass(world, 5_000);
    all_share(world, &[0, 1, 2, 3], 960);
}

pub(super) fn silent(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    want(world, 0, 0);
    want(world, 3, 2_000);
    pass(world, 8_000);
    // The borrower joined after the backup, and is not heard until long after the restore.
    cut(world, 3, true, true, 95_000);
    want(world, 0, 2_000);
    want(world, 2, 2_000);
    pass(world, 600);
    restore(world, false);
    // The next leader is elected, and all older leases are over by the slowest clock.
    let granting = world.setup.drift.longest(22_000);
    pass(world, granting);
    at_least(world, "L2", 3, 250);
    at_least(world, "L1", 0, 240);
    let all: u64 = (0..3).map(|node| may(world, node)).sum();
    let text = format!("members may use {all}/s beside a stranger with 250/s");
    expect(world, "S1", all <= 750, text);
    // Its static share has become a floor, but nobody knows that it was its only one. What another one says that
    // it had is believed of nobody whom the record does not know.
    pass(world, 35_000);
    all_share(world, &[0, 2], 480);
    pass(world, 30_000);
    all_share(world, &[0, 2, 3], 480);
    mark_all_heard(world, &[0, 2, 3]);
}

pub(super) fn unknown_plan(world: &mut World) {
    begin(world);
    world.inject(Fault::Backup);
    world.inject(Fault::Change(Change::Lease(20)));
    world.inject(Fault::Change(Change::Rates(300)));
    pass(world, 8_000);
    // It has a longer lease, of a limit three times as large, than the record knows.
    cut(world, 0, true, true, 60_000);
    want_all(world, 1..4, 4_000);
    pass(world, 300);
    restore(world, false);
    pass(world, 70_000);
    all_share(world, &[0, 1, 2, 3], 960);
    // The members follow the plan of the backup again, as another revision.
    world.inject(Fault::Change(Change::Rates(50)));
    pass(world, 20_000);
    at_least(world, "L1", 0, 110);
}

pub(super) fn not_raised(world: &mut World) {
    restore_unraised(world, false);
    at_least(world, "L2", 0, 250);
    raise_late(world);
}

pub(super) fn bumped_not_raised(world: &mut World) {
    restore_unraised(world, true);
    raise_late(world);
}

/// Restores a record that no leader may trust, while somebody whom it does not know is silent.
fn restore_unraised(world: &mut World, bump: bool) {
    two_and_backup(world);
    two_join(world);
    two_lead(world);
    cut(world, 3, true, true, 120_000);
    want(world, 2, 2_000);
    pass(world, 500);
    world.inject(Fault::Restore { bump });
    pass(world, 60_000);
    went_back(world, 1..=3);
}

/// The static shares of those whom the record does not know are set aside, also that of the silent one.
fn raise_late(world: &mut World) {
    world.inject(Fault::Raise);
    pass(world, 45_000);
    all_share(world, &[0, 2], 480);
}

/// Expects that so many leaders said that the store went back.
fn went_back(world: &mut World, leaders: RangeInclusive<u64>) {
    let alarms = world.counts.alarms;
    let text = format!("{alarms} leaders said that the store went back");
    expect(world, "L3", leaders.contains(&alarms), text);
}

/// Of those whom the record knows, the second has started anew, and the coordinators have, too: one member
/// alone proves nothing. But it obeys no leader before the one that it has heard.
pub(super) fn not_raised_one_witness(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    cut(world, 3, true, true, 120_000);
    want(world, 2, 2_000);
    pass(world, 500);
    world.inject(Fault::Restore { bump: false });
    for chair in 0..world.chairs.len() {
        world.inject(Fault::KillChair(chair));
        world.inject(Fault::StartChair(chair));
    }
    pass(world, 60_000);
    went_back(world, 0..=0);
    at_least(world, "L2", 0, 250);
    raise_late(world);
}

/// Somebody with the credential of a node, and without a seat, names the highest numbers that there are.
pub(super) fn liar(world: &mut World) {
    begin(world);
    for second in 0..30 {
        for member in [4_242, 4_243, 3] {
            let member = MemberId(member);
            let join = Join {
                member,
                nonce: second,
                weight: 1,
                groups: Vec::new(),
                exclusive: false,
                replaces: u64::MAX,
                floors: Vec::new(),
                gave_up: None,
                epoch: u64::MAX,
                record: u64::MAX,
            };
            let report = Report {
                member,
                incarnation: 77,
                seq: second,
                epoch: u64::MAX,
                applied: 0,
                revision: 1,
                record: u64::MAX,
                loads: Vec::new(),
                held: Some(Vec::new()),
            };
            for chair in 0..world.chairs.len() {
                for request in [Request::Join(join.clone()), Request::Report(report.clone())] {
                    world.at(world.now + 1, Event::Request(chair, request));
                }
            }
        }
        pass(world, 1_000);
        at_least(world, "L1", 0, 850);
    }
    let alarms = world.counts.alarms;
    expect(world, "L3", alarms == 0, format!("{alarms} alarms"));
    // A member that joins meanwhile gets its share.
    world.inject(Fault::KillNode(2));
    world.inject(Fault::StartNode(2));
    pass(world, 5_000);
    all_share(world, &[0, 1, 2, 3], 960);
}

pub(super) fn under_its_leader(world: &mut World) {
    two_and_backup(world);
    for node in 2..4 {
        world.start_node(node, true);
        want(world, node, 0);
    }
    pass(world, 10_000);
    // The leader's key is part of the backup, so the leader notices nothing.
    world.inject(Fault::Restore { bump: false });
    pass(world, 5_000);
    at_least(world, "L1", 0, 850);
    // A write finds an older record than it should replace. The leader knows all that was lost, writes that
    // record again, and goes on giving seats.
    world.inject(Fault::KillNode(2));
    world.inject(Fault::StartNode(2));
    pass(world, 10_000);
    went_back(world, 1..=1);
    let seats = world.store.record.seats.len();
    let text = format!("the record has {seats} seats");
    expect(world, "L3", seats == 4, text);
    want(world, 2, 2_000);
    pass(world, 5_000);
    at_least(world, "L1", 2, 400);
    cut(world, 3, true, true, 30_000);
    world.inject(Fault::Raise);
    pass(world, 20_000);
    want(world, 1, 2_000);
    pass(world, 30_000);
    all_share(world, &[0, 1, 2, 3], 960);
    mark_all_heard(world, &[0, 1, 2, 3]);
}

pub(super) fn handed_over(world: &mut World) {
    begin(world);
    // The snapshot is part of the backup, but was used long ago.
    world.inject(Fault::HandOver);
    pass(world, 20);
    world.inject(Fault::Backup);
    want(world, 0, 0);
    want(world, 1, 2_000);
    pass(world, 15_000);
    cut(world, 1, true, true, 30_000);
    restore(world, false);
    want(world, 2, 2_000);
    pass(world, 50_000);
    all_share(world, &[0, 1, 2, 3], 960);
}

pub(super) fn drained(world: &mut World) {
    begin(world);
    world.inject(Fault::Backup);
    restore(world, false);
    pass(world, 20_000);
    world.inject(Fault::KillNode(1));
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    pass(world, 25_000);
    // The next leader knows the member by the record alone, and has set its share aside.
    world.inject(Fault::Drain(1));
    pass(world, 20_000);
    world.inject(Fault::NoStrangers);
    want_all(world, [0, 2, 3], 2_000);
    pass(world, 20_000);
    // It lives on its file.
    cut(world, 1, true, true, 30_000);
    world.inject(Fault::StartNode(1));
    pass(world, 50_000);
    all_share(world, &[0, 2, 3], 960);
}

/// An operator says that there are no strangers, and these members share the limit.
fn mark_all_heard(world: &mut World, nodes: &[usize]) {
    world.inject(Fault::NoStrangers);
    pass(world, 2_000);
    all_share(world, nodes, 960);
}

/// A member is cut off until only its floor is left of its static share; then another gets this weight,
/// and so more than there was. Floors together are now more than a tenth of 1000/s.
fn overweight(world: &mut World, weight: u32) {
    cut(world, 3, true, true, 160_000);
    pass(world, 25_000);
    world.inject(Fault::Weigh(1, weight));
    pass(world, 5_000);
}

/// Restores the store, and the leader hears nobody until static shares have become floors, and then
/// the first members.
fn restore_and_hear(world: &mut World, members: usize) {
    for node in 0..3 {
        let millis = if node < members { 40_000 } else { 80_000 };
        cut(world, node, true, true, millis);
    }
    restore(world, false);
    pass(world, 50_000);
}

pub(super) fn floors(world: &mut World) {
    begin(world);
    world.inject(Fault::Backup);
    overweight(world, 2);
    // Those that are heard have floors of 100/s, and the last member has its 25/s.
    restore_and_hear(world, 3);
    all_share(world, &[0, 1, 2], 60);
    pass(world, 75_000);
    mark_all_heard(world, &[0, 1, 2, 3]);
}

pub(super) fn floors_unheard(world: &mut World) {
    begin(world);
    world.inject(Fault::Backup);
    overweight(world, 4);
    // Those that are not heard have floors of 150/s, and 75/s by the record.
    restore_and_hear(world, 1);
    at_least(world, "L2", 0, 23);
    pass(world, 85_000);
    mark_all_heard(world, &[0, 1, 2, 3]);
}

/// The word of the operator comes when a leader has handed over that had not heard one of the members, but
/// the leader before had.
pub(super) fn handed_over_unheard(world: &mut World) {
    begin(world);
    world.inject(Fault::Backup);
    restore(world, false);
    pass(world, 20_000);
    cut(world, 3, true, true, 90_000);
    let chair = leader(world);
    world.inject(Fault::KillChair(chair));
    world.inject(Fault::StartChair(chair));
    pass(world, 25_000);
    world.inject(Fault::HandOver);
    world.inject(Fault::NoStrangers);
    pass(world, 20_000);
    all_share(world, &[0, 1, 2], 720);
    pass(world, 70_000);
    all_share(world, &[0, 1, 2, 3], 960);
}

/// A member is cut off until its seat is given back, and heard after a restore to before it had one; one
/// of those that share the limit since is not.
pub(super) fn seat_was_given_back(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    cut(world, 3, true, true, 97_000);
    pass(world, 80_000);
    cut(world, 2, true, true, 60_000);
    restore(world, false);
    pass(world, 65_000);
    mark_all_heard(world, &[0, 1, 2, 3]);
}

pub(super) fn all_restart(world: &mut World) {
    two_and_backup(world);
    much_happens(world);
    for node in 0..4 {
        world.inject(Fault::KillNode(node));
    }
    restore(world, false);
    for chair in 0..world.chairs.len() {
        world.inject(Fault::KillChair(chair));
        world.inject(Fault::StartChair(chair));
    }
    // No process of the time before is left.
    world.inject(Fault::NoStrangers);
    for node in 0..4 {
        world.inject(Fault::StartNode(node));
    }
    pass(world, 25_000);
    all_share(world, &[0, 1, 2, 3], 960);
}
