//! Demand with its margin: what a member reports, and what is therefore planned for it.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::member::{Member, Start};
use quell_shares::message::{Held, Kept, Load, MemberSnapshot, Report, Request, Response};
use quell_shares::plan::{Drift, LimitId, MICRO, MemberId, Record, Seat, Sizing};

use crate::support::plan;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos((1_000_000 + millis) * 1_000_000)
}

const START: Start = Start {
    member: MemberId(1),
    nonce: 1,
    weight: 1,
    groups: Vec::new(),
    exclusive: true,
};

/// The demand and its margin, in units per second, after these calls per half second.
fn reported(calls: &[u64]) -> (u64, u64) {
    let kept = Kept {
        limit: LimitId(1),
        ..Kept::default()
    };
    let snapshot = MemberSnapshot {
        kept: vec![kept],
        ..MemberSnapshot::default()
    };
    let mut member = Member::start(START, &snapshot, at(0));
    let mut last = Load::default();
    for (calls, end) in calls.iter().zip((500..).step_by(500)) {
        let offered = Load {
            demand: calls * MICRO,
            limit: LimitId(1),
            ..Load::default()
        };
        last = member.report(at(end), &[offered]).loads[0];
    }
    (last.demand / MICRO, last.margin / MICRO)
}

#[test]
fn the_margin_follows_how_demand_moves() {
    for (calls, expected) in [
        // It stays: a hundredth.
        (&[5_000; 7][..], (10_000, 100)),
        (&[0; 7], (0, 0)),
        // One move between two reports shows in two of them, and is then over.
        (&[1_000, 1_000, 1_000, 3_000, 5_000], (10_000, 100)),
        (&[5_000, 5_000, 5_000, 3_000, 1_000], (6_000, 60)),
        // It climbs by 200/s with each report.
        (&[5_000, 5_100, 5_200, 5_300, 5_400, 5_500], (11_000, 400)),
        (&[5_500, 5_400, 5_300, 5_200, 5_100, 5_000], (10_200, 400)),
        // Up and down by 400/s.
        (&[5_000, 5_200, 5_000, 5_200, 5_000, 5_200], (10_400, 800)),
        // It moves by more than can be set aside: a fifth.
        (&[5_000, 2_000, 5_000, 2_000, 5_000, 2_000], (10_000, 2_000)),
        (&[100, 200, 400, 800, 1_600, 3_200], (6_400, 800)),
        // After five reports without a move it is as if there had been none.
        (&[100, 200, 400, 800, 800, 800, 800, 800], (1_600, 16)),
    ] {
        assert_eq!(reported(calls), expected, "{calls:?}");
    }
}

fn seat(id: u32) -> Seat {
    Seat::new(MemberId(id), u64::from(id), u64::from(id), 1)
}

fn report(member: u32, seq: u64, (demand, margin): (u64, u64)) -> Request {
    let load = Load {
        demand: demand * MICRO,
        margin: margin * MICRO,
        limit: LimitId(1),
        ..Load::default()
    };
    Request::Report(Report {
        member: MemberId(member),
        incarnation: u64::from(member),
        seq,
        // The answer to the first report tells it of the epoch.
        epoch: if seq > 1 { 7 } else { 0 },
        applied: 0,
        revision: 1,
        record: 0,
        loads: vec![load],
        held: Some(vec![Held {
            limit: LimitId(1),
            ..Held::default()
        }]),
    })
}

/// Grants to two members of a fleet with 1000/s, in units per second, and the times of their next reports.
fn granted(first: (u64, u64), second: (u64, u64)) -> [(u64, Duration); 2] {
    let mut plan = plan(1_000, 2, Sizing::Fixed);
    plan.timing.report = Duration::from_millis(250);
    let mut record = Record::new(plan);
    record.seats = vec![seat(1), seat(2)];
    let mut leader = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
    let elected = Elected {
        revision: 7,
        asked: at(0),
        record,
        snapshot: None,
    };
    leader.elected(at(0), elected);
    let mut effects = Vec::new();
    for (seq, now) in [(1, 10), (2, 510)] {
        leader.receive(at(now), report(1, seq, first), &mut effects);
        leader.receive(at(now + 10), report(2, seq, second), &mut effects);
    }
    leader.kept(7, at(3_100));
    leader.receive(at(3_200), report(1, 3, first), &mut effects);
    leader.receive(at(3_300), report(2, 3, second), &mut effects);
    [MemberId(1), MemberId(2)].map(|member| {
        let grant = effects.iter().find_map(|effect| match effect {
            Effect::Response {
                to,
                answer: Response::Grant(grant),
            } if *to == member => Some(grant),
            _ => None,
        });
        let grant = grant.unwrap();
        (grant.rights[0].leases[0].0.rate / MICRO, grant.report)
    })
}

#[test]
fn the_margin_is_planned_for_and_idle_members_keep_a_hundredth_of_their_base() {
    let report = Duration::from_millis(250);
    let rates = |first, second| {
        granted(first, second).map(|(rate, every)| {
            assert_eq!(every, report);
            rate
        })
    };
    assert_eq!(rates((300, 60), (2_000, 20)), [360, 640]);
    assert_eq!(rates((300, 3), (2_000, 20)), [303, 697]);
    assert_eq!(rates((0, 0), (2_000, 20)), [5, 995]);
    assert_eq!(rates((2_000, 20), (2_000, 400)), [500, 500]);
}
