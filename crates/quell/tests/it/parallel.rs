//! The table under many threads: admissions stay within the bound, and no key is lost while the
//! table grows, is swept and is read.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use quell::clock::{Clock, ManualClock};
use quell::store::memory::MemoryStore;
use quell::{AdHocMemo, Cost, KeyedLimiter, Limit, Limiter, Operation, Outcome, Rate};
use quell_core::time::{Monotonic, Now};

const THREADS: usize = 8;

fn start() -> Now {
    Now::from_nanos(1_700_000_000_000_000_000)
}

/// All threads call a few keys, which share one line or none, at the same instant.
fn hammer(limiter: &KeyedLimiter<u64, Arc<ManualClock>>, keys: u64, calls: u64) -> Vec<u64> {
    let admitted: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let admitted = &admitted;
            scope.spawn(move || {
                for call in 0..calls {
                    let key = (call + thread) % keys;
                    let cost = 1 + call % 3;
                    let decision = limiter.try_acquire_n(&key, Cost::new(cost).unwrap());
                    if decision.outcome == Outcome::Allow {
                        admitted[usize::try_from(key).unwrap()].fetch_add(cost, Ordering::Relaxed);
                    }
                    limiter.peek(&key, Cost::ONE);
                }
            });
        }
    });
    admitted.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn few_keys_hammered_are_admitted_exactly_their_burst() {
    for burst in [1_000, 60_000] {
        let clock = Arc::new(ManualClock::new(start()));
        let limit = Limit::per_hour(1_000).burst(burst);
        let limiter = KeyedLimiter::with(limit, 100, clock).unwrap();
        let admitted = hammer(&limiter, 3, 60_000);
        for (key, admitted) in admitted.into_iter().enumerate() {
            // A call of 3 units may not fit where one of 1 does; all that is left is used in the
            // end.
            assert_eq!(admitted, burst, "key {key}");
        }
    }
}

#[test]
fn while_time_goes_on_no_more_is_admitted_than_it_brings() {
    let clock = Arc::new(ManualClock::new(start()));
    let limit = Limit::token_bucket(Rate::new(7, Duration::from_millis(1)).unwrap()).burst(50);
    let limiter = KeyedLimiter::with(limit, 100, Arc::clone(&clock)).unwrap();
    let is_over = AtomicBool::new(false);
    let admitted = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                clock.advance(Duration::from_micros(1));
            }
        });
        let admitted = hammer(&limiter, 2, 60_000);
        is_over.store(true, Ordering::Relaxed);
        admitted
    });
    let elapsed = clock.now().monotonic.since(start().monotonic);
    let most = 50 + 7 * u64::try_from(elapsed.as_nanos()).unwrap() / 1_000_000;
    for admitted in admitted {
        assert!(admitted <= most, "{admitted} admitted, {most} at most");
        assert!(admitted >= 50, "{admitted} admitted");
    }
}

/// Every third reading is old by the time it is used, as if its thread had slept in between.
#[derive(Debug)]
struct Sleepy {
    clock: ManualClock,
    readings: AtomicU64,
}

impl Sleepy {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: ManualClock::new(start()),
            readings: AtomicU64::new(0),
        })
    }
}

impl Clock for Sleepy {
    fn now(&self) -> Now {
        let now = self.clock.now();
        let reading = self.readings.fetch_add(1, Ordering::Relaxed);
        if !reading.is_multiple_of(3) {
            return now;
        }
        Now {
            monotonic: now.monotonic.saturating_sub(Duration::from_millis(4)),
            ..now
        }
    }

    /// Read under the lock.
    fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }
}

/// Asks for 10 ms at 1/ms, burst 10.
fn admitted_over_10_ms(clock: &Sleepy, mut is_allowed: impl FnMut() -> bool) -> u64 {
    let mut admitted = 0;
    for _ in 0..10_000 {
        admitted += u64::from(is_allowed());
        clock.clock.advance(Duration::from_micros(1));
    }
    admitted
}

#[test]
fn an_old_reading_is_credited_to_nobody() {
    let bucket = Limit::token_bucket(Rate::new(1, Duration::from_millis(1)).unwrap()).burst(10);

    let clock = Sleepy::new();
    let keyed = KeyedLimiter::<u64, _>::with(bucket.clone(), 100, Arc::clone(&clock)).unwrap();
    let ask = || keyed.try_acquire(&1).outcome.is_allow();
    let admitted = admitted_over_10_ms(&clock, ask);
    assert!((18..=20).contains(&admitted), "{admitted} by a key");

    let clock = Sleepy::new();
    let (store, one) = (MemoryStore::new(), Cost::ONE);
    let limiter = Limiter::builder(store).clock(clock.clone()).build();
    let mut memo = AdHocMemo::default();
    let acquire = Operation::Acquire;
    let ask = || {
        let now = &mut limiter.now();
        let answer = limiter.ask_ad_hoc_or_plan(acquire, b"key", &bucket, one, now, &mut memo);
        answer.unwrap().unwrap().outcome.is_allow()
    };
    let admitted = admitted_over_10_ms(&clock, ask);
    assert!((18..=20).contains(&admitted), "{admitted} by a store");
}

/// Each reading is a microsecond after the one before.
#[derive(Debug, Default)]
struct Ticking(ManualClock);

impl Clock for Ticking {
    fn now(&self) -> Now {
        self.0.advance(Duration::from_micros(1));
        self.0.now()
    }
}

#[test]
fn who_read_the_clock_earlier_is_refused_nothing() {
    let limiter = Limiter::builder(MemoryStore::new()).clock(Arc::new(Ticking::default()));
    let limiter = limiter.build();
    let bucket = Limit::per_minute(1).burst(5);
    let ask = |key: &[u8], now: &mut Now| {
        let (acquire, memo) = (Operation::Acquire, &mut AdHocMemo::default());
        let answer = limiter.ask_ad_hoc_or_plan(acquire, key, &bucket, Cost::ONE, now, memo);
        let decision = answer.unwrap().unwrap();
        (decision.outcome.is_allow(), decision.remaining)
    };
    // Calls that share a reading.
    let mut shared = limiter.now();
    let answers: Vec<_> = (0..6).map(|_| ask(b"batch", &mut shared)).collect();
    let expected = [4, 3, 2, 1, 0].map(|left| (true, left));
    assert_eq!(answers[..5], expected);
    assert_eq!(answers[5], (false, 0));
    // A call that is overtaken by others, which read the clock later.
    let mut early = limiter.now();
    for (_, left) in &expected[..4] {
        assert_eq!(ask(b"overtaken", &mut limiter.now()), (true, *left));
    }
    assert_eq!(ask(b"overtaken", &mut early), (true, 0));
    assert_eq!(ask(b"overtaken", &mut early), (false, 0));
}

/// Another call comes between the first reading of a call and its use.
#[derive(Debug)]
struct Overtaken {
    clock: ManualClock,
    limiter: OnceLock<Weak<KeyedLimiter<u64, Arc<Self>>>>,
    is_next: AtomicBool,
    admitted: AtomicU64,
}

impl Clock for Overtaken {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn monotonic(&self) -> Monotonic {
        let reading = self.clock.monotonic();
        if self.is_next.swap(false, Ordering::Relaxed) {
            self.clock.advance(Duration::from_micros(4));
            let limiter = self.limiter.get().and_then(Weak::upgrade).unwrap();
            let is_allowed = limiter.try_acquire(&1).outcome.is_allow();
            self.admitted
                .fetch_add(u64::from(is_allowed), Ordering::Relaxed);
        }
        reading
    }
}

#[test]
fn who_is_overtaken_after_reading_the_clock_is_credited_nothing() {
    let clock = Arc::new(Overtaken {
        clock: ManualClock::new(start()),
        limiter: OnceLock::new(),
        is_next: AtomicBool::new(false),
        admitted: AtomicU64::new(0),
    });
    let bucket = Limit::token_bucket(Rate::new(1, Duration::from_millis(1)).unwrap()).burst(10);
    let keyed = Arc::new(KeyedLimiter::with(bucket, 100, Arc::clone(&clock)).unwrap());
    clock.limiter.set(Arc::downgrade(&keyed)).unwrap();
    let mut admitted = 0;
    // 10 ms in all.
    for _ in 0..2_500 {
        clock.is_next.store(true, Ordering::Relaxed);
        admitted += u64::from(keyed.try_acquire(&1).outcome.is_allow());
    }
    let others = clock.admitted.load(Ordering::Relaxed);
    assert!(others > 0, "nobody was overtaken");
    let all = admitted + others;
    assert!((18..=20).contains(&all), "{admitted} and {others}");
}

#[test]
fn no_key_is_lost_or_doubled_while_the_table_grows() {
    const KEYS: u64 = 60_000;
    let clock = Arc::new(ManualClock::new(start()));
    let limiter = KeyedLimiter::<u64, _>::with(Limit::per_hour(2), 1_000_000, clock).unwrap();
    let admitted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (limiter, admitted) = (&limiter, &admitted);
            // All threads add the same keys, each in another order.
            scope.spawn(move || {
                for step in 0..KEYS {
                    let key = (step + thread * KEYS / THREADS as u64) % KEYS;
                    let is_allowed = limiter.try_acquire(&key).outcome.is_allow();
                    admitted.fetch_add(usize::from(is_allowed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(limiter.keys() as u64, KEYS);
    assert_eq!(admitted.into_inner() as u64, KEYS * 2);
    for key in 0..KEYS {
        assert!(!limiter.peek(&key, Cost::ONE).outcome.is_allow(), "{key}");
    }
}

#[test]
fn keys_come_and_go_and_the_table_stays_as_large_as_they_ask() {
    let clock = Arc::new(ManualClock::new(start()));
    let limiter =
        KeyedLimiter::<u64, _>::with(Limit::per_second(1), 1_000_000, Arc::clone(&clock)).unwrap();
    let most = AtomicUsize::new(0);
    for round in 0..20 {
        thread::scope(|scope| {
            for thread in 0..4 {
                let (limiter, most) = (&limiter, &most);
                scope.spawn(move || {
                    for key in 0..5_000 {
                        let key = (round * 4 + thread) * 5_000 + key;
                        assert!(limiter.try_acquire(&key).outcome.is_allow());
                        assert!(!limiter.try_acquire(&key).outcome.is_allow());
                    }
                    most.fetch_max(limiter.keys(), Ordering::Relaxed);
                });
            }
        });
        // All keys of the previous round are at rest, and new ones replace them.
        clock.advance(Duration::from_secs(2));
    }
    let most = most.into_inner();
    assert!(most < 60_000, "{most} keys at once, 20,000 of them live");
}

#[test]
fn windows_and_bans_lie_beside_buckets_under_many_threads() {
    let clock = Arc::new(ManualClock::new(start()));
    let hour = Duration::from_secs(3_600);
    let window = KeyedLimiter::with(Limit::fixed_window(5_000, hour), 100, Arc::clone(&clock));
    let log = KeyedLimiter::with(Limit::sliding_log(500, hour), 100, clock);
    for (limiter, limit) in [(window.unwrap(), 5_000), (log.unwrap(), 500)] {
        for admitted in hammer(&limiter, 2, 5_000) {
            assert_eq!(admitted, limit);
        }
    }
}
