//! Wait: a caller waits for its turn on one key of a [`KeyedLimiter`](crate::KeyedLimiter).

use std::hash::Hash;
use std::time::Duration;

use quell_core::account::Account;
use quell_core::actual::CostOrigin;
use quell_core::charge::{Entry, Operation, decide_one};
use quell_core::claim::{self, Claim, WaitLimits};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::end_hold::{self, EndOutcome, Ending};
use quell_core::hold::HoldId;
use quell_core::time::Now;

use super::LockedKey;
use crate::clock::Clock;
use crate::hold_calls::{BAN_CHECK, Wait};
use crate::hold_id::new_id;
use crate::waiters::Wakeup;

/// Leaves the queue when dropped: cancels the hold of a caller that went away before its turn.
struct WaitGuard<'a, K: Hash + ?Sized, C: Clock> {
    key: &'a LockedKey<'a, K, C>,
    id: HoldId,
    /// As of one that waits in a limiter with rules.
    entered: Option<Account>,
    is_placed: bool,
}

impl<K: Hash + ?Sized, C: Clock> WaitGuard<'_, K, C> {
    fn end(&self, ending: Ending) -> (Now, EndOutcome) {
        self.key.with(|now, charge, state| {
            let limit = &charge.active.limit;
            let ended = end_hold::end(
                state,
                limit,
                &charge.at(now),
                &self.id,
                &ending,
                CostOrigin::default(),
            );
            (now, ended)
        })
    }
}

impl<K: Hash + ?Sized, C: Clock> Drop for WaitGuard<'_, K, C> {
    fn drop(&mut self) {
        let waiters = &self.key.limiter.waiters;
        waiters.leave(&self.id, self.entered, false);
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
    let id = new_id("");
    let is_in = key.limiter.waiters.enter(&id, Account::NONE);
    let mut guard = WaitGuard {
        key,
        id: id.clone(),
        entered: is_in.then_some(Account::NONE),
        is_placed: false,
    };
    let claim = Claim {
        wait: Some(WaitLimits::new(if is_in { most } else { Duration::ZERO })),
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
        return refused(key, Duration::from_secs(1));
    };
    if !decision.outcome.is_allow() || decision.delay.is_zero() {
        return decision;
    }
    guard.is_placed = true;
    let wait = Wait {
        began: began.monotonic,
        limits: WaitLimits::new(most),
        end: began.monotonic.saturating_add(decision.delay),
        after: decision.delay.saturating_sub(turn),
    };
    take_turn(guard, &wait, decision).await
}

/// Sleeps until the turn of a claim, and through its delay.
async fn take_turn<K: Hash + ?Sized, C: Clock>(
    mut guard: WaitGuard<'_, K, C>,
    wait: &Wait,
    decision: Decision,
) -> Decision {
    let (key, id) = (guard.key, guard.id.clone());
    let (waiters, clock) = (&key.limiter.waiters, &key.limiter.clock);
    let mut end = wait.end;
    loop {
        let moved = waiters.wait(&id, end, clock).await == Wakeup::Moved;
        let (now, left) = if moved {
            let moved = key.with(|now, charge, state| {
                let entry = Entry { charge, state };
                claim::advance(now, &id, &mut [entry]).map(|(left, next)| (now, left, next))
            });
            let Some((now, left, next)) = moved else {
                continue;
            };
            waiters.wake(&next);
            (now, left)
        } else if let Some(RetryAfter::After(left)) = banned_for(key, wait) {
            // A queue looks for bans itself; a delay is slept through here.
            let (now, _) = guard.end(Ending::Renew);
            if !wait.is_too_long(now.monotonic, left.saturating_sub(wait.after)) {
                end = now.monotonic.saturating_add(left.min(BAN_CHECK));
                continue;
            }
            (now, left)
        } else {
            let (now, ended) = guard.end(Ending::Arrive);
            let Some(left) = ended.wait else {
                guard.is_placed = false;
                let waited = decision.waited_for(now.monotonic.since(wait.began));
                return waited.with_numbers_of(&peek(key));
            };
            (now, left)
        };
        if wait.is_too_long(now.monotonic, left) {
            drop(guard);
            return refused(key, left);
        }
        end = wait.end_after(now.monotonic, left);
    }
}

/// Time until a call could pass, if the key of a caller that slept through a delay is banned.
fn banned_for<K: Hash + ?Sized, C: Clock>(
    key: &LockedKey<'_, K, C>,
    wait: &Wait,
) -> Option<RetryAfter> {
    let decision = (!wait.after.is_zero()).then(|| peek(key));
    decision.filter(|now| now.banned)?.retry_after()
}

/// The refusal for a key that already has [`MAX_HOLDS`](quell_core::hold::MAX_HOLDS) holds, or whose turn would
/// come too late, if nothing else refuses: `wait` is when to try again.
fn refused<K: Hash + ?Sized, C: Clock>(key: &LockedKey<'_, K, C>, wait: Duration) -> Decision {
    let decision = peek(key);
    let wait = RetryAfter::After(wait.max(Duration::from_nanos(1)));
    Decision {
        delay: Duration::ZERO,
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
