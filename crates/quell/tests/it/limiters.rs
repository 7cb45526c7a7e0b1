//! The limiters: with one limit, with rules, and with limits that come with the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell::clock::ManualClock;
use quell::observer::{Event, Observer};
use quell::store::memory::MemoryStore;
use quell::{
    AdHocMemo, AskError, Cost, Descriptor, KeyedLimiter, Limit, LimitError, Limiter, Operation,
    Outcome, Query, Rate, RetryAfter, UnkeyedLimiter,
};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::rate::MAX_PERIOD;
use quell_core::rule::DomainRules;
use quell_core::time::Now;

use crate::tower::support::{rule, shop};

#[test]
fn keys_are_apart_and_refill() {
    let clock = Arc::new(ManualClock::default());
    let limiter = KeyedLimiter::<str, _>::with(Limit::per_second(2), 10, Arc::clone(&clock));
    let limiter = limiter.unwrap();
    assert_eq!(limiter.try_acquire("a").remaining, 1);
    assert_eq!(limiter.try_acquire(&"a".to_owned()).remaining, 0);
    let refused = limiter.try_acquire("a");
    let wait = Duration::from_millis(500);
    assert_eq!(refused.outcome, Outcome::Deny(RetryAfter::After(wait)));
    assert_eq!(limiter.peek("b", Cost::ONE).remaining, 2);
    assert_eq!(
        limiter.keys(),
        1,
        "a peek and a refusal leave no key behind"
    );
    clock.advance(wait);
    assert!(limiter.try_acquire("a").outcome.is_allow());
    let three = Cost::new(3).unwrap();
    let never = Outcome::Deny(RetryAfter::Never);
    assert_eq!(limiter.try_acquire_n("b", three).outcome, never);
}

#[test]
fn the_twin_without_keys_answers_alike() {
    let clock = Arc::new(ManualClock::default());
    let limit = Limit::per_minute(3).burst(2).build().unwrap();
    let keyed = KeyedLimiter::<u8, _>::with(limit.clone(), 1, Arc::clone(&clock)).unwrap();
    let unkeyed = UnkeyedLimiter::with(limit, Arc::clone(&clock)).unwrap();
    for step in 0..50_u64 {
        clock.advance(Duration::from_secs(step * 7 % 23));
        let cost = Cost::new(1 + step % 3).unwrap();
        assert_eq!(unkeyed.peek(cost), keyed.peek(&1, cost), "step {step}");
        assert_eq!(
            unkeyed.try_acquire_n(cost),
            keyed.try_acquire_n(&1, cost),
            "step {step}"
        );
    }
}

#[test]
fn calendar_windows_need_no_rules() {
    // 23:59:59 UTC on 1970-01-01.
    let clock = Arc::new(ManualClock::new(Now::from_nanos(86_399_000_000_000)));
    let limit = Limit::calendar_window(1, CalendarUnit::Day, "UTC");
    let limiter = UnkeyedLimiter::with(limit, Arc::clone(&clock)).unwrap();
    assert!(limiter.try_acquire().outcome.is_allow());
    assert!(!limiter.try_acquire().outcome.is_allow());
    clock.advance(Duration::from_secs(1));
    assert!(limiter.try_acquire().outcome.is_allow());
}

#[test]
fn impossible_numbers_are_refused_when_the_limiter_is_made() {
    let error = KeyedLimiter::<str>::new(Limit::per_second(0)).unwrap_err();
    assert_eq!(error, LimitError::ZeroRate);
    let error = UnkeyedLimiter::new(Limit::per_second(5).burst(0)).unwrap_err();
    assert_eq!(error, LimitError::ZeroBurst);
    let nowhere = Limit::calendar_window(5, CalendarUnit::Day, "Europe/Nowhere");
    let error = UnkeyedLimiter::new(nowhere).unwrap_err();
    assert_eq!(error, LimitError::UnknownTimeZone);
}

/// Counts events.
#[derive(Debug, Default)]
struct Counter {
    queries: AtomicUsize,
    ad_hoc: AtomicUsize,
}

impl Observer for Counter {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Query { set, verdict, .. } => {
                assert_eq!(set.charges().len(), verdict.decisions.len());
                self.queries.fetch_add(1, Ordering::SeqCst);
            }
            Event::AdHoc { .. } => {
                self.ad_hoc.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[tokio::test]
async fn every_answer_is_observed_once_and_an_unknown_domain_is_an_error() {
    let counter = Arc::new(Counter::default());
    let limiter = Limiter::builder(MemoryStore::new())
        .observer(Arc::clone(&counter) as _)
        .build();
    let query = Query::new("d").entry("user", "alice");
    assert_eq!(
        limiter.try_acquire(&query).await,
        Err(AskError::UnknownDomain)
    );
    let empty = DomainRules::new("d", Vec::new());
    limiter.set_rules(vec![empty]).unwrap();
    let verdict = limiter.try_acquire(&query).await.unwrap();
    assert!(verdict.is_allow() && verdict.is_unmatched());
    assert_eq!((verdict.remaining, verdict.reset_after), (None, None));
    assert_eq!(limiter.peek(&query).await.unwrap(), verdict);
    assert_eq!(counter.queries.load(Ordering::SeqCst), 2);
    assert_eq!(counter.ad_hoc.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_limit_that_comes_with_the_call_takes_over_what_was_used() {
    let counter = Arc::new(Counter::default());
    let clock = Arc::new(ManualClock::default());
    let limiter = Limiter::builder(MemoryStore::new())
        .observer(Arc::clone(&counter) as _)
        .clock(clock as _)
        .build();
    let now = limiter.now();
    let ask = async |count: u64, cost: u64| {
        let bucket = Limit::per_minute(count);
        let cost = Cost::new(cost).unwrap();
        limiter
            .ask_ad_hoc(Operation::Acquire, b"k\0\xff", &bucket, cost, now)
            .await
    };
    assert_eq!(ask(10, 6).await.unwrap().remaining, 4);
    assert_eq!(
        ask(20, 1).await.unwrap().remaining,
        13,
        "six and one of twenty"
    );
    assert_eq!(ask(5, 1).await.unwrap().remaining, 0, "all of five");
    assert_eq!(
        ask(0, 1).await,
        Err(AskError::Impossible(LimitError::ZeroRate))
    );
    assert_eq!(counter.ad_hoc.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn limits_that_come_with_the_call_are_bounded_rounded_down_and_reclaimed() {
    let clock = Arc::new(ManualClock::default());
    let limiter = Limiter::builder(MemoryStore::new())
        .clock(Arc::clone(&clock) as _)
        .build();
    let ask = async |key: &[u8], bucket: TokenBucket| {
        limiter
            .ask_ad_hoc(Operation::Acquire, key, &bucket, Cost::ONE, limiter.now())
            .await
            .unwrap()
    };
    let bucket = |burst| Limit::per_second(3).burst(burst);
    for burst in 1..=65_536 {
        assert_eq!(ask(b"attacker", bucket(burst)).await.limit, burst);
    }
    assert_eq!(ask(b"a", bucket(7)).await.limit, 7, "those in use go on");
    let late = ask(b"b", bucket(70_000)).await;
    assert_eq!((late.limit, late.remaining), (65_536, 65_535));
    let interval = late.reset_after;
    assert!(
        interval >= Duration::from_nanos(333_333_334)
            && interval < Duration::from_nanos(666_666_668),
        "no faster than a third of a second, and not half as fast: {interval:?}"
    );
    let fastest = Limit::per_second(1_000_000_000);
    assert_eq!(ask(b"c", fastest.burst(u64::MAX)).await.limit, 1 << 63);
    let slowest = Limit::token_bucket(Rate::new(1, MAX_PERIOD).unwrap());
    assert_eq!(ask(b"d", slowest.burst(1)).await.reset_after, MAX_PERIOD);
    clock.advance(Duration::from_secs(100_000));
    let again = ask(b"b", bucket(70_000)).await;
    assert_eq!(again.limit, 70_000, "those long at rest made room");
}

/// Using one memo for everything, in any order, changes no answer; nor does a limit that was dropped
/// meanwhile.
#[tokio::test]
async fn a_memo_changes_no_answer() {
    let clock = Arc::new(ManualClock::default());
    let limiter = || {
        let builder = Limiter::builder(MemoryStore::new());
        builder.clock(Arc::clone(&clock) as _).build()
    };
    let (plain, remembering) = (limiter(), limiter());
    let mut memo = AdHocMemo::default();
    let mut other = AdHocMemo::default();
    for step in 0..2_000_u64 {
        clock.advance(Duration::from_millis(step * 7 % 900));
        let bucket = Limit::per_minute(1 + step / 3 % 5).burst(1 + step % 2 * 3);
        let key = [b'a', u8::try_from(step % 3).unwrap()];
        let now = plain.now();
        let expected = plain
            .ask_ad_hoc(Operation::Acquire, &key, &bucket, Cost::ONE, now)
            .await;
        let memo = if step % 4 == 0 { &mut other } else { &mut memo };
        let got = remembering.ask_ad_hoc_or_plan(
            Operation::Acquire,
            &key,
            &bucket,
            Cost::ONE,
            &mut { now },
            memo,
        );
        assert_eq!(got.map(Result::ok), expected.map(Some), "step {step}");
    }
    let zero = Limit::per_minute(0);
    let ask_for = |key: &[u8], bucket: &TokenBucket, memo: &mut AdHocMemo| {
        let now = &mut remembering.now();
        let got =
            remembering.ask_ad_hoc_or_plan(Operation::Acquire, key, bucket, Cost::ONE, now, memo);
        got.map(Result::unwrap)
    };
    let ask = |bucket: &TokenBucket, memo: &mut AdHocMemo| ask_for(b"z", bucket, memo);
    assert_eq!(
        ask(&zero, &mut memo),
        Err(AskError::Impossible(LimitError::ZeroRate))
    );
    // All limits are idle for a long time, and others replace them.
    let ours = Limit::per_minute(2);
    assert_eq!(ask(&ours, &mut memo).unwrap().remaining, 1);
    clock.advance(Duration::from_secs(3_600));
    for burst in 1..=70_000 {
        ask_for(b"y", &Limit::per_second(1_000).burst(burst), &mut other).unwrap();
    }
    for remaining in [1, 0] {
        assert_eq!(ask(&ours, &mut memo).unwrap().remaining, remaining);
    }
    assert!(!ask(&ours, &mut other).unwrap().outcome.is_allow());
}

/// Each descriptor gets the verdict of its own limits, even if it shares one with another.
#[tokio::test]
async fn each_descriptor_of_a_query_has_a_verdict() {
    let limiter = Limiter::builder(MemoryStore::new()).build();
    let window = |max| {
        Limit::fixed_window(max, Duration::from_secs(60))
            .build()
            .unwrap()
    };
    let rules = vec![
        rule("address", window(10), &["address"]),
        rule("user", window(2), &["user"]),
    ];
    limiter.set_rules(vec![shop(rules)]).unwrap();
    let descriptor = |entries: &[(&'static str, &'static str)]| {
        let mut descriptor = Descriptor::new();
        for (name, value) in entries {
            descriptor.push(*name, value.as_bytes());
        }
        descriptor
    };
    let both = [("user", "alice"), ("address", "192.0.2.1")];
    let descriptors = vec![
        descriptor(&[("user", "bob")]),
        descriptor(&both),
        descriptor(&[("address", "192.0.2.1")]),
        descriptor(&[("other", "x")]),
    ];
    let query = Query::with_descriptors("shop", descriptors);
    for asked in 1..=3 {
        let now = limiter.now();
        let (verdict, each, _) = limiter
            .ask_each(Operation::Acquire, &query, now)
            .await
            .unwrap();
        assert_eq!(verdict.is_allow(), asked <= 2);
        let told = each.iter().map(|one| {
            let rules = one
                .decisions
                .iter()
                .map(|said| (&*said.rule, said.decision.remaining));
            (one.is_allow(), rules.collect::<Vec<_>>())
        });
        let told: Vec<_> = told.collect();
        let (address, user) = (10 - 2 * asked.min(2), 2 - asked.min(2));
        let expected = [
            (asked <= 2, vec![("user", user)]),
            (asked <= 2, vec![("address", address), ("user", user)]),
            (true, vec![("address", address)]),
            (true, vec![]),
        ];
        assert_eq!(told, expected);
    }
    let one = Query::new("shop").entry("user", "carol");
    let asked = limiter.ask_each(Operation::Peek, &one, limiter.now()).await;
    let (verdict, each, _) = asked.unwrap();
    assert_eq!(each, [verdict]);
}
