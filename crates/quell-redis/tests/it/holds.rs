//! Holds: the same decisions as in one process, whatever is held, waits or is owed.

use std::slice::from_ref;
use std::time::Duration;

use quell::conformance::{
    Carries, Lines, holds_as_model_in_micros, learns_as_model_in_micros, warms_as_model_in_micros,
};
use quell::{Cost, Operation, Query};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::hold::{Claim, HoldId, OnExpiry, Patience};
use quell_redis::StoreClock;

use crate::conformance::seeds;
use crate::limits::{SECOND, START, ask, at, built, limiter};
use crate::server::Server;

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(40) {
        let name = format!("one-{seed}");
        let store = server.store().test_keys(&name).rehearsal().build();
        holds_as_model_in_micros(store, Carries::AtOnce, Lines::Stood, seed, 300).await;
    }
}

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_among_many_processes() {
    let server = Server::start(&[]);
    for seed in seeds(40) {
        let name = format!("many-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        holds_as_model_in_micros(store.build(), Carries::AtNextCall, Lines::Stood, seed, 300).await;
    }
}

#[tokio::test]
async fn a_ceiling_is_learned_as_in_one_process() {
    let server = Server::start(&[]);
    let mut ceilings = 0;
    for seed in seeds(8) {
        let name = format!("learned-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        ceilings += learns_as_model_in_micros(store.build(), seed, 1_500).await;
    }
    assert!(ceilings > 40, "it moved {ceilings} times in all");
}

#[tokio::test]
async fn a_bucket_warms_up_as_in_one_process() {
    let server = Server::start(&[]);
    // A quantum too much or too little shows in one of 25: in these two, for one.
    for seed in seeds(16).chain([39, 58]) {
        let name = format!("warm-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        warms_as_model_in_micros(store.build(), seed, 400).await;
    }
}

/// One hold is over while another has yet to be taken, and both are by the time that anybody looks.
#[tokio::test]
async fn what_is_over_first_is_given_back_first_however_seldom_anybody_looks() {
    let server = Server::start(&[]);
    let bucket = TokenBucket::refill(1, SECOND).burst(6);
    let limit = built(bucket.build()).on_expiry(OnExpiry::Release);
    let mut left = Vec::new();
    for looks in [1, 9] {
        let store = server.store().test_keys(&format!("looks-{looks}"));
        let limiter = limiter(store.clock(StoreClock::Caller).build(), from_ref(&limit));
        for (name, cost, hold) in [("a", 6, None), ("b", 3, Some(1_900)), ("c", 4, None)] {
            let id = HoldId::new("d", name).unwrap();
            let claim = Claim {
                id: &id,
                hold: hold.map(Duration::from_millis),
                wait: Some(Patience::of(60 * SECOND)),
                is_named: true,
            };
            let query = Query::new("d").entry("user", "u");
            let query = query.cost(Cost::new(cost).unwrap());
            let verdict = limiter.hold_at(&query, &claim, at(START)).await.unwrap();
            assert!(verdict.is_allow(), "{name}: {verdict:?}");
        }
        for look in 1..=looks {
            let now = START + 9_000_000 / looks * look;
            if look == looks {
                let verdict = ask(&limiter, Operation::Peek, "u", 1, now).await;
                left.push(verdict.remaining);
            } else {
                // A refusal writes down what time has done.
                let verdict = ask(&limiter, Operation::Acquire, "u", 6, now).await;
                assert!(!verdict.is_allow());
            }
        }
    }
    assert_eq!(left, [Some(5), Some(5)]);
}
