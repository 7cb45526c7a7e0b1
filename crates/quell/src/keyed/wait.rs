//! Wait: a caller waits for its turn on one key of a [`KeyedLimiter`](crate::KeyedLimiter).

use std::hash::Hash;
use std::time::Duration;

use quell_core::charge::{Entry, Operation, decide_one};
use quell_core::claim::{self, Claim, WaitLimits};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::end_hold::{self, EndOutcome, Ending};
use quell_core::hold::HoldId;
use quell_core::time::Now;

use super::LockedKey;
use crate::clock::Clock;
use crate::hold_calls::new_id;
use crate::waiters::Wakeup;

/// Leaves the queue when dropped: cancels the hold of a caller that went away before its turn.
struct WaitGuard<'a, K: Hash + ?Sized, C: Clock> {
    key: &'a LockedKey<'a, K, C>,
    id: HoldId,
    is_in: bool,
    is_placed: bool,
}

impl<K: Hash + ?Sized, C: Clock> WaitGuard<'_, K, C> {
    fn end(&self, ending: Ending) -> (Now, EndOutcome) {
        self.key.with(|now, charge, state| {
            let limit = &charge.active.limit;
            let ended = end_hold::end(state, limit, &charge.at(now), &self.id, ending, true);
            (now, ended)
        })
    }
}

impl<K: Hash + ?Sized, C: Clock> Drop for WaitGuard<'_, K, C> {
    fn drop(&mut self) {
        let waiters = &self.key.limiter.waiters;
        waiters.leave(&self.id, self.is_in, false);
        if self.is_placed {
            let (_, ended) = self.end(Ending::Cancel);
            waiters.wake(ended.next.as_slice());
        }
    }
}

/// Waits for a turn that comes within `most`; otherwise the call is refused at once.
pub(super) async fn acquire<K: Hash + ?Sized, C: Clock>(
    key: &LockedKey<'_, K, C>,
    most: Duration,
) -> Decision {
    let (waiters, clock) = (&key.limiter.waiters, &key.limiter.clock);
    let id = new_id("");
    let is_in = waiters.enter(&id);
    let mut guard = WaitGuard {
        key,
        id: id.clone(),
        is_in,
        is_placed: false,
    };
    let claim = Claim {
        wait: Some(WaitLimits::of(if is_in { most } else { Duration::ZERO })),
        ..Claim::plain(&id)
    };
    let (began, decision, turn) = key.with(|now, charge, state| {
        let entry = Entry { charge, state };
        let claimed = claim::claim(now, &claim, &mut [entry]);
        let wait = claimed.as_ref().and_then(|claimed| claimed.wait);
        let decision = claimed.and_then(|claimed| claimed.decisions.first().copied());
        (now, decision, wait.unwrap_or_default())
    });
    let Some(decision) = decision else {
        return refused(key);
    };
    if !decision.outcome.is_allow() || decision.delay.is_zero() {
        return decision;
    }
    guard.is_placed = true;
    let after = decision.delay.saturating_sub(turn);
    let mut turn = began.monotonic.saturating_add(decision.delay);
    loop {
        if waiters.wait(&id, turn, clock).await == Wakeup::Moved {
            let moved = key.with(|now, charge, state| {
                let entry = Entry { charge, state };
                claim::advance(now, &id, &mut [entry]).map(|(wait, next)| (now, wait, next))
            });
            if let Some((now, wait, next)) = moved {
                turn = now.monotonic.saturating_add(wait).saturating_add(after);
                waiters.wake(&next);
            }
            continue;
        }
        let (now, ended) = guard.end(Ending::Arrive);
        match ended.wait {
            Some(wait) => turn = now.monotonic.saturating_add(wait).saturating_add(after),
            None => {
                guard.is_placed = false;
                let waited = decision.waited_for(now.monotonic.since(began.monotonic));
                return waited.with_numbers_of(&peek(key));
            }
        }
    }
}

/// The refusal for a key that already has [`MAX_HOLDS`](quell_core::hold::MAX_HOLDS) holds.
fn refused<K: Hash + ?Sized, C: Clock>(key: &LockedKey<'_, K, C>) -> Decision {
    let decision = peek(key);
    let wait = RetryAfter::After(Duration::from_secs(1));
    Decision {
        outcome: match decision.outcome {
            Outcome::Allow => Outcome::Deny(wait),
            outcome => outcome,
        },
        ..decision
    }
}

fn peek<K: Hash + ?Sized, C: Clock>(key: &LockedKey<'_, K, C>) -> Decision {
    key.with(|now, charge, state| decide_one(now, Operation::Peek, &mut Entry { charge, state }))
}
