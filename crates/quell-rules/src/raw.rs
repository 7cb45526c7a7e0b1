//! Raw: a rules document as it was written, every field optional, each with its place.

use std::sync::Arc;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::hold::MAX_HOLD;
use quell_core::rule::{EmptyValue, Matcher, OnMissing, Per, Reserve};

use crate::cursor::{Cursor, Fields, Shape, TESTS};
use crate::fields::{DEFAULTS, DOCUMENT, OVERRIDE, PLAN_CHOICE, RULE};
use crate::path::{Span, Spanned};
use crate::period::{flag, whole};
use crate::problem::Sink;
use crate::{duration, hint};

mod gateway_entries;
mod limit;
mod matching;
mod policy;
mod refusal_page;
mod reserve;

pub(crate) use gateway_entries::{default_prefix, is_gateway_entry};
pub use gateway_entries::{meant_entry, wrong_address};
pub(crate) use limit::{Align, DelayAfter, RawBan, RawLimit};
use matching::{read_keys, read_matchers, read_per};
pub(crate) use policy::{MAX_FLEET_NAME, RawPolicy, RungName};
pub(crate) use refusal_page::RawRefusalPage;

/// The longest name of a domain, a rule or an entry, in bytes: it goes into every key and header.
pub(crate) const MAX_NAME: usize = 255;

/// The message for a document whose rules may not have been written yet.
const NO_RULES: &str = "the document has no rules: write `rules: []` if it is to have none";

/// One document.
#[derive(Debug)]
pub(crate) struct RawDocument {
    pub(crate) domain: Option<Spanned<Arc<str>>>,
    pub(crate) rules: Vec<RawRule>,
    /// `defaults: shadow`.
    pub(crate) shadow: Option<Spanned<bool>>,
    /// The policy for rules that do not have these fields themselves.
    pub(crate) policy: RawPolicy,
    pub(crate) plans: Vec<RawPlan>,
    /// The entry whose value keeps keys together.
    pub(crate) colocate: Option<Spanned<Arc<str>>>,
}

/// One rule.
#[derive(Debug)]
pub(crate) struct RawRule {
    pub(crate) span: Span,
    pub(crate) name: Option<Spanned<Arc<str>>>,
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) per: Vec<Per>,
    /// Span of `keys`, if the rule lists them. They are a matcher.
    pub(crate) keys: Option<Span>,
    pub(crate) on_missing: Option<Spanned<OnMissing>>,
    pub(crate) empty: Option<Spanned<EmptyValue>>,
    pub(crate) limit: RawLimit,
    pub(crate) unlimited: Option<Spanned<bool>>,
    pub(crate) overrides: Vec<RawOverride>,
    /// The entry that names a call's plan.
    pub(crate) plan: Option<Spanned<Arc<str>>>,
    pub(crate) cost: Option<Spanned<Cost>>,
    pub(crate) shadow: Option<Spanned<bool>>,
    pub(crate) policy: RawPolicy,
    pub(crate) max_hold: Option<Spanned<Duration>>,
    pub(crate) reserve: Option<Spanned<Reserve>>,
    pub(crate) page: RawRefusalPage,
    /// True if a problem in the rule was already reported.
    pub(crate) broken: bool,
}

/// The numbers of one plan.
#[derive(Debug)]
pub(crate) struct RawPlan {
    pub(crate) name: Arc<str>,
    /// For each rule that it names, its numbers.
    pub(crate) rules: Vec<(Arc<str>, RawOverride)>,
}

/// One override, or the numbers of a plan for a rule, which have no `when`.
#[derive(Debug)]
pub(crate) struct RawOverride {
    pub(crate) span: Span,
    pub(crate) when: Option<Spanned<Vec<Matcher>>>,
    pub(crate) limit: RawLimit,
    pub(crate) unlimited: Option<Spanned<bool>>,
    pub(crate) refuse: Option<Spanned<bool>>,
    pub(crate) broken: bool,
}

impl RawDocument {
    /// Reads a document; `None` if it is not a map.
    pub(crate) fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        if let (Some(tests), None) = (cursor.key("tests"), cursor.key("domain")) {
            sink.problem(&tests, TESTS);
            return None;
        }
        let fields = cursor.fields(&DOCUMENT, sink)?;
        let domain = fields.read("domain", sink, |text| name(text, "domain"));
        let rules = fields.get("rules").map(|rules| read_rules(&rules, sink));
        let defaults = fields.get("defaults");
        let defaults = defaults.and_then(|defaults| defaults.fields(&DEFAULTS, sink));
        let defaults = defaults.as_ref();
        let document = Self {
            domain,
            rules: rules.unwrap_or_default(),
            shadow: defaults.and_then(|fields| fields.read("shadow", sink, flag)),
            policy: defaults
                .map_or_else(RawPolicy::default, |fields| RawPolicy::read(fields, sink)),
            plans: fields
                .get("plans")
                .map_or_else(Vec::new, |plans| read_plans(&plans, sink)),
            colocate: fields.read("colocate", sink, |text| name(text, "entry name")),
        };
        let no_domain = "the document has no domain: write `domain: NAME`";
        fields.require(&["domain"], no_domain, sink);
        // Other mistakes may be the reason.
        if sink.count() == 0 {
            fields.require(&["rules"], NO_RULES, sink);
        }
        Some(document)
    }
}

/// A name: not empty, not too long, nothing invisible.
pub(crate) fn name(text: &str, what: &str) -> Result<Arc<str>, String> {
    if text.is_empty() {
        return Err(format!("an empty {what}: write a name"));
    }
    if text.len() > MAX_NAME {
        return Err(format!(
            "a {what} of {} bytes: write at most {MAX_NAME}",
            text.len()
        ));
    }
    if text.chars().any(char::is_control) || text.trim() != text {
        let shown = hint::shorten(text);
        return Err(format!(
            "`{shown}` begins or ends with a space or has control characters: write a visible {what}"
        ));
    }
    Ok(Arc::from(text))
}

fn read_rules(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<RawRule> {
    // If every rule is commented out, the document looks like a half-written one.
    if let Some(Shape::Null) = cursor.shape() {
        cursor.problem(NO_RULES, sink);
        return Vec::new();
    }
    let items = cursor.items("a rule such as `{name: login, rate: 5/min}`", sink);
    let rules = items.iter().filter_map(|rule| RawRule::read(rule, sink));
    rules.collect()
}

impl RawRule {
    fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let before = sink.count();
        let fields = cursor.fields(&RULE, sink)?;
        fields.require(&["name"], "the rule has no name: write `name: NAME`", sink);
        let matchers = fields.get("match").map(|it| read_matchers(&it, sink));
        let per = fields.get("per").map(|per| read_per(&per, sink));
        let (mut matchers, per) = (matchers.unwrap_or_default(), per.unwrap_or_default());
        let keys = fields.get("keys");
        if let Some(keys) = &keys
            && let Some(listed) = read_keys(keys, &per, sink)
        {
            if matchers.iter().any(|matcher| matcher.entry == listed.entry) {
                let message = "`match` has this entry as well: leave it out there";
                keys.problem(message, sink);
            }
            matchers.push(listed);
        }
        let mut rule = Self {
            span: cursor.span().clone(),
            name: fields.read("name", sink, |text| name(text, "name")),
            matchers,
            per,
            keys: keys.map(|keys| keys.span().clone()),
            on_missing: fields.read("on_missing", sink, on_missing),
            empty: fields.read("empty", sink, empty),
            limit: RawLimit::read(&fields, sink),
            unlimited: fields.read("unlimited", sink, unlimited),
            overrides: Vec::new(),
            plan: fields.get("plan").and_then(|plan| {
                let fields = plan.fields(&PLAN_CHOICE, sink)?;
                fields.require(
                    &["entry"],
                    "it does not say which entry: write `plan: {entry: plan}`",
                    sink,
                );
                fields.read("entry", sink, |text| name(text, "entry name"))
            }),
            cost: fields.read("cost", sink, cost),
            shadow: fields.read("shadow", sink, flag),
            policy: RawPolicy::read(&fields, sink),
            max_hold: fields.read("max_hold", sink, max_hold),
            reserve: fields
                .get("reserve")
                .and_then(|it| reserve::read(&it, sink)),
            page: RawRefusalPage::read(&fields, sink),
            broken: false,
        };
        rule.broken = sink.count() > before;
        rule.overrides = read_overrides(&fields, sink);
        Some(rule)
    }
}

/// The longest that a reservation may last.
fn max_hold(text: &str) -> Result<Duration, String> {
    let longest = duration::parse(text)?;
    match longest.is_zero() || longest > MAX_HOLD {
        true => {
            Err("a reservation lasts longer than 0 and at most a day: write 1h or so".to_owned())
        }
        false => Ok(longest),
    }
}

fn on_missing(text: &str) -> Result<OnMissing, String> {
    let words = [
        ("skip", OnMissing::Skip),
        ("shared_key", OnMissing::SharedKey),
    ];
    hint::one_of("value", text, &words)
}

fn empty(text: &str) -> Result<EmptyValue, String> {
    let words = [("missing", EmptyValue::Missing), ("keep", EmptyValue::Keep)];
    hint::one_of("value", text, &words)
}

fn unlimited(text: &str) -> Result<bool, String> {
    match flag(text)? {
        true => Ok(true),
        false => Err("a limit is the default: leave `unlimited` out".to_owned()),
    }
}

fn refuse(text: &str) -> Result<bool, String> {
    match flag(text)? {
        true => Ok(true),
        false => Err("calls are refused by a limit alone: leave `refuse` out".to_owned()),
    }
}

/// A cost of at least 1.
pub(crate) fn cost(text: &str) -> Result<Cost, String> {
    let peek = "a cost of 0 charges nothing: write at least 1";
    Cost::new(whole(text)?).ok_or_else(|| peek.to_owned())
}

fn read_overrides(fields: &Fields<'_>, sink: &mut Sink) -> Vec<RawOverride> {
    let item = "an override such as `{when: {tenant: acme}, rate: 1000/s}`";
    let list = fields.get("overrides");
    let items = list.map_or_else(Vec::new, |list| list.items(item, sink));
    let overrides = items
        .iter()
        .filter_map(|item| RawOverride::read(item, sink));
    overrides.collect()
}

fn read_plans(cursor: &Cursor<'_>, sink: &mut Sink) -> Vec<RawPlan> {
    let mut plans = Vec::new();
    for (plan, rules) in cursor.pairs(sink) {
        if let Err(message) = name(plan, "plan name") {
            rules.problem(message, sink);
            continue;
        }
        let rules = rules.pairs(sink).into_iter();
        let rules = rules.filter_map(|(rule, numbers)| {
            Some((Arc::clone(rule), RawOverride::read_numbers(&numbers, sink)?))
        });
        plans.push(RawPlan {
            name: Arc::clone(plan),
            rules: rules.collect(),
        });
    }
    plans
}

impl RawOverride {
    /// Reads numbers that have no `when`.
    pub(crate) fn read_numbers(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let before = sink.count();
        let fields = cursor.fields(&OVERRIDE, sink)?;
        let message = "these numbers have no condition of their own: leave `when` out";
        fields.refuse(&["when"], message, sink);
        Some(Self::with(cursor, &fields, None, before, sink))
    }

    fn read(cursor: &Cursor<'_>, sink: &mut Sink) -> Option<Self> {
        let before = sink.count();
        let fields = cursor.fields(&OVERRIDE, sink)?;
        let no_when = "the override has no `when`: write `when: {ENTRY: VALUE}`";
        fields.require(&["when"], no_when, sink);
        let when = fields
            .get("when")
            .map(|when| when.spanned(read_matchers(&when, sink)));
        if let Some(when) = &when
            && when.value.is_empty()
            && sink.count() == before
        {
            let message = "it would match everything: write at least one entry, or change the rule";
            sink.problem(&when.span, message);
        }
        Some(Self::with(cursor, &fields, when, before, sink))
    }

    /// The numbers beside `when`; `before` is how many problems there were before they were read.
    fn with(
        cursor: &Cursor<'_>,
        fields: &Fields<'_>,
        when: Option<Spanned<Vec<Matcher>>>,
        before: usize,
        sink: &mut Sink,
    ) -> Self {
        let mut read = Self {
            span: cursor.span().clone(),
            when,
            limit: RawLimit::read(fields, sink),
            unlimited: fields.read("unlimited", sink, unlimited),
            refuse: fields.read("refuse", sink, refuse),
            broken: false,
        };
        read.broken = sink.count() > before;
        read
    }
}
