//! Several versions of a limit on one store, as in a rolling deploy: at most the largest is admitted.

use quell::{Limit, Limiter, Operation, Rate};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_redis::{RedisStore, StoreClock};

use crate::limits::{SECOND, START, ask, built, limiter};
use crate::server::Server;

const STEP: u64 = 1_000_000;

/// Limiters on one server, each with its own version, asked at instants that the test gives.
fn fleet(server: &Server, limits: [Limit; 2], name: &str) -> [Limiter<RedisStore>; 2] {
    limits.map(|limit| {
        let store = server.store().test_keys(name);
        limiter(store.clock(StoreClock::Caller).build(), &[limit])
    })
}

async fn drain(limiter: &Limiter<RedisStore>, now: u64) -> u64 {
    let mut passed = 0;
    while ask(limiter, Operation::Acquire, "a", 1, now)
        .await
        .is_allow()
    {
        passed += 1;
    }
    passed
}

/// Asks every limiter once a second until it refuses.
async fn admitted_in_turn(fleet: &[Limiter<RedisStore>], seconds: u64) -> u64 {
    let mut admitted = 0;
    for second in 0..seconds {
        for limiter in fleet {
            admitted += drain(limiter, START + second * STEP).await;
        }
    }
    admitted
}

fn token(count: u64, burst: u64) -> Limit {
    built(Limit::per_second(count).burst(burst).build())
}

fn window(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 3_600 * SECOND).build())
}

/// The larger and the smaller of two versions, and what may pass in this many seconds.
fn pairs(seconds: u64) -> Vec<(Limit, Limit, u64)> {
    let minute = 60 * SECOND;
    let rate = |count| Rate::new(count, SECOND).unwrap();
    let leaky = |burst| built(Limit::leaky_bucket(rate(2)).burst(burst).build());
    let batches = |burst| built(TokenBucket::refill(2, SECOND).burst(burst).build());
    let drained = 2 * (seconds - 1);
    vec![
        (window(60), window(30), 60),
        (token(2, 60), token(2, 30), 60 + drained),
        (token(3, 60), token(2, 10), 60 + 3 * (seconds - 1)),
        (leaky(60), leaky(30), 60 + drained),
        (batches(60), batches(30), 60 + drained),
        (
            built(Limit::sliding_window(60, minute).build()),
            built(Limit::sliding_window(30, minute).build()),
            60,
        ),
        (
            built(Limit::sliding_log(60, minute).build()),
            built(Limit::sliding_log(30, minute).build()),
            60,
        ),
    ]
}

#[tokio::test]
async fn two_versions_in_turn_admit_no_more_than_the_larger() {
    let server = Server::start(&[]);
    for (number, (large, small, most)) in pairs(10).into_iter().enumerate() {
        for (order, limits) in [[&large, &small], [&small, &large]].into_iter().enumerate() {
            let fleet = fleet(
                &server,
                limits.map(Clone::clone),
                &format!("{number}-{order}"),
            );
            assert_eq!(
                admitted_in_turn(&fleet, 10).await,
                most,
                "{}",
                large.algorithm()
            );
        }
    }
}

/// Versions of different algorithms count separately: each finds its own use again, so both limits
/// together are admitted, and nothing more however often they alternate.
#[tokio::test]
async fn versions_of_different_algorithms_admit_no_more_than_their_limits_together() {
    let server = Server::start(&[]);
    let hour = 3_600 * SECOND;
    let log = built(Limit::sliding_log(30, hour).build());
    let segments = built(Limit::sliding_window(30, hour).build());
    let bucket = built(Limit::per_hour(30).build());
    let others = [log, segments, bucket];
    for (number, other) in others.into_iter().enumerate() {
        for (order, limits) in [[window(60), other.clone()], [other.clone(), window(60)]]
            .into_iter()
            .enumerate()
        {
            let fleet = fleet(&server, limits, &format!("kinds-{number}-{order}"));
            let admitted = admitted_in_turn(&fleet, 20).await;
            assert!(
                (60..=60 + 30).contains(&admitted),
                "{admitted} {}",
                other.algorithm()
            );
        }
    }
}

#[tokio::test]
async fn a_lowered_limit_locks_no_key_for_longer_than_its_refill() {
    let server = Server::start(&[]);
    let fleet = fleet(&server, [token(2, 1_000), token(2, 10)], "lowered");
    assert_eq!(drain(&fleet[0], START).await, 1_000);
    assert_eq!(drain(&fleet[1], START).await, 0);
    assert_eq!(drain(&fleet[1], START + 5 * STEP).await, 10);
    assert_eq!(drain(&fleet[0], START + 5 * STEP).await, 0);
    assert!(server.left() > 0, "it expires");
}
