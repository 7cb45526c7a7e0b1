//! Numbers at the edges: the same answers as in memory, to the microsecond.

use std::time::Duration;

use quell::store::HoldStore;
use quell::{Limit, Limiter, Operation, Rate, RetryAfter};
use quell_conformance::{InMicros, ModelStore};
use quell_core::algorithm::token_bucket::TokenBucket;

use crate::limits::{DAY, SECOND, START, ask, built, limiter};
use crate::server::Server;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn token(count: u64, period: Duration, burst: u64) -> Limit {
    let rate = Rate::new(count, period).unwrap();
    built(Limit::token_bucket(rate).burst(burst).build())
}

fn leaky(count: u64, period: Duration, burst: u64, undelayed: u64) -> Limit {
    let rate = Rate::new(count, period).unwrap();
    let bucket = Limit::leaky_bucket(rate).burst(burst);
    built(bucket.delay_after(undelayed).build())
}

fn window(limit: u64, window: Duration, segments: u32) -> Limit {
    built(
        Limit::sliding_window(limit, window)
            .segments(segments)
            .build(),
    )
}

fn warm(count: u64, period: Duration, window: Duration, factor: u32) -> Limit {
    let rate = Rate::new(count, period).unwrap();
    let bucket = Limit::token_bucket(rate).warm_up(window);
    built(bucket.cold_factor(factor).build())
}

fn all() -> Vec<Limit> {
    let minute = 60 * SECOND;
    let refill = TokenBucket::refill(100, SECOND).burst(1_000).initial(3);
    vec![
        token(7, minute, 7),
        token(59, minute, 1_000_000),
        token(1_000_003, SECOND, 1_000_003),
        token(300_000_007, SECOND, 5),
        token(999_999_999, SECOND, 999_999_999),
        token(1_000_000_000_000, SECOND, 1_000_000_000_000),
        token(999_999_999_999, SECOND, 1 << 50),
        token(1, Duration::from_nanos(1), 1_000),
        token(3, Duration::from_nanos(1_001), 10),
        token(1, YEAR, 100),
        token(1, 100 * YEAR, 1),
        token(1_000, SECOND, 1 << 40),
        warm(1, SECOND, DAY, 1_000),
        warm(999_999_999, SECOND, DAY, 2),
        warm(999_999_999_999, SECOND, DAY, 2),
        warm(7, minute, DAY, 47),
        warm(3, Duration::from_nanos(1_001), SECOND, 3),
        warm(1, YEAR, Duration::from_nanos(1), 1_000),
        leaky(7, 90 * SECOND, 3, 1),
        leaky(999_999_937, DAY, 1 << 30, 1 << 20),
        built(refill.build()),
        built(Limit::fixed_window(1 << 49, 100 * YEAR).build()),
        window(10, Duration::from_secs(3_600), 7),
        window(1_000, DAY, 3_600),
        window(5, 100 * YEAR, 3_599),
        window(3, Duration::from_micros(11), 11),
        built(Limit::sliding_log(100, Duration::from_micros(1)).build()),
        built(Limit::sliding_log(10_000, YEAR).build()),
    ]
}

/// A small generator: the same seed gives the same trace.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound.max(1)
    }
}

#[tokio::test]
async fn limits_at_the_edges_have_the_same_answers_as_in_memory() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        let store = server
            .store()
            .test_keys(&number.to_string())
            .test_isolation();
        let subject = limiter(store.build(), std::slice::from_ref(&limit));
        let model = limiter(
            InMicros(ModelStore::default()),
            std::slice::from_ref(&limit),
        );
        let mut random = Random(number as u64);
        let mut now = START;
        let refill = u64::try_from(limit.full_refill().as_micros())
            .unwrap()
            .max(1);
        for step in 0..60 {
            now += match random.below(5) {
                0 => 0,
                1 => random.below(3),
                2 => random.below(refill / limit.max() + 2),
                3 => random.below(refill / 10 + 2),
                // The model's clock ends in 2554, this store's in 2255.
                _ => random.below(refill.min(1 << 48)),
            };
            if now > 1 << 52 {
                break;
            }
            let cost = match random.below(5) {
                0 => limit.max() / 2 + 1,
                1 => limit.max(),
                2 => limit.max().saturating_add(1),
                _ => 1 + random.below(limit.max().min(5)),
            };
            let operation = match random.below(4) {
                0 => Operation::Peek,
                _ => Operation::Acquire,
            };
            let got = ask(&subject, operation, "a", cost, now).await;
            let expected = ask(&model, operation, "a", cost, now).await;
            assert_eq!(got, expected, "{limit} step {step} cost {cost} at {now}");
        }
    }
}

/// If a full refill does not fit, the unit of time is longer. A wait is still true to the
/// microsecond: after exactly that time without other traffic the call passes, one microsecond
/// earlier it does not.
#[tokio::test]
async fn one_a_year_with_a_burst_of_a_thousand_is_true_to_its_word() {
    let server = Server::start(&[]);
    let limit = token(1, YEAR, 1_000);
    let store = server.store().test_keys("year").test_isolation().build();
    let subject = limiter(store, &[limit]);
    let all = ask(&subject, Operation::Acquire, "a", 1_000, START + 3).await;
    assert!(all.is_allow());
    assert_eq!(all.remaining, Some(0));
    for cost in [1, 2, 7] {
        let now = START + 12_345;
        let wait = wait(&subject, cost, now).await;
        let exact = u64::try_from(YEAR.as_micros()).unwrap() * cost - 12_342;
        assert!(exact.abs_diff(wait) <= 16, "{wait} is not {exact}");
        let early = ask(&subject, Operation::Peek, "a", cost, now + wait - 1).await;
        let then = ask(&subject, Operation::Peek, "a", cost, now + wait).await;
        assert!(!early.is_allow() && then.is_allow(), "cost {cost}: {wait}");
    }
}

async fn wait<S: HoldStore>(limiter: &Limiter<S>, cost: u64, now: u64) -> u64 {
    let verdict = ask(limiter, Operation::Peek, "a", cost, now).await;
    match verdict.retry_after {
        Some(RetryAfter::After(wait)) => u64::try_from(wait.as_micros()).unwrap(),
        other => panic!("a wait, not {other:?}"),
    }
}

/// A rate whose fraction does not fit is rounded against the caller, and by next to nothing.
#[tokio::test]
async fn fractions_beyond_the_scripts_are_rounded_and_not_refused() {
    let server = Server::start(&[]);
    let odd = token(
        3_000_000_000_000_000_019,
        100 * YEAR - Duration::from_nanos(1),
        1 << 50,
    );
    let huge = built(Limit::fixed_window(1 << 50, SECOND).build());
    for (number, limit) in [odd, huge].into_iter().enumerate() {
        let store = server
            .store()
            .test_keys(&number.to_string())
            .test_isolation();
        let subject = limiter(store.build(), &[limit]);
        let most = 1 << 50;
        let all = ask(&subject, Operation::Acquire, "a", most, START).await;
        assert!(all.is_allow(), "{all:?}");
        assert_eq!(all.remaining, Some(0));
        let never = ask(&subject, Operation::Peek, "a", most + 1, START).await;
        assert_eq!(never.retry_after, Some(RetryAfter::Never));
        let later = ask(&subject, Operation::Peek, "a", 1, START).await;
        assert!(matches!(later.retry_after, Some(RetryAfter::After(wait)) if wait <= SECOND));
    }
}

/// A limit whose refill takes longer than the longest expiry of a server is still charged.
#[tokio::test]
async fn the_longest_refills_have_an_expiry() {
    let server = Server::start(&[]);
    let most = 1 << 50;
    let all = [
        token(1, 100 * YEAR, most),
        leaky(1, 100 * YEAR, most, most),
        built(TokenBucket::refill(1, 100 * YEAR).burst(most).build()),
        built(
            TokenBucket::refill(1, 100 * YEAR)
                .burst(most)
                .initial(most - 1)
                .build(),
        ),
    ];
    for (number, limit) in all.into_iter().enumerate() {
        let store = server
            .store()
            .test_keys(&number.to_string())
            .test_isolation();
        let subject = limiter(store.build(), &[limit]);
        let charged = ask(&subject, Operation::Acquire, "a", most - 1, START).await;
        assert!(charged.is_allow() && !charged.degraded, "{charged:?}");
        let more = ask(&subject, Operation::Acquire, "a", 2, START).await;
        assert!(!more.is_allow() && !more.degraded, "{more:?}");
    }
}
