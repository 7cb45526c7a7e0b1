//! Waiters: the callers in this process that wait for their turn.
//!
//! The store keeps the order of the queue. A waiter sleeps until its turn, or until someone ahead of
//! it leaves; then it asks the store whether its turn comes sooner. One waiter is woken at a time: it
//! wakes the next one after it has moved up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
pub(crate) struct Waiters {
    by_id: Mutex<HashMap<HoldId, Waiter>>,
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
        let mut by_id = self.by_id.lock();
        let is_full = by_id.len() >= MAX_WAITING;
        match by_id.entry(id.clone()) {
            Entry::Vacant(_) if is_full => return false,
            entry => entry.or_default().calls += 1,
        }
        true
    }

    /// A call under this id ends: it goes on, or not. Returns whether no call here waits under it or has
    /// gone on.
    pub(crate) fn leave(&self, id: &HoldId, passes: bool) -> bool {
        let mut by_id = self.by_id.lock();
        let Some(waiter) = by_id.get_mut(id) else {
            return !passes;
        };
        waiter.calls -= 1;
        waiter.has_passed |= passes;
        let is_last = waiter.calls == 0;
        let is_nobodys = is_last && !waiter.has_passed;
        if is_last {
            by_id.remove(id);
        }
        is_nobodys
    }

    /// Wakes those of `ids` that wait here.
    pub(crate) fn wake(&self, ids: &[HoldId]) {
        for id in ids {
            let waker = self.by_id.lock().get_mut(id).and_then(|waiter| {
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
            if let Some(waiter) = self.by_id.lock().get_mut(id) {
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
        self.by_id.lock().len()
    }
}
