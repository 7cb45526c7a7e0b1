//! Ending: a step that settles, cancels, releases or renews a hold of an earlier step.

use std::sync::Arc;

use quell_core::hold::{Ending, HoldId};

use super::report::Unexpected;
use super::step::{StepContext, only};
use crate::cursor::{Cursor, Fields};
use crate::fields::EXPECT;
use crate::path::Span;
use crate::period::{flag, whole};
use crate::problem::Sink;
use crate::{hint, raw};

/// What became of a hold, as scenario files say it: the names of `outcome`.
pub(super) const OUTCOMES: [&str; 6] = [
    "stands",
    "settled",
    "cancelled",
    "released",
    "expired",
    "unknown",
];

/// Fields of a step that ends something.
const FIELDS: [&str; 7] = ["at", "op", "domain", "id", "actual", "failed", "expect"];

/// The end of a hold, or its renewal.
#[derive(Clone, Debug)]
pub(crate) struct EndStep {
    pub(crate) id: HoldId,
    pub(crate) ending: Ending,
    outcome: Option<&'static str>,
    repeated: Option<bool>,
}

/// What a subject answers to an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndAnswer {
    /// What became of the hold: `stands`, `settled`, `cancelled`, `released`, `expired`, or `unknown`.
    pub outcome: &'static str,
    /// Whether it was so before, and nothing changed.
    pub repeated: bool,
}

/// The name of a hold in `domain`.
pub(super) fn name(domain: &str, text: &str) -> Result<HoldId, String> {
    HoldId::new(domain, text).ok_or_else(|| {
        "it is no name of a hold: write 1 to 64 printable ASCII characters without spaces"
            .to_owned()
    })
}

/// The domain of a step.
pub(super) fn domain(
    fields: &Fields<'_>,
    span: &Span,
    context: &StepContext<'_>,
    sink: &mut Sink,
) -> Option<Arc<str>> {
    let domain = match fields.get("domain") {
        Some(domain) => {
            let field = domain.read(sink, |text| raw::name(text, "domain"));
            return field.map(|field| field.value);
        }
        None => context.domain.clone(),
    };
    if domain.is_none() {
        sink.problem(
            span,
            "the rules do not have one domain only: write `domain: NAME`",
        );
    }
    domain
}

impl EndStep {
    /// Reads a step whose `op` is `op`; `None` if that ends nothing.
    pub(super) fn read(
        op: &str,
        fields: &Fields<'_>,
        span: &Span,
        context: &StepContext<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        let domain = domain(fields, span, context, sink)?;
        let id = match fields.get("id") {
            Some(id) => id.read(sink, |text| name(&domain, text)),
            None => {
                let message =
                    format!("{op} of what? write `id: NAME`, as in the step that holds it");
                sink.problem(span, message);
                None
            }
        };
        let actual = fields.read("actual", sink, whole);
        let failed = fields.read("failed", sink, flag);
        if let Some(failed) = failed.as_ref().filter(|_| op != "release") {
            let message = "only `release` says that it failed: leave it out";
            sink.problem(&failed.span, message);
        }
        let has_failed = failed.is_some_and(|failed| failed.value);
        let ending = match (op, actual) {
            ("settle", Some(actual)) => Ending::Settle(actual.value),
            ("settle", None) => {
                sink.problem(span, "what did it cost? write `actual: UNITS`");
                return None;
            }
            (_, Some(actual)) => {
                sink.problem(
                    &actual.span,
                    "only `settle` says what it cost: leave it out",
                );
                return None;
            }
            ("cancel", None) => Ending::Cancel,
            ("release", None) if has_failed => Ending::Fail,
            ("release", None) => Ending::Release,
            (_, None) => Ending::Renew,
        };
        only(&FIELDS, op, fields, sink);
        let expect = fields.get("expect");
        let (outcome, repeated) = expect.map_or((None, None), |expect| read_expect(&expect, sink));
        Some(Self {
            id: id?.value,
            ending,
            outcome,
            repeated,
        })
    }

    /// Where the answer differs.
    /// Unless said there is to be one: the id may be misspelt.
    pub(super) fn compare(&self, answer: EndAnswer) -> Vec<Unexpected> {
        let mut list = Vec::new();
        if self.outcome.is_none() && answer.outcome == "unknown" {
            list.push(Unexpected {
                field: "outcome".to_owned(),
                expected: "something held under this id".to_owned(),
                got: "unknown (write `expect: {outcome: unknown}` if that is meant)".to_owned(),
            });
        }
        if let Some(expected) = self.outcome.filter(|expected| *expected != answer.outcome) {
            list.push(Unexpected {
                field: "outcome".to_owned(),
                expected: expected.to_owned(),
                got: answer.outcome.to_owned(),
            });
        }
        if let Some(expected) = self
            .repeated
            .filter(|expected| *expected != answer.repeated)
        {
            list.push(Unexpected {
                field: "repeated".to_owned(),
                expected: expected.to_string(),
                got: answer.repeated.to_string(),
            });
        }
        list
    }
}

fn read_expect(cursor: &Cursor<'_>, sink: &mut Sink) -> (Option<&'static str>, Option<bool>) {
    let Some(fields) = cursor.fields(&EXPECT, sink) else {
        return (None, None);
    };
    let others = EXPECT.names().into_iter();
    let others = others.filter(|name| !matches!(*name, "outcome" | "repeated"));
    for other in others.filter_map(|name| fields.get(name)) {
        let message =
            "an ending answers `outcome` and `repeated` only: ask the rest with `op: peek`";
        sink.problem(other.span(), message);
    }
    let outcome = fields.read("outcome", sink, |text| {
        let known = OUTCOMES.into_iter().find(|outcome| *outcome == text);
        known.ok_or_else(|| hint::no_such("outcome", text, &OUTCOMES))
    });
    let repeated = fields.read("repeated", sink, flag);
    (
        outcome.map(|field| field.value),
        repeated.map(|field| field.value),
    )
}
