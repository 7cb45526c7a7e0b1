//! Proof that a store has kept its memory, as a node knows it.

use std::time::Duration;

use quell_core::decision::{Decision, Outcome};
use quell_core::time::{Monotonic, Wall};
use quell_shares::proof::{KEPT, Proof};

const MS: u64 = 1_000_000;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos(millis * MS)
}

#[test]
fn a_state_in_use_is_there_for_half_a_second_by_both_clocks() {
    let decided = Wall::from_nanos(7_000 * MS);
    let used = Decision {
        outcome: Outcome::Allow,
        limit: 10,
        remaining: 9,
        reset_after: Duration::from_nanos(1),
        delay: Duration::ZERO,
        banned: false,
    };
    let mut proof = Proof::default();
    assert_eq!(proof.until(at(0)), None);
    proof.note(at(20), &used, decided);
    assert_eq!(proof.until(at(20)), Some(decided.saturating_add(KEPT)));
    assert!(proof.until(at(518)).is_some());
    // Another store may have taken over, whose clock is behind.
    assert_eq!(proof.until(at(519)), None);
    // It may expire at once.
    let rest = Decision {
        reset_after: Duration::ZERO,
        ..used
    };
    proof.note(at(100), &rest, decided);
    assert_eq!(proof.until(at(100)), None);
}
