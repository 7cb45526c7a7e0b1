//! Tally: what nodes say that they answered, of each limit: since this leader hears them, and lately.
//!
//! A node reports totals since its process started, so a report that is lost loses nothing. The first
//! report of a process only says where counting begins: what it answered before, under another leader or
//! none, is of a time that nobody knows. A node that was cut off and is back says at once what it answered
//! meanwhile.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::message::{Report, Totals};
use quell_shares::plan::{Band, LimitId, MemberId, Record};

/// A window is counted in so many parts.
pub(super) const PARTS: usize = 10;

/// Length of `lately`: that by which a rollout is judged, unless an operator says otherwise.
pub(crate) const LATELY: Duration = Band::WINDOW;

/// Answers of nodes under each limit.
pub type Tallies = HashMap<LimitId, LimitTally>;

/// Answers of all nodes together under a limit, in micro-units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitTally {
    /// Since this leader hears them.
    pub total: Totals,
    /// In the last 30 seconds.
    pub lately: Totals,
}

/// Answers of a node between two of its reports.
pub(super) type TallyStep = Vec<(LimitId, Totals)>;

/// Adds up what nodes with a seat say, under one leadership.
#[derive(Debug)]
pub(super) struct ReportTally {
    heard: HashMap<MemberId, LastReport>,
    totals: HashMap<LimitId, Totals>,
    lately: RecentAnswers,
}

/// The last report of a node.
#[derive(Debug, Default)]
struct LastReport {
    incarnation: u64,
    seq: u64,
    /// By the number of the limit.
    totals: TallyStep,
}

impl ReportTally {
    pub(super) fn new(now: Monotonic) -> Self {
        Self {
            heard: HashMap::new(),
            totals: HashMap::new(),
            lately: RecentAnswers::new(now, LATELY),
        }
    }

    /// Counts a report. Returns what its node answered since the one before: nothing if there was none, `None`
    /// if a later one was counted, or its process has no seat.
    pub(super) fn count(&mut self, report: &Report, record: &Record) -> Option<TallyStep> {
        let seat = record.seat(report.member)?;
        if seat.incarnation != report.incarnation {
            return None;
        }
        if self.heard.len() > record.seats.len() {
            self.heard.retain(|node, _| record.seat(*node).is_some());
        }
        let known = self.heard.entry(report.member).or_default();
        if known.incarnation != report.incarnation {
            *known = LastReport {
                incarnation: report.incarnation,
                ..LastReport::default()
            };
        }
        if report.seq <= known.seq {
            return None;
        }
        known.seq = report.seq;
        let said = { report.loads.iter() }.map(|load| (load.limit, load.totals));
        let before = std::mem::replace(&mut known.totals, said.collect());
        let more = known.totals.iter().filter_map(|(limit, totals)| {
            let at = before.binary_search_by_key(limit, |(limit, _)| *limit);
            let (_, before) = before.get(at.ok()?)?;
            Some((*limit, since(*totals, *before)?))
        });
        let step: TallyStep = more.collect();
        for (limit, more) in &step {
            let total = self.totals.entry(*limit).or_default();
            *total = sum(*total, *more);
            self.lately.add(*limit, *more);
        }
        Some(step)
    }

    /// Forgets what was not lately, and limits that are gone.
    pub(super) fn turn(&mut self, now: Monotonic, record: &Record) {
        let Some(part) = self.lately.next(now) else {
            return;
        };
        self.lately.go_on(part);
        let rollout = record.rollout.as_ref().map(|rollout| &rollout.plan);
        let is_known = |limit: LimitId| {
            let staged = rollout.and_then(|plan| plan.limit(limit));
            record.plan.limit(limit).or(staged).is_some()
        };
        self.totals.retain(|limit, _| is_known(*limit));
        self.lately.counted.retain(|limit, _| is_known(*limit));
    }

    pub(super) fn tallies(&self) -> Tallies {
        let tally = |(limit, total): (&LimitId, &Totals)| {
            let lately = self.lately.sum(limit);
            (
                *limit,
                LimitTally {
                    total: *total,
                    lately,
                },
            )
        };
        self.totals.iter().map(tally).collect()
    }
}

/// Recent answers, of each limit or whatever else has answers.
#[derive(Debug)]
pub(super) struct RecentAnswers<K = LimitId> {
    since: Monotonic,
    length: Duration,
    /// The part that is counted now, since the beginning.
    part: u64,
    counted: HashMap<K, [Totals; PARTS]>,
}

impl<K: Eq + Hash> RecentAnswers<K> {
    pub(super) fn new(since: Monotonic, length: Duration) -> Self {
        Self {
            since,
            length,
            part: 0,
            counted: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, of: K, more: Totals) {
        let parts = self.counted.entry(of).or_default();
        let counted = &mut parts[place(self.part)];
        *counted = sum(*counted, more);
    }

    pub(super) fn sum(&self, of: &K) -> Totals {
        let parts = self.counted.get(of).into_iter().flatten();
        parts.copied().fold(Totals::default(), sum)
    }

    /// The part that `now` is in, if another is counted.
    pub(super) fn next(&self, now: Monotonic) -> Option<u64> {
        let passed = now.since(self.since).as_nanos() * PARTS as u128;
        let part = passed / self.length.as_nanos().max(1);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        (part != self.part).then_some(part)
    }

    /// Goes on to this part.
    pub(super) fn go_on(&mut self, part: u64) {
        let passed = part.saturating_sub(self.part);
        for parts in self.counted.values_mut() {
            for at in 1..=passed.min(PARTS as u64) {
                parts[place(self.part + at)] = Totals::default();
            }
        }
        self.part = part;
    }
}

fn place(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or(0)
}

const fn sum(one: Totals, other: Totals) -> Totals {
    Totals {
        asked: one.asked.saturating_add(other.asked),
        refused: one.refused.saturating_add(other.refused),
        degraded: one.degraded.saturating_add(other.degraded),
    }
}

/// Answers since `before`; `None` if the node began to count again.
pub(super) fn since(totals: Totals, before: Totals) -> Option<Totals> {
    Some(Totals {
        asked: totals.asked.checked_sub(before.asked)?,
        refused: totals.refused.checked_sub(before.refused)?,
        degraded: totals.degraded.checked_sub(before.degraded)?,
    })
}

#[cfg(test)]
mod tests {
    use quell_shares::message::Load;
    use quell_shares::plan::{MICRO, Seat};

    use super::super::audit::tests::{record, report};
    use super::*;

    const NONE: Totals = totals(0, 0, 0);

    const fn totals(asked: u64, refused: u64, degraded: u64) -> Totals {
        Totals {
            asked: asked * MICRO,
            refused: refused * MICRO,
            degraded: degraded * MICRO,
        }
    }

    /// Two nodes with a seat.
    struct Fleet {
        tally: ReportTally,
        record: Record,
        now: Monotonic,
        seq: u64,
    }

    impl Fleet {
        fn new() -> Self {
            let mut record = record(1_000);
            record.seats.push(Seat::new(MemberId(1), 7, 0, 1));
            record.seats.push(Seat::new(MemberId(2), 8, 0, 1));
            let now = Monotonic::from_nanos(1_000_000_000_000);
            let tally = ReportTally::new(now);
            Self {
                tally,
                record,
                now,
                seq: 0,
            }
        }

        fn limit(&self) -> LimitId {
            self.record.plan.limits[0].id
        }

        fn report(&self, process: (u32, u64), said: Totals) -> Report {
            let load = Load {
                limit: self.limit(),
                totals: said,
                ..Load::default()
            };
            report(process, self.seq, load)
        }

        fn hear(&mut self, process: (u32, u64), said: Totals) {
            self.seq += 1;
            let report = self.report(process, said);
            self.tally.count(&report, &self.record);
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now.saturating_add(time);
            self.tally.turn(self.now, &self.record);
        }

        /// Since the leader hears them, and lately.
        fn is(&self) -> (Totals, Totals) {
            let all = self.tally.tallies();
            let tally = all.get(&self.limit()).copied().unwrap_or_default();
            (tally.total, tally.lately)
        }
    }

    #[test]
    fn what_all_nodes_answer_is_added_up_from_where_each_is_first_heard() {
        let mut fleet = Fleet::new();
        fleet.hear((1, 7), totals(9_000, 800, 70));
        fleet.hear((2, 8), totals(500, 500, 500));
        assert!(fleet.tally.tallies().is_empty());
        fleet.hear((1, 7), totals(9_100, 810, 72));
        fleet.hear((2, 8), totals(600, 500, 503));
        let sum = totals(200, 10, 5);
        assert_eq!(fleet.is(), (sum, sum));
    }

    #[test]
    fn a_report_that_is_lost_loses_nothing_and_one_that_comes_late_or_twice_adds_nothing() {
        let mut fleet = Fleet::new();
        fleet.hear((1, 7), NONE);
        fleet.hear((1, 7), totals(100, 10, 0));
        let twice = fleet.report((1, 7), totals(150, 10, 0));
        fleet.seq += 5;
        fleet.hear((1, 7), totals(400, 30, 0));
        assert_eq!(fleet.tally.count(&twice, &fleet.record), None);
        assert_eq!(fleet.is().0, totals(400, 30, 0));
    }

    /// A process that is started again counts from 0, and a cell that is made again does so too.
    #[test]
    fn a_node_that_begins_to_count_again_adds_no_more_than_it_says() {
        let mut fleet = Fleet::new();
        fleet.hear((1, 7), totals(1_000, 0, 0));
        fleet.hear((1, 7), totals(1_100, 0, 0));
        fleet.hear((1, 7), totals(50, 0, 0));
        fleet.hear((1, 7), totals(60, 0, 0));
        assert_eq!(fleet.is().0, totals(110, 0, 0));
        fleet.record.seats[0].incarnation = 9;
        fleet.seq = 0;
        fleet.hear((1, 9), totals(5_000, 0, 0));
        fleet.hear((1, 9), totals(5_001, 0, 0));
        assert_eq!(fleet.is().0, totals(111, 0, 0));
    }

    #[test]
    fn who_has_no_seat_does_not_count() {
        let mut fleet = Fleet::new();
        for process in [(1, 6), (3, 1)] {
            fleet.hear(process, NONE);
            fleet.hear(process, totals(100, 100, 100));
        }
        assert!(fleet.tally.tallies().is_empty());
        assert!(fleet.tally.heard.is_empty());
    }

    #[test]
    fn lately_ends_and_the_total_does_not() {
        let mut fleet = Fleet::new();
        fleet.hear((1, 7), NONE);
        fleet.hear((1, 7), totals(100, 50, 0));
        fleet.pass(LATELY / 2);
        fleet.hear((1, 7), totals(200, 50, 1));
        assert_eq!(fleet.is().1, totals(200, 50, 1));
        fleet.pass(LATELY / 2);
        assert_eq!(fleet.is(), (totals(200, 50, 1), totals(100, 0, 1)));
        fleet.pass(100 * LATELY);
        assert_eq!(fleet.is(), (totals(200, 50, 1), NONE));
    }

    #[test]
    fn nodes_and_limits_that_are_gone_are_forgotten() {
        let mut fleet = Fleet::new();
        for process in [(1, 7), (2, 8)] {
            fleet.hear(process, NONE);
            fleet.hear(process, totals(1, 0, 0));
        }
        fleet.record.seats = vec![Seat::new(MemberId(3), 5, 0, 1)];
        fleet.hear((3, 5), NONE);
        fleet.hear((3, 5), NONE);
        assert_eq!(fleet.tally.heard.len(), 1);
        fleet.record.plan.limits.clear();
        fleet.pass(LATELY);
        assert!(fleet.tally.tallies().is_empty() && fleet.tally.lately.counted.is_empty());
    }
}
