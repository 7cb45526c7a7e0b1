//! ReportedVerdict: a verdict in the words of a scenario file, field by field.

use std::fmt;
use std::time::Duration;

use quell_core::decision::RetryAfter;
use quell_core::key::printable;
use quell_core::verdict::{RuleDecision, Verdict};
use serde::{Serialize, Serializer};

use crate::duration::Exact;

/// The fields of a call's answer, in the order in which they are compared and shown.
pub(super) const FIELDS: [&str; 9] = [
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

/// The fields of a single rule's answer, in the order in which they are shown.
const RULE_FIELDS: [&str; 10] = [
    "rule",
    "outcome",
    "limit",
    "remaining",
    "retry_after",
    "reset_after",
    "delay",
    "permanent",
    "banned",
    "shadow",
];

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Null,
    Text(String),
    Units(u64),
    Flag(bool),
    Wait(#[serde(serialize_with = "in_words")] Duration),
}

/// A verdict in the words of a scenario file: its fields are those of `expect`, and times are exact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportedVerdict {
    #[serde(flatten)]
    fields: AnswerFields,
    /// Each rule's own answer, in file order.
    decisions: Vec<AnswerFields>,
}

/// Fields with their values; serialized as a map.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AnswerFields(Vec<(&'static str, Value)>);

impl Value {
    fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn outcome(is_allow: bool) -> Self {
        Self::text(if is_allow { "allow" } else { "deny" })
    }

    fn or_null<T>(value: Option<T>, of: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Null, of)
    }

    /// The wait in the answer; null if the call passes or never will.
    const fn retry_after(wait: Option<RetryAfter>) -> Self {
        match wait {
            Some(RetryAfter::After(wait)) => Self::Wait(wait),
            Some(RetryAfter::Never) | None => Self::Null,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Text(text) => f.write_str(text),
            Self::Units(units) => units.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Wait(wait) => Exact(*wait).fmt(f),
        }
    }
}

fn in_words<S: Serializer>(wait: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Exact(*wait))
}

impl Serialize for AnswerFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl From<&Verdict> for ReportedVerdict {
    fn from(verdict: &Verdict) -> Self {
        let fields = FIELDS.map(|field| (field, of_verdict(verdict, field)));
        let decisions = verdict.decisions.iter().map(|rule| {
            let fields = RULE_FIELDS.map(|field| (field, of_rule(rule, field)));
            AnswerFields(fields.into())
        });
        Self {
            fields: AnswerFields(fields.into()),
            decisions: decisions.collect(),
        }
    }
}

/// The value of a field in a verdict.
pub(super) fn of_verdict(verdict: &Verdict, field: &str) -> Value {
    match field {
        "outcome" => Value::outcome(verdict.is_allow()),
        "binding" => Value::or_null(verdict.binding_rule(), |rule| Value::text(&*rule.rule)),
        "remaining" => Value::or_null(verdict.remaining, Value::Units),
        "retry_after" => Value::retry_after(verdict.retry_after),
        "reset_after" => Value::or_null(verdict.reset_after, Value::Wait),
        "delay" => Value::Wait(verdict.delay),
        "permanent" => Value::Flag(verdict.is_permanent()),
        "banned" => Value::Flag(verdict.banned),
        _ => Value::Flag(verdict.is_unmatched()),
    }
}

/// The value of a field in a rule's decision.
pub(super) fn of_rule(rule: &RuleDecision, field: &str) -> Value {
    let decision = &rule.decision;
    match field {
        "rule" => Value::text(&*rule.rule),
        "outcome" => Value::outcome(decision.outcome.is_allow()),
        "limit" => Value::Units(decision.limit),
        "remaining" => Value::Units(decision.remaining),
        "retry_after" => Value::retry_after(decision.retry_after()),
        "reset_after" => Value::Wait(decision.reset_after),
        "delay" => Value::Wait(decision.delay),
        "permanent" => Value::Flag(decision.retry_after() == Some(RetryAfter::Never)),
        "banned" => Value::Flag(decision.banned),
        _ => Value::Flag(rule.shadow),
    }
}

impl fmt::Display for ReportedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields.0.iter();
        let fields =
            fields.map(|(name, value)| format!("{name}: {}", printable(&value.to_string())));
        let fields: Vec<String> = fields.collect();
        write!(f, "answer: {{{}}}", fields.join(", "))?;
        for decision in &self.decisions {
            f.write_str("\n        ")?;
            write_decision(f, decision)?;
        }
        Ok(())
    }
}

/// A rule's answer in a line: `login: deny, 0 of 5 remaining, retry_after 12s, ..`.
fn write_decision(f: &mut fmt::Formatter<'_>, decision: &AnswerFields) -> fmt::Result {
    let [
        (_, rule),
        (_, outcome),
        (_, limit),
        (_, remaining),
        others @ ..,
    ] = &*decision.0
    else {
        return Ok(());
    };
    let rule = rule.to_string();
    write!(
        f,
        "{}: {outcome}, {remaining} of {limit} remaining",
        printable(&rule)
    )?;
    for (name, value) in others {
        match (*name, value) {
            (_, Value::Null | Value::Flag(false)) => {}
            ("shadow", Value::Flag(true)) => f.write_str(", in shadow")?,
            (name, Value::Flag(true)) => write!(f, ", {name}")?,
            (name, value) => write!(f, ", {name} {value}")?,
        }
    }
    Ok(())
}
