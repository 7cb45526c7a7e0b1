//! Answers on one key: refusals cost nothing, and every number of an answer is true.

use std::time::Duration;

use proptest::prelude::Strategy;
use proptest::proptest;
use quell_core::charge::Operation;
use quell_core::decision::{Outcome, RetryAfter};

use crate::bench::Bench;
use crate::config;
use crate::kind::{
    Kind, calendars, fixed, full_tokens, kinds, leaks, logs, refills, segments, tokens,
};
use crate::oracle::Ledger;
use crate::trace::{Call, Step, begin, drive, drive_beside_oracle, starts, steps};
use crate::truths::{NANO, remaining_is_true, reset_after_is_true, retry_after_is_true};

fn answers_are_the_oracles(kind: &Kind, start: (u64, u64), steps: &[Step]) {
    let (mut bench, since) = begin(kind, start);
    let mut ledger = Ledger::new(*kind, since);
    drive_beside_oracle(&mut bench, &mut ledger, steps);
}

fn traces(
    kinds: impl Strategy<Value = Kind>,
) -> impl Strategy<Value = (Kind, (u64, u64), Vec<Step>)> {
    (kinds, starts(), steps(40))
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn token_bucket_answers_as_the_oracle((kind, start, steps) in traces(tokens())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn refill_answers_as_the_oracle((kind, start, steps) in traces(refills())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn leaky_bucket_answers_as_the_oracle((kind, start, steps) in traces(leaks())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn fixed_window_answers_as_the_oracle((kind, start, steps) in traces(fixed())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn calendar_window_answers_as_the_oracle((kind, start, steps) in traces(calendars())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn sliding_window_answers_as_the_oracle((kind, start, steps) in traces(segments())) {
        answers_are_the_oracles(&kind, start, &steps);
    }

    #[test]
    fn sliding_log_answers_as_the_oracle((kind, start, steps) in traces(logs())) {
        answers_are_the_oracles(&kind, start, &steps);
    }
}

/// Makes the same calls except those that `dropped` picks.
fn replay(bench: &Bench, calls: &[Call], dropped: impl Fn(&Call) -> bool) {
    let mut bench = bench.clone();
    for call in calls.iter().filter(|call| !dropped(call)) {
        bench.now = call.at;
        assert_eq!(
            bench.ask(call.operation, call.cost),
            call.decision,
            "{call:?}"
        );
    }
}

fn refusals_and_peeks_cost_nothing(kind: &Kind, start: (u64, u64), steps: &[Step]) {
    let (mut bench, _) = begin(kind, start);
    let before = bench.clone();
    let calls = drive(&mut bench, steps, |_, _| {});
    replay(&before, &calls, |call| !call.decision.outcome.is_allow());
    replay(&before, &calls, |call| call.operation == Operation::Peek);
}

fn first_call_after_idling_counts(bench: &Bench, call: &Call) {
    let idle = call
        .decision
        .reset_after
        .saturating_mul(2)
        .saturating_add(NANO);
    if let Some(mut rested) = bench.after(idle) {
        let first = rested.acquire(call.cost);
        let left = call.decision.limit.checked_sub(call.cost);
        match left {
            Some(left) => assert_eq!((first.outcome, first.remaining), (Outcome::Allow, left)),
            None => assert_eq!(first.outcome, Outcome::Deny(RetryAfter::Never)),
        }
    }
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn a_refusal_and_a_peek_cost_nothing((kind, start, steps) in traces(kinds())) {
        refusals_and_peeks_cost_nothing(&kind, start, &steps);
    }

    #[test]
    fn every_wait_is_true_to_the_nanosecond((kind, start, steps) in traces(kinds())) {
        let (mut bench, _) = begin(&kind, start);
        drive(&mut bench, &steps, retry_after_is_true);
    }

    #[test]
    fn every_remaining_is_true((kind, start, steps) in traces(kinds())) {
        let (mut bench, _) = begin(&kind, start);
        drive(&mut bench, &steps, |bench, call| {
            remaining_is_true(bench, call);
            first_call_after_idling_counts(bench, call);
        });
    }

    #[test]
    fn every_reset_is_true((kind, start, steps) in traces(kinds())) {
        let (mut bench, _) = begin(&kind, start);
        drive(&mut bench, &steps, reset_after_is_true);
    }

    /// A key's answers show that it was used until exactly its time to rest.
    #[test]
    fn a_state_is_told_from_a_fresh_one_until_its_time_to_rest(
        (kind, start, steps) in traces(proptest::prop_oneof![
            full_tokens(), leaks(), fixed(), calendars(), segments(), logs(),
        ]),
        (_, _, more) in traces(full_tokens()),
    ) {
        let (mut bench, _) = begin(&kind, start);
        drive(&mut bench, &steps, |bench, _| {
            let max = bench.active.limit.max();
            let is_told = bench.peek(max) != bench.fresh().peek(max);
            assert_eq!(bench.time_to_rest() > Duration::ZERO, is_told);
        });
        at_rest_is_fresh(&bench, &more);
    }

    /// With tokens missing at the start a state may be kept longer than needed, never shorter.
    #[test]
    fn a_state_at_rest_is_a_fresh_one(
        (kind, start, steps) in traces(kinds()),
        (_, _, more) in traces(full_tokens()),
    ) {
        let (mut bench, _) = begin(&kind, start);
        drive(&mut bench, &steps, |bench, _| {
            if bench.time_to_rest().is_zero() {
                let max = bench.active.limit.max();
                assert_eq!(bench.peek(max), bench.fresh().peek(max));
            }
        });
        at_rest_is_fresh(&bench, &more);
    }
}

/// Leaves the key alone until it is at rest; from there it answers as if it had never been used.
fn at_rest_is_fresh(bench: &Bench, steps: &[Step]) {
    if let Some(mut rested) = bench.after(bench.time_to_rest()) {
        assert_eq!(rested.time_to_rest(), Duration::ZERO);
        let mut fresh = rested.fresh();
        let calls = drive(&mut rested, steps, |_, _| {});
        for call in calls {
            fresh.now = call.at;
            assert_eq!(fresh.ask(call.operation, call.cost), call.decision);
        }
    }
}
