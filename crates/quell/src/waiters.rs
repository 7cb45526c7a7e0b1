//! Waiters: the callers in this process that wait for their turn.
//!
//! The store keeps the order of the queue. A waiter sleeps until its turn, or until someone ahead of
//! it leaves; then it asks the store whether its turn comes sooner. One waiter is woken at a time: it
//! wakes the next one after it has moved up.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

use crate::clock::Clock;
use crate::sync::Mutex;

/// Callers of one limiter that may wait at a time: each holds a task, and on a server a connection.
pub const MAX_WAITING: usize = 10_000;

/// The waiting callers of one limiter, by the ids of their holds.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    by_id: HashMap<HoldId, Waiter>,
    /// Of all ids.
    calls: usize,
}

#[derive(Debug, Default)]
struct Waiter {
    /// Calls that wait under this id: a client may repeat one whose connection it lost.
    calls: usize,
    /// Whether one of them has gone on, so the hold is in use.
    has_passed: bool,
    woken: bool,
    waker: Option<Waker>,
}

/// Why a caller was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// Its turn has come.
    Due,
    /// A caller ahead of it has left.
    Moved,
}

impl Waiters {
    /// Adds a waiter unless there are [`MAX_WAITING`] already.
    pub(crate) fn enter(&self, id: &HoldId) -> bool {
        let waiting = &mut *self.0.lock();
        let has_room = waiting.calls < MAX_WAITING;
        if has_room {
            waiting.calls += 1;
            waiting.by_id.entry(id.clone()).or_default().calls += 1;
        }
        has_room
    }

    /// A call under this id goes on, or gives up; `is_in` says whether it entered. Returns whether the hold is
    /// nobody's: it gives up, no other call waits for it here, and none has gone on.
    pub(crate) fn leave(&self, id: &HoldId, is_in: bool, passes: bool) -> bool {
        let waiting = &mut *self.0.lock();
        let Some(waiter) = waiting.by_id.get_mut(id) else {
            return !passes;
        };
        waiter.calls -= usize::from(is_in);
        waiting.calls -= usize::from(is_in);
        waiter.has_passed |= passes;
        let (is_last, has_passed) = (waiter.calls == 0, waiter.has_passed);
        if is_last {
            waiting.by_id.remove(id);
        }
        is_last && !has_passed
    }

    /// Wakes those of `ids` that wait here.
    pub(crate) fn wake(&self, ids: &[HoldId]) {
        for id in ids {
            let waker = self.0.lock().by_id.get_mut(id).and_then(|waiter| {
                waiter.woken = true;
                waiter.waker.take()
            });
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Sleeps until `turn`, or until woken.
    pub(crate) async fn wait(&self, id: &HoldId, turn: Monotonic, clock: &impl Clock) -> Wakeup {
        let mut alarm = None;
        poll_fn(|context| {
            if let Some(waiter) = self.0.lock().by_id.get_mut(id) {
                if std::mem::take(&mut waiter.woken) {
                    return Poll::Ready(Wakeup::Moved);
                }
                waiter.waker = Some(context.waker().clone());
            }
            // Set before the clock is read: it may reach the turn in between.
            alarm = Some(clock.alarm(turn, context.waker()));
            if clock.monotonic() >= turn {
                return Poll::Ready(Wakeup::Due);
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> HoldId {
        HoldId::new("d", name).unwrap()
    }

    #[test]
    fn calls_under_one_id_count_each() {
        let waiters = Waiters::default();
        let all = (0..=MAX_WAITING).filter(|_| waiters.enter(&id("job")));
        assert_eq!(all.count(), MAX_WAITING);
        assert!(!waiters.enter(&id("other")));
        // Who found no room leaves the places of others.
        assert!(!waiters.leave(&id("job"), false, false));
        assert!(waiters.leave(&id("other"), false, false));
        assert_eq!(waiters.len(), MAX_WAITING);
        assert!(!waiters.leave(&id("job"), true, false));
        assert!(waiters.enter(&id("other")));
    }

    #[test]
    fn a_hold_is_nobodys_when_all_gave_up() {
        let waiters = Waiters::default();
        for passes in [false, true] {
            let all = [(); 3].map(|()| waiters.enter(&id("job")));
            assert_eq!(all, [true; 3]);
            assert!(!waiters.leave(&id("job"), true, passes));
            assert!(!waiters.leave(&id("job"), true, false));
            assert_eq!(waiters.leave(&id("job"), true, false), !passes);
            assert_eq!(waiters.len(), 0);
        }
    }
}
