//! Refusal pages: which rule's page a refused caller gets.

use std::time::Duration;

use quell_core::charge::{Entry, Operation, decide};
use quell_core::descriptor::Query;
use quell_core::limit::Limit;
use quell_core::refusal_page::RefusalPage;
use quell_core::rule::{DomainRules, LimitIds, Rule, RuleSet};
use quell_core::state::State;
use quell_core::time::Now;
use quell_core::verdict::Verdict;

use crate::calendar::FourDays;

fn rule(name: &str, every: u64, status: Option<u16>) -> Rule {
    let limit = Limit::fixed_window(1, Duration::from_secs(every));
    let rule = Rule::new(name, limit).unwrap();
    match status {
        Some(status) => rule.refusal_page(RefusalPage::new().status(status).unwrap()),
        None => rule,
    }
}

/// The answer to the second call, which every rule refuses.
fn refused(rules: Vec<Rule>) -> (RuleSet, Verdict) {
    let domains = vec![DomainRules::new("d", rules)];
    let now = Now::default();
    let (rules, _) = RuleSet::default().reload(domains, now, &LimitIds::default());
    let query = Query::new("d");
    let set = rules.resolve(&query, now, &FourDays);
    let charges = set.charges().iter();
    let mut states: Vec<_> = charges
        .map(|charge| State::rest(charge.active.id))
        .collect();
    let mut verdict = Verdict::default();
    for _ in 0..2 {
        let pairs = set.charges().iter().zip(&mut states);
        let mut entries: Vec<_> = pairs
            .map(|(charge, state)| Entry { charge, state })
            .collect();
        verdict = set.combine(&decide(now, Operation::Acquire, &mut entries));
    }
    drop(set);
    (rules, verdict)
}

#[test]
fn the_page_is_that_of_the_rule_whose_wait_is_told() {
    let two = vec![rule("short", 1, Some(401)), rule("long", 60, Some(403))];
    let (rules, verdict) = refused(two);
    let query = Query::new("d");
    let page = rules.refusal_page(&query, &verdict).unwrap();
    assert_eq!(page.status_code(), Some(403));

    let allowed = Verdict::default();
    assert_eq!(rules.refusal_page(&query, &allowed), None);
    let two = vec![rule("short", 1, Some(401)), rule("long", 60, None)];
    let (rules, verdict) = refused(two);
    assert_eq!(rules.refusal_page(&query, &verdict), None);
}

#[test]
fn a_caller_that_did_nothing_wrong_gets_no_page() {
    let (rules, mut verdict) = refused(vec![rule("r", 1, Some(403))]);
    assert!(rules.refusal_page(&Query::new("d"), &verdict).is_some());
    verdict.degraded = true;
    assert_eq!(rules.refusal_page(&Query::new("d"), &verdict), None);
}
