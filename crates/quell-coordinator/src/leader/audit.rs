//! Audit: whether all nodes together keep to the limits, by what they say that they admitted.
//!
//! The leader hears every node several times a second, and each report says what was admitted since the one
//! before. A reference bucket for each limit is fed with that. It is no part of the protocol: it finds
//! mistakes of this program, clocks that run faster than is assumed, and processes that were called dead
//! and are not.
//!
//! It never complains of a fleet that keeps its limits: the bucket is larger by what may be on its way, and
//! what it cannot date is left out, such as the first report of a node.

use std::collections::HashMap;
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::audit::{Auditor, Intervals};
use quell_shares::message::Report;
use quell_shares::plan::{Drift, LimitId, MemberId, Quota, Record};

/// Counts are judged together over so long. It is longer than reports of a node may be on their way: a node
/// gives up a stream that is silent for four report periods.
const WIDTH: Duration = Duration::from_secs(5);

/// So many processes without a seat are listened to: those that were called dead and are not, and numbers
/// that strangers make up.
const MAX_OTHERS: usize = 64;

/// Shortest time over which a node's shown admissions are counted.
const SHOWN: Duration = Duration::from_secs(1);

/// Micro-units per second that each member admitted of each limit a moment ago.
pub type Admitted = HashMap<(MemberId, LimitId), u64>;

/// A limit that nodes exceeded, if all of them say the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    pub(super) limit: LimitId,
    /// By so many micro-units.
    pub(super) excess: u64,
    /// Member that admitted most of it lately, by its own word: it lies or should not run.
    pub(super) most: MemberId,
}

/// Feeds what nodes report to reference buckets.
#[derive(Debug, Default)]
pub(super) struct Audit {
    limits: HashMap<LimitId, Audited>,
    /// By the number of a node and of its process.
    heard: HashMap<(MemberId, u64), LastReport>,
}

/// The last report of a process.
#[derive(Debug)]
struct LastReport {
    seq: u64,
    at: Monotonic,
    rates: HashMap<LimitId, Rate>,
}

/// A process's admissions of a limit since `since`, and the rate before.
#[derive(Clone, Copy, Debug)]
struct Rate {
    since: Monotonic,
    count: u64,
    per_s: Option<u64>,
}

/// One limit.
#[derive(Debug)]
struct Audited {
    intervals: Intervals,
    /// Quota to judge it by.
    quota: (u64, u64),
    /// Since when less would be right: nodes that have not heard of it may still use more.
    smaller: Option<Monotonic>,
}

impl Audit {
    /// Counts a report. Returns the limits that were exceeded.
    pub(super) fn report(
        &mut self,
        now: Monotonic,
        report: &Report,
        record: &Record,
        drift: Drift,
    ) -> Vec<Exceeded> {
        if !self.hear(now, report, record) {
            return Vec::new();
        }
        let mut exceeded = Vec::new();
        for load in &report.loads {
            let Some(quota) = quota(record, load.limit) else {
                continue;
            };
            let audited = self.limits.entry(load.limit);
            let audited = audited.or_insert_with(|| Audited::new(quota, drift, now));
            audited.follow(quota, record.plan.timing.lease, drift, now);
            let begun = now.since(Monotonic::ORIGIN).saturating_sub(WIDTH);
            let begun = Monotonic::ORIGIN.saturating_add(begun);
            let judged = audited.intervals.judge(begun);
            let counted = audited.intervals.count(now, load.admitted);
            if let Some(excess) = judged.max(counted) {
                exceeded.push((load.limit, excess));
            }
        }
        let exceeded = exceeded.into_iter().map(|(limit, excess)| Exceeded {
            limit,
            excess,
            most: self.most(limit, now).unwrap_or(report.member),
        });
        exceeded.collect()
    }

    /// The member that says of a limit that it admitted more than any other lately.
    fn most(&self, limit: LimitId, now: Monotonic) -> Option<MemberId> {
        let recent = { self.heard.iter() }.filter(|(_, last)| now.since(last.at) < WIDTH);
        let each = recent.filter_map(|((member, _), last)| {
            let rate = last.rates.get(&limit)?;
            Some((rate.count.max(rate.per_s.unwrap_or_default()), *member))
        });
        each.max().map(|(_, member)| member)
    }

    /// Notes a report. Returns whether it says what was admitted since one that was heard just before.
    fn hear(&mut self, now: Monotonic, report: &Report, record: &Record) -> bool {
        let process = (report.member, report.incarnation);
        if let Some(last) = self.heard.get_mut(&process) {
            let (is_later, is_recent) = (last.seq < report.seq, now.since(last.at) < WIDTH);
            if is_later && is_recent {
                last.count(now, report);
            }
            if is_later {
                (last.seq, last.at) = (report.seq, now);
            }
            return is_later && is_recent;
        }
        if self.heard.len() >= 2 * record.seats.len() + MAX_OTHERS {
            self.heard.retain(|_, last| now.since(last.at) < WIDTH);
        }
        let is_seated = |(member, incarnation): (MemberId, u64)| {
            let seat = record.seat(member);
            seat.is_some_and(|seat| seat.incarnation == incarnation)
        };
        let others = || self.heard.keys().filter(|process| !is_seated(**process));
        if is_seated(process) || others().count() < MAX_OTHERS {
            let heard = LastReport {
                seq: report.seq,
                at: now,
                rates: HashMap::new(),
            };
            self.heard.insert(process, heard);
        }
        false
    }

    /// Recent admissions of each member, all of its processes together.
    pub(super) fn admitted(&self, now: Monotonic) -> Admitted {
        let mut admitted = Admitted::new();
        let recent = { self.heard.iter() }.filter(|(_, last)| now.since(last.at) < WIDTH);
        for ((member, _), last) in recent {
            for (limit, rate) in &last.rates {
                if let Some(per_s) = rate.per_s {
                    let sum = admitted.entry((*member, *limit)).or_default();
                    *sum = sum.saturating_add(per_s);
                }
            }
        }
        admitted
    }
}

impl LastReport {
    /// Counts what was admitted since the last report.
    fn count(&mut self, now: Monotonic, report: &Report) {
        for load in &report.loads {
            let rate = self.rates.entry(load.limit).or_insert(Rate {
                since: self.at,
                count: 0,
                per_s: None,
            });
            rate.count = rate.count.saturating_add(load.admitted);
            let counted = now.since(rate.since);
            if counted >= SHOWN {
                let per_s = u128::from(rate.count) * 1_000_000_000 / counted.as_nanos().max(1);
                *rate = Rate {
                    since: now,
                    count: 0,
                    per_s: Some(u64::try_from(per_s).unwrap_or(u64::MAX)),
                };
            }
        }
        if self.rates.len() > report.loads.len() {
            // A limit that is gone is reported no more.
            self.rates.retain(|_, rate| now.since(rate.since) < WIDTH);
        }
    }
}

impl Audited {
    fn new(quota: (u64, u64), drift: Drift, now: Monotonic) -> Self {
        let auditor = Auditor::new(quota.0, quota.1, drift, now);
        Self {
            intervals: Intervals::new(auditor, WIDTH),
            quota,
            smaller: None,
        }
    }

    /// Judges by another quota: by a larger one at once, by a smaller one when no node can use the old one
    /// any more. A bucket at rest then begins.
    fn follow(&mut self, quota: (u64, u64), lease: Duration, drift: Drift, now: Monotonic) {
        let is_larger = quota.0 > self.quota.0 || quota.1 > self.quota.1;
        if quota == self.quota {
            self.smaller = None;
        } else if is_larger {
            let both = (quota.0.max(self.quota.0), quota.1.max(self.quota.1));
            *self = Self::new(both, drift, now);
        } else if now.since(*self.smaller.get_or_insert(now)) > lease * 2 {
            *self = Self::new(quota, drift, now);
        }
    }
}

/// The rate and the burst that no node together exceed: those of the plan, or of the one that is being
/// rolled out.
fn quota(record: &Record, limit: LimitId) -> Option<(u64, u64)> {
    let rollout = record.rollout.as_ref().map(|rollout| &rollout.plan);
    let plans = [Some(&record.plan), rollout];
    let quotas = plans
        .into_iter()
        .flatten()
        .filter_map(|plan| plan.limit(limit));
    quotas
        .map(|limit| &limit.quota)
        .map(|Quota { rate, burst, .. }| (*rate, *burst))
        .reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)))
}

#[cfg(test)]
pub(super) mod tests {
    use quell_shares::message::Load;
    use quell_shares::plan::{Fallback, Limit, MICRO, Plan, ReturnSeats, Size, Sizing, Timing};

    use super::*;

    /// One limit of so much a second, with a burst of 100, and no seats.
    pub(in crate::leader) fn record(rate: u64) -> Record {
        let quota = Quota {
            rate: rate * MICRO,
            burst: 100 * MICRO,
            least_burst: MICRO,
            fallback: Fallback::Share,
        };
        Record::new(Plan {
            revision: 1,
            limits: vec![Limit::new("api", quota)],
            size: Size {
                total_weight: 1,
                seats: 10,
                sizing: Sizing::Auto,
            },
            groups: Vec::new(),
            timing: Timing::DEFAULT,
            return_seats: ReturnSeats::Never,
            rules: None,
        })
    }

    /// Report of a node's process on one limit.
    pub(in crate::leader) fn report(
        (member, incarnation): (u32, u64),
        seq: u64,
        load: Load,
    ) -> Report {
        Report {
            member: MemberId(member),
            incarnation,
            seq,
            epoch: 1,
            applied: 1,
            revision: 1,
            record: 1,
            loads: vec![load],
            held: None,
        }
    }

    /// Two nodes report twice a second.
    struct Fleet {
        audit: Audit,
        record: Record,
        now: Monotonic,
        seq: u64,
        exceeded: u64,
        most: Option<MemberId>,
    }

    impl Fleet {
        fn new(rate: u64) -> Self {
            Self {
                audit: Audit::default(),
                record: record(rate),
                now: Monotonic::from_nanos(1_000_000_000_000),
                seq: 0,
                exceeded: 0,
                most: None,
            }
        }

        /// Both admit so much a second, for so long.
        fn run(&mut self, per_second: u64, seconds: u64) {
            for _ in 0..seconds * 2 {
                self.now = self.now.saturating_add(Duration::from_millis(500));
                self.seq += 1;
                for member in [1, 2] {
                    self.report(member, per_second * MICRO / 2);
                }
            }
        }

        fn report(&mut self, member: u32, admitted: u64) {
            self.report_of((member, 1), admitted);
        }

        fn report_of(&mut self, process: (u32, u64), admitted: u64) {
            let load = Load {
                limit: self.record.plan.limits[0].id,
                demand: admitted,
                admitted,
                ..Load::default()
            };
            let report = report(process, self.seq, load);
            let exceeded = self
                .audit
                .report(self.now, &report, &self.record, Drift::DEFAULT);
            self.most = exceeded.first().map(|one| one.most).or(self.most);
            self.exceeded += u64::try_from(exceeded.len()).unwrap();
        }
    }

    #[test]
    fn a_fleet_that_keeps_its_limit_is_never_reported() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(500, 600);
        assert_eq!(fleet.exceeded, 0);
        // A node that was cut off says all at once what it admitted meanwhile.
        fleet.now = fleet.now.saturating_add(Duration::from_secs(60));
        fleet.seq += 1;
        fleet.report(1, 30_000 * MICRO);
        fleet.report(2, 30_000 * MICRO);
        fleet.run(500, 60);
        assert_eq!(fleet.exceeded, 0);
    }

    #[test]
    fn what_a_node_admits_is_shown_while_it_reports() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(300, 1);
        assert!(fleet.audit.admitted(fleet.now).is_empty(), "too early");
        fleet.run(300, 10);
        let limit = fleet.record.plan.limits[0].id;
        let of_node = |node| ((MemberId(node), limit), 300 * MICRO);
        assert_eq!(
            fleet.audit.admitted(fleet.now),
            Admitted::from([of_node(1), of_node(2)])
        );
        fleet.now = fleet.now.saturating_add(WIDTH);
        assert!(fleet.audit.admitted(fleet.now).is_empty(), "silent");
    }

    #[test]
    fn an_excess_of_some_percent_is_found() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(530, 600);
        assert!(fleet.exceeded > 0);
    }

    /// Whoever has a node's token can say anything of its own calls, and nothing of those of others.
    #[test]
    fn who_says_that_it_admitted_most_is_named() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(400, 10);
        for _ in 0..40 {
            fleet.now = fleet.now.saturating_add(Duration::from_millis(500));
            fleet.seq += 1;
            fleet.report(9, u64::MAX);
            fleet.report(1, 200 * MICRO);
        }
        assert_eq!(fleet.most, Some(MemberId(9)));
    }

    /// A message that comes twice, and one that was overtaken, count once.
    #[test]
    fn a_report_counts_once() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(500, 10);
        for _ in 0..200 {
            fleet.report(1, 500 * MICRO);
        }
        fleet.run(500, 20);
        assert_eq!(fleet.exceeded, 0);
    }

    #[test]
    fn a_change_of_the_limit_is_followed() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(500, 60);
        fleet.record = record(2_000);
        fleet.run(1_000, 60);
        assert_eq!(fleet.exceeded, 0);
        // Nodes hear of the cut some seconds later.
        fleet.record = record(1_000);
        fleet.run(1_000, 10);
        fleet.run(500, 120);
        assert_eq!(fleet.exceeded, 0);
        fleet.run(1_000, 60);
        assert!(fleet.exceeded > 0);
    }

    /// One was fenced, and still runs: both admit what the limit allows one.
    #[test]
    fn a_second_process_with_the_same_number_is_counted_too() {
        let mut fleet = Fleet::new(1_000);
        for _ in 0..120 {
            fleet.now = fleet.now.saturating_add(Duration::from_millis(500));
            fleet.seq += 1;
            for incarnation in [1, 2] {
                fleet.report_of((1, incarnation), 400 * MICRO);
            }
        }
        assert!(fleet.exceeded > 0);
    }

    #[test]
    fn numbers_that_a_stranger_makes_up_take_a_bounded_place() {
        let mut fleet = Fleet::new(1_000);
        fleet.run(500, 10);
        for member in 100..1_000 {
            fleet.report(member, 0);
        }
        assert_eq!(fleet.audit.heard.len(), MAX_OTHERS);
        // They do not make a node unheard.
        fleet.run(530, 600);
        assert!(fleet.exceeded > 0);
        // Nor do they stay when nobody speaks for them.
        for member in 1_000..1_010 {
            fleet.report(member, 0);
        }
        assert!(fleet.audit.heard.len() < 20);
    }
}
