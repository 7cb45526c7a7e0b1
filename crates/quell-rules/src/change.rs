//! Change: the differences between two sets of rules, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use quell_core::rule::{DomainRules, Effect, Rule};
use serde::Serialize;

use crate::describe::LimitDescription;

/// The most names in one line.
const MAX_NAMES: usize = 20;

/// Kind of a rule's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The rule is new.
    Added,
    /// The rule is different.
    Changed,
    /// The rule is gone.
    Removed,
}

/// A rule that differs.
///
/// Shown as `+ shop/search: token_bucket 3/s, burst 3`, `~ shop/login: sliding_log 5/min ->
/// sliding_log 9/min` or `- shop/old: ...`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RuleChange {
    /// The domain.
    pub domain: String,
    /// The rule's name.
    pub rule: String,
    /// Kind of the change.
    pub change: ChangeKind,
    /// Its limit before, in words.
    pub before: Option<String>,
    /// Its limit afterwards, in words.
    pub after: Option<String>,
    /// Names of other fields that changed, such as `match`.
    pub fields: Vec<&'static str>,
}

/// All rules that differ between two sets, by domain and name.
///
/// Shown in one line, such as `1 added (shop/a), 1 changed (shop/b)`; empty if nothing differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RuleChanges(Vec<RuleChange>);

impl RuleChanges {
    /// The differences between rules before and after; each rule comes with its domain.
    pub fn between<'a>(
        before: impl IntoIterator<Item = (&'a str, &'a Rule)>,
        after: impl IntoIterator<Item = (&'a str, &'a Rule)>,
    ) -> Self {
        let key = |(domain, rule): (&'a str, &'a Rule)| ((domain, &*rule.name), rule);
        let before: BTreeMap<_, _> = before.into_iter().map(key).collect();
        let after: BTreeMap<_, _> = after.into_iter().map(key).collect();
        let old = before.iter().filter_map(|(name, old)| {
            let new = after.get(name).copied();
            (new != Some(*old)).then(|| RuleChange::new(*name, Some(old), new))
        });
        let new = after.iter().filter(|(name, _)| !before.contains_key(*name));
        let new = new.map(|(name, new)| RuleChange::new(*name, None, Some(new)));
        let mut changes: Vec<RuleChange> = old.chain(new).collect();
        changes.sort_by(|a, b| (&a.domain, &a.rule).cmp(&(&b.domain, &b.rule)));
        Self(changes)
    }

    /// The differences between the rules of some domains before and after.
    #[must_use]
    pub fn between_domains(before: &[DomainRules], after: &[DomainRules]) -> Self {
        Self::between(rules_of(before), rules_of(after))
    }

    /// Returns true if no rule differs.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules, in the order of their domains and names.
    #[must_use]
    pub fn rules(&self) -> &[RuleChange] {
        &self.0
    }

    fn names(&self, kind: ChangeKind) -> Vec<String> {
        let such = self.0.iter().filter(|change| change.change == kind);
        such.map(RuleChange::name).collect()
    }
}

/// All rules, each with its domain.
fn rules_of(domains: &[DomainRules]) -> impl Iterator<Item = (&str, &Rule)> {
    domains
        .iter()
        .flat_map(|domain| domain.rules.iter().map(|rule| (&*domain.domain, rule)))
}

impl RuleChange {
    fn new((domain, rule): (&str, &str), before: Option<&Rule>, after: Option<&Rule>) -> Self {
        let change = match (before, after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            _ => ChangeKind::Changed,
        };
        Self {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            change,
            before: before.map(|rule| in_words(&rule.effect)),
            after: after.map(|rule| in_words(&rule.effect)),
            fields: match (before, after) {
                (Some(before), Some(after)) => fields(before, after),
                _ => Vec::new(),
            },
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.domain, self.rule)
    }

    /// The change as a sentence: `shop/login: sliding_log 5/min becomes 9/min`. What comes before the first
    /// number is said once, if both have it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let name = self.name();
        let before = self.before.as_deref().unwrap_or_default();
        let after = self.after.as_deref().unwrap_or_default();
        let mut text = match self.change {
            ChangeKind::Added => format!("{name} is new: {after}"),
            ChangeKind::Removed => format!("{name} is gone: it was {before}"),
            ChangeKind::Changed if before == after => format!("{name} stays {after}"),
            ChangeKind::Changed => {
                let same = before.split_once(' ').map(|(algorithm, _)| algorithm);
                let same = same.and_then(|same| after.strip_prefix(same)?.strip_prefix(' '));
                format!("{name}: {before} becomes {}", same.unwrap_or(after))
            }
        };
        if !self.fields.is_empty() {
            text += &format!("; {} changed", self.fields.join(", "));
        }
        if self.fields.contains(&"rung") {
            text += "; with a store it begins with nothing used";
        }
        text
    }
}

/// The fields, except those of the limit, in which two rules differ.
fn fields(before: &Rule, after: &Rule) -> Vec<&'static str> {
    let (old, new) = (before.policy, after.policy);
    let all = [
        ("match", before.matchers != after.matchers),
        ("per", before.per != after.per),
        ("on_missing", before.on_missing != after.on_missing),
        ("empty", before.empty != after.empty),
        ("plans", before.plans != after.plans),
        ("overrides", before.overrides != after.overrides),
        ("cost", before.cost != after.cost),
        ("shadow", before.shadow != after.shadow),
        ("rung", old.rung != new.rung),
        ("on_failure", old.on_failure != new.on_failure),
        ("group", before.group != after.group),
        ("max_hold", before.max_hold != after.max_hold),
        ("reserve", before.reserve != after.reserve),
        ("refusal page", before.refusal_page != after.refusal_page),
    ];
    let differing = all.iter().filter(|(_, differs)| *differs);
    differing.map(|(name, _)| *name).collect()
}

fn in_words(effect: &Effect) -> String {
    match effect {
        Effect::Unlimited => "unlimited".to_owned(),
        Effect::Refuse => "refused".to_owned(),
        Effect::Limit(limit) => {
            let described = LimitDescription::new(limit);
            match described.ban_in_words {
                Some(ban) => format!("{}, ban {ban}", described.limit),
                None => described.limit,
            }
        }
    }
}

impl fmt::Display for RuleChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        let before = self.before.as_deref().unwrap_or_default();
        let after = self.after.as_deref().unwrap_or_default();
        match self.change {
            ChangeKind::Added => write!(f, "+ {name}: {after}")?,
            ChangeKind::Removed => write!(f, "- {name}: {before}")?,
            ChangeKind::Changed if before == after => {
                let fields = match self.fields.as_slice() {
                    [] => "it".to_owned(),
                    fields => fields.join(", "),
                };
                write!(f, "~ {name}: {after}; {fields} changed")?;
            }
            ChangeKind::Changed => {
                write!(f, "~ {name}: {before} -> {after}")?;
                match self.fields.as_slice() {
                    [] => {}
                    fields => write!(f, "; {} changed, too", fields.join(", "))?,
                }
            }
        }
        match self.fields.contains(&"rung") {
            true => f.write_str("; with a store it begins with nothing used"),
            false => Ok(()),
        }
    }
}

impl fmt::Display for RuleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, word) in [
            (ChangeKind::Added, "added"),
            (ChangeKind::Changed, "changed"),
            (ChangeKind::Removed, "removed"),
        ] {
            let names = self.names(kind);
            if names.is_empty() {
                continue;
            }
            let shown = names.get(..MAX_NAMES).unwrap_or(&names).join(", ");
            let more = if names.len() > MAX_NAMES { ", .." } else { "" };
            write!(f, "{separator}{} {word} ({shown}{more})", names.len())?;
            separator = ", ";
        }
        Ok(())
    }
}
