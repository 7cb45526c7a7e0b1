//! States expire in time: not before they are at rest, and no later than twice that time plus a
//! second.

use std::time::Duration;

use quell::{Limit, Operation, Rate};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_redis::StoreClock;

use crate::limits::{SECOND, ask, built, limiter};
use crate::server::Server;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn all() -> Vec<Limit> {
    let token = |count, period, burst| {
        let rate = Rate::new(count, period).unwrap();
        Limit::token_bucket(rate).burst(burst).build()
    };
    let rate = Rate::new(3, 7 * SECOND).unwrap();
    let ban = Ban::new(2, Some(9 * SECOND), vec![SECOND, 400 * SECOND]).unwrap();
    let limits = [
        token(1, Duration::from_millis(10), 1),
        token(1_000, SECOND, 1),
        token(1, 50 * YEAR, 2),
        token(1, YEAR, 1_000),
        token(999_999_999, SECOND, 1),
        Limit::leaky_bucket(rate).build(),
        TokenBucket::refill(1, SECOND).burst(30).build(),
        Limit::fixed_window(2, Duration::from_millis(90)).build(),
        Limit::calendar_window(2, CalendarUnit::Month, "Europe/Berlin").build(),
        Limit::sliding_window(2, 10 * SECOND).build(),
        Limit::sliding_log(2, 10 * SECOND).build(),
        Limit::fixed_window(1, SECOND)
            .build()
            .map(|limit| limit.with_ban(ban)),
    ];
    limits.into_iter().map(built).collect()
}

/// By the store's own clock, as in production. The expiry is read a moment after the answer, and a
/// refusal that the store remembers is as old as the call that brought it: all that time is measured.
#[tokio::test]
async fn state_expires_after_it_is_at_rest_and_not_much_later() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        let store = server.store().test_keys(&number.to_string()).build();
        let subject = limiter(store, std::slice::from_ref(&limit));
        let query = quell::Query::new("d").entry("user", "a");
        let start = std::time::Instant::now();
        for call in 0..4 {
            // Calendar windows: the store's clock is not the limiter's, so it asks again.
            let verdict = subject.try_acquire(&query).await.unwrap();
            let left = server.left();
            let moment = start.elapsed();
            let rest = verdict.reset_after.unwrap();
            assert_ne!(left, -1, "{limit}: no state without an expiry");
            let Ok(left) = u64::try_from(left) else {
                assert!(moment > rest, "{limit} call {call}: gone too early");
                continue;
            };
            let left = Duration::from_millis(left);
            if limit.ban().is_none() {
                // A ban's record is at rest later than the limit says.
                let latest = 2 * (rest + moment) + SECOND;
                assert!(left <= latest, "{limit}: {left:?} for {rest:?}");
            }
            assert!(left + moment >= rest, "{limit}: {left:?} for {rest:?}");
        }
        server.command(&["FLUSHALL"]);
    }
}

/// If the caller gives the instants, no expiry is shorter than ten minutes.
#[tokio::test]
async fn given_instants_do_not_race_expiries() {
    let server = Server::start(&[]);
    let store = server.store().test_keys("given").clock(StoreClock::Caller);
    let limit = built(Limit::fixed_window(1, Duration::from_millis(5)).build());
    let subject = limiter(store.build(), &[limit]);
    ask(&subject, Operation::Acquire, "a", 1, 1_000_000).await;
    let left = server.left();
    assert!(left > 500_000, "{left}");
}

/// A refusal leaves no trace, and neither does a key at rest.
#[tokio::test]
async fn nothing_is_written_for_nothing() {
    let server = Server::start(&[]);
    let limit = built(Limit::fixed_window(1, SECOND).build());
    let subject = limiter(server.store().test_isolation().build(), &[limit]);
    ask(&subject, Operation::Acquire, "a", 2, 5_000_000).await;
    ask(&subject, Operation::Peek, "a", 1, 5_000_000).await;
    assert_eq!(server.command(&["DBSIZE"]), "0");
}
