//! Expect: the exact answer that a call must get.

use std::time::Duration;

use quell_core::verdict::Verdict;

use super::answer::{FIELDS, Value, of_rule, of_verdict};
use super::report::Unexpected;
use crate::cursor::{Cursor, Fields, Shape};
use crate::duration::{self, Exact};
use crate::fields::{EXPECT, EXPECT_RULE, WAIT};
use crate::hint;
use crate::period::{flag, whole};
use crate::problem::Sink;

/// Expectation of a step for its calls.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// The same expectation for each call.
    Each(CallExpectation),
    /// The number of calls with each answer.
    Counts(ExpectedFields),
}

/// Expected answer of each call.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallExpectation {
    fields: ExpectedFields,
    /// Expected decisions of single rules; `None` for a rule that makes no decision.
    rules: Vec<(String, Option<ExpectedFields>)>,
}

/// The fields of an answer that are compared, each with the value that it must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedFields(Vec<(&'static str, Expected)>);

/// The value that a field must have.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Null,
    Text(String),
    Wait(Wait),
}

/// The possible outcomes of a call.
const OUTCOMES: [&str; 2] = ["allow", "deny"];

/// The fields that count the answers of a step's calls.
const COUNTS: [&str; 2] = ["allowed", "denied"];

/// A wait: one duration, or a range.
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

    /// Reads a duration, or a map with a range.
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
        let says = ["at_least", "at_most", "about", "tolerance"].map(|name| fields.has(name));
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
                let message = "the range is empty: write `{at_least: 50s, at_most: 60s}`, one of the two, \
                    or `{about: 60s, tolerance: 1s}`";
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
        let each = CallExpectation {
            fields: ExpectedFields::read(&FIELDS, &OUTCOMES, &fields, sink),
            rules: fields
                .get("rules")
                .map_or_else(Vec::new, |rules| read_rules(&rules, sink)),
        };
        let message =
            "only the end of a hold answers this field: leave it out, or write `op: settle`";
        fields.refuse(&["repeated"], message, sink);
        let message =
            "only an operator's step answers this field: leave it out, or write `op: ban`";
        fields.refuse(&["changed"], message, sink);
        let counts = ExpectedFields::read(&COUNTS, &[], &fields, sink);
        let says_counts = COUNTS.iter().any(|name| fields.has(name));
        match (says_counts, fields.other(&COUNTS)) {
            (true, Some(other)) => {
                let message = "counts stand alone: write `allowed` and `denied` only, or what holds for each call";
                other.problem(message, sink);
                None
            }
            (true, None) => Some(Self::Counts(counts)),
            (false, Some(_)) => Some(Self::Each(each)),
            (false, None) if !fields.is_empty() => None,
            (false, None) => {
                let message = "the step expects nothing: write an expectation such as `{outcome: allow}`, \
                    or leave it out";
                fields.problem(message, sink);
                None
            }
        }
    }

    /// The first rule in the expectation that is not known.
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
            each.fields.round_up(unit);
            for rule in each.rules.iter_mut().filter_map(|(_, rule)| rule.as_mut()) {
                rule.round_up(unit);
            }
        }
        expect
    }
}

/// Reads what single rules are to decide.
fn read_rules(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<(String, Option<ExpectedFields>)> {
    let mut rules = Vec::new();
    for (name, rule) in cursor.pairs(sink) {
        if let Some(Shape::Null) = rule.shape() {
            rules.push((name.to_string(), None));
        } else if let Some(fields) = rule.fields(&EXPECT_RULE, sink) {
            let fields = ExpectedFields::read(&FIELDS, &OUTCOMES, &fields, sink);
            rules.push((name.to_string(), Some(fields)));
        }
    }
    rules
}

impl CallExpectation {
    /// Returns true if the step expects that no rule decides, or allows that.
    fn expects_no_rule(&self) -> bool {
        self.fields.has_any(&["unmatched"])
            || self
                .fields
                .is_null(&["binding", "remaining", "reset_after"])
    }

    /// Returns true if the step expects something that only rules decide, but that a call without any rule
    /// would have as well.
    fn expects_a_rule(&self) -> bool {
        self.fields.has_any(&["permanent", "banned", "delay"])
            || self.fields.is_null(&["retry_after"])
    }

    /// Differences of `verdict` from the expectation.
    pub(crate) fn compare(&self, verdict: &Verdict) -> Vec<Unexpected> {
        let mut list = self
            .fields
            .differing("", |field| of_verdict(verdict, field));
        if verdict.is_unmatched() && !self.expects_no_rule() {
            if self.fields.of("outcome") == Some(&Expected::Text("allow".to_owned())) {
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
}

impl ExpectedFields {
    /// Reads those of `names` that are set. An `outcome` is one of `outcomes`.
    pub(super) fn read(
        names: &[&'static str],
        outcomes: &[&str],
        fields: &Fields<'_>,
        sink: &mut Sink,
    ) -> Self {
        let field = |name: &&'static str| {
            let expected = Expected::read(name, outcomes, &fields.get(name)?, sink)?;
            Some((*name, expected))
        };
        Self(names.iter().filter_map(field).collect())
    }

    fn round_up(&mut self, unit: Duration) {
        for (_, expected) in &mut self.0 {
            if let Expected::Wait(wait) = expected {
                *wait = wait.in_units_of(unit);
            }
        }
    }

    fn of(&self, field: &str) -> Option<&Expected> {
        let (_, expected) = self.0.iter().find(|(name, _)| *name == field)?;
        Some(expected)
    }

    /// Returns true if one of these fields is expected.
    pub(super) fn has_any(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| self.of(field).is_some())
    }

    fn is_null(&self, fields: &[&str]) -> bool {
        let mut fields = fields.iter();
        fields.any(|field| self.of(field) == Some(&Expected::Null))
    }

    /// The fields of `got` that are not as expected, their names with `prefix`.
    pub(super) fn differing(&self, prefix: &str, got: impl Fn(&str) -> Value) -> Vec<Unexpected> {
        let differs = |(field, expected): &(&str, Expected)| {
            let got = got(field);
            (!expected.holds(&got)).then(|| {
                let field = format!("{prefix}{field}");
                Unexpected::new(field, expected.words(), got.to_string())
            })
        };
        self.0.iter().filter_map(differs).collect()
    }
}

impl Expected {
    fn read(field: &str, outcomes: &[&str], cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let is_null = matches!(cursor.shape()?, Shape::Null);
        if is_null
            && matches!(
                field,
                "binding" | "remaining" | "retry_after" | "reset_after"
            )
        {
            return Some(Self::Null);
        }
        if matches!(field, "retry_after" | "reset_after" | "delay") {
            return Wait::read(cursor, sink).map(Self::Wait);
        }
        let parse = |text: &str| match field {
            "outcome" if !outcomes.contains(&text) => Err(hint::no_such("outcome", text, outcomes)),
            "outcome" | "binding" => Ok(text.to_owned()),
            "remaining" | "allowed" | "denied" | "changed" => {
                whole(text).map(|units| units.to_string())
            }
            _ => flag(text).map(|flag| flag.to_string()),
        };
        Some(Self::Text(cursor.read(sink, parse)?.value))
    }

    fn holds(&self, got: &Value) -> bool {
        match (self, got) {
            (Self::Null, got) => *got == Value::Null,
            (Self::Wait(wait), Value::Wait(got)) => (wait.least..=wait.most).contains(got),
            (Self::Text(_), Value::Null | Value::Wait(_)) | (Self::Wait(_), _) => false,
            (Self::Text(expected), got) => *expected == got.to_string(),
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

fn round_up(duration: Duration, unit: Duration) -> Duration {
    let over = duration.as_nanos().checked_rem(unit.as_nanos());
    match over.and_then(|over| u64::try_from(over).ok()) {
        None | Some(0) => duration,
        Some(over) => duration
            .saturating_add(unit)
            .saturating_sub(Duration::from_nanos(over)),
    }
}

/// A finite wait.
fn waiting(text: &str) -> Result<Duration, String> {
    match text {
        "never" | "Never" => {
            Err("a wait without end: write `permanent: true` in its place".to_owned())
        }
        _ => duration::parse_any(text),
    }
}
