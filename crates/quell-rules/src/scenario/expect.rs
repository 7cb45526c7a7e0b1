//! Expect: what a call must answer, exactly.

use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::verdict::{RuleDecision, Verdict};

use super::report::Unexpected;
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

/// What each call must answer; `None` is not looked at, `Some(None)` must be absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallExpectation {
    allow: Option<bool>,
    binding: Option<Option<String>>,
    remaining: Option<Option<u64>>,
    retry_after: Option<Option<Wait>>,
    reset_after: Option<Option<Wait>>,
    delay: Option<Wait>,
    permanent: Option<bool>,
    banned: Option<bool>,
    unmatched: Option<bool>,
    /// What single rules decide; `None` is a rule that has no say.
    rules: Vec<(String, Option<Box<CallExpectation>>)>,
}

/// How long something may take: one duration, or any of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    least: Duration,
    most: Duration,
}

impl Wait {
    const fn exactly(wait: Duration) -> Self {
        Self {
            least: wait,
            most: wait,
        }
    }

    fn holds(self, got: Duration) -> bool {
        (self.least..=self.most).contains(&got)
    }

    fn in_units_of(self, unit: Duration) -> Self {
        Self {
            least: round_up(self.least, unit),
            most: round_up(self.most, unit),
        }
    }

    /// A duration, or a map that says a range of them.
    fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        if !matches!(cursor.shape()?, Shape::Map(_)) {
            let field = cursor.read(sink, waiting)?;
            return Some(Self::exactly(field.value));
        }
        let fields = cursor.fields(&WAIT, sink)?;
        let mut read = |name| value(&fields, name, sink, duration::parse_any);
        let (least, most) = (read("at_least"), read("at_most"));
        let (about, tolerance) = (read("about"), read("tolerance"));
        let has_range = fields.says("at_least") || fields.says("at_most");
        let has_about = fields.says("about") && fields.says("tolerance");
        let wait = match (has_range, has_about) {
            (true, false) if !fields.says("about") && !fields.says("tolerance") => Self {
                least: least.unwrap_or_default(),
                most: most.unwrap_or(Duration::MAX),
            },
            (false, true) => {
                let (about, tolerance) = (about?, tolerance?);
                Self {
                    least: about.saturating_sub(tolerance),
                    most: about.saturating_add(tolerance),
                }
            }
            _ => {
                let message = "it says no range: write `{at_least: 50s, at_most: 60s}`, one of the \
                               two, or `{about: 60s, tolerance: 1s}`";
                sink.problem(cursor.span(), message);
                return None;
            }
        };
        if wait.least > wait.most {
            sink.problem(
                cursor.span(),
                "no wait is in this range: write the shorter one as `at_least`",
            );
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
            binding: nullable(&fields, "binding", sink, |text| Ok(text.to_owned())),
            unmatched: value(&fields, "unmatched", sink, flag),
            rules: fields
                .get("rules")
                .map(|rules| read_rules(&rules, sink))
                .unwrap_or_default(),
            ..CallExpectation::read(&fields, sink)
        };
        if let Some(repeated) = fields.get("repeated") {
            let message = "only an ending says it: leave it out, or write `op: settle`";
            sink.problem(repeated.span(), message);
        }
        if let Some(changed) = fields.get("changed") {
            let message = "only what is done by hand says it: leave it out, or write `op: ban`";
            sink.problem(changed.span(), message);
        }
        let allowed = value(&fields, "allowed", sink, whole);
        let denied = value(&fields, "denied", sink, whole);
        let counts = fields.says("allowed") || fields.says("denied");
        let others = EXPECT
            .names()
            .into_iter()
            .filter(|name| !matches!(*name, "allowed" | "denied"));
        match (counts, others.filter_map(|name| fields.get(name)).next()) {
            (true, Some(other)) => {
                let message = "counts stand alone: write `allowed` and `denied` only, or what holds for each call";
                sink.problem(other.span(), message);
                None
            }
            (true, None) => Some(Self::Counts { allowed, denied }),
            (false, Some(_)) => Some(Self::Each(each)),
            (false, None) if !fields.is_empty() => None,
            (false, None) => {
                let message =
                    "it expects nothing: write what, such as `{outcome: allow}`, or leave it out";
                sink.problem(cursor.span(), message);
                None
            }
        }
    }
}

impl Expect {
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

impl CallExpectation {
    /// Reads what a call and a single rule have in common.
    fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        Self {
            allow: value(fields, "outcome", sink, outcome),
            remaining: nullable(fields, "remaining", sink, whole),
            retry_after: nullable_wait(fields, "retry_after", sink),
            reset_after: nullable_wait(fields, "reset_after", sink),
            delay: fields
                .get("delay")
                .and_then(|delay| Wait::read(&delay, sink)),
            permanent: value(fields, "permanent", sink, flag),
            banned: value(fields, "banned", sink, flag),
            ..Self::default()
        }
    }

    fn round_up(&mut self, unit: Duration) {
        let up = |wait: Wait| wait.in_units_of(unit);
        self.retry_after = self.retry_after.map(|wait| wait.map(up));
        self.reset_after = self.reset_after.map(|reset| reset.map(up));
        self.delay = self.delay.map(up);
        for rule in self.rules.iter_mut().filter_map(|(_, rule)| rule.as_mut()) {
            rule.round_up(unit);
        }
    }
}

/// Reads what single rules are to decide.
fn read_rules(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<(String, Option<Box<CallExpectation>>)> {
    let mut rules = Vec::new();
    for (name, rule) in cursor.pairs(sink).unwrap_or_default() {
        if let Some(Shape::Null) = rule.shape() {
            rules.push((name.to_string(), None));
        } else if let Some(fields) = rule.fields(&EXPECT_RULE, sink) {
            let each = CallExpectation::read(&fields, sink);
            rules.push((name.to_string(), Some(Box::new(each))));
        }
    }
    rules
}

fn nullable_wait(fields: &Fields<'_>, name: &'static str, sink: &mut Sink) -> Option<Option<Wait>> {
    let cursor = fields.get(name)?;
    match cursor.shape()? {
        Shape::Null => Some(None),
        _ => Wait::read(&cursor, sink).map(Some),
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

fn value<T>(
    fields: &Fields<'_>,
    name: &'static str,
    sink: &mut Sink,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    fields.read(name, sink, parse).map(|field| field.value)
}

fn nullable<T>(
    fields: &Fields<'_>,
    name: &'static str,
    sink: &mut Sink,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<Option<T>> {
    let cursor = fields.get(name)?;
    match cursor.shape()? {
        Shape::Null => Some(None),
        _ => cursor.read(sink, parse).map(|field| Some(field.value)),
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

/// Whether the outcome is to be allow.
fn outcome(text: &str) -> Result<bool, String> {
    match text {
        "allow" => Ok(true),
        "deny" => Ok(false),
        _ => Err(hint::no_such("outcome", text, &["allow", "deny"])),
    }
}

/// The wait that a verdict tells; `None` if it allows or never will.
pub(crate) fn wait(verdict: &Verdict) -> Option<Duration> {
    match verdict.retry_after {
        Some(RetryAfter::After(wait)) => Some(wait),
        Some(RetryAfter::Never) | None => None,
    }
}

impl CallExpectation {
    /// Whether it says that no rule decides, or that one may not.
    fn expects_no_rule(&self) -> bool {
        let is_null = self.binding == Some(None) || self.remaining == Some(None);
        self.unmatched.is_some() || is_null || matches!(self.reset_after, Some(None))
    }

    /// Whether it says something that only rules decide, though a call without one has it as well.
    fn expects_a_rule(&self) -> bool {
        let flags = self.permanent.or(self.banned);
        flags.is_some() || self.delay.is_some() || matches!(self.retry_after, Some(None))
    }

    /// Where `verdict` differs.
    pub(crate) fn compare(&self, verdict: &Verdict) -> Vec<Unexpected> {
        let mut list = List(Vec::new());
        let outcome = |allow| if allow { "allow" } else { "deny" }.to_owned();
        list.check("outcome", self.allow, verdict.is_allow(), outcome);
        if self.allow == Some(true) && verdict.is_unmatched() && !self.expects_no_rule() {
            list.0.push(Unexpected {
                field: "outcome".to_owned(),
                expected: "allow by a rule".to_owned(),
                got: "allow because no limit applies (write `unmatched: true` if that is meant)"
                    .to_owned(),
            });
        } else if verdict.is_unmatched() && self.expects_a_rule() && !self.expects_no_rule() {
            list.0.push(Unexpected {
                field: "unmatched".to_owned(),
                expected: "the answer of a rule".to_owned(),
                got: "no limit applies (write `unmatched: true` if that is meant)".to_owned(),
            });
        }
        let binding = verdict.binding_rule().map(|rule| rule.rule.to_string());
        list.check("binding", self.binding.clone(), binding, |name| {
            or_null(name.as_ref())
        });
        list.check("remaining", self.remaining, verdict.remaining, |units| {
            or_null(units.as_ref())
        });
        list.wait("retry_after", self.retry_after, wait(verdict));
        list.wait("reset_after", self.reset_after, verdict.reset_after);
        list.wait("delay", self.delay.map(Some), Some(verdict.delay));
        let flag = |flag: bool| flag.to_string();
        list.check("permanent", self.permanent, verdict.is_permanent(), flag);
        list.check("banned", self.banned, verdict.banned, flag);
        list.check("unmatched", self.unmatched, verdict.is_unmatched(), flag);
        for (name, expected) in &self.rules {
            let decided = verdict.decisions.iter().find(|rule| *rule.rule == **name);
            list.rule(name, expected.as_deref(), decided);
        }
        list.0
    }

    /// Where the decision of a single rule differs.
    fn compare_rule(&self, rule: &RuleDecision) -> Vec<Unexpected> {
        let mut list = List(Vec::new());
        let decision = &rule.decision;
        let outcome = |allow| if allow { "allow" } else { "deny" }.to_owned();
        list.check("outcome", self.allow, decision.outcome.is_allow(), outcome);
        let remaining = Some(decision.remaining);
        list.check("remaining", self.remaining, remaining, |units| {
            or_null(units.as_ref())
        });
        let retry_after = match decision.retry_after() {
            Some(RetryAfter::After(wait)) => Some(wait),
            Some(RetryAfter::Never) | None => None,
        };
        list.wait("retry_after", self.retry_after, retry_after);
        list.wait("reset_after", self.reset_after, Some(decision.reset_after));
        list.wait("delay", self.delay.map(Some), Some(decision.delay));
        let flag = |flag: bool| flag.to_string();
        let permanent = decision.retry_after() == Some(RetryAfter::Never);
        list.check("permanent", self.permanent, permanent, flag);
        list.check("banned", self.banned, decision.banned, flag);
        list.0
    }
}

fn or_null<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "null".to_owned(), T::to_string)
}

struct List(Vec<Unexpected>);

impl List {
    fn check<T: PartialEq>(
        &mut self,
        field: &'static str,
        expected: Option<T>,
        got: T,
        show: impl Fn(T) -> String,
    ) {
        if let Some(expected) = expected.filter(|expected| *expected != got) {
            self.0.push(Unexpected {
                field: field.to_owned(),
                expected: show(expected),
                got: show(got),
            });
        }
    }

    fn wait(&mut self, field: &'static str, expected: Option<Option<Wait>>, got: Option<Duration>) {
        let Some(expected) = expected else {
            return;
        };
        let holds = match (expected, got) {
            (None, None) => true,
            (Some(expected), Some(got)) => expected.holds(got),
            _ => false,
        };
        if !holds {
            self.0.push(Unexpected {
                field: field.to_owned(),
                expected: expected.map_or_else(|| "null".to_owned(), Wait::words),
                got: or_null(got.map(Exact).as_ref()),
            });
        }
    }

    /// Compares what a single rule decided.
    fn rule(
        &mut self,
        name: &str,
        expected: Option<&CallExpectation>,
        decided: Option<&RuleDecision>,
    ) {
        let told = |expected: &str, got: &str| Unexpected {
            field: format!("rules.{name}"),
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        match (expected, decided) {
            (None, None) => {}
            (None, Some(_)) => self.0.push(told("null", "a decision")),
            (Some(_), None) => self.0.push(told("a decision", "null: the rule has no say")),
            (Some(expected), Some(decided)) => {
                self.0
                    .extend(
                        expected
                            .compare_rule(decided)
                            .into_iter()
                            .map(|differs| Unexpected {
                                field: format!("rules.{name}.{}", differs.field),
                                ..differs
                            }),
                    );
            }
        }
    }
}
