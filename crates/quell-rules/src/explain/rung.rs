//! Explains the rung of a limit: its bound, what it costs the store, and what would change that.

use std::fmt;
use std::num::NonZeroU32;

use quell_core::algorithm::Algorithm;
use quell_core::cost::Cost;
use quell_core::key::printable;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, NotLeased, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rule::{Effect, Rule};

use super::RuleExplanation;

/// Calls per second on one key, for which an explanation says how many of them the store is asked about.
const OFFERED: [u64; 4] = [10, 1_000, 10_000, 100_000];

/// Over-admission that a rule is advised to accept: one percent, by two servers.
const SUGGESTED: LeasePolicy = LeasePolicy {
    over: OverAdmission::Millionths(10_000),
    nodes: NonZeroU32::new(2).unwrap(),
};

impl RuleExplanation {
    pub(super) fn explain_rung(&mut self, rule: &Rule, limit: &Limit) {
        let rung = rule.policy.rung;
        self.is_own_cost = rule.cost.is_some();
        self.to_change = Some(match rung {
            // A settlement changes what the store counts, so no other rung serves the rule.
            Rung::Strict if rule.reserve.is_some() => return,
            Rung::Strict => suggestion(rule, limit),
            Rung::Local => {
                "rung: strict, without latency_budget in the rule, has one store decide for all servers".to_owned()
            }
            Rung::Shares(_) => {
                "rung: strict, without max_over_admission, latency_budget, keys, group and cluster_size in the rule, \
                 has one store decide for all servers"
                    .to_owned()
            }
            Rung::Leased(policy) | Rung::Synced(policy) => match rung.terms(limit, rule.cost) {
                Some(Ok(terms)) => {
                    self.nodes = Some(terms.nodes.get());
                    self.bound = Some(terms.bound());
                    let calls = StoreCalls::new(rule, &terms);
                    self.store_calls_per_second = Some(calls.per_second);
                    self.store_calls_from_rest = Some(calls.from_rest);
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
        let calls = self.store_calls_per_second.zip(self.store_calls_from_rest);
        let (Some(bound), Some((calls, from_rest))) = (self.bound, calls) else {
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
        write!(
            f,
            " {calls} of any number above; and at most {from_rest} while a full burst or window is used up"
        )?;
        match self.is_own_cost {
            true => Ok(()),
            false => f.write_str("; more if calls cost more than 1"),
        }
    }
}

/// Greatest rate of calls to the store about a busy key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StoreCalls {
    per_second: u64,
    /// In addition, to use up what the limit has at rest.
    from_rest: u64,
}

impl StoreCalls {
    fn new(rule: &Rule, terms: &LeaseTerms) -> Self {
        let cost = rule.cost.unwrap_or(Cost::ONE);
        match rule.policy.rung {
            Rung::Synced(_) => Self {
                per_second: terms.sync_calls(cost),
                from_rest: terms.sync_calls_from_rest(cost),
            },
            _ => Self {
                per_second: terms.store_calls(cost),
                from_rest: terms.store_calls_from_rest(cost),
            },
        }
    }
}

/// Alternatives for a limit that is never exceeded.
fn suggestion(rule: &Rule, limit: &Limit) -> String {
    let policy = LeasePolicy {
        nodes: rule.nodes.unwrap_or(SUGGESTED.nodes),
        ..SUGGESTED
    };
    let terms = match policy.terms(limit, rule.cost) {
        Ok(terms) => terms,
        Err(why) => return remedy(why, policy, rule, limit),
    };
    // The loader refuses a rule that says `rung: leased` if a limit of it cannot be.
    let mut limits = limits(rule);
    let (pinned, but) = match limits.all(|other| policy.terms(other, rule.cost).is_ok()) {
        true => ("rung: leased with ", ""),
        false => ("", " (and no rung: strict)"),
    };
    format!(
        "{pinned}max_over_admission: {} and nodes: {}{but} asks the store at most {} times a second for one key, \
         and may exceed the limit by {} for a moment",
        policy.over,
        policy.nodes,
        terms.store_calls(rule.cost.unwrap_or(Cost::ONE)),
        terms.bound()
    )
}

/// All limits of a rule.
fn limits(rule: &Rule) -> impl Iterator<Item = &Limit> {
    rule.effects().filter_map(Effect::limit)
}

/// Changes that would let a limit be leased or synced that is not: all that it takes.
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
        let what = match limit.algorithm() {
            Algorithm::LeakyBucket(_) => "burst and delay_after",
            _ => "burst or limit",
        };
        text += &format!(", and a {what} of at least {least}");
    }
    if rule.policy.rung == Rung::Strict {
        text += " (and no rung: strict)";
    }
    text + ": then servers decide on busy keys in memory"
}

/// Alternatives for a limit that is leased or synced.
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
    let calls = StoreCalls::new(rule, terms);
    let wider = wider.terms(limit, rule.cost).and_then(Result::ok);
    let mut text = match wider {
        Some(wider) if wider.cap > terms.cap => {
            let wider = StoreCalls::new(rule, &wider);
            match wider.per_second < calls.per_second {
                true => format!(
                    "max_over_admission: {} asks the store at most {} times a second",
                    doubled.over, wider.per_second
                ),
                false => format!(
                    "max_over_admission: {} asks the store at most {} times while a full burst or window is used up",
                    doubled.over, wider.from_rest
                ),
            }
        }
        _ if !is_synced => "a larger max_over_admission changes nothing, since servers hold at most a quarter of the \
                            burst or limit"
            .to_owned(),
        _ if terms.cap >= terms.max => "a larger max_over_admission changes nothing, since a server admits no more \
                                        than the limit before it is charged"
            .to_owned(),
        _ => "max_over_admission is as large as it may be".to_owned(),
    };
    let leased = limits(rule).all(|other| policy.terms(other, rule.cost).is_ok());
    let leased = policy.terms(limit, rule.cost).ok().filter(|_| leased);
    let leased = leased.map(|terms| terms.store_calls(rule.cost.unwrap_or(Cost::ONE)));
    if let Some(fewer) = leased.filter(|fewer| is_synced && *fewer < calls.per_second) {
        text += &format!(
            "; rung: leased, with no latency_budget below 1ms in the rule, asks at most {fewer} times, but calls \
             may wait for a lease"
        );
    }
    text + "; rung: strict, without max_over_admission and latency_budget in the rule, makes the limit exact, at \
            one call to the store for each call"
}
