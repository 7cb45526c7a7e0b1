//! Admin step: bans keys, lifts their bans or forgives them, as an operator does.

use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::Action;
use quell_core::cost::Cost;
use quell_core::descriptor::Query;

use super::ending;
use super::report::Unexpected;
use super::step::{Entries, StepContext, only, query, read_descriptor};
use crate::cursor::{Cursor, Fields};
use crate::fields::EXPECT;
use crate::path::Span;
use crate::period::whole;
use crate::problem::Sink;
use crate::{duration, raw};

/// Fields of a step that does something by hand.
const FIELDS: [&str; 7] = ["at", "op", "domain", "rule", "entries", "for", "expect"];

/// What is done by hand, and to which keys.
#[derive(Clone, Debug)]
pub(crate) struct AdminStep {
    pub(crate) action: Action,
    /// The rule whose key is meant; without it the keys of all rules that match.
    pub(crate) rule: Option<Arc<str>>,
    domain: Arc<str>,
    entries: Entries,
    /// To how many keys it is to make a difference.
    changed: Option<u64>,
}

impl AdminStep {
    /// Reads a step whose `op` is `ban`, `lift` or `forgive`.
    pub(super) fn read(
        op: &str,
        fields: &Fields<'_>,
        span: &Span,
        context: &StepContext<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        only(&FIELDS, op, fields, sink);
        let domain = ending::domain(fields, span, context, sink);
        let rule = match fields.get("rule") {
            Some(rule) => Some(rule.read(sink, |text| raw::name(text, "rule"))?.value),
            None => None,
        };
        let (entries, _) = read_descriptor(fields, sink);
        let mut wrong = entries.iter().filter(|_| op == "ban");
        if let Some(reason) =
            wrong.find_map(|(name, value)| raw::wrong_address(name, value.as_bytes()))
        {
            sink.problem(span, reason);
        }
        let length = fields.read("for", sink, length);
        let action = match (op, length) {
            ("ban", Some(length)) => Action::Ban(length.value),
            ("ban", None) => {
                if !fields.says("for") {
                    sink.problem(span, "how long? write `for: 10m`");
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
        let changed = fields
            .get("expect")
            .and_then(|expect| read_expect(&expect, sink));
        Some(Self {
            action,
            rule,
            domain: domain?,
            entries,
            changed,
        })
    }

    /// What names the keys.
    pub(crate) fn query(&self) -> Query<'_> {
        query(&self.domain, [(&self.entries, Cost::default())])
    }

    /// Where it made another difference. Unless said it is to make one: the keys may be misspelt.
    pub(super) fn compare(&self, changed: usize) -> Vec<Unexpected> {
        let got = u64::try_from(changed).unwrap_or(u64::MAX);
        let (expected, got) = match self.changed {
            None if got == 0 => (
                "at least 1".to_owned(),
                "0 (write `expect: {changed: 0}` if that is meant)".to_owned(),
            ),
            Some(expected) if expected != got => (expected.to_string(), got.to_string()),
            _ => return Vec::new(),
        };
        vec![Unexpected {
            field: "changed".to_owned(),
            expected,
            got,
        }]
    }
}

fn length(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("write a duration longer than 0, such as `10m`".to_owned()),
        length => Ok(length),
    }
}

fn read_expect(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<u64> {
    let fields = cursor.fields(&EXPECT, sink)?;
    let others = EXPECT.names().into_iter();
    let others = others.filter(|name| *name != "changed");
    for other in others.filter_map(|name| fields.get(name)) {
        let message = "what is done by hand answers `changed` only: ask the rest with `op: peek`";
        sink.problem(other.span(), message);
    }
    fields.read("changed", sink, whole).map(|said| said.value)
}
