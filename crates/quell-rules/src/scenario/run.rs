//! Run: executes the steps of a scenario file and compares the answers.

use std::time::Duration;

use quell_core::charge::{self, Operation};
use quell_core::claim::{Claim, WaitLimits};
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;

use super::answer::{ReportedVerdict, Value};
use super::expect::Expect;
use super::read::{Scenarios, Test};
use super::report::{FileReport, StepFailure, TestReport, Unexpected};
use super::step::{Action, Call, EndAnswer, Step};
use crate::duration::Exact;
use crate::hint;

/// The most failures that are reported for one test.
const MAX_FAILURES: usize = 10;

/// The message of a subject that supports no holds.
const NO_HOLDS: &str = "holds do not work on this store: test these rules on the memory store";

/// The message of a subject that supports no administration.
const NO_HAND: &str =
    "operators' steps do not work on this store: test these rules on the memory store";

/// A subject under test: rules and a store, on a clock that the runner sets.
///
/// An `Err` means that there was no answer; the test fails with its text and ends there.
pub trait Subject {
    /// Forgets all rules and all states. Both clocks read `now`.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn reset(&mut self, now: Now) -> Result<(), String>;

    /// Puts these rules into force in place of the current ones, as a reload does.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String>;

    /// The unit in which it counts time. Expected durations are rounded up to it before they are
    /// compared. Default: a nanosecond.
    fn unit(&self) -> Duration {
        Duration::from_nanos(1)
    }

    /// Answers a query at `now`, which may be before the last.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn ask(&mut self, operation: Operation, query: &Query<'_>, now: Now)
    -> Result<Verdict, String>;

    /// Makes a claim at `now`: reserves, holds permits, or takes a place in the queue; its turn then
    /// comes without another call.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn hold(
        &mut self,
        _claim: &Claim<'_>,
        _query: &Query<'_>,
        _now: Now,
    ) -> Result<Verdict, String> {
        Err(NO_HOLDS.to_owned())
    }

    /// Ends or renews a hold at `now`.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn end(&mut self, _id: &HoldId, _ending: Ending, _now: Now) -> Result<EndAnswer, String> {
        Err(NO_HOLDS.to_owned())
    }

    /// Administers at `now` the key of `rule` for the query's only descriptor, whatever the rule
    /// matches; without `rule`, the keys that the query would charge. Returns how many keys changed.
    ///
    /// # Errors
    /// A text that says why it cannot.
    fn administer(
        &mut self,
        _rule: Option<&str>,
        _query: &Query<'_>,
        _action: charge::Action<'_>,
        _now: Now,
    ) -> Result<usize, String> {
        Err(NO_HAND.to_owned())
    }
}

/// Runs all tests of a file, each from an empty store.
pub fn run(scenarios: &Scenarios, subject: &mut dyn Subject) -> FileReport {
    let tests = scenarios.tests.iter().map(|test| run_test(test, subject));
    FileReport {
        file: scenarios.name.clone(),
        tests: tests.collect(),
    }
}

fn run_test(test: &Test, subject: &mut dyn Subject) -> TestReport {
    let mut report = TestReport {
        name: test.name.to_string(),
        ok: true,
        calls: 0,
        failures: Vec::new(),
        error: None,
    };
    let start = Now::from_nanos(test.start);
    let ready = subject
        .reset(start)
        .and_then(|()| subject.set_rules(test.rules.to_vec(), start));
    if let Err(error) = ready {
        report.error = Some(error);
    }
    let mut rules: Vec<&DomainRules> = test.rules.iter().collect();
    for step in &test.steps {
        if report.error.is_some() {
            break;
        }
        if let Action::SetRules(set) = &step.action {
            rules.extend(set);
        }
        let unknown = unknown_rule(step, &rules);
        let failure = unknown.or_else(|| run_step(step, test.start, subject, &mut report));
        if let Some(failure) = failure.filter(|_| report.failures.len() < MAX_FAILURES) {
            report.failures.push(failure);
        }
    }
    report.ok = report.error.is_none() && report.failures.is_empty();
    report
}

/// Reports an expectation on a rule that does not exist: that it makes no decision would always be
/// true.
fn unknown_rule(step: &Step, rules: &[&DomainRules]) -> Option<StepFailure> {
    let Action::Call(call) = &step.action else {
        return None;
    };
    let mut all = rules.iter().flat_map(|domain| &domain.rules);
    let name = call
        .expect
        .unknown_rule(|name| all.clone().any(|rule| &*rule.name == name))?;
    let names: Vec<&str> = all.by_ref().map(|rule| &*rule.name).collect();
    let got = match hint::meant(name, &names) {
        Some(meant) => format!("none, did you mean `{meant}`?"),
        None => "none".to_owned(),
    };
    let unexpected = Unexpected::new(format!("rules.{name}"), "a rule of this name", got);
    failure(step, step.at, (1, call.repeat), vec![unexpected], None)
}

/// Runs a step. Returns what was not as expected; errors go to the report.
fn run_step(
    step: &Step,
    start: u64,
    subject: &mut dyn Subject,
    report: &mut TestReport,
) -> Option<StepFailure> {
    let now = instant(start, step.at);
    let result = match &step.action {
        Action::SetRules(rules) => subject.set_rules(rules.clone(), now).map(|()| None),
        Action::End(ending) => {
            let answer = subject.end(&ending.id, ending.ending.clone(), now);
            answer.map(|answer| one_call(step, ending.compare(answer), report))
        }
        Action::ByHand(hand) => {
            let rule = hand.rule.as_deref();
            let changed = subject.administer(rule, &hand.query(), hand.action, now);
            changed.map(|changed| one_call(step, hand.compare(changed), report))
        }
        Action::Call(call) => make_calls(call, step, start, subject, &mut report.calls),
    };
    result.unwrap_or_else(|error| {
        let path = &step.path;
        report.error = Some(format!("line {}, {path}: {error}", step.position.line));
        None
    })
}

/// Counts the only call of a step, which was not as expected in these fields.
fn one_call(
    step: &Step,
    unexpected: Vec<Unexpected>,
    report: &mut TestReport,
) -> Option<StepFailure> {
    report.calls += 1;
    failure(step, step.at, (1, 1), unexpected, None)
}

/// The answers of a step's calls.
#[derive(Default)]
struct AnswerTally {
    allowed: u64,
    denied: u64,
    unmatched: u64,
    failed: u64,
    first: Option<StepFailure>,
}

fn make_calls(
    call: &Call,
    step: &Step,
    start: u64,
    subject: &mut dyn Subject,
    calls: &mut u64,
) -> Result<Option<StepFailure>, String> {
    let query = call.query();
    let expect = call.expect.in_units_of(subject.unit());
    let mut tally = AnswerTally::default();
    let mut at = step.at;
    for index in 0..call.repeat {
        let now = instant(start, at);
        let verdict = match &call.holds {
            None => subject.ask(call.operation, &query, now)?,
            Some(holds) => {
                let id = holds
                    .id_of(index, call.repeat)
                    .ok_or("the id is too long")?;
                let claim = Claim {
                    id: &id,
                    hold: holds.hold,
                    wait: holds.wait.map(WaitLimits::new),
                    is_named: true,
                    pending: None,
                };
                subject.hold(&claim, &query, now)?
            }
        };
        *calls += 1;
        if verdict.is_unmatched() {
            tally.unmatched += 1;
        } else if verdict.is_allow() {
            tally.allowed += 1;
        } else {
            tally.denied += 1;
        }
        if let Expect::Each(each) = &expect {
            let number = (index + 1, call.repeat);
            let failure = failure(step, at, number, each.compare(&verdict), Some(&verdict));
            tally.failed += u64::from(failure.is_some());
            tally.first = tally.first.or(failure);
        }
        at = at.saturating_add(call.every);
    }
    Ok(conclude(tally, step, call))
}

fn conclude(tally: AnswerTally, step: &Step, call: &Call) -> Option<StepFailure> {
    if let Some(mut first) = tally.first {
        first.failed_calls = tally.failed;
        return Some(first);
    }
    let Expect::Counts(counts) = &call.expect else {
        return None;
    };
    let calls = call.repeat;
    let unexpected = if tally.unmatched > 0 {
        let got = format!(
            "{} (write `unmatched: true` in place of the counts if that is meant)",
            tally.unmatched
        );
        let expected = "0 calls, since allowed and denied count what rules answer";
        vec![Unexpected::new("unmatched", expected, got)]
    } else {
        counts.differing("", |field| match field {
            "allowed" => Value::Units(tally.allowed),
            _ => Value::Units(tally.denied),
        })
    };
    failure(step, step.at, (calls, calls), unexpected, None)
}

/// The failure of a step in these fields, if there are any: in call number `call` of `calls`.
fn failure(
    step: &Step,
    at: Duration,
    (call, calls): (u64, u64),
    unexpected: Vec<Unexpected>,
    verdict: Option<&Verdict>,
) -> Option<StepFailure> {
    (!unexpected.is_empty()).then(|| StepFailure {
        line: step.position.line,
        column: step.position.column,
        path: step.path.clone(),
        at: Exact(at).to_string(),
        call,
        calls,
        failed_calls: 1,
        unexpected,
        answer: verdict.map(ReportedVerdict::from),
    })
}

/// Both clocks at `at` after the start; the reader has checked that it fits.
fn instant(start: u64, at: Duration) -> Now {
    let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    Now::from_nanos(start.saturating_add(at))
}
