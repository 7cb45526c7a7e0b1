//! Judge: whether a rollout stays within its band, by what the nodes that follow it say that they answered.
//!
//! Each limit that the rollout changes is judged by itself, over the last window: of all that calls asked
//! these nodes for, how much was refused, and how much was answered while no coordinator granted the share.
//! Rules that it changes and that no changed limit speaks for are judged by calls: a node says with their counts
//! which version of the rules it has in force.
//! A rollout is judged when its stage has lasted for a window, as long as this leader has heard it; so a
//! new leader begins again, by the band in the record. What a node answered before it followed the rollout
//! does not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quell::rule_store::Head;
use quell_core::time::Monotonic;
use quell_shares::message::{Report, Totals};
use quell_shares::plan::{Band, Limit, LimitId, MICRO, MemberId, Name, Record, Stage};

use super::tally::{self, PARTS, RecentAnswers, since};
use crate::rule_distribution::{NodeRules, RuleDistribution};

/// Parts of a whole, in a million.
const WHOLE: u64 = 1_000_000;

/// Judges the rollout that a record has.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The version of the record that was looked at last.
    version: Option<u64>,
    /// The rules that were.
    rules: StagedRules,
    trial: Option<Trial>,
}

/// The rules that a rollout changes and that no limit of the fleet says anything about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StagedRules {
    /// The digest of the text that nodes which follow the rollout are to have in force; none if no rule is judged.
    text: Option<Name>,
    /// Their names, as `domain/rule`.
    names: Arc<[Name]>,
}

impl StagedRules {
    pub(super) fn new(text: Option<Name>, names: Arc<[Name]>) -> Self {
        match text {
            Some(_) if !names.is_empty() => Self { text, names },
            _ => Self::default(),
        }
    }
}

/// Subject judged by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum JudgedSubject {
    Limit(LimitId),
    Rule(Name),
}

/// One stage of a rollout.
#[derive(Debug)]
struct Trial {
    stage: Stage,
    band: Band,
    /// The limits of its plan.
    plan: Vec<Limit>,
    /// Judged subjects, with names.
    subjects: HashMap<JudgedSubject, Name>,
    /// The digest of the text that its nodes are to have in force, if rules are judged.
    text: Option<Name>,
    window: RecentAnswers<JudgedSubject>,
    /// The processes that were heard to follow the rollout.
    heard: HashMap<MemberId, u64>,
    /// Last report on rules by nodes that have its version in force.
    said: HashMap<MemberId, BTreeMap<Name, Totals>>,
    /// Nodes that do not say what they answered under the judged rules.
    mute: BTreeSet<MemberId>,
}

/// Answers under a limit or a rule in the last window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The limit, or the rule as `domain/rule`.
    pub name: Name,
    /// True if it is a rule. A call under it counts as a unit.
    pub is_rule: bool,
    /// Micro-units.
    pub totals: Totals,
}

/// A leader's knowledge of a rollout with a band.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// Each limit and each rule that is judged.
    pub answered: Vec<Answered>,
    /// Nodes that follow the rollout and are not judged, because they do not say what they answered under its rules.
    pub mute: usize,
}

/// Reason why a rollout is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breach {
    name: Name,
    what: &'static str,
    is: u64,
    most: u32,
    window: Duration,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name, what, most, ..
        } = self;
        let (is, most) = (Percent(self.is), Percent(u64::from(*most)));
        let seconds = self.window.as_secs();
        write!(f, "`{name}` {what} {is} > {most} over {seconds} s")
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
    /// Follows the record and the rules. Returns why its rollout is to be taken back, when it is.
    pub(super) fn turn(
        &mut self,
        now: Monotonic,
        record: Option<&Record>,
        rules: StagedRules,
    ) -> Option<Breach> {
        let version = record.map(|record| record.version);
        if self.version != version || self.rules != rules {
            if self.rules != rules {
                (self.rules, self.trial) = (rules, None);
            }
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
            self.trial = Some(Trial::new(now, record, plan, (stage, band), &self.rules));
        }
    }

    /// Counts a report of a node that follows the rollout: what it answered since the one before.
    pub(super) fn count(
        &mut self,
        report: &Report,
        step: &tally::TallyStep,
        record: &Record,
        rule_distribution: &RuleDistribution,
    ) {
        let (Some(trial), Some(rollout)) = (&mut self.trial, &record.rollout) else {
            return;
        };
        let seat = record.seat(report.member).filter(|seat| seat.staged);
        if seat.is_some() && report.revision == rollout.plan.revision {
            rule_distribution.look(report.member, |said| trial.count(report, step, said));
        }
    }

    /// Hearing of the last window.
    pub(super) fn hearing(&self) -> Hearing {
        let Some(trial) = &self.trial else {
            return Hearing::default();
        };
        let answered = trial.subjects.iter().map(|(subject, name)| Answered {
            name: name.clone(),
            is_rule: matches!(subject, JudgedSubject::Rule(_)),
            totals: trial.window.sum(subject),
        });
        let mut answered: Vec<_> = answered.collect();
        answered.sort_unstable_by(|one, other| {
            (one.is_rule, &one.name).cmp(&(other.is_rule, &other.name))
        });
        Hearing {
            answered,
            mute: trial.mute.len(),
        }
    }
}

impl Trial {
    fn new(
        now: Monotonic,
        record: &Record,
        plan: &[Limit],
        (stage, band): (Stage, Band),
        rules: &StagedRules,
    ) -> Self {
        let judged = |limit: &Limit| (JudgedSubject::Limit(limit.id), limit.name.clone());
        let is_changed = |limit: &&Limit| record.plan.limit(limit.id) != Some(*limit);
        let limits = plan.iter().filter(is_changed).map(judged);
        let rules_judged =
            { rules.names.iter() }.map(|name| (JudgedSubject::Rule(name.clone()), name.clone()));
        let mut subjects: HashMap<_, _> = limits.chain(rules_judged).collect();
        if subjects.is_empty() {
            // It changes durations or seats, and so every limit.
            subjects = plan.iter().map(judged).collect();
        }
        Self {
            stage,
            band,
            plan: plan.to_vec(),
            subjects,
            text: rules.text.clone(),
            window: RecentAnswers::new(now, band.window),
            heard: HashMap::new(),
            said: HashMap::new(),
            mute: BTreeSet::new(),
        }
    }

    fn count(&mut self, report: &Report, step: &tally::TallyStep, said: Option<&NodeRules>) {
        let is_judged = |limit: &LimitId| self.subjects.contains_key(&JudgedSubject::Limit(*limit));
        // Before its first report it may have followed other limits.
        let before = self.heard.insert(report.member, report.incarnation);
        let is_same = before == Some(report.incarnation);
        if is_same {
            for (limit, more) in step.iter().filter(|(limit, _)| is_judged(limit)) {
                self.window.add(JudgedSubject::Limit(*limit), *more);
            }
        }
        if let Some(text) = &self.text {
            // A head has the beginning of the digest.
            let is_it = |head: &Head| text.starts_with(head.digest());
            let has_it = said.is_some_and(|said| said.applied.as_ref().is_some_and(is_it));
            match has_it && said.is_some_and(|said| said.answered.is_some()) {
                true => self.mute.remove(&report.member),
                false => self.mute.insert(report.member),
            };
            self.count_rules(report.member, is_same, said.map(|said| (said, has_it)));
        }
    }

    /// Counts what a node says of its rules, and whether it has the text in force: what it answered before does not
    /// count.
    fn count_rules(&mut self, member: MemberId, is_same: bool, said: Option<(&NodeRules, bool)>) {
        if !is_same {
            self.said.remove(&member);
        }
        // Its stream has just ended, and the next one says more.
        let Some((said, has_text)) = said else {
            return;
        };
        let before = self.said.remove(&member);
        let Some(totals) = said.answered.as_ref().filter(|_| has_text) else {
            return;
        };
        for (rule, totals) in totals {
            let before = before.as_ref().and_then(|before| before.get(rule));
            let more = before.and_then(|before| since(*totals, *before));
            let subject = JudgedSubject::Rule(rule.clone());
            if let Some(calls) = more.filter(|_| self.subjects.contains_key(&subject)) {
                self.window.add(subject, as_units(calls));
            }
        }
        self.said.insert(member, totals.clone());
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

    /// The limit or rule that is worst, if one has left the band.
    fn breach(&self) -> Option<Breach> {
        let mut worst: Option<Breach> = None;
        for (subject, name) in &self.subjects {
            let sum = self.window.sum(subject);
            for (what, some, most) in [
                ("refused", sum.refused, self.band.max_refused),
                ("answered degraded", sum.degraded, self.band.max_degraded),
            ] {
                let (Some(most), Some(is)) = (most, part_of(some, sum.asked)) else {
                    continue;
                };
                if is > u64::from(most) && worst.as_ref().is_none_or(|worst| worst.is < is) {
                    worst = Some(Breach {
                        name: name.clone(),
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

/// Calls, each of which counts as a unit.
const fn as_units(calls: Totals) -> Totals {
    Totals {
        asked: calls.asked.saturating_mul(MICRO),
        refused: calls.refused.saturating_mul(MICRO),
        degraded: calls.degraded.saturating_mul(MICRO),
    }
}

/// So many of a million, rounded up; `None` of nothing.
pub(crate) fn part_of(some: u64, all: u64) -> Option<u64> {
    let parts = (u128::from(some) * u128::from(WHOLE)).div_ceil(u128::from(all).max(1));
    (all > 0).then_some(u64::try_from(parts).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use quell::rule_store::{Draft, Version, text_digest};
    use quell_fleet::proto::{RuleAnswers, RulesSeen};
    use quell_shares::message::Load;
    use quell_shares::plan::{MICRO, Seat};

    use super::super::audit::tests::{record, report};
    use super::super::tally::ReportTally;
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
        tally: ReportTally,
        judge: Judge,
        record: Record,
        now: Monotonic,
        seq: u64,
        totals: Totals,
        rule_distribution: RuleDistribution,
        /// The version of the rules that node 1 has in force.
        applied: Head,
        /// Calls under the rule.
        calls: Totals,
        counts_calls: bool,
    }

    const RULE: &str = "shop/login";

    fn version(number: u64) -> Version {
        let draft = Draft {
            text: &number.to_string(),
            who: "",
            change: "",
            note: "",
        };
        Version::from_draft(number, 0, &draft)
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
                tally: ReportTally::new(now),
                judge: Judge::default(),
                record,
                now,
                seq: 0,
                totals: Totals::default(),
                rule_distribution: RuleDistribution::default(),
                applied: version(8).head().clone(),
                calls: Totals::default(),
                counts_calls: true,
            };
            rollout.store();
            rollout
        }

        /// Lets the leader see the record.
        fn store(&mut self) {
            self.record.version += 1;
            assert_eq!(self.turn(), None);
            // The first report says where counting begins.
            self.hear((1, 7));
        }

        /// A rollout of the version 8, which changes a rule of this node alone; of the limit too, or not.
        fn of_rule(is_limit_changed: bool) -> Self {
            let mut rollout = Self::new();
            if !is_limit_changed {
                let plan = rollout.record.plan.clone();
                let stage = Stage::Member(MemberId(1));
                rollout.record.roll_out(plan, stage, Some(BAND)).unwrap();
            }
            rollout.rule_distribution.publish(Arc::new(version(8)));
            rollout.rule_distribution.judge_rules([Name::from(RULE)]);
            rollout.store();
            rollout
        }

        fn turn(&mut self) -> Option<Breach> {
            let newest = self.rule_distribution.newest();
            let text = newest.map(|newest| text_digest(&newest.text).into());
            let rules = StagedRules::new(text, self.rule_distribution.judged());
            self.judge.turn(self.now, Some(&self.record), rules)
        }

        fn call(&mut self, (asked, refused, degraded): (u64, u64, u64)) {
            self.calls.asked += asked;
            self.calls.refused += refused;
            self.calls.degraded += degraded;
        }

        /// As `answer`, of calls under the rule.
        fn calls(
            &mut self,
            calls: (u64, u64, u64),
            length: Duration,
        ) -> Option<(Duration, String)> {
            let begun = self.now;
            while self.now.since(begun) < length {
                self.call(calls);
                if let Some((_, why)) = self.answer((0, 0), REPORT) {
                    return Some((self.now.since(begun), why));
                }
            }
            None
        }

        fn answered(&self) -> Vec<(String, u64)> {
            let hearing = self.judge.hearing();
            let all = hearing.answered.iter();
            all.map(|one| (one.name.to_string(), one.totals.asked / MICRO))
                .collect()
        }

        fn hear(&mut self, process: (u32, u64)) {
            let seen = RulesSeen {
                applied: self.applied.to_string(),
                counts: self.counts_calls,
                answered: vec![RuleAnswers {
                    rule: RULE.to_owned(),
                    asked: self.calls.asked,
                    refused: self.calls.refused,
                    degraded: self.calls.degraded,
                }],
                ..RulesSeen::default()
            };
            self.rule_distribution
                .note(MemberId(process.0), process.1, &seen);
            self.hear_report(process);
        }

        fn hear_report(&mut self, process: (u32, u64)) {
            self.seq += 1;
            let load = Load {
                limit: self.record.plan.limits[0].id,
                totals: self.totals,
                ..Load::default()
            };
            let report = Report {
                revision: self.record.rollout.as_ref().unwrap().plan.revision,
                record: self.record.version,
                ..report(process, self.seq, load)
            };
            if let Some(step) = self.tally.count(&report, &self.record) {
                self.judge
                    .count(&report, &step, &self.record, &self.rule_distribution);
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
                if let Some(breach) = self.turn() {
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
        rollout.store();
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
    fn a_rule_that_leaves_the_band_is_taken_back_after_a_whole_window() {
        for (calls, why) in [
            ((100, 41, 0), "`shop/login` refused 41 % > 5 % over 10 s"),
            (
                (100, 5, 2),
                "`shop/login` answered degraded 2 % > 1 % over 10 s",
            ),
        ] {
            let expected = Some((WINDOW, why.to_owned()));
            assert_eq!(Rollout::of_rule(true).calls(calls, 10 * WINDOW), expected);
        }
    }

    #[test]
    fn a_rule_that_stays_in_the_band_goes_on_and_is_judged_to_the_end() {
        let mut rollout = Rollout::of_rule(true);
        assert_eq!(rollout.calls((100, 5, 1), 20 * WINDOW), None);
        let (after, _) = rollout.calls((100, 10, 0), 2 * WINDOW).unwrap();
        assert!(after < WINDOW, "{after:?}");
    }

    /// With a rule that it changes, a rollout that changes no limit says nothing about limits.
    #[test]
    fn what_is_judged_is_what_changes() {
        let rows = |rollout: &Rollout| -> Vec<String> {
            { rollout.answered().into_iter() }
                .map(|(name, _)| name)
                .collect()
        };
        assert_eq!(rows(&Rollout::new()), ["api"]);
        assert_eq!(rows(&Rollout::of_rule(true)), ["api", RULE]);
        let mut rollout = Rollout::of_rule(false);
        assert_eq!(rows(&rollout), [RULE]);
        assert_eq!(rollout.answer((1_000, 1_000), 5 * WINDOW), None);
        rollout.rule_distribution.judge_rules([]);
        rollout.store();
        assert_eq!(rows(&rollout), ["api"]);
    }

    /// Refusals before this leader heard them, or under another version, are of another time.
    #[test]
    fn calls_before_a_node_follows_the_rollout_do_not_count() {
        let mut rollout = Rollout::of_rule(false);
        rollout.applied = version(7).head().clone();
        assert_eq!(rollout.calls((100, 100, 100), 5 * WINDOW), None);
        assert_eq!(rollout.answered(), [(RULE.to_owned(), 0)]);
        assert_eq!(rollout.judge.hearing().mute, 1, "nobody is judged");
        // The same text under another number.
        rollout.applied = Head::new(10, &version(8).text);
        rollout.call((100, 100, 0));
        assert_eq!(rollout.calls((0, 0, 0), WINDOW), None);
        rollout.call((7, 0, 0));
        assert_eq!(rollout.calls((0, 0, 0), REPORT), None);
        assert_eq!(rollout.answered(), [(RULE.to_owned(), 7)]);
        assert_eq!(rollout.judge.hearing().mute, 0);
        rollout.applied = version(9).head().clone();
        assert_eq!(rollout.calls((100, 100, 0), REPORT), None);
        rollout.applied = version(8).head().clone();
        assert_eq!(rollout.calls((100, 100, 0), REPORT), None);
        assert_eq!(rollout.answered(), [(RULE.to_owned(), 7)]);
    }

    #[test]
    fn a_node_that_starts_again_begins_to_count_again() {
        let mut rollout = Rollout::of_rule(false);
        assert_eq!(rollout.calls((100, 0, 0), WINDOW / 2), None);
        let counted = rollout.answered();
        // One process counts less than the one before, and the next one more.
        rollout.calls = Totals::default();
        rollout.hear((1, 7));
        assert_eq!(rollout.answered(), counted);
        rollout.record.seats[0].incarnation = 9;
        (rollout.seq, rollout.calls.asked, rollout.calls.refused) = (0, 5_000, 5_000);
        rollout.hear((1, 9));
        assert_eq!(rollout.answered(), counted);
        rollout.call((1, 0, 0));
        rollout.hear((1, 9));
        assert_eq!(rollout.answered()[0].1, counted[0].1 + 1);
    }

    /// It says at once what it answered while it was cut off.
    #[test]
    fn a_stream_that_ends_and_begins_again_loses_no_calls() {
        let mut rollout = Rollout::of_rule(false);
        assert_eq!(rollout.calls((100, 0, 0), 2 * REPORT), None);
        rollout.rule_distribution.forget(MemberId(1), 7);
        rollout.hear_report((1, 7));
        assert_eq!(rollout.judge.hearing().mute, 1);
        assert_eq!(rollout.calls((50, 0, 0), REPORT), None);
        assert_eq!(rollout.answered(), [(RULE.to_owned(), 250)]);
    }

    #[test]
    fn a_node_that_does_not_count_calls_is_not_judged_until_it_does() {
        let mut rollout = Rollout::of_rule(false);
        rollout.counts_calls = false;
        assert_eq!(rollout.calls((100, 100, 100), 5 * WINDOW), None);
        assert_eq!(rollout.judge.hearing().mute, 1);
        rollout.counts_calls = true;
        assert!(rollout.calls((100, 100, 0), 2 * WINDOW).is_some());
        assert_eq!(rollout.judge.hearing().mute, 0);
    }
}
