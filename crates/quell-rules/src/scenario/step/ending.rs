//! Ending: a step that settles, cancels, releases or renews a hold of an earlier step.

use quell_core::actual::Actual;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::query_bounds::check_descriptors;

use super::StepContext;
use crate::cursor::{Cursor, Fields, Shape};
use crate::fields::EXPECT;
use crate::path::Spanned;
use crate::period::{flag, whole};
use crate::problem::Sink;
use crate::scenario::answer::Value;
use crate::scenario::expect::ExpectedFields;
use crate::scenario::report::Unexpected;

/// Outcomes of the end of a hold, in the words of scenario files: the values of `outcome`.
const OUTCOMES: [&str; 6] = [
    "stands",
    "settled",
    "cancelled",
    "released",
    "expired",
    "unknown",
];

/// Fields of a step that ends a hold.
const FIELDS: [&str; 7] = ["at", "op", "domain", "id", "actual", "failed", "expect"];

/// The end of a hold, or its renewal.
#[derive(Clone, Debug)]
pub(crate) struct EndStep {
    pub(crate) id: HoldId,
    pub(crate) ending: Ending,
    expect: ExpectedFields,
}

/// A subject's answer to an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndAnswer {
    /// Outcome of the end of the hold: `stands`, `settled`, `cancelled`, `released`, `expired`, or
    /// `unknown`.
    pub outcome: &'static str,
    /// True if the hold had ended before, and nothing changed.
    pub repeated: bool,
}

impl EndStep {
    /// Reads a step whose `op` is `op`; `None` if that is not an ending.
    pub(super) fn read(
        op: &str,
        fields: &Fields<'_>,
        context: &StepContext<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        let domain = super::domain(fields, context, sink)?;
        if !fields.has("id") {
            let message = format!(
                "{op} needs the id of a hold: write `id: NAME`, as in the step that holds it"
            );
            fields.problem(message, sink);
        }
        let id = fields.value("id", sink, |text| super::hold_id(&domain, text));
        let actual = fields.get("actual");
        let actual = match actual {
            Some(actual) => Some(read_actual(&actual, sink)?),
            None => None,
        };
        let has_failed = fields.value("failed", sink, flag).unwrap_or_default();
        if op != "release" {
            let message = "only `release` has this field: leave it out";
            fields.refuse(&["failed"], message, sink);
        }
        let ending = match (op, actual) {
            ("settle", Some(actual)) => Ending::Settle(actual.value),
            ("settle", None) => {
                fields.problem("the real cost is missing: write `actual: UNITS`", sink);
                return None;
            }
            (_, Some(actual)) => {
                let message = "only `settle` has this field: leave it out";
                sink.problem(&actual.span, message);
                return None;
            }
            ("cancel", None) => Ending::Cancel,
            ("release", None) if has_failed => Ending::Fail,
            ("release", None) => Ending::Release,
            (_, None) => Ending::Renew,
        };
        super::only(&FIELDS, op, fields, sink);
        let expect = fields.get("expect");
        let expect = expect.and_then(|expect| read_expect(&expect, sink));
        Some(Self {
            id: id?,
            ending,
            expect: expect.unwrap_or_default(),
        })
    }

    /// Compares the answer. By default there must be such a hold, because the id may be misspelt.
    pub(in crate::scenario) fn compare(&self, answer: EndAnswer) -> Vec<Unexpected> {
        let mut list = self.expect.differing("", |field| match field {
            "outcome" => Value::Text(answer.outcome.to_owned()),
            _ => Value::Flag(answer.repeated),
        });
        if answer.outcome == "unknown" && !self.expect.has_any(&["outcome"]) {
            let got = "unknown (write `expect: {outcome: unknown}` if that is meant)";
            let expected = "something held under this id";
            list.insert(0, Unexpected::new("outcome", expected, got));
        }
        list
    }
}

/// Reads the cost of each descriptor: one number, or a list.
fn read_actual(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Spanned<Actual>> {
    let items = match cursor.shape()? {
        Shape::List(_) => cursor.items("a whole number such as `0`", sink),
        _ => vec![cursor.clone()],
    };
    if let Err(error) = check_descriptors(items.len()) {
        cursor.problem(error.to_string(), sink);
        return None;
    }
    let before = sink.count();
    let units = items.iter().filter_map(|item| item.read(sink, whole));
    let units: Vec<u64> = units.map(|field| field.value).collect();
    (sink.count() == before).then(|| cursor.spanned(units.into()))
}

fn read_expect(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<ExpectedFields> {
    let fields = cursor.fields(&EXPECT, sink)?;
    let names = ["outcome", "repeated"];
    let message = "an ending answers `outcome` and `repeated` only: ask the rest with `op: peek`";
    fields.refuse_others(&names, |_| message.to_owned(), sink);
    Some(ExpectedFields::read(&names, &OUTCOMES, &fields, sink))
}
