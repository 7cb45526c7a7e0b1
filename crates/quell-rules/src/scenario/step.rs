//! Step: one question, or a change of rules, at an instant.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::Operation;
use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::hold::{HoldId, MAX_HOLD};
use quell_core::rule::DomainRules;

use super::admin_step::AdminStep;
use super::ending::{self, EndStep};
use super::expect::Expect;
use super::read::read_rules;
use crate::cursor::{Cursor, Fields, Shape};
use crate::fields::{DESCRIPTOR, STEP};
use crate::path::{Position, Span};
use crate::period::whole;
use crate::problem::Sink;
use crate::{duration, hint, raw};

/// The most calls of one step: some seconds of work.
pub const MAX_REPEAT: u64 = 1_000_000;

/// What happens at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) position: Position,
    pub(crate) path: String,
    /// From the test's start.
    pub(crate) at: Duration,
    pub(crate) action: Action,
}

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    SetRules(Vec<DomainRules>),
    Call(Box<Call>),
    End(EndStep),
    ByHand(AdminStep),
}

/// A question, perhaps asked many times.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) holds: Option<Holds>,
    domain: Arc<str>,
    descriptors: Vec<(Entries, Cost)>,
    /// At least 1.
    pub(crate) repeat: u64,
    pub(crate) every: Duration,
    pub(crate) expect: Expect,
}

/// What a call holds or waits for, beside what it asks.
#[derive(Clone, Debug)]
pub(crate) struct Holds {
    id: HoldId,
    /// The domain, for the ids of calls that are repeated.
    domain: Arc<str>,
    /// How long a reservation can be settled.
    pub(crate) hold: Option<Duration>,
    /// How long the caller would wait.
    pub(crate) wait: Option<Duration>,
}

impl Holds {
    /// What the call of this number of so many holds: each has an id of its own.
    pub(crate) fn id_of(&self, index: u64, calls: u64) -> Option<HoldId> {
        if calls == 1 {
            return Some(self.id.clone());
        }
        HoldId::new(&self.domain, &format!("{}-{}", self.id.name(), index + 1))
    }
}

pub(super) type Entries = Vec<(Arc<str>, Arc<str>)>;

/// What a step inherits from its file and its test.
pub(crate) struct StepContext<'a> {
    /// Paths of rules are beside this directory's files.
    pub(crate) directory: &'a Path,
    /// The domain that is asked unless the step says another.
    pub(crate) domain: Option<Arc<str>>,
    /// The test's start in nanoseconds since 1970.
    pub(crate) start: u64,
}

impl Call {
    /// The query that each call asks.
    pub(crate) fn query(&self) -> Query<'_> {
        let descriptors = self.descriptors.iter();
        query(
            &self.domain,
            descriptors.map(|(entries, cost)| (entries, *cost)),
        )
    }
}

/// A query of these descriptors.
pub(super) fn query<'a>(
    domain: &'a str,
    descriptors: impl IntoIterator<Item = (&'a Entries, Cost)>,
) -> Query<'a> {
    let descriptors = descriptors.into_iter().map(|(entries, cost)| {
        let mut descriptor = Descriptor::new();
        for (name, value) in entries {
            descriptor.push(&**name, &**value);
        }
        descriptor.cost = cost;
        descriptor
    });
    Query::with_descriptors(domain, descriptors.collect())
}

impl Step {
    pub(crate) fn read(
        cursor: &Cursor<'_>,
        context: &StepContext<'_>,
        sink: &mut Sink,
    ) -> Option<Self> {
        let fields = cursor.fields(&STEP, sink)?;
        let before = sink.count();
        if fields.lacks("at") {
            sink.problem(cursor.span(), "the step has no instant: write `at: 0s`");
        }
        let at = fields
            .read("at", sink, duration::parse)
            .map(|field| field.value);
        let action = match fields.get("set_rules") {
            Some(rules) => {
                alone(&fields, sink);
                Action::SetRules(read_rules(&rules, context.directory, sink))
            }
            None => read_action(&fields, cursor.span(), context, sink)?,
        };
        let step = Self {
            position: cursor.span().at,
            path: cursor.span().path.to_string(),
            at: at?,
            action,
        };
        if sink.count() == before && !step.ends_in_time(context.start) {
            sink.problem(
                cursor.span(),
                "it ends after the year 2554: write an earlier instant",
            );
        }
        Some(step)
    }

    fn ends_in_time(&self, start: u64) -> bool {
        let calls = match &self.action {
            Action::Call(call) => u128::from(call.repeat - 1) * call.every.as_nanos(),
            Action::SetRules(_) | Action::End(_) | Action::ByHand(_) => 0,
        };
        u128::from(start) + self.at.as_nanos() + calls <= u128::from(u64::MAX)
    }
}

/// Tells fields that stand beside `set_rules`.
fn alone(fields: &Fields<'_>, sink: &mut Sink) {
    let others = STEP
        .names()
        .into_iter()
        .filter(|name| !matches!(*name, "at" | "set_rules"));
    for other in others.filter_map(|name| fields.get(name)) {
        let message = "a step that sets rules asks nothing: write a step of its own";
        sink.problem(other.span(), message);
    }
}

/// Tells fields that a step of this `op` does not have.
pub(super) fn only(names: &[&str], op: &str, fields: &Fields<'_>, sink: &mut Sink) {
    let others = STEP.names().into_iter();
    let others = others.filter(|name| !names.contains(name));
    for (name, other) in others.filter_map(|name| Some((name, fields.get(name)?))) {
        let message = format!("`op: {op}` has no `{name}`: leave it out");
        sink.problem(other.span(), message);
    }
}

fn read_action(
    fields: &Fields<'_>,
    span: &Span,
    context: &StepContext<'_>,
    sink: &mut Sink,
) -> Option<Action> {
    let op = match fields.get("op") {
        Some(op) => op.read(sink, operation)?.value,
        None => "acquire",
    };
    match op {
        "acquire" | "peek" | "reserve" => {
            read_call(op, fields, span, context, sink).map(|call| Action::Call(Box::new(call)))
        }
        "ban" | "lift" | "forgive" => {
            AdminStep::read(op, fields, span, context, sink).map(Action::ByHand)
        }
        _ => EndStep::read(op, fields, span, context, sink).map(Action::End),
    }
}

fn read_call(
    op: &str,
    fields: &Fields<'_>,
    span: &Span,
    context: &StepContext<'_>,
    sink: &mut Sink,
) -> Option<Call> {
    let domain = ending::domain(fields, span, context, sink);
    for misplaced in ["rule", "for"]
        .into_iter()
        .filter_map(|name| fields.get(name))
    {
        let message = "it belongs to `op: ban`, `lift` or `forgive`: leave it out";
        sink.problem(misplaced.span(), message);
    }
    let holds = match &domain {
        Some(domain) => read_holds(op, domain, fields, span, sink),
        None => None,
    };
    let descriptors = read_descriptors(fields, sink);
    let repeat = fields
        .read("repeat", sink, repeat)
        .map_or(1, |field| field.value);
    let every = fields
        .read("every", sink, duration::parse)
        .map(|field| field.value);
    if let (Some(every), false) = (fields.get("every"), fields.says("repeat")) {
        sink.problem(
            every.span(),
            "one call is not repeated: write `repeat` as well",
        );
    }
    let expect = fields
        .get("expect")
        .and_then(|expect| Expect::read(&expect, sink));
    Some(Call {
        operation: if op == "peek" {
            Operation::Peek
        } else {
            Operation::Acquire
        },
        holds,
        domain: domain?,
        descriptors,
        repeat,
        every: every.unwrap_or_default(),
        expect: expect.unwrap_or_default(),
    })
}

const OPERATIONS: [&str; 10] = [
    "acquire", "peek", "reserve", "settle", "cancel", "release", "renew", "ban", "lift", "forgive",
];

fn operation(text: &str) -> Result<&'static str, String> {
    let known = OPERATIONS.into_iter().find(|known| *known == text);
    known.ok_or_else(|| hint::no_such("operation", text, &OPERATIONS))
}

/// How long a reservation lasts unless a step says so.
const HOLD: Duration = Duration::from_secs(60);

fn read_holds(
    op: &str,
    domain: &Arc<str>,
    fields: &Fields<'_>,
    span: &Span,
    sink: &mut Sink,
) -> Option<Holds> {
    let id = match fields.get("id") {
        Some(id) => Some(id.read(sink, |text| ending::name(domain, text))?.value),
        None => None,
    };
    let hold = fields.read("hold", sink, duration::parse);
    let wait = fields.read("max_wait", sink, duration::parse);
    let misplaced = match op {
        "acquire" => hold.as_ref().map(|said| (&said.span, "`op: reserve`")),
        "reserve" => wait.as_ref().map(|said| (&said.span, "`op: acquire`")),
        _ => {
            let field = hold.as_ref().or(wait.as_ref()).map(|field| &field.span);
            field.map(|span| (span, "`op: reserve` or `op: acquire`"))
        }
    };
    if let Some((span, op)) = misplaced {
        sink.problem(span, format!("it belongs to {op}: leave it out"));
    }
    if let Some(actual) = fields.get("actual") {
        sink.problem(
            actual.span(),
            "it belongs to `op: settle`: write `cost` here",
        );
    }
    if let Some(failed) = fields.get("failed") {
        sink.problem(failed.span(), "it belongs to `op: release`: leave it out");
    }
    if op == "peek" || (op == "acquire" && id.is_none() && wait.is_none()) {
        return None;
    }
    if fields.says("repeat") && id.is_some() {
        sink.problem(
            span,
            "one id is held once: leave `id` out, and each call has its own, or write a step for each",
        );
    }
    let at = format!("{}-{}", span.at.line, span.at.column);
    let id = id.or_else(|| HoldId::new(domain, &at))?;
    let hold = match hold.map_or(HOLD, |field| field.value) {
        hold if op == "reserve" && (hold.is_zero() || hold > MAX_HOLD) => {
            sink.problem(
                span,
                "a hold must be longer than 0 and at most 1d: write its length",
            );
            return None;
        }
        hold => hold,
    };
    Some(Holds {
        id,
        domain: Arc::clone(domain),
        hold: (op == "reserve").then_some(hold),
        wait: wait.map(|field| field.value),
    })
}

fn repeat(text: &str) -> Result<u64, String> {
    match whole(text)? {
        0 => Err("no call at all: write at least 1".to_owned()),
        times if times <= MAX_REPEAT => Ok(times),
        times => Err(format!(
            "{times} calls: write at most {MAX_REPEAT}, and several steps"
        )),
    }
}

fn read_descriptors(fields: &Fields<'_>, sink: &mut Sink) -> Vec<(Entries, Cost)> {
    let Some(list) = fields.get("descriptors") else {
        let descriptor = read_descriptor(fields, sink);
        return vec![descriptor];
    };
    for beside in ["entries", "cost"]
        .into_iter()
        .filter_map(|name| fields.get(name))
    {
        let message =
            "it belongs into a descriptor here: write it there, or leave `descriptors` out";
        sink.problem(beside.span(), message);
    }
    let items = list
        .items("a descriptor such as `{entries: {tenant: acme}}`", sink)
        .unwrap_or_default();
    if items.is_empty() && matches!(list.shape(), Some(Shape::List(_))) {
        sink.problem(list.span(), "a query of no descriptors: write at least one");
    }
    let maps = items
        .iter()
        .filter_map(|item| item.fields(&DESCRIPTOR, sink));
    let maps: Vec<Fields<'_>> = maps.collect();
    maps.iter()
        .map(|fields| read_descriptor(fields, sink))
        .collect()
}

pub(super) fn read_descriptor(fields: &Fields<'_>, sink: &mut Sink) -> (Entries, Cost) {
    let cost = fields.read("cost", sink, raw::cost).map(|said| said.value);
    let mut entries = Vec::new();
    if let Some(map) = fields.get("entries") {
        for (name, value) in map.pairs(sink).unwrap_or_default() {
            match value.shape() {
                Some(Shape::Text(text)) => entries.push((Arc::clone(name), Arc::clone(text))),
                Some(_) => {
                    let kind = value.node().kind();
                    let message = format!(
                        "{kind} in place of a value: write one value (\"\" for an empty one)"
                    );
                    sink.problem(value.span(), message);
                }
                None => {}
            }
        }
    }
    (entries, cost.unwrap_or_default())
}
