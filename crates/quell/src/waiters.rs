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
pub(crate) struct Waiters {
    by_id: Mutex<HashMap<HoldId, Waiter>>,
}

#[derive(Debug, Default)]
struct Waiter {
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
        if by_id.len() >= MAX_WAITING {
            return false;
        }
        by_id.insert(id.clone(), Waiter::default());
        true
    }

    pub(crate) fn leave(&self, id: &HoldId) {
        self.by_id.lock().remove(id);
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
