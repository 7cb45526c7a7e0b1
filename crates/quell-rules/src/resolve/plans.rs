//! Plans, resolved: for one rule, the numbers of the plans that name it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use quell_core::rule::{Effect, Plans, Rule};

use super::override_effect;
use crate::hint;
use crate::path::Span;
use crate::problem::Sink;
use crate::raw::{RawDocument, RawLimit, RawRule};

/// The numbers of one plan for a rule.
pub(super) type PlanEffect = (Arc<str>, Effect, Span);

/// The numbers of all plans for a rule; if the rule has mistakes, what they inherit is not checked.
pub(super) fn resolve(
    raw: &RawRule,
    document: &RawDocument,
    sound: bool,
    sink: &mut Sink,
) -> Vec<PlanEffect> {
    if let (Some(plan), []) = (&raw.plan, document.plans.as_slice()) {
        let message = "the document has no plans: write `plans: {NAME: {RULE: {rate: 10/s}}}`, or leave this out";
        sink.problem(&plan.span, message);
    }
    let Some(name) = raw.name.as_ref().filter(|_| sound) else {
        return Vec::new();
    };
    let plans = document.plans.iter();
    let effects = plans.filter_map(|plan| {
        let mut rules = plan.rules.iter();
        let (_, numbers) = rules.find(|(rule, numbers)| *rule == name.value && !numbers.broken)?;
        let effect = override_effect(raw, numbers, sink)?;
        Some((Arc::clone(&plan.name), effect, numbers.span.clone()))
    });
    effects.collect()
}

/// The plans as the rule sees them; `None` if it has nothing to do with them.
pub(super) fn of_rule(
    raw: &RawRule,
    document: &RawDocument,
    effects: &[PlanEffect],
) -> Option<Arc<Plans>> {
    if raw.plan.is_none() && effects.is_empty() {
        return None;
    }
    let effects = effects.iter();
    Some(Arc::new(Plans {
        entry: raw.plan.as_ref().map(|entry| Arc::clone(&entry.value)),
        effects: effects
            .map(|(plan, effect, _)| (Arc::clone(plan), effect.clone()))
            .collect(),
        names: Arc::new(names(document)),
    }))
}

/// The fields of the plans whose limits for a rule are windows of the calendar.
pub(super) fn on_the_calendar(
    raw: &RawRule,
    document: &RawDocument,
    rule: &Rule,
) -> HashMap<Arc<str>, RawLimit> {
    let Some(plans) = &rule.plans else {
        return HashMap::new();
    };
    let has_calendar = |plan: &str| {
        let limit = plans.effects.get(plan).and_then(Effect::limit);
        limit.is_some_and(|limit| limit.calendar().is_some())
    };
    let all = document.plans.iter();
    let all = all.filter(|plan| has_calendar(&plan.name));
    let fields = all.filter_map(|plan| {
        let mut rules = plan.rules.iter();
        let (_, numbers) = rules.find(|(name, _)| *name == rule.name)?;
        let all = numbers.limit.over(&raw.limit, &numbers.span);
        Some((Arc::clone(&plan.name), all))
    });
    fields.collect()
}

/// The names of a document's plans.
pub(super) fn names(document: &RawDocument) -> BTreeSet<Arc<str>> {
    let plans = document.plans.iter();
    plans.map(|plan| Arc::clone(&plan.name)).collect()
}

/// Reports plans with numbers for a rule that the document does not have.
pub(super) fn check_rules(document: &RawDocument, sink: &mut Sink) {
    let names = document.rules.iter().filter_map(|rule| rule.name.as_ref());
    let names: Vec<&str> = names.map(|name| &*name.value).collect();
    for (rule, numbers) in document.plans.iter().flat_map(|plan| &plan.rules) {
        if names.contains(&&**rule) {
            continue;
        }
        let shown = hint::shorten(rule);
        let message = match hint::meant(rule, &names) {
            Some(meant) => format!("the document has no rule `{shown}`, did you mean `{meant}`?"),
            None => {
                format!("the document has no rule `{shown}`: write the name of one of its rules")
            }
        };
        sink.problem(&numbers.span, message);
    }
}
