//! Properties of any single answer, checked by asking the key again.

use std::time::Duration;

use quell_core::decision::{Outcome, RetryAfter};

use crate::bench::Bench;
use crate::trace::Call;

pub(crate) const NANO: Duration = Duration::from_nanos(1);

/// Exactly this long; a nanosecond earlier is too early.
pub(crate) fn retry_after_is_true(bench: &Bench, call: &Call) {
    let max = bench.active.limit.max();
    match call.decision.outcome {
        Outcome::Allow => assert!(call.cost <= max),
        Outcome::Deny(RetryAfter::Never) => assert!(call.cost > max, "never, but it could pass"),
        Outcome::Deny(RetryAfter::After(wait)) => {
            assert!(call.cost <= max, "it can never pass");
            assert!(!wait.is_zero(), "a refusal never says 0");
            let Some(mut later) = bench.after(wait) else {
                return;
            };
            let early = bench.after(wait - NANO).map(|early| early.peek(call.cost));
            let early = early.map(|decision| decision.outcome);
            assert_eq!(early, Some(Outcome::Deny(RetryAfter::After(NANO))));
            assert_eq!(
                later.acquire(call.cost).outcome,
                Outcome::Allow,
                "after {wait:?}"
            );
        }
    }
}

/// This much would be allowed right now, and no more.
pub(crate) fn remaining_is_true(bench: &Bench, call: &Call) {
    let remaining = call.decision.remaining;
    assert_eq!(call.decision.limit, bench.active.limit.max());
    assert!(remaining <= call.decision.limit);
    if remaining > 0 {
        assert_eq!(bench.peek(remaining).outcome, Outcome::Allow);
    }
    if let Some(more) = remaining.checked_add(1) {
        assert!(!bench.peek(more).outcome.is_allow(), "{more} fit as well");
    }
    assert_eq!(bench.peek(1).remaining, remaining, "a peek says the same");
}

/// At rest after exactly this long, which is at most a full refill.
pub(crate) fn reset_after_is_true(bench: &Bench, call: &Call) {
    let reset = call.decision.reset_after;
    assert!(
        reset <= bench.active.limit.full_refill(),
        "at most a full refill"
    );
    let Some(rested) = bench.after(reset) else {
        return;
    };
    assert_eq!(rested.time_to_rest(), Duration::ZERO);
    assert_eq!(rested.peek(1).remaining, call.decision.limit);
    assert_eq!(rested.peek(1).reset_after, Duration::ZERO);
    if let Some(early) = reset.checked_sub(NANO).and_then(|early| bench.after(early)) {
        assert!(
            early.peek(1).remaining < call.decision.limit,
            "at rest too early"
        );
        assert_eq!(early.peek(1).reset_after, NANO);
    }
}

/// All of the above.
pub(crate) fn every_number_is_true(bench: &Bench, call: &Call) {
    retry_after_is_true(bench, call);
    remaining_is_true(bench, call);
    reset_after_is_true(bench, call);
}
