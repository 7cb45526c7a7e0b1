//! A synced key: what is decided in memory, what the store is told and when, and what an answer changes.

use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::over_admission::{LeaseTerms, Supply};
use quell_core::time::Monotonic;
use quell_shares::synced::{RETRY, SyncRequest, SyncStep, SyncedKey};

const CAP: u64 = 10;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos(millis * 1_000_000)
}

/// Decision of a store that has `remaining` left of 1,000.
fn has_left(remaining: u64) -> Decision {
    let wait = RetryAfter::After(Duration::from_millis(1));
    Decision {
        outcome: if remaining > 0 {
            Outcome::Allow
        } else {
            Outcome::Deny(wait)
        },
        limit: 1_000,
        remaining,
        reset_after: Duration::from_millis(1_000 - remaining),
        delay: Duration::ZERO,
        banned: false,
    }
}

/// A hot key of which the store has this much left at 0 ms; two nodes, 1,000/s, ten units each.
fn key(left: u64) -> SyncedKey {
    key_of(Supply::Steady(1_000, Duration::from_secs(1)), left)
}

fn key_of(supply: Supply, left: u64) -> SyncedKey {
    let terms = LeaseTerms {
        cap: CAP,
        nodes: NonZeroU32::MIN.saturating_add(1),
        max: 1_000,
        supply,
    };
    let mut key = SyncedKey::new(terms, at(0));
    key.warm(at(0), 100, 1);
    assert_eq!(
        key.take(at(0), 1),
        (SyncStep::Strict, None),
        "it is not known"
    );
    key.observe((at(0), at(0)), 1, &has_left(left));
    key
}

/// Admits this many units at once, and returns what the store is told.
fn admit(key: &mut SyncedKey, now: Monotonic, count: u64) -> Vec<SyncRequest> {
    let steps = (0..count).map(|_| {
        let (step, request) = key.take(now, 1);
        assert_eq!(step, SyncStep::Allow);
        request
    });
    steps.flatten().collect()
}

const FIRST: SyncRequest = SyncRequest {
    number: 1,
    total: 5,
    base: 0,
};

#[test]
fn half_of_what_may_be_pending_is_told_and_more_than_it_waits() {
    let mut key = key(500);
    // The call with which it is told is not part of it, since another limit may refuse it.
    assert_eq!(admit(&mut key, at(1), CAP), [FIRST]);
    assert_eq!((key.pending(), key.remaining(at(1))), (CAP, 490));
    assert_eq!(key.take(at(2), 1), (SyncStep::Wait, None));
    key.answer(at(3), 1, &has_left(495), 5);
    assert_eq!(key.pending(), 5);
    let next = SyncRequest {
        number: 2,
        total: 10,
        base: 5,
    };
    assert_eq!(key.take(at(3), 1), (SyncStep::Allow, Some(next)));
}

#[test]
fn what_the_store_has_left_is_admitted_and_no_more() {
    let mut key = key(3);
    assert_eq!(admit(&mut key, at(1), 3), []);
    let (step, request) = key.take(at(1), 1);
    // Its part of what comes back is a unit each 2 ms, of which one is gone.
    assert_eq!(step, SyncStep::Deny(Duration::from_millis(2)));
    assert_eq!(request, None, "the store was asked a moment ago");
    assert_eq!(key.take(at(3), 1), (SyncStep::Allow, None));
}

/// In 20 ms the limit produces what it may be exceeded by: so often the store is asked what others left.
#[test]
fn what_others_left_is_asked_for() {
    let mut key = key_of(Supply::ByEntry(1_000, Duration::from_secs(1)), 3);
    assert_eq!(admit(&mut key, at(1), 3), []);
    let (step, request) = key.take(at(19), 1);
    assert_eq!(
        (step, request),
        (SyncStep::Deny(Duration::from_millis(1)), None)
    );
    let (step, request) = key.take(at(20), 1);
    assert!(matches!(step, SyncStep::Deny(_)));
    assert_eq!(request.map(|request| request.total), Some(3));
    key.answer(at(21), 1, &has_left(0), 2);
    assert_eq!(key.pending(), 1, "the store had no room for it");
    assert!(matches!(key.take(at(21), 1).0, SyncStep::Deny(_)));
}

#[test]
fn a_lost_answer_is_asked_for_again_and_late_ones_are_ignored() {
    let mut key = key(500);
    admit(&mut key, at(1), CAP);
    key.lost(at(100), 1);
    assert_eq!(key.take(at(101), 1), (SyncStep::Strict, None));
    assert_eq!(key.due(at(101)), None);
    key.answer(at(102), 1, &has_left(495), 5);
    assert_eq!(key.pending(), CAP, "nobody waits for that one any more");
    let again = SyncRequest {
        number: 2,
        total: CAP,
        base: 0,
    };
    let later = at(100).saturating_add(RETRY);
    assert_eq!(key.due(later), Some(again));
    assert_eq!(
        (key.due(later), key.leave(later)),
        (None, None),
        "one at a time"
    );
    // An answer about more than was told changes nothing more.
    key.answer(later, 2, &has_left(400), 999);
    assert_eq!(key.pending(), 0);
}

#[test]
fn what_is_not_charged_outlives_a_change_of_the_limit() {
    let mut key = key(500);
    admit(&mut key, at(1), 3);
    let terms = LeaseTerms {
        cap: 2,
        ..*key.terms()
    };
    key.change(terms);
    assert_eq!(key.pending(), 3);
    assert_eq!(key.take(at(2), 1), (SyncStep::Strict, None));
    key.observe((at(2), at(2)), 1, &has_left(500));
    let (step, request) = key.take(at(3), 1);
    assert_eq!(step, SyncStep::Wait);
    assert_eq!(request.map(|request| request.total), Some(3));
}

#[test]
fn the_store_is_not_told_of_calls_that_another_limit_may_refuse() {
    let mut key = key(500);
    admit(&mut key, at(1), 1);
    key.set_aside(1);
    key.put_back(1);
    assert_eq!((key.pending(), key.leave(at(1))), (0, None));
    // Two of five units are of calls that are not decided.
    admit(&mut key, at(1), 5);
    key.set_aside(2);
    let told = key
        .leave(at(1))
        .map(|request| (request.total, request.base));
    assert_eq!(told, Some((3, 0)));
    key.answer(at(2), 1, &has_left(490), 3);
    assert_eq!(key.pending(), 2);
    key.put_back(1);
    assert_eq!(key.pending(), 1);
    key.confirm(1);
    let told = key
        .leave(at(2))
        .map(|request| (request.total, request.base));
    assert_eq!(told, Some((4, 3)));
}

/// A caller is not told the wait of somebody who wanted more.
#[test]
fn the_wait_of_a_larger_call_is_its_own() {
    let mut key = key(500);
    let wait = RetryAfter::After(Duration::from_secs(9));
    let refused = Decision {
        outcome: Outcome::Deny(wait),
        ..has_left(0)
    };
    key.observe((at(1), at(1)), 400, &refused);
    let (step, _) = key.take(at(2), 1);
    assert!(matches!(step, SyncStep::Deny(wait) if wait < Duration::from_secs(1)));
    key.observe((at(3), at(3)), 1, &refused);
    let (step, _) = key.take(at(4), 1);
    assert!(matches!(step, SyncStep::Deny(wait) if wait > Duration::from_secs(8)));
}

#[test]
fn a_ban_by_hand_leaves_nothing() {
    let mut key = key(500);
    let wait = RetryAfter::After(Duration::from_secs(9));
    let banned = Decision {
        outcome: Outcome::Deny(wait),
        banned: true,
        ..has_left(400)
    };
    key.observe((at(1), at(1)), 1, &banned);
    let (step, _) = key.take(at(2), 1);
    assert!(matches!(step, SyncStep::Deny(wait) if wait > Duration::from_secs(8)));
    // Older news changes nothing.
    key.observe((at(0), at(0)), 1, &has_left(400));
    assert_eq!(key.remaining(at(2)), 0);
}

/// The store decides between the two, and the node does not know when: an end counts from the answer, and a
/// thousandth of the time on top is for clocks that drift apart.
#[test]
fn a_window_and_a_ban_end_no_earlier_than_on_the_store() {
    let window = Supply::AtOnce(Duration::from_secs(60));
    for (supply, banned) in [
        (window, false),
        (window, true),
        (Supply::Steady(1_000, Duration::from_secs(1)), true),
    ] {
        let wait = Duration::from_secs(10);
        let used_up = Decision {
            outcome: Outcome::Deny(RetryAfter::After(wait)),
            reset_after: wait,
            banned,
            ..has_left(0)
        };
        let mut key = key_of(supply, 500);
        key.observe((at(100), at(900)), 1, &used_up);
        key.warm(at(1_000), 100, 1);
        let told = (key.take(at(1_000), 1).0, key.reset_after(at(1_000)));
        let wait = Duration::from_millis(9_900);
        assert_eq!(told, (SyncStep::Deny(wait), wait), "{banned}");
        key.warm(at(10_900), 100, 1);
        let (step, _) = key.take(at(10_909), 1);
        assert!(
            matches!(step, SyncStep::Deny(_)),
            "{supply:?}, {banned}: {step:?}"
        );
        assert_eq!(key.take(at(10_910), 1).0, SyncStep::Allow, "{banned}");
    }
}
