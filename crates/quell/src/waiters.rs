//! Waiters: the callers in this process that wait for their turn.
//!
//! The store keeps the order of the queue. A waiter sleeps until its turn, or until someone ahead of
//! it leaves; then it asks the store whether its turn comes sooner. One waiter is woken at a time: it
//! wakes the next one after it has moved up.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[cfg(not(test))]
use parking_lot::Mutex;
use quell_core::account::Account;
use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

#[cfg(test)]
use quell_testkit::model::Mutex;

use crate::clock::Clock;
use crate::portions::Portions;

/// Callers of one limiter that may wait at a time: each holds a task, and on a server a connection. Those of one
/// domain, or of one [`Account`], have at most half of the places that others leave.
pub const MAX_WAITING: usize = 10_000;

/// The waiting callers of one limiter, by the ids of their holds.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    by_id: HashMap<HoldId, Waiter>,
    /// Number of calls of all ids.
    calls: usize,
    portions: Portions<usize>,
}

#[derive(Debug, Default)]
struct Waiter {
    /// Calls that wait under this id: a client may repeat one whose connection it lost.
    calls: usize,
    /// True if one of them has gone on, so the hold is in use.
    has_passed: bool,
    woken: bool,
    waker: Option<Waker>,
}

/// Reason why a caller was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// Its turn has come.
    Due,
    /// A caller ahead of it has left.
    Moved,
}

impl Waiters {
    /// Adds a waiter if there is a place for one more of its domain and its account.
    pub(crate) fn enter(&self, id: &HoldId, account: Account) -> bool {
        let waiting = &mut *self.0.lock();
        let (domain, left) = (id.domain(), MAX_WAITING - waiting.calls);
        // A `KeyedLimiter` has no domains.
        let has_room =
            waiting.portions.have_room(domain, account, left) || (domain.is_empty() && left > 0);
        if has_room {
            waiting.calls += 1;
            waiting.portions.change(domain, account, |own| *own += 1);
            waiting.by_id.entry(id.clone()).or_default().calls += 1;
        }
        has_room
    }

    /// A call under this id goes on, or gives up; `entered` is the account under which it entered, if it did.
    /// Returns whether the hold is nobody's: it gives up, no other call waits for it here, and none has gone on.
    pub(crate) fn leave(&self, id: &HoldId, entered: Option<Account>, passes: bool) -> bool {
        let waiting = &mut *self.0.lock();
        let Some(waiter) = waiting.by_id.get_mut(id) else {
            return !passes;
        };
        waiter.calls -= usize::from(entered.is_some());
        waiter.has_passed |= passes;
        let (is_last, has_passed) = (waiter.calls == 0, waiter.has_passed);
        if let Some(account) = entered {
            waiting.calls -= 1;
            waiting
                .portions
                .change(id.domain(), account, |own| *own -= 1);
        }
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

    const IN: Option<Account> = Some(Account::NONE);

    fn id(name: &str) -> HoldId {
        HoldId::new("d", name).unwrap()
    }

    #[test]
    fn calls_under_one_id_count_each() {
        let (waiters, half) = (Waiters::default(), MAX_WAITING / 2);
        let all = (0..=half).filter(|_| waiters.enter(&id("job"), Account::NONE));
        assert_eq!(all.count(), half);
        assert!(!waiters.enter(&id("other"), Account::NONE));
        // Who found no room leaves the places of others.
        assert!(!waiters.leave(&id("job"), None, false));
        assert!(waiters.leave(&id("other"), None, false));
        assert_eq!(waiters.len(), half);
        assert!(!waiters.leave(&id("job"), IN, false));
        assert!(waiters.enter(&id("other"), Account::NONE));
    }

    #[test]
    fn a_domain_has_half_of_the_places_that_others_leave() {
        let waiters = Waiters::default();
        let of_domain = |domain: &str| HoldId::new(domain, "job").unwrap();
        let fill = |domain: &str| {
            let all = (0..MAX_WAITING).filter(|_| waiters.enter(&of_domain(domain), Account::NONE));
            all.count()
        };
        let half = MAX_WAITING / 2;
        assert_eq!(fill("first"), half);
        assert_eq!(fill("second"), half / 2);
        assert_eq!(fill("third"), half / 4);
        assert_eq!(fill("first"), 0);
        // What the first gives back is there for all.
        for _ in 0..half {
            waiters.leave(&of_domain("first"), IN, false);
        }
        assert_eq!(fill("fourth"), (MAX_WAITING - half / 2 - half / 4) / 2);
    }

    #[test]
    fn an_account_has_half_of_the_places_that_others_leave_however_many_domains_it_asks_in() {
        let (waiters, account) = (Waiters::default(), Account::new(7));
        let id = |number: usize| HoldId::new(&format!("d{}", number % 50), "job").unwrap();
        let fill = |account| {
            let all = (0..MAX_WAITING).filter(|number| waiters.enter(&id(*number), account));
            all.count()
        };
        let half = MAX_WAITING / 2;
        assert_eq!(fill(account), half);
        assert!(
            waiters.enter(&id(0), Account::new(8)),
            "in the same domains"
        );
        waiters.leave(&id(0), Some(Account::new(8)), false);
        for number in 0..half {
            waiters.leave(&id(number), Some(account), false);
        }
        assert_eq!(waiters.len(), 0);
        assert_eq!(fill(account), half, "what it gave back is there again");
    }

    #[test]
    fn a_hold_is_nobodys_when_all_gave_up() {
        let waiters = Waiters::default();
        for passes in [false, true] {
            let all = [(); 3].map(|()| waiters.enter(&id("job"), Account::NONE));
            assert_eq!(all, [true; 3]);
            assert!(!waiters.leave(&id("job"), IN, passes));
            assert!(!waiters.leave(&id("job"), IN, false));
            assert_eq!(waiters.leave(&id("job"), IN, false), !passes);
            assert_eq!(waiters.len(), 0);
        }
    }
}
