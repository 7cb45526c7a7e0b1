//! Judge: whether a rollout stays within its band, by what the nodes that follow it say that they answered.
//!
//! Each limit that the rollout changes is judged by itself, over the last window: of all that calls asked
//! these nodes for, how much was refused, and how much was answered while no coordinator granted the share.
//! A rollout is judged when its stage has lasted for a window, as long as this leader has heard it; so a
//! new leader begins again, by the band in the record. What a node answered before it followed the rollout
//! does not count.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::message::{Report, Totals};
use quell_shares::plan::{Band, Limit, LimitId, MemberId, Name, Record, Stage};

use super::tally::{self, PARTS, Window};

/// Parts of a whole, in a million.
const WHOLE: u64 = 1_000_000;

/// Judges the rollout that a record has.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The version of the record that was looked at last.
    version: Option<u64>,
    trial: Option<Trial>,
}

/// One stage of a rollout.
#[derive(Debug)]
struct Trial {
    stage: Stage,
    band: Band,
    /// The limits of its plan.
    plan: Vec<Limit>,
    /// Those that are judged.
    limits: HashMap<LimitId, Name>,
    window: Window,
    /// The processes that were heard to follow the rollout.
    heard: HashMap<MemberId, u64>,
    /// Nodes that do not say what they answered.
    mute: BTreeSet<MemberId>,
}

/// What was answered under a limit in the last window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The limit.
    pub limit: Name,
    /// Micro-units.
    pub totals: Totals,
}

/// What a leader has heard of a rollout with a band.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// Each limit that is judged.
    pub limits: Vec<Answered>,
    /// Nodes that follow the rollout and are not judged, because they do not say what they answered.
    pub mute: usize,
}

/// Why a rollout is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breach {
    limit: Name,
    what: &'static str,
    is: u64,
    most: u32,
    window: Duration,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit, what, most, ..
        } = self;
        let (is, most) = (Percent(self.is), Percent(u64::from(*most)));
        let seconds = self.window.as_secs();
        write!(f, "`{limit}` {what} {is} > {most} over {seconds} s")
    }
}

/// Parts of a million as a percentage, exactly.
struct Percent(u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{text} %")
    }
}

impl Judge {
    /// Follows the record. Returns why its rollout is to be taken back, when it is.
    pub(super) fn turn(&mut self, now: Monotonic, record: Option<&Record>) -> Option<Breach> {
        let version = record.map(|record| record.version);
        if self.version != version {
            self.version = version;
            self.follow(now, record);
        }
        self.trial.as_mut().and_then(|trial| trial.turn(now))
    }

    fn follow(&mut self, now: Monotonic, record: Option<&Record>) {
        let wanted = record.and_then(|record| {
            let rollout = record.rollout.as_ref()?;
            Some((record, &rollout.plan.limits, rollout.stage, rollout.band?))
        });
        let Some((record, plan, stage, band)) = wanted else {
            self.trial = None;
            return;
        };
        let is_same =
            |trial: &Trial| trial.plan == *plan && (trial.stage, trial.band) == (stage, band);
        if !self.trial.as_ref().is_some_and(is_same) {
            self.trial = Some(Trial::new(now, record, plan, stage, band));
        }
    }

    /// Counts a report of a node that follows the rollout: what it answered since the one before.
    pub(super) fn count(&mut self, report: &Report, step: &tally::Step, record: &Record) {
        let (Some(trial), Some(rollout)) = (&mut self.trial, &record.rollout) else {
            return;
        };
        let seat = record.seat(report.member).filter(|seat| seat.staged);
        if seat.is_some() && report.revision == rollout.plan.revision {
            trial.count(report, step);
        }
    }

    /// What was heard in the last window.
    pub(super) fn hearing(&self) -> Hearing {
        let Some(trial) = &self.trial else {
            return Hearing::default();
        };
        let limits = trial.limits.iter().map(|(id, limit)| Answered {
            limit: limit.clone(),
            totals: trial.window.sum(*id),
        });
        let mut limits: Vec<_> = limits.collect();
        limits.sort_unstable_by(|one, other| one.limit.cmp(&other.limit));
        Hearing {
            limits,
            mute: trial.mute.len(),
        }
    }
}

impl Trial {
    fn new(now: Monotonic, record: &Record, plan: &[Limit], stage: Stage, band: Band) -> Self {
        let judged = |limit: &Limit| (limit.id, limit.name.clone());
        let is_changed = |limit: &&Limit| record.plan.limit(limit.id) != Some(*limit);
        let mut limits: HashMap<_, _> = plan.iter().filter(is_changed).map(judged).collect();
        if limits.is_empty() {
            // It changes durations or seats, and so every limit.
            limits = plan.iter().map(judged).collect();
        }
        Self {
            stage,
            band,
            plan: plan.to_vec(),
            limits,
            window: Window::new(now, band.window),
            heard: HashMap::new(),
            mute: BTreeSet::new(),
        }
    }

    fn count(&mut self, report: &Report, step: &tally::Step) {
        let is_judged = |limit: &LimitId| self.limits.contains_key(limit);
        let mut judged = { report.loads.iter() }.filter(|load| is_judged(&load.limit));
        if judged.any(|load| load.totals.is_none()) {
            self.mute.insert(report.member);
        }
        // Before its first report it may have followed other limits.
        let before = self.heard.insert(report.member, report.incarnation);
        if before == Some(report.incarnation) {
            for (limit, more) in step.iter().filter(|(limit, _)| is_judged(limit)) {
                self.window.add(*limit, *more);
            }
        }
    }

    /// Goes on to the part of the window that `now` is in. Judges the window that ends there, if there was
    /// a whole one.
    fn turn(&mut self, now: Monotonic) -> Option<Breach> {
        let part = self.window.next(now)?;
        let is_whole = part >= PARTS as u64;
        let breach = is_whole.then(|| self.breach()).flatten();
        self.window.go_on(part);
        breach
    }

    /// The limit that is worst, if one has left the band.
    fn breach(&self) -> Option<Breach> {
        let mut worst: Option<Breach> = None;
        for (id, limit) in &self.limits {
            let sum = self.window.sum(*id);
            for (what, some, most) in [
                ("refused", sum.refused, self.band.max_refused),
                ("answered degraded", sum.degraded, self.band.max_degraded),
            ] {
                let (Some(most), Some(is)) = (most, part_of(some, sum.asked)) else {
                    continue;
                };
                if is > u64::from(most) && worst.as_ref().is_none_or(|worst| worst.is < is) {
                    worst = Some(Breach {
                        limit: limit.clone(),
                        what,
                        is,
                        most,
                        window: self.band.window,
                    });
                }
            }
        }
        worst
    }
}

/// So many of a million, rounded up; `None` of nothing.
pub(crate) fn part_of(some: u64, all: u64) -> Option<u64> {
    let parts = (u128::from(some) * u128::from(WHOLE)).div_ceil(u128::from(all).max(1));
    (all > 0).then_some(u64::try_from(parts).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use quell_shares::message::Load;
    use quell_shares::plan::{MICRO, Seat};

    use super::super::audit::tests::{record, report};
    use super::super::tally::Tally;
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const BAND: Band = Band {
        max_refused: Some(50_000),
        max_degraded: Some(10_000),
        window: WINDOW,
    };
    const REPORT: Duration = Duration::from_millis(500);

    /// Half of a limit is rolled out to node 1, and a leader hears what the node answers.
    struct Rollout {
        tally: Tally,
        judge: Judge,
        record: Record,
        now: Monotonic,
        seq: u64,
        totals: Totals,
        is_counting: bool,
    }

    impl Rollout {
        /// At most 5 % refused and 1 % degraded.
        fn new() -> Self {
            let mut record = record(1_000);
            record.seats.push(Seat::new(MemberId(1), 7, 0, 1));
            record.seats.push(Seat::new(MemberId(2), 8, 0, 1));
            let mut plan = record.plan.clone();
            plan.limits[0].quota.rate /= 2;
            let stage = Stage::Member(MemberId(1));
            record.roll_out(plan, stage, Some(BAND)).unwrap();
            let now = Monotonic::from_nanos(1_000_000_000_000);
            let mut rollout = Self {
                tally: Tally::new(now),
                judge: Judge::default(),
                record,
                now,
                seq: 0,
                totals: Totals::default(),
                is_counting: true,
            };
            rollout.is_stored();
            rollout
        }

        /// The leader sees the record.
        fn is_stored(&mut self) {
            self.record.version += 1;
            assert_eq!(self.judge.turn(self.now, Some(&self.record)), None);
            // The first report says where counting begins.
            self.hear((1, 7));
        }

        fn hear(&mut self, process: (u32, u64)) {
            self.seq += 1;
            let load = Load {
                limit: self.record.plan.limits[0].id,
                totals: self.is_counting.then_some(self.totals),
                ..Load::default()
            };
            let report = Report {
                revision: self.record.rollout.as_ref().unwrap().plan.revision,
                record: self.record.version,
                ..report(process, self.seq, load)
            };
            if let Some(step) = self.tally.count(&report, &self.record) {
                self.judge.count(&report, &step, &self.record);
            }
        }

        /// Node 1 is asked for 1,000 units in each report period and refuses some, for so long or until the
        /// rollout is to be taken back. Says after how long that is, and why.
        fn answer(
            &mut self,
            (refused, degraded): (u64, u64),
            length: Duration,
        ) -> Option<(Duration, String)> {
            let begun = self.now;
            while self.now.since(begun) < length {
                self.now = self.now.saturating_add(REPORT);
                self.totals.asked += 1_000 * MICRO;
                self.totals.refused += refused * MICRO;
                self.totals.degraded += degraded * MICRO;
                self.hear((1, 7));
                if let Some(breach) = self.judge.turn(self.now, Some(&self.record)) {
                    return Some((self.now.since(begun), breach.to_string()));
                }
            }
            None
        }
    }

    #[test]
    fn what_leaves_the_band_is_taken_back_after_a_whole_window() {
        for (answers, why) in [
            ((60, 0), "`api` refused 6 % > 5 % over 10 s"),
            ((0, 11), "`api` answered degraded 1.1 % > 1 % over 10 s"),
            // The worse of both.
            (
                (900, 1_000),
                "`api` answered degraded 100 % > 1 % over 10 s",
            ),
        ] {
            let expected = Some((WINDOW, why.to_owned()));
            assert_eq!(Rollout::new().answer(answers, 10 * WINDOW), expected);
        }
    }

    #[test]
    fn what_stays_in_the_band_goes_on_and_is_judged_to_the_end() {
        let mut rollout = Rollout::new();
        assert_eq!(rollout.answer((50, 10), 100 * WINDOW), None);
        let (after, _) = rollout.answer((100, 0), 2 * WINDOW).unwrap();
        assert!(after < WINDOW, "{after:?}");
    }

    #[test]
    fn what_was_answered_before_the_window_does_not_count() {
        let mut rollout = Rollout::new();
        assert_eq!(rollout.answer((0, 0), 100 * WINDOW), None);
        let (after, why) = rollout.answer((100, 0), 2 * WINDOW).unwrap();
        assert!(after < WINDOW, "{after:?}: {why}");
    }

    #[test]
    fn each_stage_is_judged_anew() {
        let mut rollout = Rollout::new();
        assert_eq!(rollout.answer((100, 0), WINDOW - REPORT), None);
        let all = Stage::Percent(100);
        rollout.record.advance(all, Some(BAND)).unwrap();
        rollout.is_stored();
        let (after, _) = rollout.answer((100, 0), 2 * WINDOW).unwrap();
        assert_eq!(after, WINDOW);
    }

    #[test]
    fn a_lost_report_loses_nothing() {
        let mut rollout = Rollout::new();
        rollout.totals.asked += 100_000 * MICRO;
        rollout.totals.refused += 50_000 * MICRO;
        let (_, why) = rollout.answer((0, 0), 2 * WINDOW).unwrap();
        // 20 reports of 1,000 beside it.
        assert_eq!(why, "`api` refused 41.6667 % > 5 % over 10 s");
    }

    #[test]
    fn only_nodes_that_follow_it_count() {
        let mut rollout = Rollout::new();
        rollout.totals.refused += 100_000 * MICRO;
        for other in [(2, 8), (1, 6), (3, 1)] {
            rollout.hear(other);
            rollout.totals.refused += 100_000 * MICRO;
            rollout.hear(other);
        }
        rollout.totals = Totals::default();
        assert_eq!(rollout.answer((50, 0), 5 * WINDOW), None);
        assert_eq!(rollout.judge.hearing().mute, 0);
    }

    #[test]
    fn a_node_that_does_not_count_is_not_judged() {
        let mut rollout = Rollout::new();
        rollout.is_counting = false;
        assert_eq!(rollout.answer((1_000, 1_000), 5 * WINDOW), None);
        assert_eq!(rollout.judge.hearing().mute, 1);
    }
}
