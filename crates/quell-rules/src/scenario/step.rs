//! Step: one call, or a change of rules, at an instant.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use quell_core::charge::Operation;
use quell_core::cost::Cost;
use quell_core::descriptor::{Descriptor, Query};
use quell_core::hold::HoldId;
use quell_core::query_bounds::{
    DEFAULT_HOLD, QueryError, check_descriptors, check_hold, check_wait, push_entry,
};
use quell_core::rule::DomainRules;

use super::expect::Expect;
use super::rule_paths::{RuleTarget, read_rules};
use crate::cursor::{Cursor, Fields, Shape};
use crate::fields::{DESCRIPTOR, STEP};
use crate::path::Position;
use crate::period::whole;
use crate::problem::Sink;
use crate::{duration, hint, raw};

mod admin;
mod ending;

pub(super) use admin::AdminStep;
pub use ending::EndAnswer;
pub(super) use ending::EndStep;

/// The most calls of one step: they take some seconds.
pub const MAX_REPEAT: u64 = 1_000_000;

/// Actions at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) position: Position,
    pub(crate) path: String,
    /// From the test's start.
    pub(crate) at: Duration,
    pub(crate) action: Action,
}

/// Action of a step.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    SetRules(Vec<DomainRules>),
    Call(Box<Call>),
    End(EndStep),
    ByHand(AdminStep),
}

/// A call, which may be repeated.
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

/// The hold or the wait of a call.
#[derive(Clone, Debug)]
pub(crate) struct Holds {
    id: HoldId,
    /// The domain, for the ids of calls that are repeated.
    domain: Arc<str>,
    /// Time for which a reservation can be settled.
    pub(crate) hold: Option<Duration>,
    /// Longest wait that the caller accepts.
    pub(crate) wait: Option<Duration>,
}

impl Holds {
    /// The id of call number `index` of `calls`: each has an id of its own.
    pub(crate) fn id_of(&self, index: u64, calls: u64) -> Option<HoldId> {
        if calls == 1 {
            return Some(self.id.clone());
        }
        HoldId::new(&self.domain, &format!("{}-{}", self.id.name(), index + 1))
    }
}

type Entries = Vec<(Arc<str>, Arc<str>)>;

/// Settings that a step inherits from its file and its test.
pub(crate) struct StepContext<'a> {
    /// Target of paths of rules.
    pub(crate) place: RuleTarget<'a>,
    /// The domain of the queries, unless the step has another.
    pub(crate) domain: Option<Arc<str>>,
    /// The test's start in nanoseconds since 1970.
    pub(crate) start: u64,
}

impl Call {
    /// The query of each call.
    pub(crate) fn query(&self) -> Query<'_> {
        let descriptors = self.descriptors.iter();
        query(
            &self.domain,
            descriptors.map(|(entries, cost)| (entries, *cost)),
        )
    }
}

/// A query of these descriptors.
fn query<'a>(
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
        fields.require(&["at"], "the step has no instant: write `at: 0s`", sink);
        let at = fields.value("at", sink, duration::parse);
        let action = match fields.get("set_rules") {
            Some(rules) => {
                let message = "a step that sets rules asks nothing: write a step of its own";
                fields.refuse_others(&["at", "set_rules"], |_| message.to_owned(), sink);
                Action::SetRules(read_rules(&rules, context.place, sink))
            }
            None => read_action(&fields, context, sink)?,
        };
        let step = Self {
            position: cursor.span().at,
            path: cursor.span().path.to_string(),
            at: at?,
            action,
        };
        if sink.count() == before && !step.ends_in_time(context.start) {
            let message = "it ends after the year 2554: write an earlier instant";
            fields.problem(message, sink);
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

/// Reports fields that a step with this `op` does not have.
fn only(names: &[&str], op: &str, fields: &Fields<'_>, sink: &mut Sink) {
    let message = |name: &str| format!("`op: {op}` has no `{name}`: leave it out");
    fields.refuse_others(names, message, sink);
}

/// The domain of a step.
fn domain(fields: &Fields<'_>, context: &StepContext<'_>, sink: &mut Sink) -> Option<Arc<str>> {
    if fields.has("domain") {
        return fields.value("domain", sink, |text| raw::name(text, "domain"));
    }
    if context.domain.is_none() {
        let message = "the rules do not have one domain only: write `domain: NAME`";
        fields.problem(message, sink);
    }
    context.domain.clone()
}

/// The name of a hold in `domain`.
fn hold_id(domain: &str, text: &str) -> Result<HoldId, String> {
    HoldId::new(domain, text).ok_or_else(|| {
        "it is not a name of a hold: write 1 to 64 printable ASCII characters without spaces"
            .to_owned()
    })
}

fn read_action(fields: &Fields<'_>, context: &StepContext<'_>, sink: &mut Sink) -> Option<Action> {
    let op = match fields.get("op") {
        Some(op) => op.read(sink, operation)?.value,
        None => "acquire",
    };
    Some(match op {
        "acquire" | "peek" | "reserve" => {
            Action::Call(Box::new(read_call(op, fields, context, sink)?))
        }
        "ban" | "lift" | "forgive" => Action::ByHand(AdminStep::read(op, fields, context, sink)?),
        _ => Action::End(EndStep::read(op, fields, context, sink)?),
    })
}

fn read_call(
    op: &str,
    fields: &Fields<'_>,
    context: &StepContext<'_>,
    sink: &mut Sink,
) -> Option<Call> {
    let domain = domain(fields, context, sink);
    let message = "it belongs to `op: ban`, `lift` or `forgive`: leave it out";
    fields.refuse(&["rule", "for"], message, sink);
    let holds = match &domain {
        Some(domain) => read_holds(op, domain, fields, sink),
        None => None,
    };
    let descriptors = read_descriptors(fields, sink);
    let repeat = fields.value("repeat", sink, repeat);
    let every = fields.value("every", sink, duration::parse);
    if !fields.has("repeat") {
        let message = "one call is not repeated: write `repeat` as well";
        fields.refuse(&["every"], message, sink);
    }
    let expect = fields.get("expect");
    let expect = expect.and_then(|expect| Expect::read(&expect, sink));
    Some(Call {
        operation: match op {
            "peek" => Operation::Peek,
            _ => Operation::Acquire,
        },
        holds,
        domain: domain?,
        descriptors,
        repeat: repeat.unwrap_or(1),
        every: every.unwrap_or_default(),
        expect: expect.unwrap_or_default(),
    })
}

const OPERATIONS: [&str; 10] = [
    "acquire", "peek", "reserve", "settle", "cancel", "release", "renew", "ban", "lift", "forgive",
];

fn operation(text: &str) -> Result<&'static str, String> {
    hint::one_of("operation", text, &OPERATIONS.map(|name| (name, name)))
}

fn read_holds(op: &str, domain: &Arc<str>, fields: &Fields<'_>, sink: &mut Sink) -> Option<Holds> {
    let id = match fields.get("id") {
        Some(id) => Some(id.read(sink, |text| hold_id(domain, text))?.value),
        None => None,
    };
    let within = |text: &str, check: fn(Duration) -> Result<Duration, QueryError>| {
        check(duration::parse(text)?).map_err(|error| error.to_string())
    };
    let hold = fields.value("hold", sink, |text| within(text, check_hold));
    let wait = fields.value("max_wait", sink, |text| within(text, check_wait));
    let (misplaced, message): (&[&str], _) = match op {
        "acquire" => (&["hold"], "it belongs to `op: reserve`: leave it out"),
        "reserve" => (&["max_wait"], "it belongs to `op: acquire`: leave it out"),
        _ => (
            &["hold", "max_wait"],
            "it belongs to `op: reserve` or `op: acquire`: leave it out",
        ),
    };
    fields.refuse(misplaced, message, sink);
    let message = "it belongs to `op: settle`: write `cost` here";
    fields.refuse(&["actual"], message, sink);
    let message = "it belongs to `op: release`: leave it out";
    fields.refuse(&["failed"], message, sink);
    if op == "peek" || (op == "acquire" && id.is_none() && wait.is_none()) {
        return None;
    }
    if fields.has("repeat") && id.is_some() {
        let message = "one id is held once: leave `id` out, and each call has its own, or write a \
                       step for each";
        fields.problem(message, sink);
    }
    let at = fields.span().at;
    let id = id.or_else(|| HoldId::new(domain, &format!("{}-{}", at.line, at.column)))?;
    let hold = (op == "reserve").then_some(hold.unwrap_or(DEFAULT_HOLD));
    Some(Holds {
        id,
        domain: Arc::clone(domain),
        hold,
        wait,
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
        return vec![read_descriptor(fields, sink)];
    };
    let message = "it belongs into a descriptor here: write it there, or leave `descriptors` out";
    fields.refuse(&["entries", "cost"], message, sink);
    if let Some(Shape::List(items)) = list.shape()
        && let Err(error) = check_descriptors(items.len())
    {
        list.problem(error.to_string(), sink);
        return Vec::new();
    }
    let items = list.items("a descriptor such as `{entries: {tenant: acme}}`", sink);
    let read = |item: &Cursor<'_>| {
        let fields = item.fields(&DESCRIPTOR, sink)?;
        Some(read_descriptor(&fields, sink))
    };
    items.iter().filter_map(read).collect()
}

fn read_descriptor(fields: &Fields<'_>, sink: &mut Sink) -> (Entries, Cost) {
    let cost = fields.value("cost", sink, raw::cost);
    let pairs = fields.get("entries").map(|map| map.pairs(sink));
    let mut entries = Vec::new();
    let mut bounded = Descriptor::new();
    for (name, value) in pairs.unwrap_or_default() {
        match value.shape() {
            Some(Shape::Text(text)) => {
                let bytes = Cow::Borrowed(text.as_bytes());
                match push_entry(&mut bounded, Cow::Borrowed(name), bytes) {
                    Ok(()) => entries.push((Arc::clone(name), Arc::clone(text))),
                    Err(error) => {
                        value.problem(error.to_string(), sink);
                        break;
                    }
                }
            }
            Some(_) => {
                let kind = value.node().kind();
                let message =
                    format!("{kind} in place of a value: write one value (\"\" for an empty one)");
                value.problem(message, sink);
            }
            None => {}
        }
    }
    (entries, cost.unwrap_or_default())
}
