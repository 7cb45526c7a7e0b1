//! Several versions of a limit at a time on one key of the memory store: at most the largest of them is
//! admitted.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use quell::calendar::SystemCalendar;
use quell::clock::{Clock, ManualClock};
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::{Answer, Charges, HoldStatus, LocalStore, Store, StoreError};
use quell::{AdHocMemo, Limiter, Query, Rate};
use quell_core::charge::{LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::rule::{Changes, ReplacedLimit, Rule};
use quell_core::time::{Monotonic, Now};

use crate::tower::support::{rule, shop};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;

fn active(id: u32, limit: Limit) -> ActiveLimit {
    ActiveLimit {
        id: LimitId(id),
        limit,
        since: Monotonic::ORIGIN,
        place: LimitPlace::NONE,
    }
}

fn store_with(limits: &[ActiveLimit]) -> MemoryStore {
    let store = MemoryStore::with(1_000, HashKey::random());
    store.install(&Changes {
        added: limits.to_vec(),
        ..Changes::default()
    });
    store
}

/// Asks until it is refused. Returns how many passed.
fn drain(store: &MemoryStore, limit: &ActiveLimit, now: u64) -> u64 {
    let set = LimitSet::ad_hoc(b"key", limit, Cost::ONE);
    let ask = || store.decide_local(&set, Operation::Acquire, Now::from_nanos(now));
    let mut passed = 0;
    while ask()[0].outcome.is_allow() {
        passed += 1;
    }
    passed
}

/// As two clients of `CL.THROTTLE`, each with its own numbers.
#[test]
fn two_callers_with_different_numbers_get_no_more_than_the_larger() {
    let large = active(1, Limit::per_second(20).burst(20).build().unwrap());
    let small = active(2, Limit::per_second(10).burst(10).build().unwrap());
    let store = store_with(&[large.clone(), small.clone()]);
    let mut admitted = 0;
    for step in 0..=10 {
        let now = START + step * SECOND / 10;
        admitted += drain(&store, &large, now) + drain(&store, &small, now);
    }
    assert_eq!(admitted, 20 + 20);
    // If only one version is still asked, its state is a packed word again.
    for step in 2..10 {
        drain(&store, &small, START + step * SECOND);
    }
    assert_eq!(store.keys(), 1);
    assert_eq!(drain(&store, &small, START + 60 * SECOND), 10);
}

/// A call that began under the old rules ends after the new ones came into force.
#[test]
fn a_late_call_under_the_old_rules_refunds_nothing() {
    for (burst, to) in [(60, 30), (30, 60)] {
        let old = active(1, Limit::per_second(2).burst(burst).build().unwrap());
        let new = active(2, Limit::per_second(2).burst(to).build().unwrap());
        let store = store_with(std::slice::from_ref(&old));
        let mut admitted = drain(&store, &old, START);
        store.install(&Changes {
            added: vec![new.clone()],
            replaced: vec![ReplacedLimit {
                from: old.id,
                to: new.id,
                at: Some(Now::from_nanos(START)),
            }],
            ..Changes::default()
        });
        for step in 0..=100 {
            let now = START + step * SECOND;
            admitted += drain(&store, &new, now) + drain(&store, &old, now);
        }
        assert!(admitted <= 60 + 2 * 100, "{burst} to {to}: {admitted}");
        assert!(admitted >= 30 + 2 * 100, "{burst} to {to}: {admitted}");
    }
}

/// A memory store that does other work while its limits change.
struct SlowChange {
    memory: MemoryStore,
    /// True if the memory learns of new limits before the other work, false if after it.
    is_told_first: bool,
    meanwhile: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for SlowChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl Store for SlowChange {
    type Lookup = ();

    fn set_clock(&mut self, clock: &Arc<dyn Clock>) {
        self.memory.set_clock(clock);
    }

    fn install(&self, changes: &Changes) {
        if self.is_told_first {
            self.memory.install(changes);
        }
        if let (Some(meanwhile), false) = (self.meanwhile.get(), changes.added.is_empty()) {
            meanwhile();
        }
        if !self.is_told_first {
            self.memory.install(changes);
        }
    }

    fn decide_now(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: &mut Now,
        lookup: &mut (),
    ) -> Option<Answer> {
        self.memory.decide_now(charges, operation, now, lookup)
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        self.memory.decide(charges, operation, now).await
    }
}

/// Asks until it is refused. Returns how many passed.
fn drain_rules(limiter: &Limiter<impl Store>) -> u64 {
    let ask = || {
        let query = Query::new("shop");
        let answer = limiter.ask_at_once(Operation::Acquire, &query, limiter.now());
        answer.unwrap().unwrap().is_allow()
    };
    let mut passed = 0;
    while ask() {
        passed += 1;
    }
    passed
}

/// Limits of one kind, the first replaced by the second: lowered, raised, and with another refill.
fn changes_of_limits() -> Vec<[Limit; 2]> {
    let window = Duration::from_millis(100);
    let bucket = |rate, burst| Limit::per_second(rate).burst(burst).build().unwrap();
    let leaky = |rate, burst| {
        let rate = Rate::new(rate, Duration::from_secs(1)).unwrap();
        Limit::leaky_bucket(rate)
            .burst(burst)
            .delay_after(burst)
            .build()
            .unwrap()
    };
    let log = |max| Limit::sliding_log(max, window).build().unwrap();
    let segments = |max| Limit::sliding_window(max, window).build().unwrap();
    let fixed = |max| Limit::fixed_window(max, window).build().unwrap();
    vec![
        [bucket(1_000, 100), bucket(500, 50)],
        [bucket(500, 50), bucket(1_000, 100)],
        [bucket(1, 100), bucket(1_000, 100)],
        [leaky(1_000, 100), leaky(500, 50)],
        [leaky(1, 100), leaky(1_000, 100)],
        [log(100), log(50)],
        [segments(100), segments(50)],
        [fixed(100), fixed(50)],
        [log(50), log(100)],
    ]
}

/// Remainder of the second of two limits for a caller right after the first was used up.
fn rest_of([old, new]: &[Limit; 2]) -> u64 {
    new.max().saturating_sub(old.max())
}

/// A reload of many rules takes a while, in which calls continue under the old ones: all of that use
/// counts under the new rules, whether the store already knows the new limits or not.
#[test]
fn what_was_charged_while_the_rules_changed_is_not_lost() {
    let cases = changes_of_limits().into_iter();
    for (limits, is_told_first) in
        cases.flat_map(|limits| [(limits.clone(), false), (limits, true)])
    {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(START)));
        let store = SlowChange {
            memory: MemoryStore::with(1_000, HashKey::random()),
            is_told_first,
            meanwhile: OnceLock::new(),
        };
        let limiter = Limiter::builder(store).clock(clock.clone()).build();
        let limiter = Arc::new(limiter);
        let set = |limit: &Limit| {
            let rules = vec![rule("one", limit.clone(), &[])];
            limiter.set_rules(vec![shop(rules)]).unwrap();
        };
        set(&limits[0]);
        let (caller, most) = (Arc::downgrade(&limiter), limits[0].max());
        let meanwhile = move || {
            clock.advance(Duration::from_millis(50));
            assert_eq!(drain_rules(&caller.upgrade().unwrap()), most);
        };
        assert!(limiter.store().meanwhile.set(Box::new(meanwhile)).is_ok());
        set(&limits[1]);
        let rest = drain_rules(&limiter);
        assert_eq!(rest, rest_of(&limits), "{is_told_first} {limits:?}");
    }
}

/// A thread may sleep between looking up the rules and charging, while they change once or twice.
#[test]
fn who_charges_late_under_the_old_rules_is_counted_under_the_new_ones() {
    for limits in changes_of_limits() {
        for changes in [1, 2] {
            let clock = Arc::new(ManualClock::new(Now::from_nanos(START)));
            let store = MemoryStore::with(1_000, HashKey::random());
            let limiter = Limiter::builder(store).clock(clock.clone()).build();
            let set = |limit: &Limit| {
                let rules = vec![rule("one", limit.clone(), &[])];
                limiter.set_rules(vec![shop(rules)]).unwrap();
            };
            set(&limits[0]);
            let query = Query::new("shop");
            let (began, rules) = (limiter.now(), limiter.rules());
            let late = rules.resolve(&query, began, &SystemCalendar::default());
            clock.advance(Duration::from_millis(10));
            if changes == 2 {
                set(&Limit::per_hour(1_000).build().unwrap());
            }
            set(&limits[1]);
            clock.advance(Duration::from_millis(200));
            let store = limiter.store();
            let mut admitted = 0;
            while store.decide_local(&late, Operation::Acquire, began)[0]
                .outcome
                .is_allow()
            {
                admitted += 1;
            }
            assert_eq!(admitted, limits[0].max(), "{limits:?}");
            let rest = drain_rules(&limiter);
            assert_eq!(rest, rest_of(&limits), "{changes} {limits:?}");
        }
    }
}

/// A hold survives changes of its limit, even if its key is used in between.
#[tokio::test]
async fn a_hold_outlives_two_changes_of_its_limit() {
    let length = Duration::from_secs(5 * 3_600);
    let clock = Arc::new(ManualClock::new(Now::from_nanos(START)));
    let limiter = Limiter::builder(MemoryStore::new())
        .clock(clock.clone())
        .build();
    let set = |burst| {
        let limit = Limit::per_second(10).burst(burst).build().unwrap();
        let rule = Rule {
            max_hold: length,
            ..rule("one", limit, &[])
        };
        limiter.set_rules(vec![shop(vec![rule])]).unwrap();
    };
    let query = Query::new("shop");
    set(10);
    let held = limiter.reserve(&query, length, Some("id")).await.unwrap();
    assert!(held.is_allow());
    set(20);
    assert!(limiter.try_acquire(&query).await.unwrap().is_allow());
    set(30);
    clock.advance(Duration::from_secs(4 * 3_600));
    let store = limiter.store();
    store.sweep(store.shard_count(), limiter.now());
    let settled = limiter.settle("shop", "id", 5).await.unwrap();
    assert_eq!(settled.status, HoldStatus::Settled);
    let left = limiter.peek(&query).await.unwrap().remaining;
    assert_eq!(left, Some(30 - 4));
}

/// A client may invent so many limits that unused ones are dropped, and one of them may be the last
/// that a key was asked under.
#[tokio::test]
async fn a_limit_that_is_given_up_takes_no_use_along() {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(START)));
    let limiter = Limiter::builder(MemoryStore::new())
        .clock(clock.clone())
        .build();
    let ask = async |key: &[u8], count, period, burst| {
        let rate = Rate::new(count, Duration::from_secs(period)).unwrap();
        let bucket = Limit::token_bucket(rate).burst(burst);
        let now = limiter.now();
        let answer = limiter.ask_ad_hoc(Operation::Acquire, key, &bucket, Cost::ONE, now);
        answer.await.unwrap().outcome.is_allow()
    };
    for _ in 0..60 {
        assert!(ask(b"key", 60, 3_600, 60).await);
    }
    assert!(!ask(b"key", 1, 1, 1).await, "it counts under every version");
    clock.advance(Duration::from_secs(3));
    for burst in 1..=65_536 {
        ask(b"other", 1, 10, burst).await;
    }
    // Another minute brings another unit.
    assert!(!ask(b"key", 60, 3_600, 60).await);
    let store = limiter.store();
    store.sweep(store.shard_count(), limiter.now());
    assert!(!ask(b"key", 60, 3_600, 60).await);
    clock.advance(Duration::from_secs(60));
    assert!(ask(b"key", 60, 3_600, 60).await);
    assert!(!ask(b"key", 60, 3_600, 60).await);
}

/// Number that a limit of 100 at 1,000/s may admit while `admit` runs, and the number that was admitted.
fn admitted_and_most(limiter: &Limiter<MemoryStore>, admit: impl FnOnce() -> u64) -> (u64, u64) {
    let began = limiter.now().monotonic;
    let admitted = admit();
    let elapsed = limiter.now().monotonic.since(began);
    let refilled = u64::try_from(elapsed.as_nanos()).unwrap() / 1_000_000;
    (admitted, 100 + refilled)
}

/// Callers with different numbers, all at once on one key.
#[test]
fn many_callers_with_different_numbers_get_no_more_than_the_larger() {
    let limiter = &Limiter::new(MemoryStore::new());
    let admitted = AtomicU64::new(0);
    let (admitted, most) = admitted_and_most(limiter, || {
        thread::scope(|scope| {
            for thread in 0..6_usize {
                let admitted = &admitted;
                scope.spawn(move || {
                    let numbers = [(1_000, 100), (500, 50), (1_000, 10), (999, 99), (7, 100)];
                    let mut memo = AdHocMemo::default();
                    for call in 0..20_000 {
                        let (rate, burst) = numbers[(thread + call / 3) % numbers.len()];
                        let bucket = Limit::per_second(rate).burst(burst);
                        let (op, cost) = (Operation::Acquire, Cost::ONE);
                        let now = &mut limiter.now();
                        let answer =
                            limiter.ask_ad_hoc_or_plan(op, b"key", &bucket, cost, now, &mut memo);
                        let passed = answer.unwrap().unwrap().outcome.is_allow();
                        admitted.fetch_add(u64::from(passed), Ordering::Relaxed);
                    }
                });
            }
        });
        admitted.into_inner()
    });
    assert!(admitted <= most, "{admitted} admitted, {most} at most");
    assert!(admitted >= 100, "{admitted} admitted");
}

/// Rules that change back and forth under many callers.
#[test]
fn reloads_under_many_callers_admit_no_more_than_the_larger() {
    let limiter = &Limiter::new(MemoryStore::new());
    let set = |rate, burst| {
        let limit = Limit::per_second(rate).burst(burst).build().unwrap();
        limiter
            .set_rules(vec![shop(vec![rule("one", limit, &[])])])
            .unwrap();
    };
    set(1_000, 100);
    let (admitted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (admitted, most) = admitted_and_most(limiter, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    set(500, 50);
                    set(1_000, 100);
                    set(1_000, 20);
                }
            });
            let callers = [(); 4].map(|()| {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let verdict = limiter.try_acquire_local(&Query::new("shop")).unwrap();
                        admitted.fetch_add(u64::from(verdict.is_allow()), Ordering::Relaxed);
                    }
                })
            });
            for caller in callers {
                caller.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        admitted.into_inner()
    });
    assert!(admitted <= most, "{admitted} admitted, {most} at most");
    assert!(admitted >= 20, "{admitted} admitted");
}
