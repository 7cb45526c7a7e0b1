//! One member and answers that come late, twice or out of order.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::member::{Member, Start};
use quell_shares::message::{
    Grant, Granted, Hold, Joined, LimitName, MemberSnapshot, Push, Pushed, Response,
};
use quell_shares::plan::{LimitId, MICRO, MemberId};
use quell_shares::schedule::Right;

const LIMIT: LimitId = LimitId(1);
const EPOCH: u64 = 5;

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_nanos((1_000 + seconds) * 1_000_000_000)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn right(units: u64) -> Right {
    Right {
        rate: units * MICRO,
        burst: MICRO,
    }
}

/// Units per second that the member may use.
fn rate(member: &Member, now: Monotonic) -> u64 {
    let schedule = member.schedules().next().unwrap().schedule;
    schedule.at(now).rate / MICRO
}

/// A lease of `leased` for 10 s, a gap until P = 12 s, a base of 40 until F = 60 s, then 4.
fn grant(epoch: u64, version: u64, seq: u64, leased: u64) -> Grant {
    let mut leases = [(Right::NONE, Duration::ZERO); 3];
    leases[0] = (right(leased), seconds(10));
    Grant {
        incarnation: 1,
        epoch,
        version,
        seq,
        revision: 1,
        record: 1,
        report: Duration::from_millis(500),
        promise: seconds(12),
        hold: seconds(60),
        ends: None,
        draining: false,
        rights: vec![Granted {
            limit: LIMIT,
            leases,
            gap: right(leased.min(40)),
            base: right(40),
            floor: right(4),
            whole: right(100),
        }],
        names: Vec::new(),
    }
}

fn push(epoch: u64, version: u64, units: u64) -> Response {
    let right = right(units);
    Response::Push(Push {
        incarnation: 1,
        epoch,
        version,
        revision: 1,
        rights: vec![Pushed {
            limit: LIMIT,
            right,
        }],
    })
}

fn hold(epoch: u64, seq: u64, promise: u64) -> Response {
    Response::Hold(Hold {
        incarnation: 1,
        epoch,
        seq,
        record: 1,
        promise: Some(seconds(promise)),
    })
}

const START: Start = Start {
    member: MemberId(1),
    nonce: 7,
    weight: 1,
    groups: Vec::new(),
    exclusive: true,
};

/// A member that reported at second 0 and was granted 20/s in answer.
fn granted() -> Member {
    granted_into(&mut MemberSnapshot::default())
}

/// As [`granted`], with the file that it writes.
fn granted_into(snapshot: &mut MemberSnapshot) -> Member {
    let mut member = Member::start(START, snapshot, at(0));
    let name = LimitName {
        limit: LIMIT,
        name: "api".into(),
    };
    let joined = Response::Joined(Joined {
        epoch: EPOCH,
        nonce: 7,
        incarnation: 1,
        record: 1,
        names: vec![name],
    });
    member.receive(at(0), &joined);
    let seq = member.report(at(0), &[]).seq;
    let first = Response::Grant(grant(EPOCH, 1, seq, 20));
    let adopt = member.receive(at(0), &first).unwrap();
    *snapshot = adopt.snapshot.unwrap();
    assert!(member.sealed(adopt.ticket));
    assert_eq!(rate(&member, at(0)), 20);
    member
}

/// The member takes an answer, and puts what follows into force.
fn take(member: &mut Member, now: Monotonic, answer: Response) {
    let adopt = member.receive(now, &answer).expect("it changes something");
    assert!(member.sealed(adopt.ticket));
}

/// Beginning of the base, in seconds.
fn base_from(member: &Member) -> u64 {
    let phase = member.phases().next().unwrap();
    phase.base_from.as_nanos() / 1_000_000_000 - 1_000
}

#[test]
fn an_older_hold_after_a_newer_one_changes_nothing() {
    let mut member = granted();
    let first = member.report(at(1), &[]).seq;
    let second = member.report(at(2), &[]).seq;
    // A newer leader learns, and then the one after it.
    take(&mut member, at(3), hold(EPOCH + 1, first, 20));
    assert_eq!(base_from(&member), 23);
    take(&mut member, at(4), hold(EPOCH + 2, second, 30));
    assert_eq!((base_from(&member), member.epoch()), (34, EPOCH + 2));
    let late = hold(EPOCH + 1, first, 50);
    assert!(member.receive(at(5), &late).is_none());
    assert_eq!((base_from(&member), member.epoch()), (34, EPOCH + 2));
    // Nor does a hold shorten what an earlier one promised.
    let shorter = hold(EPOCH + 2, second, 1);
    assert!(member.receive(at(5), &shorter).is_none());
    assert_eq!(base_from(&member), 34);
}

#[test]
fn an_answer_of_an_older_epoch_is_not_obeyed() {
    let mut member = granted();
    let seq = member.report(at(1), &[]).seq;
    take(&mut member, at(2), hold(EPOCH + 1, seq, 20));
    for older in [
        Response::Grant(grant(EPOCH, 9, seq, 90)),
        push(EPOCH, 9, 90),
        hold(EPOCH, seq, 90),
    ] {
        assert!(member.receive(at(3), &older).is_none(), "{older:?}");
    }
    assert_eq!((rate(&member, at(3)), base_from(&member)), (20, 22));
    let newer = Response::Grant(grant(EPOCH + 1, 1, seq, 30));
    take(&mut member, at(4), newer);
    assert_eq!(rate(&member, at(4)), 30);
}

#[test]
fn a_late_push_extends_no_lease_and_raises_no_gap() {
    // It comes after a newer version.
    let mut member = granted();
    take(&mut member, at(1), push(EPOCH, 3, 15));
    assert!(member.receive(at(2), &push(EPOCH, 2, 30)).is_none());
    assert_eq!(rate(&member, at(2)), 15);
    // It comes after the end of the lease: the lease stays over, and the gap is not raised.
    let mut member = granted();
    take(&mut member, at(10), push(EPOCH, 2, 35));
    let rates = [10, 11, 12, 59, 60].map(|second| rate(&member, at(second)));
    assert_eq!(rates, [20, 20, 40, 40, 4]);
    // But it is lowered, because the leader counts it so.
    take(&mut member, at(11), push(EPOCH, 3, 5));
    let rates = [11, 12].map(|second| rate(&member, at(second)));
    assert_eq!(rates, [5, 40]);
}

#[test]
fn a_late_grant_counts_its_deadlines_from_the_report() {
    let mut member = granted();
    let seq = member.report(at(1), &[]).seq;
    let adopt = member.receive(at(9), &Response::Grant(grant(EPOCH, 2, seq, 30)));
    // The lease and the base count from the report, the promise from the answer.
    let rates = [9, 10, 11, 20, 21, 60, 61].map(|second| rate(&member, at(second)));
    assert_eq!(rates, [30, 30, 30, 30, 40, 40, 4]);
    // What the next start may use has not changed: it is no deadline, but the least ever allowed.
    assert_eq!(adopt.unwrap().snapshot, None);
    let mut snapshot = MemberSnapshot::default();
    granted_into(&mut snapshot);
    let next = Member::start(START, &snapshot, at(5));
    assert_eq!([5, 60, 600].map(|second| rate(&next, at(second))), [4; 3]);
}
