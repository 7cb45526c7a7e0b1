//! Waiting room: the callers of this process that wait for their turn.
//!
//! Where each stands in line is for the store to know. Here a caller sleeps until its turn, and is
//! called when somebody before it has left, so that it may look whether its turn comes sooner. One is
//! called at a time: who moved up calls the next.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

use crate::clock::Clock;
use crate::sync::Mutex;

/// Callers of one limiter that may wait at a time: each holds a task, and on a server a connection.
pub const MAX_WAITING: usize = 10_000;

/// Those who wait.
#[derive(Debug, Default)]
pub(crate) struct Room {
    seats: Mutex<HashMap<HoldId, Seat>>,
    /// How many there are, for who only wants to know.
    taken: AtomicUsize,
}

#[derive(Debug, Default)]
struct Seat {
    called: bool,
    waker: Option<Waker>,
}

/// Why a caller was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Its turn has come.
    Due,
    /// Somebody before it has left.
    Moved,
}

impl Room {
    /// Takes a seat, if there is one.
    pub(crate) fn enter(&self, id: &HoldId) -> bool {
        let mut seats = self.seats.lock();
        if seats.len() >= MAX_WAITING {
            return false;
        }
        if seats.insert(id.clone(), Seat::default()).is_none() {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn leave(&self, id: &HoldId) {
        if self.seats.lock().remove(id).is_some() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Calls those who sit here.
    pub(crate) fn call(&self, ids: &[HoldId]) {
        for id in ids {
            let waker = self.seats.lock().get_mut(id).and_then(|seat| {
                seat.called = true;
                seat.waker.take()
            });
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Sleeps until `turn`, or until called.
    pub(crate) async fn wait(&self, id: &HoldId, turn: Monotonic, clock: &impl Clock) -> Call {
        let mut alarm = None;
        poll_fn(|context| {
            if let Some(seat) = self.seats.lock().get_mut(id) {
                if std::mem::take(&mut seat.called) {
                    return Poll::Ready(Call::Moved);
                }
                seat.waker = Some(context.waker().clone());
            }
            // Set before the clock is read: it may reach the turn in between.
            alarm = Some(clock.alarm(turn, context.waker()));
            if clock.monotonic() >= turn {
                return Poll::Ready(Call::Due);
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}
