//! Rules in short.

use quell::{Limit, Verdict};
use quell_core::rule::{DomainRules, Rule};

/// A rule for every query, with one key per value of `per`.
pub(crate) fn rule(name: &str, limit: Limit, per: &[&str]) -> Rule {
    let rule = Rule::new(name, limit).unwrap();
    per.iter().fold(rule, |rule, entry| rule.per(*entry))
}

/// Rules of the domain `shop`.
pub(crate) fn shop(rules: Vec<Rule>) -> DomainRules {
    DomainRules::new("shop", rules)
}

/// Units left of the limit of one rule.
pub(crate) fn left(verdict: &Verdict, name: &str) -> u64 {
    let mut decisions = verdict.decisions.iter();
    let one = decisions.find(|one| &*one.rule == name).unwrap();
    one.decision.remaining
}
