//! Run: executes the steps of a scenario file and compares the answers.

use std::time::Duration;

use quell_core::charge::{self, Operation};
use quell_core::descriptor::Query;
use quell_core::hold::{Claim, Ending, HoldId, WaitLimits};
use quell_core::rule::DomainRules;
use quell_core::time::Now;
use quell_core::verdict::Verdict;

use super::admin_step::AdminStep;
use super::ending::{EndAnswer, EndStep};
use super::expect::Expect;
use super::read::{Scenarios, Test};
use super::report::{Answer, Failure, FileReport, TestReport, Unexpected};
use super::step::{Action, Call, Step};
use crate::duration::Exact;
use crate::hint;

/// The most failures that are told of one test.
const MAX_FAILURES: usize = 10;

/// What a subject says that keeps no holds.
const NO_HOLDS: &str = "nothing can be held here: test these rules on the memory store";

/// What a subject says that does nothing by hand.
const NO_HAND: &str = "nothing can be done by hand here: test these rules on the memory store";

/// What decides: rules and a store behind a clock that the runner holds.
///
/// An `Err` says that there was no answer; the test fails with its text and ends there.
pub trait Subject {
    /// Forgets all rules and all states. Both clocks read `now`.
    ///
    /// # Errors
    /// Says why it cannot.
    fn reset(&mut self, now: Now) -> Result<(), String>;

    /// Brings these rules into force in place of those before, as a reload does.
    ///
    /// # Errors
    /// Says why it cannot.
    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String>;

    /// The unit in which it counts time. Expected durations are rounded up to it before they are
    /// compared. A nanosecond unless said.
    fn unit(&self) -> Duration {
        Duration::from_nanos(1)
    }

    /// Answers a query at `now`, which may lie before the last.
    ///
    /// # Errors
    /// Says why it cannot.
    fn ask(&mut self, operation: Operation, query: &Query<'_>, now: Now)
    -> Result<Verdict, String>;

    /// Makes a claim at `now`: reserves, holds permits, or takes a place in the line, which it comes
    /// to without being asked again.
    ///
    /// # Errors
    /// Says why it cannot.
    fn hold(
        &mut self,
        _claim: &Claim<'_>,
        _query: &Query<'_>,
        _now: Now,
    ) -> Result<Verdict, String> {
        Err(NO_HOLDS.to_owned())
    }

    /// Ends or renews at `now` what is held.
    ///
    /// # Errors
    /// Says why it cannot.
    fn end(&mut self, _id: &HoldId, _ending: Ending, _now: Now) -> Result<EndAnswer, String> {
        Err(NO_HOLDS.to_owned())
    }

    /// Does something by hand at `now` to the key of `rule` that the query's only descriptor names,
    /// whatever the rule matches on; without `rule`, to the keys that the query would charge. Says
    /// to how many it made a difference.
    ///
    /// # Errors
    /// Says why it cannot.
    fn administer(
        &mut self,
        _rule: Option<&str>,
        _query: &Query<'_>,
        _action: charge::Action,
        _now: Now,
    ) -> Result<usize, String> {
        Err(NO_HAND.to_owned())
    }
}

/// Runs all tests of a file, each from an empty store.
pub fn run(scenarios: &Scenarios, subject: &mut impl Subject) -> FileReport {
    let tests = scenarios.tests.iter().map(|test| run_test(test, subject));
    FileReport {
        file: scenarios.name.clone(),
        tests: tests.collect(),
    }
}

fn run_test(test: &Test, subject: &mut impl Subject) -> TestReport {
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

/// Tells of an expectation on a rule that never was there: that it has no say would always be true.
fn unknown_rule(step: &Step, rules: &[&DomainRules]) -> Option<Failure> {
    let Action::Call(call) = &step.action else {
        return None;
    };
    let mut all = rules.iter().flat_map(|domain| &domain.rules);
    let name = call
        .expect
        .unknown_rule(|name| all.clone().any(|rule| &*rule.name == name))?;
    let unexpected = Unexpected {
        field: format!("rules.{name}"),
        expected: "a rule of this name".to_owned(),
        got: match hint::meant(
            name,
            &all.by_ref().map(|rule| &*rule.name).collect::<Vec<_>>(),
        ) {
            Some(meant) => format!("none, did you mean `{meant}`?"),
            None => "none".to_owned(),
        },
    };
    Some(failure(
        step,
        call.repeat,
        step.at,
        1,
        vec![unexpected],
        None,
    ))
}

/// Runs a step; what was not as expected is returned, what went wrong stands in the report.
fn run_step(
    step: &Step,
    start: u64,
    subject: &mut impl Subject,
    report: &mut TestReport,
) -> Option<Failure> {
    let result = match &step.action {
        Action::SetRules(rules) => subject
            .set_rules(rules.clone(), instant(start, step.at))
            .map(|()| None),
        Action::End(ending) => end(ending, step, start, subject, &mut report.calls),
        Action::ByHand(hand) => admin_step(hand, step, start, subject, &mut report.calls),
        Action::Call(call) => make_calls(call, step, start, subject, &mut report.calls),
    };
    match result {
        Ok(failure) => failure,
        Err(error) => {
            let path = &step.path;
            report.error = Some(format!("line {}, {path}: {error}", step.position.line));
            None
        }
    }
}

fn end(
    ending: &EndStep,
    step: &Step,
    start: u64,
    subject: &mut impl Subject,
    calls: &mut u64,
) -> Result<Option<Failure>, String> {
    let answer = subject.end(&ending.id, ending.ending, instant(start, step.at))?;
    *calls += 1;
    let unexpected = ending.compare(answer);
    Ok((!unexpected.is_empty()).then(|| failure(step, 1, step.at, 1, unexpected, None)))
}

fn admin_step(
    hand: &AdminStep,
    step: &Step,
    start: u64,
    subject: &mut impl Subject,
    calls: &mut u64,
) -> Result<Option<Failure>, String> {
    let now = instant(start, step.at);
    let changed = subject.administer(hand.rule.as_deref(), &hand.query(), hand.action, now)?;
    *calls += 1;
    let unexpected = hand.compare(changed);
    Ok((!unexpected.is_empty()).then(|| failure(step, 1, step.at, 1, unexpected, None)))
}

/// What the calls of a step answered.
#[derive(Default)]
struct Tally {
    allowed: u64,
    denied: u64,
    unmatched: u64,
    failed: u64,
    first: Option<Failure>,
}

fn make_calls(
    call: &Call,
    step: &Step,
    start: u64,
    subject: &mut impl Subject,
    calls: &mut u64,
) -> Result<Option<Failure>, String> {
    let query = call.query();
    let expect = call.expect.in_units_of(subject.unit());
    let mut tally = Tally::default();
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
                    wait: holds.wait.map(WaitLimits::of),
                    is_named: true,
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
            let unexpected = each.compare(&verdict);
            if !unexpected.is_empty() {
                tally.failed += 1;
                let make = || failure(step, call.repeat, at, index + 1, unexpected, Some(&verdict));
                tally.first.get_or_insert_with(make);
            }
        }
        at = at.saturating_add(call.every);
    }
    Ok(conclude(tally, step, call))
}

fn conclude(tally: Tally, step: &Step, call: &Call) -> Option<Failure> {
    if let Some(mut first) = tally.first {
        first.failed_calls = tally.failed;
        return Some(first);
    }
    let Expect::Counts { allowed, denied } = call.expect else {
        return None;
    };
    let calls = call.repeat;
    if tally.unmatched > 0 {
        let unexpected = vec![Unexpected {
            field: "unmatched".to_owned(),
            expected: "0 calls, since allowed and denied count what rules answer".to_owned(),
            got: format!(
                "{} (write `unmatched: true` in place of the counts if that is meant)",
                tally.unmatched
            ),
        }];
        return Some(failure(step, calls, step.at, calls, unexpected, None));
    }
    let counts = [
        ("allowed", allowed, tally.allowed),
        ("denied", denied, tally.denied),
    ];
    let unexpected: Vec<Unexpected> = counts
        .into_iter()
        .filter_map(|(field, expected, got)| {
            let expected = expected.filter(|expected| *expected != got)?;
            Some(Unexpected {
                field: field.to_owned(),
                expected: expected.to_string(),
                got: got.to_string(),
            })
        })
        .collect();
    (!unexpected.is_empty()).then(|| failure(step, calls, step.at, calls, unexpected, None))
}

fn failure(
    step: &Step,
    calls: u64,
    at: Duration,
    number: u64,
    unexpected: Vec<Unexpected>,
    verdict: Option<&Verdict>,
) -> Failure {
    Failure {
        line: step.position.line,
        column: step.position.column,
        path: step.path.clone(),
        at: Exact(at).to_string(),
        call: number,
        calls,
        failed_calls: 1,
        unexpected,
        answer: verdict.map(Answer::from),
    }
}

/// Both clocks at `at` from the start; the reader has made sure that it fits.
fn instant(start: u64, at: Duration) -> Now {
    let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    Now::from_nanos(start.saturating_add(at))
}
