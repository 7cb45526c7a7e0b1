//! Verdicts: how decisions are combined, and which of them binds.

use std::sync::Arc;
use std::time::Duration;

use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::verdict::{RuleDecision, Verdict};

const ALLOW: Outcome = Outcome::Allow;
const NEVER: Outcome = Outcome::Deny(RetryAfter::Never);

fn deny(seconds: u64) -> Outcome {
    Outcome::Deny(RetryAfter::After(Duration::from_secs(seconds)))
}

/// A decision whose time to rest, in seconds, is as large as what is used.
fn decision(name: &str, outcome: Outcome, remaining: u64) -> RuleDecision {
    RuleDecision {
        rule: Arc::from(name),
        shadow: false,
        cost: Cost::ONE,
        decision: Decision {
            outcome,
            limit: 100,
            remaining,
            reset_after: Duration::from_secs(100 - remaining),
            delay: Duration::ZERO,
            banned: false,
        },
        rung: None,
        bound: None,
    }
}

fn shadow(name: &str, outcome: Outcome, remaining: u64) -> RuleDecision {
    RuleDecision {
        shadow: true,
        ..decision(name, outcome, remaining)
    }
}

fn binding(decisions: Vec<RuleDecision>) -> Option<String> {
    let verdict = Verdict::combine(decisions);
    verdict.binding_rule().map(|rule| rule.rule.to_string())
}

#[test]
fn nothing_decided_is_unmatched_and_allowed() {
    let verdict = Verdict::combine(vec![]);
    assert!(verdict.is_allow() && verdict.is_unmatched() && !verdict.is_permanent());
    assert_eq!((verdict.binding, verdict.remaining), (None, None));
    assert_eq!((verdict.retry_after, verdict.reset_after), (None, None));
    assert_eq!(verdict.delay, Duration::ZERO);
    assert!(verdict.binding_rule().is_none());
}

#[test]
fn allowed_numbers_are_the_least_remaining_and_the_longest_times() {
    let mut slow = decision("b", ALLOW, 9);
    slow.decision.delay = Duration::from_secs(2);
    let verdict = Verdict::combine(vec![decision("a", ALLOW, 5), slow, decision("c", ALLOW, 7)]);
    assert!(verdict.is_allow() && !verdict.is_unmatched());
    assert_eq!(verdict.binding, Some(0));
    assert_eq!(verdict.remaining, Some(5));
    assert_eq!(verdict.retry_after, None);
    assert_eq!(verdict.reset_after, Some(Duration::from_secs(95)));
    assert_eq!(verdict.delay, Duration::from_secs(2));
    assert_eq!(verdict.decisions.len(), 3);
}

#[test]
fn one_denial_denies_and_the_longest_wait_binds() {
    let verdict = Verdict::combine(vec![
        decision("a", ALLOW, 1),
        decision("b", deny(5), 3),
        decision("c", deny(9), 2),
        decision("d", ALLOW, 50),
    ]);
    assert!(!verdict.is_allow() && !verdict.is_permanent());
    assert_eq!(verdict.binding, Some(2));
    assert_eq!(
        verdict.retry_after,
        Some(RetryAfter::After(Duration::from_secs(9)))
    );
    assert_eq!(
        verdict.remaining,
        Some(2),
        "what is left under the rule that binds"
    );
    assert_eq!(verdict.reset_after, Some(Duration::from_secs(99)));
}

#[test]
fn never_is_the_longest_wait() {
    let verdict = Verdict::combine(vec![
        decision("a", deny(u64::MAX), 0),
        decision("b", NEVER, 4),
        decision("c", deny(1), 0),
    ]);
    assert_eq!(verdict.binding, Some(1));
    assert!(verdict.is_permanent());
}

#[test]
fn ties_go_by_file_order() {
    let (a, b, c) = ("a", "b", "c");
    let table: [(Vec<RuleDecision>, Option<&str>); 7] = [
        (vec![decision(a, ALLOW, 3), decision(b, ALLOW, 3)], Some(a)),
        (
            vec![
                decision(a, ALLOW, 4),
                decision(b, ALLOW, 3),
                decision(c, ALLOW, 3),
            ],
            Some(b),
        ),
        (
            vec![decision(a, deny(2), 3), decision(b, deny(2), 0)],
            Some(a),
        ),
        (vec![decision(a, NEVER, 3), decision(b, NEVER, 0)], Some(a)),
        (
            vec![decision(a, ALLOW, 0), decision(b, deny(1), 5)],
            Some(b),
        ),
        (
            vec![decision(a, deny(1), 5), decision(b, ALLOW, 0)],
            Some(a),
        ),
        (vec![shadow(a, NEVER, 0)], None),
    ];
    for (index, (decisions, expected)) in table.into_iter().enumerate() {
        assert_eq!(binding(decisions).as_deref(), expected, "row {index}");
    }
}

#[test]
fn remaining_is_in_the_units_of_the_rule_with_the_fewest_further_calls() {
    let costing = |name: &str, cost: u64, remaining: u64| {
        let mut decided = decision(name, ALLOW, 0);
        decided.cost = Cost::new(cost).unwrap();
        decided.decision.remaining = remaining;
        decided
    };
    let verdict = Verdict::combine(vec![
        costing("calls", 1, 59),
        costing("tokens", 4_000, 6_000),
    ]);
    assert_eq!((verdict.binding, verdict.remaining), (Some(1), Some(6_000)));
    // Both would admit one more such call: the one that leaves less above it binds, as between
    // equal costs.
    let verdict = Verdict::combine(vec![costing("a", 3, 5), costing("b", 3, 4)]);
    assert_eq!((verdict.binding, verdict.remaining), (Some(1), Some(4)));
    // Both leave the same fraction of a call: file order decides.
    let verdict = Verdict::combine(vec![costing("a", 2, 4), costing("b", 1, 2)]);
    assert_eq!((verdict.binding, verdict.remaining), (Some(0), Some(4)));
    // Never more than 64 bits times 64.
    let most = costing("most", u64::MAX, 100);
    let verdict = Verdict::combine(vec![costing("one", 1, 1), most]);
    assert_eq!((verdict.binding, verdict.remaining), (Some(1), Some(100)));
}

#[test]
fn shadow_counts_in_no_combined_number() {
    let mut loud = shadow("a", NEVER, 0);
    loud.decision.delay = Duration::from_secs(60);
    loud.decision.banned = true;
    let verdict = Verdict::combine(vec![loud.clone(), decision("b", ALLOW, 8)]);
    assert!(verdict.is_allow() && !verdict.banned);
    assert_eq!((verdict.binding, verdict.remaining), (Some(1), Some(8)));
    assert_eq!(verdict.reset_after, Some(Duration::from_secs(92)));
    assert_eq!(verdict.delay, Duration::ZERO);
    assert_eq!(verdict.decisions.len(), 2, "it is reported");

    let alone = Verdict::combine(vec![loud]);
    assert!(alone.is_allow() && !alone.is_unmatched());
    assert_eq!(
        (alone.binding, alone.remaining, alone.reset_after),
        (None, None, None)
    );
}

#[test]
fn a_denied_call_has_no_delay() {
    let mut slow = decision("a", ALLOW, 3);
    slow.decision.delay = Duration::from_secs(2);
    let verdict = Verdict::combine(vec![slow, decision("b", deny(1), 0)]);
    assert_eq!(verdict.delay, Duration::ZERO);
}

#[test]
fn banned_is_said_if_a_ban_denies() {
    let mut banned = decision("a", deny(60), 0);
    banned.decision.banned = true;
    let verdict = Verdict::combine(vec![decision("b", NEVER, 0), banned]);
    assert!(verdict.banned);
    assert_eq!(verdict.binding, Some(0));
}
