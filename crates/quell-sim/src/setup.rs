//! Setup: the numbers of a run, made from a seed and the command line.

use std::time::Duration;

use quell_shares::plan::{
    Drift, Fallback, Group, Limit, MICRO, Plan, Quota, ReturnSeats, Size, Sizing, Timing,
};

use crate::node::rule_name;
use crate::rng::Rng;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// The clock drift, in parts in a million, unless the wish says otherwise.
pub const DRIFT: u64 = 1_000;

/// The most clock drift that a wish may name: a tenth.
pub const MAX_DRIFT: u64 = 100_000;

/// Nanoseconds in a millisecond.
pub const MILLI: u64 = 1_000_000;

/// The numbers given on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The seed.
    pub seed: u64,
    /// Members; `None` for a number that the seed picks.
    pub members: Option<usize>,
    /// Limits; `None` for a number that the seed picks.
    pub limits: Option<usize>,
    /// Simulated seconds.
    pub seconds: u64,
    /// The clock drift, in parts in a million, that the protocol assumes and that happens.
    pub drift: u64,
}

/// The numbers of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The wish that this was made from.
    pub wish: Wish,
    /// The plan in force at first; limits that are added later come on top.
    pub plan: Plan,
    /// Number of limits in force from the start.
    pub begins_with: usize,
    /// The weight of each member.
    pub weights: Vec<u32>,
    /// Membership of each member in the plan's group, if the plan has one.
    pub memberships: Vec<bool>,
    /// Number of coordinators.
    pub coordinators: usize,
    /// The clock drift that the protocol assumes.
    pub drift: Drift,
    /// The clock drift that happens, in parts in a million.
    pub ppm: i64,
    /// Percentage of messages lost, and of messages duplicated.
    pub loss: u64,
    /// True if messages are delayed by seconds, those to and from the store among them.
    pub slow: bool,
    /// Beginning and end of the faults.
    pub faults: (u64, u64),
    /// End of the run.
    pub ends: u64,
}

impl Setup {
    /// The numbers of a run for a wish; `rng` picks those that the wish leaves
    /// open.
    #[must_use]
    pub fn new(wish: Wish, rng: &mut Rng) -> Self {
        let members = wish.members.unwrap_or_else(|| 2 + rng.index(5));
        let limits = wish.limits.unwrap_or_else(|| 1 + rng.index(2));
        let weights: Vec<u32> = (0..members)
            .map(|_| {
                if rng.chance(60) {
                    1
                } else {
                    1 + u32::try_from(rng.between(0, 4)).unwrap_or(0)
                }
            })
            .collect();
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let ppm = i64::try_from(wish.drift).unwrap_or(i64::MAX);
        let drift = Drift::new(wish.drift);
        let hold = [20, 60, 300][rng.index(3)];
        let (lease, hold) = (Duration::from_secs(10), Duration::from_secs(hold));
        let report = match rng.index(16) {
            0 => Duration::from_millis(100),
            1 => Duration::from_millis(250),
            2 => Duration::from_secs(1),
            _ => REPORT,
        };
        let timing = timing(drift, report, lease, hold);
        let auto = rng.chance(40);
        let seats = u32::try_from(members).unwrap_or(1) + 1;
        let (groups, memberships) = groups(&weights, seats, rng);
        let plan = Plan {
            revision: 1,
            limits: (0..limits)
                .map(|rule| limit(rule, quota(members, report, rng), &groups))
                .collect(),
            size: Size {
                total_weight: total,
                seats,
                sizing: if auto { Sizing::Auto } else { Sizing::Fixed },
            },
            groups,
            timing,
            return_seats: return_seats(rng),
            rules: None,
        };
        let ends = wish.seconds * SECOND;
        Self {
            wish,
            plan,
            begins_with: if limits > 1 && rng.chance(30) {
                limits - 1
            } else {
                limits
            },
            weights,
            memberships,
            coordinators: 2 + rng.index(2),
            drift,
            ppm,
            loss: if rng.chance(70) { 5 } else { 0 },
            slow: rng.chance(70),
            faults: (20 * SECOND, ends.saturating_sub(110 * SECOND)),
            ends,
        }
    }
}

fn return_seats(rng: &mut Rng) -> ReturnSeats {
    if rng.chance(30) {
        return ReturnSeats::After(Duration::from_secs(rng.between(0, 30)));
    }
    ReturnSeats::Never
}

/// All members share the first limit, and the members of the group the others.
fn limit(rule: usize, quota: Quota, groups: &[Group]) -> Limit {
    let limit = Limit::new(rule_name(rule), quota);
    match groups.first() {
        Some(group) if rule > 0 => limit.of_group(group.name.clone()),
        _ => limit,
    }
}

/// In some seeds a group of most members, which share all limits but the first.
fn groups(weights: &[u32], seats: u32, rng: &mut Rng) -> (Vec<Group>, Vec<bool>) {
    if !rng.chance(30) {
        return (Vec::new(), vec![false; weights.len()]);
    }
    let memberships: Vec<bool> = weights.iter().map(|_| rng.chance(70)).collect();
    let auto = rng.chance(40);
    let size = Size {
        total_weight: weights.iter().copied().map(u64::from).sum(),
        seats,
        sizing: if auto { Sizing::Auto } else { Sizing::Fixed },
    };
    let name = "most".into();
    (vec![Group { name, size }], memberships)
}

/// T, unless the seed or a schedule picks another.
pub const REPORT: Duration = Duration::from_millis(500);

/// Durations with a promise that is three reports longer than the lease.
#[must_use]
pub fn timing(drift: Drift, report: Duration, lease: Duration, hold: Duration) -> Timing {
    let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(0);
    let outlasts = Duration::from_nanos(drift.longest(drift.longest(lease_ns)));
    let promise = outlasts + 3 * report;
    Timing {
        report,
        lease,
        promise,
        hold: hold.max(promise),
    }
}

fn quota(members: usize, report: Duration, rng: &mut Rng) -> Quota {
    let members = u64::try_from(members).unwrap_or(1) + 1;
    // At least five units per member and report.
    let shorter = (REPORT.as_millis() / report.as_millis()).max(1);
    let rate = members * rng.between(12, 300) * u64::try_from(shorter).unwrap_or(1);
    let burst = match rng.index(4) {
        0 => members,
        1 => members + rate / 4,
        2 => members + rate,
        _ => members + 20 * rate,
    };
    Quota {
        rate: rate * MICRO,
        burst: burst * MICRO,
        least_burst: MICRO,
        fallback: match rng.index(10) {
            0 => Fallback::Deny,
            1 => Fallback::Floor,
            _ => Fallback::Share,
        },
    }
}
