//! A store as simple as possible behind a rule set, for the tests of rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_core::algorithm::At;
use quell_core::charge::{Entry, Operation, decide};
use quell_core::decision::RetryAfter;
use quell_core::descriptor::Query;
use quell_core::limit::{Limit, LimitId};
use quell_core::rule::{
    Changes, DomainRules, Effect, LimitIds, Matcher, Override, Pattern, Rule, RuleSet,
};
use quell_core::state::State;
use quell_core::time::Now;
use quell_core::verdict::Verdict;

use crate::calendar::FourDays;

/// Rules in force, and the states of all keys.
#[derive(Default)]
pub(crate) struct Shop {
    pub(crate) rules: RuleSet,
    pub(crate) states: BTreeMap<Vec<u8>, State>,
    pub(crate) now: u64,
    pub(crate) limits: BTreeMap<LimitId, Limit>,
    pub(crate) ids: LimitIds,
}

impl Shop {
    /// A shop with these rules in the domain `shop`.
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let mut shop = Self::default();
        shop.reload(rules);
        shop
    }

    /// Brings other rules into force now.
    pub(crate) fn reload(&mut self, rules: Vec<Rule>) -> Changes {
        let now = Now::from_nanos(self.now);
        let rules = vec![DomainRules::new("shop", rules)];
        let (rules, changes) = self.rules.reload(rules, now, &self.ids);
        self.rules = rules;
        for active in &changes.added {
            self.limits.insert(active.id, active.limit.clone());
        }
        self.states
            .retain(|_, state| !changes.removed.contains(&state.limit));
        changes
    }

    pub(crate) fn acquire(&mut self, query: &Query<'_>) -> Verdict {
        self.ask(query, Operation::Acquire)
    }

    pub(crate) fn peek(&mut self, query: &Query<'_>) -> Verdict {
        self.ask(query, Operation::Peek)
    }

    fn ask(&mut self, query: &Query<'_>, operation: Operation) -> Verdict {
        let now = Now::from_nanos(self.now);
        let set = self.rules.resolve(query, now, &FourDays);
        let mut states: Vec<State> = Vec::new();
        for charge in set.charges() {
            let at = At {
                now,
                since: charge.active.since,
                edges: charge.edges,
            };
            let id = charge.active.id;
            let stored = self.states.get(set.key(charge).as_bytes()).cloned();
            let mut state = stored.unwrap_or_else(|| State::rest(id));
            if state.limit != id {
                let from = &self.limits[&state.limit];
                state.carry(from, charge.active, &at);
            }
            states.push(state);
        }
        let mut entries: Vec<Entry<'_, '_>> = set
            .charges()
            .iter()
            .zip(&mut states)
            .map(|(charge, state)| Entry { charge, state })
            .collect();
        let decisions = decide(now, operation, &mut entries);
        if operation == Operation::Acquire {
            for (charge, state) in set.charges().iter().zip(states) {
                let key = set.key(charge).as_bytes().to_vec();
                self.states.insert(key, state);
            }
        }
        set.combine(&decisions)
    }
}

/// A rule for all callers: this many in a window of a minute.
pub(crate) fn rule(name: &str, limit: u64) -> Rule {
    Rule::new(name, minutely(limit)).unwrap()
}

pub(crate) fn minutely(limit: u64) -> Limit {
    let minute = std::time::Duration::from_secs(60);
    Limit::fixed_window(limit, minute).build().unwrap()
}

/// A short form for what is added to a rule.
pub(crate) trait With {
    fn when(self, entry: &str, value: &str, effect: Effect) -> Self;
}

impl With for Rule {
    fn when(mut self, entry: &str, value: &str, effect: Effect) -> Self {
        self.overrides.push(Override {
            when: [matcher(entry, &[value])].into(),
            effect,
        });
        self
    }
}

pub(crate) fn matcher(entry: &str, patterns: &[&str]) -> Matcher {
    Matcher {
        entry: Arc::from(entry),
        patterns: patterns.iter().map(|text| Pattern::parse(text)).collect(),
    }
}

/// A query to the shop with these entries.
pub(crate) fn query<'a>(entries: &[(&'a str, &'a str)]) -> Query<'a> {
    let empty = Query::new("shop");
    let add = |query: Query<'a>, (name, value): &(&'a str, &'a str)| query.entry(*name, *value);
    entries.iter().fold(empty, add)
}

/// Each rule's name, whether it allows, and what remains.
pub(crate) fn said(verdict: &Verdict) -> Vec<(&str, bool, u64)> {
    let one = |rule: &'_ quell_core::verdict::RuleDecision| {
        (rule.decision.outcome.is_allow(), rule.decision.remaining)
    };
    verdict
        .decisions
        .iter()
        .map(|rule| (&*rule.rule, one(rule).0, one(rule).1))
        .collect()
}

/// Wait of the query as a whole, in nanoseconds.
pub(crate) fn wait(verdict: &Verdict) -> Option<u128> {
    match verdict.retry_after? {
        RetryAfter::After(wait) => Some(wait.as_nanos()),
        RetryAfter::Never => Some(u128::MAX),
    }
}
