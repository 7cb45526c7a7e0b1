//! Expect: what a call must answer, exactly.

use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::verdict::{RuleDecision, Verdict};

use super::report::{Unexpected, outcome, wait};
use crate::cursor::{Cursor, Fields, Shape};
use crate::duration::{self, Exact};
use crate::fields::{EXPECT, EXPECT_RULE, WAIT};
use crate::hint;
use crate::period::{flag, whole};
use crate::problem::Sink;

/// What a step expects of its calls.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// This of each call.
    Each(CallExpectation),
    /// So many of each answer.
    Counts {
        allowed: Option<u64>,
        denied: Option<u64>,
    },
}

/// What each call must answer, or one of its rules; fields that are not here are not looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallExpectation {
    fields: Vec<(&'static str, Expected)>,
    /// What single rules decide; `None` is a rule that has no say.
    rules: Vec<(String, Option<CallExpectation>)>,
}

/// The value that a field must have.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Null,
    Text(String),
    Wait(Wait),
}

/// The value that a field has.
enum Got {
    Text(Option<String>),
    Wait(Option<Duration>),
}

/// The fields of a call, in the order in which they are compared.
const FIELDS: [&str; 9] = [
    "outcome",
    "binding",
    "remaining",
    "retry_after",
    "reset_after",
    "delay",
    "permanent",
    "banned",
    "unmatched",
];

/// How long something may take: one duration, or any of several.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wait {
    least: Duration,
    most: Duration,
}

impl Wait {
    fn in_units_of(self, unit: Duration) -> Self {
        Self {
            least: round_up(self.least, unit),
            most: round_up(self.most, unit),
        }
    }

    /// A duration, or a map that says a range of them.
    fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        if !matches!(cursor.shape()?, Shape::Map(_)) {
            let wait = cursor.read(sink, waiting)?.value;
            return Some(Self {
                least: wait,
                most: wait,
            });
        }
        let fields = cursor.fields(&WAIT, sink)?;
        let mut read = |name| fields.value(name, sink, duration::parse_any);
        let (least, most) = (read("at_least"), read("at_most"));
        let (about, tolerance) = (read("about"), read("tolerance"));
        let says = ["at_least", "at_most", "about", "tolerance"].map(|name| fields.says(name));
        let wait = match says {
            [true, _, false, false] | [_, true, false, false] => Self {
                least: least.unwrap_or_default(),
                most: most.unwrap_or(Duration::MAX),
            },
            [false, false, true, true] => Self {
                least: about?.saturating_sub(tolerance?),
                most: about?.saturating_add(tolerance?),
            },
            _ => {
                let message = "it says no range: write `{at_least: 50s, at_most: 60s}`, one of the \
                               two, or `{about: 60s, tolerance: 1s}`";
                fields.problem(message, sink);
                return None;
            }
        };
        if wait.least > wait.most {
            let message = "no wait is in this range: write the shorter one as `at_least`";
            fields.problem(message, sink);
            return None;
        }
        Some(wait)
    }

    fn words(self) -> String {
        let (least, most) = (Exact(self.least), Exact(self.most));
        if self.least == self.most {
            least.to_string()
        } else if self.most == Duration::MAX {
            format!("at least {least}")
        } else {
            format!("{least} to {most}")
        }
    }
}

impl Default for Expect {
    fn default() -> Self {
        Self::Each(CallExpectation::default())
    }
}

impl Expect {
    /// Reads `expect`.
    pub(crate) fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let fields = cursor.fields(&EXPECT, sink)?;
        let mut each = CallExpectation::read(&fields, sink);
        if let Some(rules) = fields.get("rules") {
            each.rules = read_rules(&rules, sink);
        }
        let message = "only an ending says it: leave it out, or write `op: settle`";
        fields.refuse(&["repeated"], message, sink);
        let message = "only what is done by hand says it: leave it out, or write `op: ban`";
        fields.refuse(&["changed"], message, sink);
        let allowed = fields.value("allowed", sink, whole);
        let denied = fields.value("denied", sink, whole);
        let counts = fields.says("allowed") || fields.says("denied");
        match (counts, fields.other(&["allowed", "denied"])) {
            (true, Some(other)) => {
                let message = "counts stand alone: write `allowed` and `denied` only, or what holds for each call";
                other.problem(message, sink);
                None
            }
            (true, None) => Some(Self::Counts { allowed, denied }),
            (false, Some(_)) => Some(Self::Each(each)),
            (false, None) if !fields.is_empty() => None,
            (false, None) => {
                let message =
                    "it expects nothing: write what, such as `{outcome: allow}`, or leave it out";
                fields.problem(message, sink);
                None
            }
        }
    }

    /// The first rule of which something is expected and that is none of these.
    pub(super) fn unknown_rule(&self, is_known: impl Fn(&str) -> bool) -> Option<&str> {
        let Self::Each(each) = self else {
            return None;
        };
        let mut names = each.rules.iter().map(|(name, _)| name.as_str());
        names.find(|name| !is_known(name))
    }

    /// The same, with all durations rounded up to `unit`.
    pub(crate) fn in_units_of(&self, unit: Duration) -> Self {
        let mut expect = self.clone();
        if let Self::Each(each) = &mut expect {
            each.round_up(unit);
        }
        expect
    }
}

/// Reads what single rules are to decide.
fn read_rules(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<(String, Option<CallExpectation>)> {
    let mut rules = Vec::new();
    for (name, rule) in cursor.pairs(sink) {
        if let Some(Shape::Null) = rule.shape() {
            rules.push((name.to_string(), None));
        } else if let Some(fields) = rule.fields(&EXPECT_RULE, sink) {
            let each = CallExpectation::read(&fields, sink);
            rules.push((name.to_string(), Some(each)));
        }
    }
    rules
}

impl CallExpectation {
    /// Reads what is said of a call, or of a single rule.
    fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        let field = |name| Some((name, Expected::read(name, &fields.get(name)?, sink)?));
        Self {
            fields: FIELDS.into_iter().filter_map(field).collect(),
            rules: Vec::new(),
        }
    }

    fn round_up(&mut self, unit: Duration) {
        for (_, expected) in &mut self.fields {
            if let Expected::Wait(wait) = expected {
                *wait = wait.in_units_of(unit);
            }
        }
        for rule in self.rules.iter_mut().filter_map(|(_, rule)| rule.as_mut()) {
            rule.round_up(unit);
        }
    }

    fn of(&self, field: &str) -> Option<&Expected> {
        let mut fields = self.fields.iter();
        let (_, expected) = fields.find(|(name, _)| *name == field)?;
        Some(expected)
    }

    fn says(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| self.of(field).is_some())
    }

    fn is_null(&self, fields: &[&str]) -> bool {
        fields
            .iter()
            .any(|field| self.of(field) == Some(&Expected::Null))
    }

    /// Whether it says that no rule decides, or that one may not.
    fn expects_no_rule(&self) -> bool {
        self.says(&["unmatched"]) || self.is_null(&["binding", "remaining", "reset_after"])
    }

    /// Whether it says something that only rules decide, though a call without one has it as well.
    fn expects_a_rule(&self) -> bool {
        self.says(&["permanent", "banned", "delay"]) || self.is_null(&["retry_after"])
    }

    /// Where `verdict` differs.
    pub(crate) fn compare(&self, verdict: &Verdict) -> Vec<Unexpected> {
        let mut list = self.differing("", |field| of_verdict(verdict, field));
        if verdict.is_unmatched() && !self.expects_no_rule() {
            if self.of("outcome") == Some(&Expected::Text("allow".to_owned())) {
                let got =
                    "allow because no limit applies (write `unmatched: true` if that is meant)";
                list.push(Unexpected::new("outcome", "allow by a rule", got));
            } else if self.expects_a_rule() {
                let got = "no limit applies (write `unmatched: true` if that is meant)";
                list.push(Unexpected::new("unmatched", "the answer of a rule", got));
            }
        }
        for (name, expected) in &self.rules {
            let decided = verdict.decisions.iter().find(|rule| *rule.rule == **name);
            let field = format!("rules.{name}");
            match (expected, decided) {
                (None, None) => {}
                (None, Some(_)) => list.push(Unexpected::new(field, "null", "a decision")),
                (Some(_), None) => {
                    let got = "null: the rule has no say";
                    list.push(Unexpected::new(field, "a decision", got));
                }
                (Some(expected), Some(decided)) => {
                    let got = |field: &str| of_rule(decided, field);
                    list.extend(expected.differing(&format!("{field}."), got));
                }
            }
        }
        list
    }

    /// The fields that `got` does not have as expected, their names behind `prefix`.
    fn differing(&self, prefix: &str, got: impl Fn(&str) -> Got) -> Vec<Unexpected> {
        let differs = |(field, expected): &(&str, Expected)| {
            let got = got(field);
            (!expected.holds(&got)).then(|| {
                let field = format!("{prefix}{field}");
                Unexpected::new(field, expected.words(), got.words())
            })
        };
        self.fields.iter().filter_map(differs).collect()
    }
}

impl Expected {
    fn read(field: &str, cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let is_null = matches!(cursor.shape()?, Shape::Null);
        if is_null
            && matches!(
                field,
                "binding" | "remaining" | "retry_after" | "reset_after"
            )
        {
            return Some(Self::Null);
        }
        let parse: fn(&str) -> Result<String, String> = match field {
            "retry_after" | "reset_after" | "delay" => {
                return Wait::read(cursor, sink).map(Self::Wait);
            }
            "outcome" => |text| {
                hint::one_of("outcome", text, &[("allow", "allow"), ("deny", "deny")])
                    .map(str::to_owned)
            },
            "binding" => |text| Ok(text.to_owned()),
            "remaining" => |text| whole(text).map(|units| units.to_string()),
            _ => |text| flag(text).map(|flag| flag.to_string()),
        };
        Some(Self::Text(cursor.read(sink, parse)?.value))
    }

    fn holds(&self, got: &Got) -> bool {
        match (self, got) {
            (Self::Null, Got::Text(None) | Got::Wait(None)) => true,
            (Self::Text(expected), Got::Text(Some(got))) => expected == got,
            (Self::Wait(expected), Got::Wait(Some(got))) => {
                (expected.least..=expected.most).contains(got)
            }
            _ => false,
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Wait(wait) => wait.words(),
        }
    }
}

impl Got {
    fn text(value: impl ToString) -> Self {
        Self::Text(Some(value.to_string()))
    }

    fn words(self) -> String {
        let text = match self {
            Self::Text(text) => text,
            Self::Wait(wait) => wait.map(|wait| Exact(wait).to_string()),
        };
        text.unwrap_or_else(|| "null".to_owned())
    }
}

/// What a verdict says in a field.
fn of_verdict(verdict: &Verdict, field: &str) -> Got {
    match field {
        "outcome" => Got::text(outcome(verdict.is_allow())),
        "binding" => Got::Text(verdict.binding_rule().map(|rule| rule.rule.to_string())),
        "remaining" => Got::Text(verdict.remaining.map(|units| units.to_string())),
        "retry_after" => Got::Wait(wait(verdict.retry_after)),
        "reset_after" => Got::Wait(verdict.reset_after),
        "delay" => Got::Wait(Some(verdict.delay)),
        "permanent" => Got::text(verdict.is_permanent()),
        "banned" => Got::text(verdict.banned),
        _ => Got::text(verdict.is_unmatched()),
    }
}

/// What a single rule says in a field.
fn of_rule(rule: &RuleDecision, field: &str) -> Got {
    let decision = &rule.decision;
    match field {
        "outcome" => Got::text(outcome(decision.outcome.is_allow())),
        "remaining" => Got::text(decision.remaining),
        "retry_after" => Got::Wait(wait(decision.retry_after())),
        "reset_after" => Got::Wait(Some(decision.reset_after)),
        "delay" => Got::Wait(Some(decision.delay)),
        "permanent" => Got::text(decision.retry_after() == Some(RetryAfter::Never)),
        _ => Got::text(decision.banned),
    }
}

fn round_up(duration: Duration, unit: Duration) -> Duration {
    let over = duration.as_nanos().checked_rem(unit.as_nanos());
    match over.and_then(|over| u64::try_from(over).ok()) {
        None | Some(0) => duration,
        Some(over) => duration
            .saturating_add(unit)
            .saturating_sub(Duration::from_nanos(over)),
    }
}

/// A wait that ends.
fn waiting(text: &str) -> Result<Duration, String> {
    match text {
        "never" | "Never" => {
            Err("a wait without end: write `permanent: true` in its place".to_owned())
        }
        _ => duration::parse_any(text),
    }
}
