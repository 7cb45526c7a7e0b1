//! Expect: what a call must answer, exactly.

use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::verdict::Verdict;

use super::report::Unexpected;
use crate::cursor::{Cursor, Fields, Shape};
use crate::duration::{self, Exact};
use crate::fields::EXPECT;
use crate::hint;
use crate::period::{flag, whole};
use crate::problem::Sink;

/// What a step expects of its calls.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    /// This of each call.
    Each(Each),
    /// So many of each answer.
    Counts {
        allowed: Option<u64>,
        denied: Option<u64>,
    },
}

/// What each call must answer; `None` is not looked at, `Some(None)` must be absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Each {
    allow: Option<bool>,
    binding: Option<Option<String>>,
    remaining: Option<Option<u64>>,
    retry_after: Option<Option<Duration>>,
    reset_after: Option<Option<Duration>>,
    delay: Option<Duration>,
    permanent: Option<bool>,
    banned: Option<bool>,
    unmatched: Option<bool>,
}

impl Default for Expect {
    fn default() -> Self {
        Self::Each(Each::default())
    }
}

impl Expect {
    /// Reads `expect`.
    pub(crate) fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let fields = cursor.fields(&EXPECT, sink)?;
        let each = Each {
            allow: value(&fields, "outcome", sink, outcome),
            binding: nullable(&fields, "binding", sink, |text| Ok(text.to_owned())),
            remaining: nullable(&fields, "remaining", sink, whole),
            retry_after: nullable(&fields, "retry_after", sink, waiting),
            reset_after: nullable(&fields, "reset_after", sink, duration::parse_any),
            delay: value(&fields, "delay", sink, duration::parse_any),
            permanent: value(&fields, "permanent", sink, flag),
            banned: value(&fields, "banned", sink, flag),
            unmatched: value(&fields, "unmatched", sink, flag),
        };
        if let Some(repeated) = fields.get("repeated") {
            let message = "only an ending says it: leave it out, or write `op: settle`";
            sink.problem(repeated.spot(), message);
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
                sink.problem(other.spot(), message);
                None
            }
            (true, None) => Some(Self::Counts { allowed, denied }),
            (false, Some(_)) => Some(Self::Each(each)),
            (false, None) if !fields.is_empty() => None,
            (false, None) => {
                let message =
                    "it expects nothing: write what, such as `{outcome: allow}`, or leave it out";
                sink.problem(cursor.spot(), message);
                None
            }
        }
    }
}

impl Expect {
    /// The same, with all durations rounded up to `unit`.
    pub(crate) fn in_units_of(&self, unit: Duration) -> Self {
        let mut expect = self.clone();
        if let Self::Each(each) = &mut expect {
            let up = |duration: Duration| round_up(duration, unit);
            each.retry_after = each.retry_after.map(|wait| wait.map(up));
            each.reset_after = each.reset_after.map(|reset| reset.map(up));
            each.delay = each.delay.map(up);
        }
        expect
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
    fields.read(name, sink, parse).map(|said| said.value)
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
        _ => cursor.read(sink, parse).map(|said| Some(said.value)),
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

impl Each {
    /// Whether it says that no rule decides, or that one may not.
    fn expects_no_rule(&self) -> bool {
        self.unmatched.is_some() || self.binding == Some(None) || self.remaining == Some(None)
    }

    /// Where `verdict` differs.
    pub(crate) fn compare(&self, verdict: &Verdict) -> Vec<Unexpected> {
        let mut list = List(Vec::new());
        let outcome = |allow| if allow { "allow" } else { "deny" }.to_owned();
        list.check("outcome", self.allow, verdict.is_allow(), outcome);
        if self.allow == Some(true) && verdict.is_unmatched() && !self.expects_no_rule() {
            list.0.push(Unexpected {
                field: "outcome",
                expected: "allow by a rule".to_owned(),
                got: "allow because no limit applies (write `unmatched: true` if that is meant)"
                    .to_owned(),
            });
        }
        let binding = verdict.binding_rule().map(|rule| rule.rule.to_string());
        list.check("binding", self.binding.clone(), binding, |name| {
            or_null(name.as_ref())
        });
        list.check("remaining", self.remaining, verdict.remaining, |units| {
            or_null(units.as_ref())
        });
        let time = |time: &Option<Duration>| or_null(time.map(Exact).as_ref());
        list.check("retry_after", self.retry_after, wait(verdict), |wait| {
            time(&wait)
        });
        list.check(
            "reset_after",
            self.reset_after,
            verdict.reset_after,
            |reset| time(&reset),
        );
        list.check("delay", self.delay, verdict.delay, |delay| {
            Exact(delay).to_string()
        });
        let flag = |flag: bool| flag.to_string();
        list.check("permanent", self.permanent, verdict.is_permanent(), flag);
        list.check("banned", self.banned, verdict.banned, flag);
        list.check("unmatched", self.unmatched, verdict.is_unmatched(), flag);
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
                field,
                expected: show(expected),
                got: show(got),
            });
        }
    }
}
