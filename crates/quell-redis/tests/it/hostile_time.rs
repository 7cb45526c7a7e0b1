//! A clock that steps: back by seconds or an hour, forward by an hour.

use std::time::Duration;

use quell::{Limit, Operation, Rate, RetryAfter};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;

use crate::limits::{SECOND, START, ask, built, limiter};
use crate::server::Server;

const HOUR: u64 = 3_600_000_000;

fn all() -> Vec<Limit> {
    let window = 10 * SECOND;
    let rate = Rate::new(5, window).unwrap();
    let limits = [
        Limit::token_bucket(rate).build(),
        Limit::leaky_bucket(rate).build(),
        TokenBucket::refill(5, window).build(),
        Limit::fixed_window(5, window).build(),
        Limit::sliding_window(5, window).build(),
        Limit::sliding_log(5, window).build(),
    ];
    limits.into_iter().map(built).collect()
}

/// Number of calls at one instant that pass.
async fn passes(
    subject: &quell::Limiter<quell_redis::RedisStore>,
    calls: usize,
    now: u64,
) -> usize {
    let mut passed = 0;
    for _ in 0..calls {
        passed += usize::from(
            ask(subject, Operation::Acquire, "a", 1, now)
                .await
                .is_allow(),
        );
    }
    passed
}

#[tokio::test]
async fn a_clock_that_goes_back_credits_nothing_and_locks_nobody_for_long() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        for (name, back) in [("seconds", 5_000_000), ("hour", HOUR)] {
            let store = server.store().test_keys(&format!("{number}-{name}"));
            let subject = limiter(store.test_isolation().build(), std::slice::from_ref(&limit));
            let now = START + 2 * HOUR;
            assert_eq!(passes(&subject, 10, now).await, 5, "{limit}");
            let before = now - back;
            assert_eq!(passes(&subject, 10, before).await, 0, "{limit} back {name}");
            // It drains from the new time on, and a refusal has stored that.
            let refusal = ask(&subject, Operation::Peek, "a", 5, before).await;
            let Some(RetryAfter::After(wait)) = refusal.retry_after else {
                panic!("{limit}: {refusal:?}");
            };
            assert!(
                wait <= limit.full_refill(),
                "{limit} is locked for {wait:?}"
            );
            let then = before + u64::try_from(limit.full_refill().as_micros()).unwrap();
            let all = ask(&subject, Operation::Acquire, "a", 5, then).await;
            assert!(all.is_allow(), "{limit} {name}: {all:?}");
        }
    }
}

#[tokio::test]
async fn a_clock_that_jumps_ahead_grants_one_burst_at_the_most() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        let store = server.store().test_keys(&number.to_string());
        let subject = limiter(store.test_isolation().build(), std::slice::from_ref(&limit));
        assert_eq!(passes(&subject, 10, START).await, 5, "{limit}");
        assert_eq!(passes(&subject, 10, START + HOUR).await, 5, "{limit}");
        assert_eq!(passes(&subject, 10, START).await, 0, "{limit}");
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_does_not_prolong_a_ban() {
    let server = Server::start(&[]);
    let ban = Ban::new(1, None, vec![Duration::from_secs(60)]).unwrap();
    let limit = built(Limit::fixed_window(1, SECOND).build()).with_ban(ban);
    let subject = limiter(server.store().test_isolation().build(), &[limit]);
    let now = START + HOUR;
    assert_eq!(passes(&subject, 2, now).await, 1);
    let banned = ask(&subject, Operation::Acquire, "a", 1, START).await;
    assert!(banned.banned);
    assert_eq!(banned.retry_after, Some(RetryAfter::After(60 * SECOND)));
    let over = ask(&subject, Operation::Acquire, "a", 1, START + 60_000_000).await;
    assert!(over.is_allow());
}

/// Windows are half open: a charge is gone exactly a window later, and not before.
#[tokio::test]
async fn a_window_ends_on_the_microsecond() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        let store = server.store().test_keys(&format!("edge-{number}"));
        let subject = limiter(store.test_isolation().build(), std::slice::from_ref(&limit));
        let all = ask(&subject, Operation::Acquire, "a", 5, START).await;
        assert!(all.is_allow());
        let wait = u64::try_from(all.reset_after.unwrap().as_micros()).unwrap();
        assert!(wait >= 10_000_000, "{limit}: {wait}");
        let early = ask(&subject, Operation::Acquire, "a", 5, START + wait - 1).await;
        assert_eq!(
            early.retry_after,
            Some(RetryAfter::After(Duration::from_micros(1))),
            "{limit}"
        );
        let then = ask(&subject, Operation::Acquire, "a", 5, START + wait).await;
        assert!(then.is_allow(), "{limit}");
    }
}
