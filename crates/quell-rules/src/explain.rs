//! Explain: which rules apply to a query, which limit and key result, and why others do not.

use std::fmt;
use std::time::Duration;

use quell_core::descriptor::{Descriptor, Query};
use quell_core::hold::DEFAULT_MAX_HOLD;
use quell_core::key::{KeyName, escape, printable};
use quell_core::limit::Limit;
use quell_core::on_failure::OnFailure;
use quell_core::policy::Rung;
use quell_core::refusal_page::RefusalPage;
use quell_core::rule::{DescriptorReader, DomainRules, Effect, NamedPlan, Rule};
use quell_core::time::Exact;
use serde::Serialize;

mod rung;
mod words;

use words::{matchers, why_not};

use crate::describe::{BanNumbers, LimitDescription, LimitNumbers, ReserveDescription};

/// Application of a domain's rules to a query. Shown as text with `Display`, or serialized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The domain of the query.
    pub domain: String,
    /// True if the domain exists.
    pub known_domain: bool,
    /// One for each descriptor of the query.
    pub descriptors: Vec<DescriptorExplanation>,
}

/// Application of the rules to one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DescriptorExplanation {
    /// Its entries, name and value; bytes that are not UTF-8 are written as `\xNN`.
    pub entries: Vec<(String, String)>,
    /// Its cost in units.
    pub cost: u64,
    /// Every rule of the domain, in file order.
    pub rules: Vec<RuleExplanation>,
}

/// Application of one rule to a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RuleExplanation {
    /// The rule's name.
    pub rule: String,
    /// True if the rule applies.
    pub applies: bool,
    /// Reason why the rule does not apply.
    pub why_not: Option<String>,
    /// The index of the override that wins, from 0.
    pub override_index: Option<usize>,
    /// The condition of that override.
    pub override_when: Option<String>,
    /// The plan that the descriptor names, if its numbers apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// A plan that the descriptor names, and the domain does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_plan: Option<String>,
    /// True if the rule adds no limit.
    pub unlimited: bool,
    /// True if every call is refused.
    #[serde(skip_serializing_if = "is_false")]
    pub refused: bool,
    /// The limit, in words.
    pub limit: Option<String>,
    /// The algorithm's name.
    pub algorithm: Option<String>,
    /// The largest cost admitted from rest; for a learned ceiling, its upper bound.
    pub max: Option<u64>,
    /// The limit's numbers, in the words of a rules file.
    pub numbers: Option<LimitNumbers>,
    /// The ban on top, in words.
    pub ban: Option<String>,
    /// The ban's numbers.
    pub ban_numbers: Option<BanNumbers>,
    /// The key, as `entry=value` pairs; empty if all share one key.
    pub key: Option<String>,
    /// The entry whose value keeps keys together in a store of many servers.
    pub colocated_by: Option<String>,
    /// Units charged to that key.
    pub cost: Option<u64>,
    /// True if the cost comes from the rule, false if from the call.
    #[serde(skip)]
    is_own_cost: bool,
    /// True if the rule is in shadow and so cannot refuse.
    pub shadow: bool,
    /// Rung of the rule: `strict`, `leased`, `synced`, `shares` or `local`.
    pub rung: &'static str,
    /// With `leased` or `synced`: by how many units all servers together may exceed the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<u64>,
    /// With `leased`, `synced` or `shares`: about how many calls to the store one key costs all servers per second at
    /// most, whatever is offered in calls of the rule's own cost, or of 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_calls_per_second: Option<u64>,
    /// With `leased` or `synced`: about how many calls it takes in addition, at most, while a full burst or window is
    /// used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_calls_from_rest: Option<u64>,
    /// Reason why a limit that may be exceeded is decided strictly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_strict: Option<String>,
    /// Advice that would change the bound or the calls to the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_change: Option<String>,
    /// With `shares`: how many nodes share the limit, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<String>,
    /// With `shares`: the group of nodes that share it, unless all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The declared answer while a shared store does not answer: `share`, `deny` or `allow`. With `shares`:
    /// what a node may use that no coordinator answers, `share`, `floor` or `deny`.
    pub on_failure: Option<String>,
    /// The number of servers that share the limit then, with `share`.
    pub nodes: Option<u32>,
    /// The longest that something can be reserved under the rule, in milliseconds, unless it hands out permits.
    pub max_hold_ms: Option<u64>,
    /// How calls through Envoy reserve estimates under the rule, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReserveDescription>,
    /// The HTTP status of its refusals, if the rule says one.
    pub status: Option<u16>,
    /// The content type of the body of its refusals, if the rule says one.
    pub body_type: Option<String>,
}

/// Explains how the rules of `query`'s domain apply to it. Nothing is charged.
///
/// Cost: linear in the rules of the domain.
#[must_use]
pub fn explain(domains: &[DomainRules], query: &Query<'_>) -> Explanation {
    let domain = domains
        .iter()
        .find(|domain| *domain.domain == *query.domain());
    let rules = domain.map_or(&[][..], |domain| &domain.rules);
    let descriptors = query.descriptors().iter().map(|descriptor| {
        let entries = descriptor.entries().iter();
        let entries = entries.map(|entry| (entry.name.to_string(), escape(&entry.value)));
        let rules = rules.iter();
        let rules = rules.map(|rule| explain_rule(query.domain(), rule, descriptor));
        DescriptorExplanation {
            entries: entries.collect(),
            cost: descriptor.cost.get(),
            rules: rules.collect(),
        }
    });
    Explanation {
        domain: query.domain().to_owned(),
        known_domain: domain.is_some(),
        descriptors: descriptors.collect(),
    }
}

fn explain_rule(domain: &str, rule: &Rule, descriptor: &Descriptor<'_>) -> RuleExplanation {
    let declared = rule.policy.on_failure;
    let page = rule.refusal_page.as_deref();
    let mut explanation = RuleExplanation {
        rule: rule.name.to_string(),
        shadow: rule.shadow,
        rung: rule.policy.rung.name(),
        on_failure: declared.map(|declared| declared.name().to_owned()),
        nodes: declared.and_then(OnFailure::nodes),
        status: page.and_then(RefusalPage::status_code),
        body_type: page
            .and_then(RefusalPage::page_body)
            .map(|body| body.content_type().to_owned()),
        ..RuleExplanation::default()
    };
    if let Rung::Shares(policy) = rule.policy.rung {
        explanation.on_failure = Some(policy.cut_off.name().to_owned());
        explanation.cluster_size = Some(policy.size.to_string());
        explanation.group = rule.group.as_deref().map(str::to_owned);
        explanation.store_calls_per_second = Some(0);
    }
    let reader = DescriptorReader::new(descriptor);
    if let Err(mismatch) = rule.applies(&reader) {
        explanation.why_not = Some(why_not(mismatch, descriptor));
        return explanation;
    }
    explanation.applies = true;
    match explanation.choose(rule, &reader) {
        Effect::Unlimited => explanation.unlimited = true,
        Effect::Refuse => explanation.refused = true,
        Effect::Limit(limit) => {
            explanation.explain_rung(rule, limit);
            let described = LimitDescription::new(limit);
            explanation.limit = Some(described.limit);
            explanation.algorithm = Some(described.algorithm.to_owned());
            explanation.max = Some(described.max);
            explanation.numbers = Some(described.numbers);
            explanation.ban = described.ban_in_words;
            explanation.ban_numbers = described.ban;
            explanation.max_hold_ms = max_hold_ms(rule, limit);
            explanation.reserve = rule.reserve.as_deref().map(ReserveDescription::new);
            explanation.key = Some(key(domain, rule, &reader));
            let together = rule.per.iter().find(|per| per.colocate);
            explanation.colocated_by = together.map(|per| per.entry.to_string());
            explanation.cost = Some(rule.own_cost(limit).unwrap_or(descriptor.cost).get());
        }
    }
    explanation
}

impl RuleExplanation {
    /// The numbers that apply, as calls find them: those of a plan, of an override, or the rule's own.
    fn choose<'r>(&mut self, rule: &'r Rule, reader: &DescriptorReader<'_>) -> &'r Effect {
        if let Some(plans) = &rule.plans {
            match plans.named(reader, rule.empty) {
                NamedPlan::Plan(plan) => {
                    if let Some(effect) = plans.effects.get(plan) {
                        self.plan = Some(plan.to_string());
                        return effect;
                    }
                }
                NamedPlan::Nothing => {}
                NamedPlan::Unknown(plan) => self.unknown_plan = Some(escape(plan)),
            }
        }
        let index = rule.override_for(reader);
        let entry = index.and_then(|index| rule.overrides.get(index));
        self.override_index = index;
        self.override_when = entry.map(|entry| matchers(&entry.when));
        entry.map_or(&rule.effect, |entry| &entry.effect)
    }
}

/// The longest that something can be reserved under a rule, in whole milliseconds; `None` for permits, whose lease is
/// the rule's own.
#[must_use]
pub fn max_hold_ms(rule: &Rule, limit: &Limit) -> Option<u64> {
    let millis = u64::try_from(rule.max_hold.as_millis());
    millis.ok().filter(|_| limit.lease().is_none())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

fn key(domain: &str, rule: &Rule, reader: &DescriptorReader<'_>) -> String {
    let mut bytes = rule.scope(domain);
    rule.capture(reader, &mut bytes);
    KeyName::parse(&bytes)
        .map(|key| key.to_string())
        .unwrap_or_default()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.known_domain {
            return write!(
                f,
                "no domain `{}` in these rules: nothing applies, every call is allowed",
                printable(&self.domain)
            );
        }
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            descriptor.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for DescriptorExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("descriptor")?;
        for (name, value) in &self.entries {
            write!(f, " {}={}", printable(name), printable(value))?;
        }
        write!(f, " (cost {})", self.cost)?;
        for rule in &self.rules {
            write!(f, "\n  {rule}")?;
        }
        let limits = |rule: &RuleExplanation| rule.applies && !rule.unlimited;
        if !self.rules.iter().any(limits) {
            f.write_str("\n  no limit applies: allowed")?;
        }
        Ok(())
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = printable(&self.rule);
        if let Some(why_not) = &self.why_not {
            return write!(f, "- {rule}: does not apply: {}", printable(why_not));
        }
        write!(f, "+ {rule}: ")?;
        match &self.limit {
            None if self.refused => f.write_str("every call is refused")?,
            None => f.write_str("unlimited")?,
            Some(limit) => f.write_str(limit)?,
        }
        if self.shadow {
            f.write_str(", in shadow")?;
        }
        if let (Some(index), Some(when)) = (self.override_index, &self.override_when) {
            write!(f, "\n      by overrides[{index}], when {}", printable(when))?;
        }
        if let Some(plan) = &self.plan {
            write!(f, "\n      by plan {}", printable(plan))?;
        }
        if let Some(plan) = &self.unknown_plan {
            write!(
                f,
                "\n      no plan `{}` in this domain: it changes nothing",
                printable(plan)
            )?;
        }
        if let Some(key) = &self.key {
            let key = if key.is_empty() { "one for all" } else { key };
            write!(f, "\n      key: {}", printable(key))?;
        }
        if let Some(entry) = &self.colocated_by {
            let entry = printable(entry);
            write!(f, "\n      together with: all keys of this `{entry}`")?;
        }
        if let Some(cost) = self.cost {
            write!(f, "\n      cost: {cost}")?;
        }
        if let Some(ban) = &self.ban {
            write!(f, "\n      ban: {ban}")?;
        }
        let longest = self.max_hold_ms.map(Duration::from_millis);
        if let Some(longest) = longest.filter(|longest| *longest != DEFAULT_MAX_HOLD) {
            write!(f, "\n      max_hold: {}", Exact(longest))?;
        }
        if let Some(reserve) = &self.reserve {
            let (phase, id) = (printable(&reserve.phase), printable(&reserve.id));
            let ttl = Exact(Duration::from_millis(reserve.ttl_ms));
            write!(
                f,
                "\n      reserve: {{ phase: {phase}, id: {id}, ttl: {ttl} }}"
            )?;
        }
        if self.limit.is_some() {
            self.fmt_rung(f)?;
        }
        match (&self.on_failure, self.nodes) {
            (Some(declared), Some(nodes)) => {
                write!(f, "\n      on_failure: {declared}, nodes: {nodes}")?;
            }
            (Some(declared), None) => write!(f, "\n      on_failure: {declared}")?,
            (None, _) => {}
        }
        if let Some(status) = self.status {
            write!(f, "\n      status: {status}")?;
        }
        match &self.body_type {
            Some(kind) => write!(f, "\n      body: {}", printable(kind)),
            None => Ok(()),
        }
    }
}
