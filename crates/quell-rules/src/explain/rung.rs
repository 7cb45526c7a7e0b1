//! Explains the rung of a limit: its bound, what it costs the store, and what would change that.

use std::fmt;
use std::num::NonZeroU32;

use quell_core::cost::Cost;
use quell_core::key::printable;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, NotLeased, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::Rule;

use super::RuleExplanation;

/// Calls per second on one key, for which an explanation says how many of them the store is asked about.
const OFFERED: [u64; 4] = [10, 1_000, 10_000, 100_000];

/// What a rule is told it could accept: one percent, by two servers.
const SUGGESTED: LeasePolicy = LeasePolicy {
    over: OverAdmission::Millionths(10_000),
    nodes: NonZeroU32::new(2).unwrap(),
};

impl RuleExplanation {
    pub(super) fn explain_rung(&mut self, rule: &Rule, limit: &Limit) {
        let rung = rule.policy.rung;
        self.is_own_cost = rule.cost.is_some();
        self.to_change = Some(match rung {
            Rung::Strict => suggestion(rule, limit),
            Rung::Local => "without rung: local one store decides for all servers".to_owned(),
            Rung::Shares(_) => {
                "rung: strict has the store decide on each call; without cluster_size \
                                max_over_admission says how far leases may exceed the limit"
                    .to_owned()
            }
            Rung::Leased(policy) | Rung::Synced(policy) => match rung.terms(limit, rule.cost) {
                Some(Ok(terms)) => {
                    self.nodes = Some(terms.nodes.get());
                    self.bound = Some(terms.bound());
                    self.store_calls_per_second = Some(store_calls(rule, &terms));
                    alternatives(rule, policy, limit, &terms)
                }
                Some(Err(why)) => {
                    self.rung = Rung::Strict.name();
                    let to_change = remedy(why, policy, rule, limit);
                    self.why_strict = Some(why.to_string());
                    to_change
                }
                None => return,
            },
        });
    }

    pub(super) fn fmt_rung(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n      rung: {}", self.rung)?;
        match (&self.why_strict, self.rung) {
            (Some(why), _) => write!(f, ", although it may be exceeded: {why}")?,
            (None, "strict") => {
                f.write_str(", never exceeded; with a store one call to it for each call")?;
            }
            (None, "local") => {
                f.write_str(", each server has the whole limit to itself; no calls to the store")?;
            }
            (None, _) => self.fmt_shared(f)?,
        }
        match &self.to_change {
            Some(to_change) => write!(f, "\n      to change it: {to_change}"),
            None => Ok(()),
        }
    }

    /// The bound and the calls to the store of a limit that servers decide on together, each in memory.
    fn fmt_shared(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(size) = &self.cluster_size {
            write!(f, "\n      cluster_size: {size}")?;
        }
        if let Some(group) = &self.group {
            write!(f, "\n      group: {}", printable(group))?;
        }
        let (Some(bound), Some(calls)) = (self.bound, self.store_calls_per_second) else {
            return f.write_str(
                "\n      bound: all nodes together never exceed the limit\
                 \n      calls to the store: none",
            );
        };
        let nodes = self.nodes.unwrap_or(1);
        write!(
            f,
            "\n      bound: {nodes} servers together exceed the limit by at most {bound} for a moment\
             \n      calls to the store a second for one key, by all servers together:"
        )?;
        for offered in OFFERED {
            write!(f, " {} of {offered},", calls.min(offered))?;
        }
        write!(f, " {calls} of any number above")?;
        match self.is_own_cost {
            true => Ok(()),
            false => f.write_str("; more if calls cost more than 1"),
        }
    }
}

fn store_calls(rule: &Rule, terms: &LeaseTerms) -> u64 {
    let cost = rule.cost.unwrap_or(Cost::ONE);
    match rule.policy.rung {
        Rung::Synced(_) => terms.sync_calls(cost),
        _ => terms.store_calls(cost),
    }
}

/// What a limit that is never exceeded could be instead.
fn suggestion(rule: &Rule, limit: &Limit) -> String {
    let policy = LeasePolicy {
        nodes: rule.nodes.unwrap_or(SUGGESTED.nodes),
        ..SUGGESTED
    };
    let terms = match policy.terms(limit, rule.cost) {
        Ok(terms) => terms,
        Err(why) => return remedy(why, policy, rule, limit),
    };
    format!(
        "max_over_admission: {} with nodes: {} (and no rung: strict) asks the store at most {} times a second for \
         one key, and may exceed the limit by {} for a moment",
        policy.over,
        policy.nodes,
        store_calls(rule, &terms),
        terms.bound()
    )
}

/// What would let a limit be leased or synced that is not: all that it takes.
fn remedy(why: NotLeased, policy: LeasePolicy, rule: &Rule, limit: &Limit) -> String {
    if let NotLeased::Unable(why) = why {
        return format!("nothing does: {why}");
    }
    let mut text = format!(
        "a max_over_admission of at least {} with nodes: {}",
        policy.least_bound(rule.cost),
        policy.nodes
    );
    let least = policy.least_limit(rule.cost);
    if limit.max() < least && !matches!(rule.policy.rung, Rung::Synced(_)) {
        text += &format!(", and a burst or limit of at least {least}");
    }
    if rule.policy.rung == Rung::Strict {
        text += " (and no rung: strict)";
    }
    text + ": then servers decide on busy keys in memory"
}

/// What a limit that is leased or synced could be instead.
fn alternatives(rule: &Rule, policy: LeasePolicy, limit: &Limit, terms: &LeaseTerms) -> String {
    let doubled = LeasePolicy {
        over: policy.over.doubled(),
        ..policy
    };
    let is_synced = matches!(rule.policy.rung, Rung::Synced(_));
    let wider = match is_synced {
        true => Rung::Synced(doubled),
        false => Rung::Leased(doubled),
    };
    let wider = wider.terms(limit, rule.cost).and_then(Result::ok);
    let mut text = match wider {
        Some(wider) if store_calls(rule, &wider) < store_calls(rule, terms) => format!(
            "max_over_admission: {} asks the store at most {} times a second",
            doubled.over,
            store_calls(rule, &wider)
        ),
        Some(wider) if wider.cap == terms.cap && !is_synced => {
            "a larger max_over_admission changes nothing, since servers hold at most a quarter of the burst or \
             limit"
                .to_owned()
        }
        Some(wider) if wider.cap == terms.cap => {
            "max_over_admission is as large as it may be".to_owned()
        }
        _ => "a larger max_over_admission saves no calls, since a busy server asks ten times a second anyway"
            .to_owned(),
    };
    if is_synced {
        text += "; rung: leased, or a latency_budget of 1ms or more, needs fewer, but calls may wait for a lease";
    }
    text + "; rung: strict makes the limit exact, at one call to the store for each call"
}
