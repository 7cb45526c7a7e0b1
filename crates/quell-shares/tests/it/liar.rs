//! A member that reports the impossible: it must not raise what others get, nor cost memory.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::message::{Grant, Held, Load, Report, Request, Response};
use quell_shares::plan::{Drift, LimitId, MICRO, MemberId, Record, Seat, Sizing};
use quell_shares::schedule::Right;

use crate::support::plan;

const SECOND: u64 = 1_000_000_000;
const RATE: u64 = 1_000 * MICRO;

fn at(tenths: u64) -> Monotonic {
    Monotonic::from_nanos(1_000 * SECOND + tenths * SECOND / 10)
}

fn record() -> Record {
    let mut record = Record::new(plan(1_000, 2, Sizing::Fixed));
    record.seats = [1, 2]
        .map(|id| Seat::new(MemberId(id), u64::from(id), u64::from(id), 1))
        .to_vec();
    record
}

fn report(member: u32, seq: u64, applied: u64, held: Vec<Held>) -> Request {
    let load = Load {
        demand: 2 * RATE,
        limit: LimitId(1),
        ..Load::default()
    };
    Request::Report(Report {
        member: MemberId(member),
        incarnation: u64::from(member),
        seq,
        // The answer to the first report tells it of the epoch.
        epoch: if seq > 1 { 7 } else { 0 },
        applied,
        revision: 1,
        record: 0,
        loads: vec![load],
        held: (!held.is_empty()).then_some(held),
    })
}

/// All that there may be, of a limit of so much.
fn impossible(whole: u64) -> Held {
    let all = Right {
        rate: u64::MAX,
        burst: u64::MAX,
    };
    Held {
        limit: LimitId(1),
        leases: [(all, Duration::MAX); 3],
        gap: all,
        base_in: Duration::MAX,
        base: all,
        base_for: Duration::MAX,
        floor: all,
        floor_for: None,
        whole: Right {
            rate: whole,
            burst: whole,
        },
    }
}

fn granted(leader: &mut Coordinator, now: Monotonic, request: Request) -> Option<Grant> {
    let mut effects = Vec::new();
    leader.receive(now, request, &mut effects);
    effects.into_iter().find_map(|effect| match effect {
        Effect::Response {
            answer: Response::Grant(grant),
            ..
        } => Some(grant),
        _ => None,
    })
}

/// A leader that has heard nobody.
fn elected() -> Coordinator {
    let mut leader = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
    let elected = Elected {
        revision: 7,
        asked: at(0),
        record: record(),
        snapshot: None,
    };
    leader.elected(at(0), elected);
    leader
}

#[test]
fn who_claims_to_follow_a_limit_that_no_plan_has_raises_none() {
    let mut leader = elected();
    for seq in [1, 2] {
        let held = vec![impossible(u64::MAX)];
        assert!(granted(&mut leader, at(1), report(1, seq, 0, held)).is_none());
    }
    let view = leader.leads(at(1)).unwrap().view(at(1));
    assert_eq!((view.limits[0].most, view.limits[0].in_use), (RATE, RATE));
}

#[test]
fn who_claims_to_hold_everything_is_counted_once_and_until_it_is_granted() {
    let mut leader = elected();
    let nothing = vec![Held {
        limit: LimitId(1),
        ..Held::default()
    }];
    for seq in [1, 2] {
        assert!(granted(&mut leader, at(1), report(1, seq, 0, nothing.clone())).is_none());
        assert!(granted(&mut leader, at(2), report(2, seq, 0, vec![impossible(1)])).is_none());
    }
    leader.kept(7, at(31));
    // Both are fenced and the previous leader's time is over: grants begin, and nothing is left for
    // any member.
    let honest = granted(&mut leader, at(32), report(1, 3, 0, nothing)).unwrap();
    assert_eq!(honest.rights[0].leases[0].0.rate, 0);
    let in_use = leader.leads(at(32)).unwrap().in_use(LimitId(1)).unwrap();
    assert_eq!(in_use, (RATE, RATE));
    // Its grant replaces what it claimed, and then there is room.
    let liar = granted(&mut leader, at(33), report(2, 3, 0, vec![impossible(1)])).unwrap();
    assert!(liar.rights[0].leases[0].0.rate <= RATE);
    granted(&mut leader, at(38), report(2, 4, liar.version, Vec::new())).unwrap();
    let honest = granted(
        &mut leader,
        at(39),
        report(1, 4, honest.version, Vec::new()),
    )
    .unwrap();
    assert!(honest.rights[0].base.rate >= RATE / 2);
    let (in_use, _) = leader.leads(at(39)).unwrap().in_use(LimitId(1)).unwrap();
    assert!(in_use <= RATE);
}
