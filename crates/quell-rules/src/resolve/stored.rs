//! Stored numbers: the fields of an override that is stored beside the rules file, read as if they stood in it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use quell_core::policy::{Policy, Rung};
use quell_core::rule::{Effect, Rule, StoredEffect};

use super::kin::Kin;
use super::{limit, override_effect, policy};
use crate::cursor::Cursor;
use crate::hint;
use crate::problem::{Problem, Sink};
use crate::raw::{RawLimit, RawOverride, RawRule};
use crate::yaml;

/// Advice for a text that is not a map of fields.
const FIELDS: &str = "the fields of a limit, such as `{rate: 200/s}`, `{plan: gold}`, `{unlimited: true}` or `{refuse: true}`";

/// The rules as they were written, as far as stored numbers depend on it: fields that they leave out are the rule's.
#[derive(Clone, Debug, Default)]
pub struct StoredFields {
    rules: HashMap<(Arc<str>, Arc<str>), Arc<Written>>,
    /// The names of the plans of each domain.
    plans: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Written {
    raw: RawRule,
    kin: Option<Kin>,
    policy: Policy,
    /// The plans whose limits are windows of the calendar, with all their fields.
    calendars: HashMap<Arc<str>, RawLimit>,
}

impl StoredFields {
    pub(super) fn add_rule(
        &mut self,
        domain: &Arc<str>,
        raw: RawRule,
        (rule, calendars): (&Rule, HashMap<Arc<str>, RawLimit>),
    ) {
        let mut limits = rule.effects().filter_map(Effect::limit);
        let own = rule.effect.limit().or_else(|| limits.next());
        let written = Written {
            kin: own.map(Kin::of),
            policy: rule.policy,
            calendars,
            raw,
        };
        let name = (Arc::clone(domain), Arc::clone(&rule.name));
        self.rules.insert(name, Arc::new(written));
    }

    pub(super) fn add_plans(&mut self, domain: &Arc<str>, names: BTreeSet<Arc<str>>) {
        self.plans
            .entry(Arc::clone(domain))
            .or_default()
            .extend(names);
    }

    /// Returns true if a domain has the plan.
    #[must_use]
    pub fn has_plan(&self, domain: &str, plan: &str) -> bool {
        self.plans
            .get(domain)
            .is_some_and(|plans| plans.contains(plan))
    }

    /// Returns true if the domains of both have plans of the same names.
    #[must_use]
    pub fn has_plans_of(&self, other: &Self) -> bool {
        self.plans == other.plans
    }

    /// Returns true if the limit of a plan for a rule has windows of the calendar.
    #[must_use]
    pub fn has_calendar(&self, domain: &str, rule: &str, plan: &str) -> bool {
        let written = self.rules.get(&(Arc::from(domain), Arc::from(rule)));
        written.is_some_and(|written| written.calendars.contains_key(plan))
    }

    /// Reads numbers for a rule: a map with the fields of an override, or `plan`, in JSON or YAML. Fields that are left
    /// out are the rule's.
    ///
    /// Beside `plan` there may be `anchor` and `time_zone`: they are those of the plan's limit if that has windows of
    /// the calendar ([`has_calendar`](Self::has_calendar)), and mean nothing otherwise. So is `prorated`, which is
    /// another number in its `limit`.
    ///
    /// # Errors
    /// Each mistake, with its place in `text`.
    pub fn read(&self, domain: &str, rule: &str, text: &str) -> Result<StoredEffect, Vec<Problem>> {
        let mut sink = Sink::new("numbers");
        let read = self.read_into(domain, rule, text, &mut sink);
        sink.finish()?;
        read.ok_or_else(Vec::new)
    }

    fn read_into(
        &self,
        domain: &str,
        rule: &str,
        text: &str,
        sink: &mut Sink,
    ) -> Option<StoredEffect> {
        let name = (Arc::from(domain), Arc::from(rule));
        let Some(written) = self.rules.get(&name) else {
            let message = format!(
                "there is no rule `{}` in the domain `{}`: write the name of one",
                hint::shorten(rule),
                hint::shorten(domain)
            );
            sink.file_problem(message);
            return None;
        };
        let documents = yaml::documents(text.as_bytes(), sink);
        let [node] = documents.as_slice() else {
            if sink.count() == 0 {
                sink.file_problem(format!("there are no numbers here: write {FIELDS}"));
            }
            return None;
        };
        let cursor = Cursor::root(node, FIELDS);
        if cursor.key("plan").is_some() {
            return self.read_plan((domain, written), &cursor, sink);
        }
        if matches!(written.policy.rung, Rung::Shares(_)) {
            let message = format!(
                "a fleet shares the limits of rule `{}`, whose numbers all its nodes know from the rules: write them there",
                hint::shorten(rule)
            );
            cursor.problem(message, sink);
            return None;
        }
        let read = RawOverride::read_numbers(&cursor, sink)?;
        if read.broken {
            return None;
        }
        let effect = override_effect(&written.raw, &read, sink)?;
        if let Effect::Limit(limit) = &effect {
            if let Some(message) = written.kin.and_then(|kin| kin.differs(limit)) {
                cursor.problem(message, sink);
            }
            policy::check_shares(
                written.policy.on_failure,
                (&effect, cursor.span()),
                &[],
                sink,
            );
        }
        Some(StoredEffect::Effect(effect))
    }

    fn read_plan(
        &self,
        (domain, written): (&str, &Written),
        cursor: &Cursor<'_>,
        sink: &mut Sink,
    ) -> Option<StoredEffect> {
        let (before, mut plan) = (sink.count(), None);
        let mut calendar = RawLimit::default();
        for (field, value) in cursor.pairs(sink) {
            match &**field {
                "plan" => plan = value.text(sink),
                "anchor" => calendar.anchor = RawLimit::read_anchor(&value, sink),
                "time_zone" => calendar.time_zone = RawLimit::read_time_zone(&value, sink),
                "prorated" => calendar.limit = RawLimit::read_count(&value, sink),
                _ => {
                    let message = "a plan says all numbers but `anchor` and `time_zone`: leave the other fields out, or \
                                   `plan`";
                    cursor.problem(message, sink);
                    return None;
                }
            }
        }
        let plan = plan.filter(|_| sink.count() == before)?;
        let all = self.plans.get(domain);
        if all.is_some_and(|all| all.contains(plan)) {
            let Some(limit) = written
                .calendars
                .get(plan)
                .filter(|_| calendar.says_something())
            else {
                return Some(StoredEffect::Plan(Arc::clone(plan)));
            };
            let all = calendar.over(limit, cursor.span());
            let limit = limit::build(&all, cursor.span(), sink)?;
            return Some(StoredEffect::Effect(Effect::Limit(limit)));
        }
        let names: Vec<&str> = all.into_iter().flatten().map(|name| &**name).collect();
        let shown = hint::shorten(plan);
        let message = match hint::meant(plan, &names) {
            Some(meant) => format!("the domain has no plan `{shown}`, did you mean `{meant}`?"),
            None if names.is_empty() => {
                "the domain has no plans: write `plans` into its rules file".to_owned()
            }
            None => format!(
                "the domain has no plan `{shown}`: write one of {}",
                names.join(", ")
            ),
        };
        cursor.problem(message, sink);
        None
    }
}
