//! Resolve: from a raw document to typed, complete rules.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use quell_core::hold::DEFAULT_MAX_HOLD;
use quell_core::limit::{Limit, LimitShape};
use quell_core::policy::Policy;
use quell_core::rule::{
    DomainRules, Effect, EmptyValue, Matcher, OnMissing, Override, Pattern, Rule, When,
};

use crate::duration::Exact;
use crate::hint;
use crate::path::{Span, Spanned};
use crate::problem::{MAX_PROBLEMS, Problem, Sink};
use crate::raw::{RawDocument, RawLimit, RawOverride, RawRule, default_prefix};

mod gateway;
mod kin;
mod limit;
mod plans;
mod policy;
mod redundant;
mod reserve;
pub(crate) mod stored;

/// The domains of all documents read so far.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    list: Vec<DomainRules>,
    index: HashMap<Arc<str>, usize>,
    /// The place of each rule.
    places: HashMap<(Arc<str>, Arc<str>), String>,
    /// For each document the first rule that declares no answer for a store that fails, and every rule
    /// that no shared store supports.
    undeclared: Vec<Problem>,
    /// The rules that a gateway cannot ask.
    at_gateways: Vec<Problem>,
    /// The domain and the place of each limit that a fleet shares, by its name there.
    shared: HashMap<String, (Arc<str>, String)>,
    redundancies: redundant::Redundancies,
    reserves: reserve::Reserves,
    stored: stored::StoredFields,
    /// The entry that keeps the keys of each domain together, as in its first document.
    together: HashMap<Arc<str>, (Option<Arc<str>>, String)>,
}

impl Domains {
    /// Adds a document's rules to those of its domain.
    pub(crate) fn add(&mut self, mut document: RawDocument, sink: &mut Sink) {
        plans::check_rules(&document, sink);
        let all = std::mem::take(&mut document.rules);
        let document = &document;
        let mut has_undeclared = false;
        let mut wishes = policy::Wishes::default();
        let domain = document.domain.as_ref().map(|field| &field.value);
        let colocate = document.colocate.as_ref().map(|field| &field.value);
        if let Some(domain) = &document.domain {
            self.agree(domain, colocate, sink);
        }
        if let Some(domain) = domain {
            self.stored.add_plans(domain, plans::names(document));
        }
        for mut raw in all {
            let known = domain.is_none_or(|domain| self.claim(domain, &raw, sink));
            let mut rule = resolve(&raw, document, sink);
            wishes.note(&raw, rule.as_ref());
            if rule
                .as_ref()
                .is_some_and(|rule| policy::is_undeclared(rule.policy))
                && !std::mem::replace(&mut has_undeclared, true)
            {
                self.undeclared.push(policy::undeclared(&raw, sink));
            }
            if let Some(message) = rule.as_ref().and_then(gateway::unsupported)
                && self.at_gateways.len() < MAX_PROBLEMS
            {
                self.at_gateways.push(sink.at(&raw.span, message));
            }
            if let (Some(entry), Some(rule)) = (colocate, &mut rule) {
                keep_together(rule, entry, &raw, sink);
            }
            if let (true, Some(rule), Some(domain)) = (known, rule, domain) {
                self.claim_shared(domain, &rule, &raw, sink);
                self.reserves.agree(domain, &raw, sink);
                self.redundancies.check(domain, &rule, &raw.span, sink);
                raw.overrides = Vec::new();
                let calendars = plans::on_the_calendar(&raw, document, &rule);
                self.stored.add_rule(domain, raw, (&rule, calendars));
                self.rules(domain).push(rule);
            }
        }
        wishes.check(&document.policy, sink);
        if let Some(domain) = domain {
            self.rules(domain);
        }
    }

    /// Reports another document of the domain that keeps its keys together by another entry.
    fn agree(&mut self, domain: &Spanned<Arc<str>>, colocate: Option<&Arc<str>>, sink: &mut Sink) {
        let place = sink.place(&domain.span);
        let before = self
            .together
            .entry(Arc::clone(&domain.value))
            .or_insert_with(|| (colocate.cloned(), place));
        if before.0.as_ref() == colocate {
            return;
        }
        let message = match &before.0 {
            Some(entry) => format!(
                "the same domain has `colocate: {entry}` at {}: write that here too",
                before.1
            ),
            None => format!(
                "the same domain has no `colocate` at {}: write it there too, or leave it out here",
                before.1
            ),
        };
        sink.problem(&domain.span, message);
    }

    /// The domains, what is missing if servers share a store, what is wrong if a gateway asks, and how stored numbers
    /// are read.
    pub(crate) fn finish(
        self,
    ) -> (
        Vec<DomainRules>,
        Vec<Problem>,
        Vec<Problem>,
        stored::StoredFields,
    ) {
        (self.list, self.undeclared, self.at_gateways, self.stored)
    }

    fn rules(&mut self, domain: &Arc<str>) -> &mut Vec<Rule> {
        let next = self.list.len();
        let index = *self.index.entry(Arc::clone(domain)).or_insert(next);
        if index == next {
            self.list.push(DomainRules::new(domain, Vec::new()));
        }
        &mut self.list[index].rules
    }

    /// Claims the names that the rule's limits have in a fleet; reports if another limit has one.
    fn claim_shared(&mut self, domain: &Arc<str>, rule: &Rule, raw: &RawRule, sink: &mut Sink) {
        for limit in rule.shared_limits(domain) {
            match self.shared.entry(limit.name) {
                Entry::Vacant(vacant) => {
                    vacant.insert((Arc::clone(domain), sink.place(&raw.span)));
                }
                Entry::Occupied(before) => {
                    let (other, place) = before.get();
                    let message = format!(
                        "a fleet has a limit `{}` already, that of the domain `{other}` at {place}, and knows \
                         limits by the names of their rules: write another name",
                        before.key()
                    );
                    sink.problem(&raw.span, message);
                    return;
                }
            }
        }
    }

    /// Claims the rule's name in its domain; reports if another rule has it.
    fn claim(&mut self, domain: &Arc<str>, raw: &RawRule, sink: &mut Sink) -> bool {
        let Some(name) = &raw.name else {
            return false;
        };
        let key = (Arc::clone(domain), Arc::clone(&name.value));
        if let Some(before) = self.places.get(&key) {
            let message = format!(
                "domain `{domain}` has a rule `{}` already, at {before}: write another name",
                name.value
            );
            sink.problem(&name.span, message);
            return false;
        }
        self.places.insert(key, sink.place(&name.span));
        true
    }
}

/// Notes the entry that keeps the keys of a rule together; reports if it is not in the rule's `per`,
/// captured as in every other rule.
fn keep_together(rule: &mut Rule, entry: &Arc<str>, raw: &RawRule, sink: &mut Sink) {
    let name = &rule.name;
    let wrong = match rule.per.iter_mut().find(|per| per.entry == *entry) {
        Some(per) if per.prefix == default_prefix(entry) => {
            per.colocate = true;
            return;
        }
        Some(_) => {
            format!("rule `{name}` cuts `{entry}` to a prefix: write `{entry}` without one")
        }
        None => {
            format!("keys of rule `{name}` belong to no `{entry}`: write `{entry}` in its `per`")
        }
    };
    let message = format!(
        "the domain has `colocate: {entry}`, and {wrong}, or put the rule into another domain"
    );
    sink.problem(&raw.span, message);
}

fn resolve(raw: &RawRule, document: &RawDocument, sink: &mut Sink) -> Option<Rule> {
    let effect = (!raw.broken).then(|| rule_effect(raw, sink)).flatten();
    let mut overrides = resolve_overrides(raw, effect.is_some(), sink);
    let plans = plans::resolve(raw, document, effect.is_some(), sink);
    let mut rule = unplaced(raw, document, effect.as_ref(), &overrides);
    if let Some(rule) = &mut rule {
        rule.plans = plans::of_rule(raw, document, &plans);
    }
    check_order(raw, &overrides, sink);
    // Their numbers are checked alike.
    overrides.extend(plans.into_iter().map(|(_, effect, span)| {
        let when = When::new();
        (Override { when, effect }, span)
    }));
    kin::check(effect.as_ref(), &overrides, sink);
    let limits = (effect.as_ref(), overrides.as_slice());
    let policy = policy::policy(raw, &document.policy, rule.as_ref(), limits, sink);
    policy::check_fleet_fields(raw, policy, sink);
    reserve::check(raw, policy, limits, sink);
    if let Some(effect) = &effect {
        policy::check_shares(policy.on_failure, (effect, &raw.span), &overrides, sink);
    }
    check_ban(raw, sink);
    if let Some(Effect::Limit(limit)) = &effect {
        check_cost(raw, limit, &raw.span, sink);
    }
    check_missing(raw, sink);
    check_entries(raw, sink);
    check_empty(rule.as_ref(), raw, sink);
    for (over, span) in &overrides {
        if let Effect::Limit(limit) = &over.effect {
            check_cost(raw, limit, span, sink);
        }
    }
    let group = policy::group(raw, &document.policy, policy);
    let rule = Rule {
        policy,
        group,
        ..rule?
    };
    policy::check_listed(&rule, raw, sink);
    Some(rule)
}

/// The rule, except where it is decided; `None` if it has mistakes.
fn unplaced(
    raw: &RawRule,
    document: &RawDocument,
    effect: Option<&Effect>,
    overrides: &[(Override, Span)],
) -> Option<Rule> {
    let shadow = document.shadow.as_ref().is_some_and(|field| field.value);
    let on_missing = raw.on_missing.as_ref().map(|field| field.value);
    Some(Rule {
        name: Arc::clone(&raw.name.as_ref()?.value),
        matchers: raw.matchers.clone(),
        per: raw.per.clone(),
        on_missing: on_missing.unwrap_or_default(),
        empty: raw
            .empty
            .as_ref()
            .map_or_else(EmptyValue::default, |field| field.value),
        effect: effect?.clone(),
        overrides: overrides.iter().map(|(over, _)| over.clone()).collect(),
        plans: None,
        cost: raw.cost.as_ref().map(|field| field.value),
        shadow: raw.shadow.as_ref().map_or(shadow, |field| field.value),
        policy: Policy::STRICT,
        nodes: policy::nodes(raw, &document.policy),
        group: None,
        max_hold: raw
            .max_hold
            .as_ref()
            .map_or(DEFAULT_MAX_HOLD, |field| field.value),
        reserve: raw
            .reserve
            .as_ref()
            .map(|field| Arc::new(field.value.clone())),
        refusal_page: raw.page.resolve(),
    })
}

/// Warns of a ban on one key for all callers: a caller that is often refused shuts out all others.
fn check_ban(raw: &RawRule, sink: &mut Sink) {
    let overrides = raw.overrides.iter().map(|over| &over.limit);
    let mut limits = [&raw.limit].into_iter().chain(overrides);
    for ban in limits.clone().filter_map(|limit| limit.ban.as_ref()) {
        let durations = &ban.value.durations;
        if !durations.value.is_sorted() {
            let mut sorted = durations.value.clone();
            sorted.sort_unstable();
            let sorted: Vec<String> = sorted
                .into_iter()
                .map(|one| Exact(one).to_string())
                .collect();
            let message = format!(
                "a ban is shorter than the one before it, for a caller who goes on: write `for: [{}]`",
                sorted.join(", ")
            );
            sink.warn(&durations.span, message);
        }
    }
    let Some(ban) = limits.find_map(|limit| limit.ban.as_ref()) else {
        return;
    };
    if raw.per.is_empty() {
        let message =
            "the rule has one key, so its ban refuses everybody because of one: write `per`";
        sink.warn(&ban.span, message);
        return;
    }
    if let Some(missing) = raw.on_missing.as_ref()
        && missing.value == OnMissing::SharedKey
    {
        let message = "all callers that lack an entry of `per` share one key, and a ban refuses all \
                       of them because of one: write `on_missing: skip`, and another rule for them";
        sink.warn(&missing.span, message);
    }
}

/// Warns of a rule whose calls cost more than its limit can ever hold.
fn check_cost(raw: &RawRule, limit: &Limit, span: &Span, sink: &mut Sink) {
    let Some(cost) = &raw.cost else {
        return;
    };
    let (cost, most) = (cost.value.get(), limit.max());
    if cost > most && !limit.is_on_credit() {
        let message = format!(
            "every call costs {cost} here and the limit holds {most} at most, so all of them are \
             refused for good: write a `cost` of at most {most}, or a larger limit"
        );
        sink.warn(span, message);
    }
}

/// Warns of entries in `match` and `when` that are those of `per` or `match` but for a slip of the pen.
fn check_entries(raw: &RawRule, sink: &mut Sink) {
    let per = || raw.per.iter().map(|per| &*per.entry);
    let matchers = || raw.matchers.iter().map(|matcher| &*matcher.entry);
    let similar = |entry: &str| {
        let mut all = per().chain(matchers());
        all.find(|other| hint::is_misspelt(entry, other))
            .map(str::to_owned)
    };
    let message = |entry: &str, meant: &str| {
        let entry = hint::shorten(entry);
        format!(
            "`{entry}` is another entry than `{}`: if that is meant, write it",
            hint::shorten(meant)
        )
    };
    for entry in matchers().filter(|entry| per().all(|per| per != *entry)) {
        if let Some(meant) = per().find(|per| hint::is_misspelt(entry, per)) {
            sink.warn(&raw.span, message(entry, meant));
        }
    }
    // A hundred thousand overrides have the same few.
    let mut known: HashSet<&str> = per().chain(matchers()).collect();
    for over in &raw.overrides {
        let when = over
            .when
            .iter()
            .flat_map(|when| when.value.iter().map(move |one| (when, one)));
        for (when, matcher) in when {
            if known.insert(&matcher.entry)
                && let Some(meant) = similar(&matcher.entry)
            {
                sink.warn(&when.span, message(&matcher.entry, &meant));
            }
        }
    }
}

/// Notes that calls without an entry of `per` pass, if nothing says so. Gateways always send theirs, and what
/// `match` names is there.
fn note_missing(raw: &RawRule, sink: &mut Sink) {
    let is_sent = |entry: &str| ["method", "path", "host", "remote_address"].contains(&entry);
    let is_matched = |entry: &str| raw.matchers.iter().any(|matcher| *matcher.entry == *entry);
    let mut per = raw.per.iter().map(|per| &*per.entry);
    if let Some(entry) = per.find(|entry| !is_sent(entry) && !is_matched(entry)) {
        let entry = hint::shorten(entry);
        let message = format!(
            "no limit applies here to a call without `{entry}`: write `on_missing: shared_key` to have all of them \
             share one key, or `on_missing: skip` if that is meant"
        );
        sink.note(&raw.span, message);
    }
}

/// Warns of an `on_missing` in a rule without `per`, and notes a `per` without one.
fn check_missing(raw: &RawRule, sink: &mut Sink) {
    if raw.on_missing.is_none() {
        note_missing(raw, sink);
    }
    if let (Some(missing), []) = (&raw.on_missing, raw.per.as_slice()) {
        let message = "it says what a missing entry of `per` means, and the rule has none: write \
                       `per`, or leave it out";
        sink.warn(&missing.span, message);
    }
}

/// Warns of patterns that only an empty value matches, which counts as missing.
fn check_empty(rule: Option<&Rule>, raw: &RawRule, sink: &mut Sink) {
    let Some(rule) = rule.filter(|rule| rule.empty == EmptyValue::Missing) else {
        return;
    };
    let is_empty = |pattern: &Pattern| matches!(pattern, Pattern::Exact(text) if text.is_empty());
    let overrides = rule.overrides.iter().flat_map(|over| &over.when);
    let mut matchers = rule.matchers.iter().chain(overrides);
    if let Some(matcher) = matchers.find(|matcher| matcher.patterns.iter().any(is_empty)) {
        let message = format!(
            "an empty `{}` counts as missing, so no call has the value \"\": write `empty: keep` in the rule",
            matcher.entry
        );
        sink.warn(&raw.span, message);
    }
}

/// Warns of overrides that never win: the rule matches no such calls, or an earlier override always
/// wins.
fn check_order(raw: &RawRule, overrides: &[(Override, Span)], sink: &mut Sink) {
    // Overrides of single values cannot cover others, and there may be thousands of them.
    let mut wide: Vec<(usize, &Override)> = Vec::new();
    for (index, (over, span)) in overrides.iter().enumerate() {
        if let Some(matcher) = over
            .when
            .iter()
            .find(|when| contradicts(when, &raw.matchers))
        {
            let message = format!(
                "the rule matches no call with such a `{}`, so the override never wins: change \
                 `when`, or `match` of the rule",
                matcher.entry
            );
            sink.warn(span, message);
        } else if let Some((before, _)) = wide.iter().find(|(_, wide)| covers(wide, over)) {
            let message = format!(
                "overrides[{before}] matches all of these as well and comes first: write this one \
                 before it"
            );
            sink.warn(span, message);
        }
        if wide.len() < MAX_WIDE && !over.when.iter().all(is_exact) {
            wide.push((index, over));
        }
    }
}

/// The most overrides with globs or networks that later ones are compared with.
const MAX_WIDE: usize = 100;

fn is_exact(matcher: &Matcher) -> bool {
    let mut patterns = matcher.patterns.iter();
    patterns.all(|pattern| matches!(pattern, Pattern::Exact(_)))
}

/// Returns true if `when` names only single values of an entry, none of which `matchers` match.
fn contradicts(when: &Matcher, matchers: &[Matcher]) -> bool {
    let mut same = matchers.iter().filter(|other| other.entry == when.entry);
    is_exact(when) && same.any(|other| !when.patterns.iter().any(|value| meets(other, value)))
}

/// Returns true if `wide` matches everything that `narrow` matches, as far as single values show it.
fn covers(wide: &Override, narrow: &Override) -> bool {
    wide.when.iter().all(|wide| {
        let mut same = narrow.when.iter().filter(|when| when.entry == wide.entry);
        same.any(|when| is_exact(when) && when.patterns.iter().all(|value| meets(wide, value)))
    })
}

/// Returns true if the matcher matches a single value.
fn meets(matcher: &Matcher, value: &Pattern) -> bool {
    match value {
        Pattern::Exact(value) => matcher.patterns.matches(value.as_bytes()),
        Pattern::Glob(_) | Pattern::Network(_) => false,
    }
}

/// The effect of a rule if no override wins.
fn rule_effect(raw: &RawRule, sink: &mut Sink) -> Option<Effect> {
    let unlimited = raw.unlimited.as_ref().map(|field| &field.span);
    if let (Some(unlimited), [], false) = (
        unlimited,
        raw.overrides.as_slice(),
        raw.limit.says_something(),
    ) {
        let message =
            "it limits nothing, and other rules that match still apply: leave the rule out";
        sink.problem(unlimited, message);
        return None;
    }
    effect(&raw.limit, unlimited, &raw.span, sink)
}

/// The limit of `raw`, or none.
fn effect(
    raw: &RawLimit,
    unlimited: Option<&Span>,
    span: &Span,
    sink: &mut Sink,
) -> Option<Effect> {
    let Some(unlimited) = unlimited else {
        return limit::build(raw, span, sink).map(Effect::Limit);
    };
    if raw.says_something() {
        let message = "unlimited beside the fields of a limit: write one or the other";
        sink.problem(unlimited, message);
        return None;
    }
    Some(Effect::Unlimited)
}

/// Resolves the overrides; if the rule has mistakes, what they inherit is not checked.
fn resolve_overrides(raw: &RawRule, sound: bool, sink: &mut Sink) -> Vec<(Override, Span)> {
    let mut overrides: Vec<(Override, Span)> = Vec::with_capacity(raw.overrides.len());
    let mut seen: HashMap<&[Matcher], usize> = HashMap::new();
    // A hundred thousand overrides differ in nothing but their numbers.
    let mut shapes: HashSet<LimitShape> = HashSet::new();
    for (index, over) in raw.overrides.iter().enumerate() {
        let Some(when) = &over.when else {
            continue;
        };
        match seen.entry(&*when.value) {
            Entry::Vacant(vacant) => {
                vacant.insert(index);
            }
            Entry::Occupied(before) if !over.broken => {
                let before = before.get();
                let message =
                    format!("the same as in overrides[{before}], which wins: leave one out");
                sink.problem(&when.span, message);
            }
            Entry::Occupied(_) => {}
        }
        if !sound || over.broken {
            continue;
        }
        if let Some(mut effect) = override_effect(raw, over, sink) {
            if let Effect::Limit(limit) = &mut effect {
                match shapes.get(limit.shape()) {
                    Some(shape) => limit.adopt_shape(shape),
                    None => _ = shapes.insert(limit.shape().clone()),
                }
            }
            let when = when.value.clone().into();
            overrides.push((Override { when, effect }, over.span.clone()));
        }
    }
    overrides
}

fn override_effect(rule: &RawRule, over: &RawOverride, sink: &mut Sink) -> Option<Effect> {
    let unlimited = over.unlimited.as_ref().map(|field| &field.span);
    if let Some(refuse) = &over.refuse {
        if unlimited.is_some() || over.limit.says_something() {
            let message =
                "refuse beside the fields of a limit or `unlimited`: write one or the other";
            sink.problem(&refuse.span, message);
            return None;
        }
        return Some(Effect::Refuse);
    }
    if unlimited.is_some() {
        return effect(&over.limit, unlimited, &over.span, sink);
    }
    if !over.limit.says_something() {
        let message =
            "it changes nothing: write a field of the limit, `unlimited: true` or `refuse: true`";
        sink.problem(&over.span, message);
        return None;
    }
    let all = over.limit.over(&rule.limit, &over.span);
    limit::build(&all, &over.span, sink).map(Effect::Limit)
}
