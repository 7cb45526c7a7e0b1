//! Bench: how long a leader needs to decide about a report, by the number of members.

use std::fmt::Write;
use std::time::{Duration, Instant};

use quell_core::fleet::leader::{Coordinator, Effect, Elected};
use quell_core::fleet::ledger::Ledger;
use quell_core::fleet::message::{Answer, Join, Load, Report, Request};
use quell_core::fleet::plan::{
    Drift, Fallback, MICRO, MemberId, Plan, Quota, Record, Sizing, Timing,
};
use quell_core::time::Monotonic;

use crate::rng::Rng;

const T: u64 = 500_000_000;

fn plan(members: u32, limits: usize) -> Plan {
    Plan {
        revision: 1,
        limits: vec![
            Quota {
                rate: u64::from(members) * 1_000 * MICRO,
                burst: u64::from(members) * 1_000 * MICRO,
                least_burst: MICRO,
                fallback: Fallback::Share,
            };
            limits
        ],
        total_weight: u64::from(members),
        seats: members,
        timing: Timing::DEFAULT,
        sizing: Sizing::Fixed,
    }
}

/// A leader of so many members, all joined.
fn fleet(members: u32, limits: usize) -> (Coordinator, Vec<u64>, u64) {
    let now = 1_000 * T;
    let drift = Drift::DEFAULT;
    let mut leader = Coordinator::new(drift, Duration::from_secs(100_000));
    let record = Record::new(plan(members, limits));
    let at = Monotonic::from_nanos(now);
    leader.elected(
        at,
        Elected {
            epoch: 1,
            asked: at,
            record,
            snapshot: None,
        },
    );
    let mut effects = Vec::new();
    for member in 0..members {
        let join = Join {
            member: MemberId(member),
            nonce: u64::from(member) + 1,
            weight: 1,
            exclusive: true,
            replaces: 0,
            floors: Vec::new(),
        };
        leader.receive(at, Request::Join(join), &mut effects);
        settle(&mut leader, at, &mut effects, &mut Vec::new());
    }
    let mut incarnations = vec![0; usize::try_from(members).unwrap_or(0)];
    settle(&mut leader, at, &mut effects, &mut incarnations);
    let seats = leader
        .leads(at)
        .map(Ledger::record)
        .map(|r| r.seats.clone());
    for (index, seat) in seats.unwrap_or_default().iter().enumerate() {
        incarnations[index] = seat.incarnation;
    }
    (leader, incarnations, now)
}

/// Stores what the leader wants stored, at once.
fn settle(leader: &mut Coordinator, at: Monotonic, effects: &mut Vec<Effect>, _: &mut Vec<u64>) {
    while let Some(effect) = effects.pop() {
        if let Effect::Write(record) = effect {
            leader.stored(at, record, effects);
        }
    }
}

/// Nanoseconds for one report, of all limits, in which demand moves.
fn measure(members: u32, limits: usize, rounds: u64) -> u64 {
    let (mut leader, incarnations, start) = fleet(members, limits);
    let mut rng = Rng::new(1);
    let mut effects = Vec::new();
    // A key that lasted this long makes the leader learn as long; begin after that.
    let begin = start + 400_000_000_000_000;
    leader.kept(1, Monotonic::from_nanos(begin));
    leader.tick(Monotonic::from_nanos(begin), &mut effects);
    let count = u64::from(members);
    let mut applied = vec![0; incarnations.len()];
    let mut took = Duration::ZERO;
    for round in 0..rounds {
        for (index, incarnation) in incarnations.iter().enumerate() {
            let member = u64::try_from(index).unwrap_or(0);
            let now = Monotonic::from_nanos(begin + round * T + member * T / count);
            let load = |_| Load {
                demand: rng.between(0, 2_000) * MICRO,
                ..Load::default()
            };
            let report = Report {
                member: MemberId(u32::try_from(index).unwrap_or(0)),
                incarnation: *incarnation,
                seq: round + 1,
                epoch: 1,
                applied: applied[index],
                revision: 1,
                loads: (0..limits).map(load).collect(),
                held: Vec::new(),
            };
            let started = Instant::now();
            leader.receive(now, Request::Report(report), &mut effects);
            took += started.elapsed();
            for effect in effects.drain(..) {
                if let Effect::Answer { to, answer } = effect {
                    let to = usize::try_from(to.0).unwrap_or(0);
                    match answer {
                        Answer::Grant(grant) => applied[to] = grant.version,
                        Answer::Push(push) => applied[to] = push.version,
                        _ => {}
                    }
                }
            }
        }
    }
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / (rounds * count)
}

/// A table for a person.
#[must_use]
pub fn run() -> String {
    let mut text = String::from(
        "a leader's time for one report, demand moving in all of them, shares planned 4 times in T = 0.5 s\n\
         members  limits   per report   per limit   of one core\n",
    );
    for (members, limits) in [
        (2, 1),
        (10, 1),
        (100, 1),
        (1_000, 1),
        (1_000, 10),
        (10, 100),
        (100, 100),
        (300, 100),
        (1_000, 100),
    ] {
        let rounds = 2_000_000 / (u64::from(members) * u64::try_from(limits).unwrap_or(1));
        let per_report = measure(members, limits, rounds.clamp(4, 2_000));
        let busy = u64::from(members) * per_report * 1_000 / T;
        let per_limit = per_report / u64::try_from(limits).unwrap_or(1);
        let _ = writeln!(
            text,
            "{members:>7} {limits:>7} {per_report:>9} ns {per_limit:>8} ns {:>10}.{} %",
            busy / 10,
            busy % 10
        );
    }
    text
}
