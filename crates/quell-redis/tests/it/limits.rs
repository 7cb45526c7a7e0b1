//! Limits in short, and limiters that hold one of them.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::store::HoldStore;
use quell::{Cost, Limit, LimitError, Limiter, Operation, Query, Verdict};
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::rule::{DomainRules, Rule};
use quell_core::time::Now;

/// 2026-03-28T00:00:00Z, in microseconds.
pub(crate) const START: u64 = 1_774_656_000_000_000;

pub(crate) fn at(micros: u64) -> Now {
    Now::from_nanos(micros * 1_000)
}

/// A limit in force since [`START`].
pub(crate) fn active(limit: Limit) -> ActiveLimit {
    ActiveLimit {
        id: LimitId(1),
        limit,
        since: at(START).monotonic,
        place: quell_core::limit::LimitPlace::NONE,
    }
}

/// One rule per limit, all of which apply to every call and keep a state per `user`.
pub(crate) fn rules(limits: &[Limit]) -> Vec<DomainRules> {
    let all = limits.iter().enumerate();
    let all = all.map(|(number, limit)| rule(number, &["user"], limit));
    vec![DomainRules::new("d", all.collect())]
}

/// A rule that keeps a state for each value of these entries.
pub(crate) fn rule(number: usize, per: &[&str], limit: &Limit) -> Rule {
    let rule = Rule::new(&format!("rule-{number}"), limit.clone()).unwrap();
    per.iter().fold(rule, |rule, entry| rule.per(*entry))
}

/// A limiter whose rules come into force at [`START`].
pub(crate) fn limiter<S: HoldStore>(store: S, limits: &[Limit]) -> Limiter<S> {
    let clock = Arc::new(ManualClock::new(at(START)));
    let limiter = Limiter::builder(store).clock(clock).build();
    limiter.set_rules(rules(limits)).unwrap();
    limiter
}

/// Asks for `user`, at so many microseconds after the epoch.
pub(crate) async fn ask<S: HoldStore>(
    limiter: &Limiter<S>,
    operation: Operation,
    user: &str,
    cost: u64,
    micros: u64,
) -> Verdict {
    let query = Query::new("d").entry("user", user);
    let query = query.cost(Cost::new(cost).unwrap());
    limiter.ask(operation, &query, at(micros)).await.unwrap()
}

pub(crate) fn built(limit: Result<Limit, LimitError>) -> Limit {
    limit.unwrap()
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
