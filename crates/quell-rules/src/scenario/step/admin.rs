//! Admin step: bans keys, lifts their bans or forgives them, as an operator does.

use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::Action;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;

use super::{Entries, StepContext, query, read_descriptor};
use crate::cursor::{Cursor, Fields};
use crate::fields::EXPECT;
use crate::problem::Sink;
use crate::scenario::answer::Value;
use crate::scenario::expect::ExpectedFields;
use crate::scenario::report::Unexpected;
use crate::{duration, raw};

/// Fields of an administrative step.
const FIELDS: [&str; 7] = ["at", "op", "domain", "rule", "entries", "for", "expect"];

/// An operator's action, and its keys.
#[derive(Clone, Debug)]
pub(crate) struct AdminStep {
    pub(crate) action: Action<'static>,
    /// The rule whose key is meant; without it, the keys of all rules that match.
    pub(crate) rule: Option<Arc<str>>,
    domain: Arc<str>,
    entries: Entries,
    /// Number of keys that the step must change (`changed`).
    expect: ExpectedFields,
}

impl AdminStep {
    /// Reads a step whose `op` is `ban`, `lift` or `forgive`.
    pub(super) fn read(
        op: &str,
        fields: &Fields<'_>,
        context: &StepContext<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        super::only(&FIELDS, op, fields, sink);
        let domain = super::domain(fields, context, sink);
        let rule = match fields.get("rule") {
            Some(rule) => Some(rule.read(sink, |text| raw::name(text, "rule"))?.value),
            None => None,
        };
        let (entries, _) = read_descriptor(fields, sink);
        let mut wrong = entries.iter().filter(|_| op == "ban");
        if let Some(reason) =
            wrong.find_map(|(name, value)| raw::wrong_address(name, value.as_bytes()))
        {
            fields.problem(reason, sink);
        }
        let length = fields.read("for", sink, length);
        let action = match (op, length) {
            ("ban", Some(length)) => Action::Ban(length.value, None),
            ("ban", None) => {
                if !fields.has("for") {
                    fields.problem("the length of the ban is missing: write `for: 10m`", sink);
                }
                return None;
            }
            (_, Some(length)) => {
                sink.problem(&length.span, "only a ban has a length: leave it out");
                return None;
            }
            ("lift", None) => Action::Lift,
            (_, None) => Action::Forgive,
        };
        let expect = fields.get("expect");
        let expect = expect.and_then(|expect| read_expect(&expect, sink));
        Some(Self {
            action,
            rule,
            domain: domain?,
            entries,
            expect: expect.unwrap_or_default(),
        })
    }

    /// The query that names the keys.
    pub(crate) fn query(&self) -> Query<'_> {
        query(&self.domain, [(&self.entries, Cost::default())])
    }

    /// Compares the number of changed keys. By default at least one key must change, because the
    /// keys may be misspelt.
    pub(in crate::scenario) fn compare(&self, changed: usize) -> Vec<Unexpected> {
        let got = u64::try_from(changed).unwrap_or(u64::MAX);
        if got == 0 && !self.expect.has_any(&["changed"]) {
            let got = "0 (write `expect: {changed: 0}` if that is meant)";
            return vec![Unexpected::new("changed", "at least 1", got)];
        }
        self.expect.differing("", |_| Value::Units(got))
    }
}

fn length(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("write a duration longer than 0, such as `10m`".to_owned()),
        length => Ok(length),
    }
}

fn read_expect(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<ExpectedFields> {
    let fields = cursor.fields(&EXPECT, sink)?;
    let message = "an operator's step answers `changed` only: ask the rest with `op: peek`";
    fields.refuse_others(&["changed"], |_| message.to_owned(), sink);
    Some(ExpectedFields::read(&["changed"], &[], &fields, sink))
}
