//! Model tests of the waiters: no caller sleeps through its turn, and nothing is left behind.
//!
//! A scheduler chooses which task runs next wherever the waiters are locked and wherever a task is
//! polled. A lost wake-up shows as a deadlock, because the clock moves only while a task waits for
//! it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use quell_core::actual::CostOrigin;
use quell_core::charge::{Entry, decide};
use quell_core::hold::MAX_HOLDS;
use quell_core::policy::Rung;
use quell_core::rule::{DomainRules, Rule};
use quell_core::time::Now;
use quell_core::{claim, end_hold};
use quell_testkit::model::{self, Mutex};
use shuttle::future::{block_on, spawn};
use shuttle::thread;

use crate::clock::ManualClock;
use crate::store::{
    ActiveLimit, Answer, Changes, Charge, Charges, Claim, Finished, HoldId, HoldStatus, HoldStore,
    LimitSet, Placed, State, Store, StoreError, StoreResult,
};
use crate::{Cost, Ending, Limit, Limiter, Operation, Query};

const SCHEDULES: usize = 400;

/// A store of one key under one limit. The memory store is modelled under another scheduler here, and the model
/// of the suite is a store of this crate as others see it, not of the copy that is tested.
#[derive(Debug, Default)]
struct OneKey(parking_lot::Mutex<Option<(ActiveLimit, State)>>);

impl OneKey {
    fn with<T>(&self, run: impl FnOnce(&ActiveLimit, &mut State) -> T) -> T {
        let mut kept = self.0.lock();
        let (active, state) = kept.as_mut().expect("a limit is in force");
        run(active, state)
    }

    fn end_now(&self, id: &HoldId, ending: Ending, now: Now) -> Option<Finished> {
        self.with(|active, state| {
            let (limit, at) = (&active.limit, active.at(now, None));
            let ended = end_hold::end(state, limit, &at, id, &ending, CostOrigin::ONLY);
            ended.found.then(|| Finished {
                status: match ended.stands {
                    true => HoldStatus::Stands,
                    false => HoldStatus::new(&ending),
                },
                repeated: false,
                wait: ended.wait,
                next: ended.next.into_iter().collect(),
                unsettled: None,
            })
        })
    }
}

impl Store for OneKey {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        if let Some(active) = changes.added.first() {
            *self.0.lock() = Some((active.clone(), State::rest(active.id)));
        }
    }

    fn most_holds(&self, _rung: Rung) -> usize {
        MAX_HOLDS
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> StoreResult<Answer> {
        self.with(|_, state| {
            let set = charges.set();
            let charge = &set.charges()[0];
            let decisions = decide(now, operation, &mut [Entry { charge, state }]);
            Ok(decisions.into())
        })
    }
}

impl HoldStore for OneKey {
    async fn hold(&self, set: &LimitSet<'_>, claim: &Claim<'_>, now: Now) -> StoreResult<Placed> {
        self.with(|_, state| {
            let charge = &set.charges()[0];
            let claimed = claim::claim(now, claim, &mut [Entry { charge, state }]);
            let claimed = claimed.ok_or(StoreError::TooManyHolds)?;
            Ok(Placed {
                decisions: claimed.decisions,
                held: claimed.held[0],
                wait: claimed.wait,
                ..Placed::default()
            })
        })
    }

    async fn end(&self, id: &HoldId, ending: Ending, now: Now) -> StoreResult<Option<Finished>> {
        Ok(self.end_now(id, ending, now))
    }

    async fn advance(&self, id: &HoldId, now: Now) -> StoreResult<Option<(Duration, Vec<HoldId>)>> {
        self.with(|active, state| {
            let charge = &Charge::alone(active, Cost::ONE);
            Ok(claim::advance(now, id, &mut [Entry { charge, state }]))
        })
    }

    fn abandon(&self, id: &HoldId, ending: Ending, now: Now) -> Vec<HoldId> {
        let finished = self.end_now(id, ending, now);
        finished.map_or_else(Vec::new, |finished| finished.next)
    }
}

fn limiter(limit: Limit) -> (Arc<Limiter<OneKey>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_790_000_000_000_000_000)));
    let limiter = Limiter::builder(OneKey::default()).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build();
    let rule = Rule::new("r", limit).expect("the limit is built");
    let domain = DomainRules::new("d", vec![rule]);
    limiter.set_rules(vec![domain]).expect("the rule is sound");
    (Arc::new(limiter), clock)
}

/// Tells one caller to go away: its future is dropped at that point.
#[derive(Default)]
struct Leave {
    told: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Leave {
    fn notify(&self) {
        self.told.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }

    /// Drives `work` to its end, or drops it when told.
    async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = Box::pin(work);
        poll_fn(|context| {
            *self.waker.lock() = Some(context.waker().clone());
            if self.told.load(Ordering::SeqCst) {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }
}

fn nothing_is_left(limiter: &Limiter<OneKey>, clock: &ManualClock) {
    assert_eq!(limiter.waiting(), 0);
    assert_eq!(clock.alarms(), 0);
}

/// Permits are released one by one, on a clock that stands still: each wake-up counts. One of the
/// waiting callers goes away at any moment.
#[test]
fn every_permit_that_comes_back_wakes_somebody() {
    model::check(SCHEDULES, || {
        let (limiter, clock) = limiter(Limit::concurrency(1).build().expect("possible"));
        let held = Arc::new(AtomicUsize::new(0));
        let leave = Arc::new(Leave::default());
        let tasks = (0..4).map(|number| {
            let (limiter, held) = (Arc::clone(&limiter), Arc::clone(&held));
            let leave = if number == 1 {
                Arc::clone(&leave)
            } else {
                Arc::default()
            };
            spawn(async move {
                let query = Query::new("d");
                let Some(verdict) = leave.or(limiter.acquire(&query)).await else {
                    return;
                };
                let verdict = verdict.expect("it answers");
                assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                thread::yield_now();
                held.fetch_sub(1, Ordering::SeqCst);
                let id = verdict.id.expect("a permit has a name");
                limiter.release("d", &id).await.expect("it is held");
            })
        });
        let tasks: Vec<_> = tasks.collect();
        thread::yield_now();
        leave.notify();
        for task in tasks {
            block_on(task).expect("it ends");
        }
        nothing_is_left(&limiter, &clock);
    });
}

/// Turns come with time; those behind one that goes away move up.
#[test]
fn every_turn_is_taken() {
    model::check(SCHEDULES, || {
        let (limiter, clock) = limiter(Limit::per_second(1).build().expect("possible"));
        let done = Arc::new(AtomicUsize::new(0));
        let leave = Arc::new(Leave::default());
        let tasks = (0..4).map(|number| {
            let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
            let leave = if number == 2 {
                Arc::clone(&leave)
            } else {
                Arc::default()
            };
            spawn(async move {
                let query = Query::new("d");
                if let Some(verdict) = leave.or(limiter.acquire(&query)).await {
                    assert!(verdict.expect("it answers").is_allow());
                }
                done.fetch_add(1, Ordering::SeqCst);
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let ticking = {
            let (clock, done) = (Arc::clone(&clock), Arc::clone(&done));
            thread::spawn(move || {
                while done.load(Ordering::SeqCst) < 4 {
                    if clock.alarms() > 0 {
                        clock.advance(Duration::from_secs(1));
                    }
                    thread::yield_now();
                }
            })
        };
        thread::yield_now();
        leave.notify();
        for task in tasks {
            block_on(task).expect("it ends");
        }
        ticking.join().expect("it ends");
        nothing_is_left(&limiter, &clock);
    });
}
