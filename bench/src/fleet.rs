//! Fleet: how long a leader needs to decide about a report, by the number of members and of limits.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::ledger::Ledger;
use quell_shares::message::{Join, Load, Report as FromMember, Request, Response};
use quell_shares::plan::{
    Drift, Fallback, Limit, LimitId, MICRO, MemberId, Plan, Quota, Record, ReturnSeats, Size,
    Sizing, Timing,
};
use serde::Serialize;

use crate::draws::Random;
use crate::report::{Report, progress};
use crate::table::Table;

const QUESTION: &str = "What does a report cost the leader of a fleet, as members and limits grow?";
const OVERHEAD: &str = "Processor time of one thread, so that other work on the machine counts only \
    through its caches. Demand moves in every report of every member, so shares are planned anew as \
    often as they ever are, and that is in the figures; messages are neither encoded nor sent. *One \
    core* is how much of it the whole fleet's reports take at one in 0.5 s for each member.";

/// The report period in nanoseconds.
const PERIOD: u64 = 500_000_000;

/// Members and limits of a row.
const FLEETS: [(u32, u32); 9] = [
    (2, 1),
    (10, 1),
    (100, 1),
    (1_000, 1),
    (10_000, 1),
    (10, 100),
    (100, 100),
    (300, 100),
    (1_000, 100),
];

/// What `bench fleet` measures.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs of each fleet.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// If the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    let mut report = Report::new("fleet", QUESTION, OVERHEAD, settings)?;
    let mut table = Table::new(["members", "limits", "per report", "per limit", "one core"]);
    for (members, limits) in FLEETS {
        let case = format!("{members} members, {limits} limits");
        for run in 0..settings.runs {
            let nanos = Fleet::new(members, limits).measure()?;
            report.add(&case, "quell", "ns", nanos);
            progress(&format!("run {} of {}  {case}", run + 1, settings.runs));
        }
        let nanos = report.median(&case, "quell").unwrap_or(0.0);
        let busy = nanos * f64::from(members) / PERIOD as f64 * 100.0;
        table.row([
            members.to_string(),
            limits.to_string(),
            format!("{:.1} us", nanos / 1_000.0),
            format!("{:.2} us", nanos / 1_000.0 / f64::from(limits)),
            format!("{busy:.2} %"),
        ]);
    }
    report.finish(&table.to_string(), settings.json)
}

/// A leader and the state of its members.
struct Fleet {
    leader: Coordinator,
    limits: u32,
    /// For each member, its incarnation and the version that it has in force.
    members: Vec<(u64, u64)>,
    begins: u64,
}

impl Fleet {
    fn new(members: u32, limits: u32) -> Self {
        let start = Monotonic::from_nanos(1_000 * PERIOD);
        // The leader's key never ends: the one election is not what is measured.
        let lasts = Duration::from_secs(100_000);
        let mut leader = Coordinator::new(Drift::DEFAULT, lasts);
        let elected = Elected {
            revision: 1,
            asked: start,
            record: Record::new(plan(members, limits)),
            snapshot: None,
        };
        leader.elected(start, elected);
        let mut effects = Vec::new();
        for member in 0..members {
            let join = Join {
                member: MemberId(member),
                nonce: u64::from(member) + 1,
                weight: 1,
                groups: Vec::new(),
                exclusive: true,
                replaces: 0,
                floors: Vec::new(),
                gave_up: None,
                epoch: 0,
                record: 0,
            };
            leader.receive(start, Request::Join(join), &mut effects);
        }
        // Every write of the leader is stored.
        while let Some(effect) = effects.pop() {
            if let Effect::Write(record) = effect {
                leader.stored(start, record, &mut effects);
            }
        }
        let record = leader.leads(start).map(Ledger::record);
        let seats = record.map(|record| record.seats.clone());
        let seats = seats.unwrap_or_default();
        // The previous leader might have decided until its key ended; grants begin only after that.
        let begins = 4 * 100_000 * 1_000_000_000;
        leader.kept(1, Monotonic::from_nanos(begins));
        leader.tick(Monotonic::from_nanos(begins), &mut effects);
        Self {
            leader,
            limits,
            members: seats.iter().map(|seat| (seat.incarnation, 0)).collect(),
            begins,
        }
    }

    /// Processor nanoseconds for one report of all limits.
    fn measure(&mut self) -> Result<f64> {
        let count = self.members.len() as u64;
        let rounds = (600_000 / (count * u64::from(self.limits))).clamp(4, 2_000);
        let mut random = Random::new(1);
        let mut effects = Vec::new();
        let mut took = 0;
        for round in 0..rounds {
            let mut reports: Vec<FromMember> = (0..self.members.len())
                .map(|index| self.report(index, round + 1, &mut random))
                .collect();
            let started = processor_time()?;
            for (index, mut report) in reports.drain(..).enumerate() {
                let at = self.begins + round * PERIOD + index as u64 * PERIOD / count;
                report.applied = self.members[index].1;
                let now = Monotonic::from_nanos(at);
                self.leader
                    .receive(now, Request::Report(report), &mut effects);
                self.acknowledge(&mut effects);
            }
            took += processor_time()? - started;
        }
        Ok(took as f64 / (rounds * count) as f64)
    }

    fn report(&self, index: usize, seq: u64, random: &mut Random) -> FromMember {
        let load = |limit| Load {
            limit: LimitId(u64::from(limit)),
            demand: random.below(2_000) as u64 * MICRO,
            ..Load::default()
        };
        FromMember {
            member: MemberId(index as u32),
            incarnation: self.members[index].0,
            seq,
            epoch: 1,
            applied: 0,
            revision: 1,
            record: 0,
            loads: (1..=self.limits).map(load).collect(),
            held: None,
        }
    }

    fn acknowledge(&mut self, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            let Effect::Response { to, answer } = effect else {
                continue;
            };
            let applied = &mut self.members[to.0 as usize].1;
            match answer {
                Response::Grant(grant) => *applied = grant.version,
                Response::Push(push) => *applied = push.version,
                _ => {}
            }
        }
    }
}

/// Nanoseconds that this thread has run.
fn processor_time() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")
        .context("the kernel does not say how long a thread has run")?;
    let first = text.split(' ').next().unwrap_or_default();
    Ok(first.parse()?)
}

fn plan(members: u32, limits: u32) -> Plan {
    let quota = Quota {
        rate: u64::from(members) * 1_000 * MICRO,
        burst: u64::from(members) * 1_000 * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    };
    Plan {
        revision: 1,
        limits: (0..limits)
            .map(|limit| Limit::new(format!("limit-{limit}"), quota))
            .collect(),
        size: Size {
            total_weight: u64::from(members),
            seats: members,
            sizing: Sizing::Fixed,
        },
        groups: Vec::new(),
        timing: Timing::DEFAULT,
        return_seats: ReturnSeats::Never,
        rules: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_is_answered_with_a_grant() {
        let mut fleet = Fleet::new(3, 2);
        fleet.measure().unwrap();
        assert_eq!(fleet.members.len(), 3);
        assert!(fleet.members.iter().all(|(_, applied)| *applied > 1_000));
    }
}
