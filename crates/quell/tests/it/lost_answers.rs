//! Waiting on a store of which answers are lost, on a clock that stands still until it is moved.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::ManualClock;
use quell::store::HoldStore as _;
use quell::{Limit, Limiter};
use quell_conformance::ScriptedStore;
use quell_core::hold::HoldId;
use quell_core::time::Now;

use crate::holds::{SECOND, domain, query, quiet, rule};

const HOUR: Duration = Duration::from_secs(3_600);

/// The store fails when a waiter asks it how far its turn has moved, after it was told so: before the store has
/// heard it, or after that, so that only the answer is lost.
#[tokio::test]
async fn a_waiter_without_an_answer_of_the_store_asks_again() {
    for is_heard in [false, true] {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1_790_000_000_000_000_000)));
        let store = ScriptedStore::default();
        let limiter = Limiter::builder(store.clone()).clock(Arc::clone(&clock) as _);
        let limiter = Arc::new(limiter.build());
        let permits = Limit::concurrency(1).lease(HOUR).build().unwrap();
        limiter
            .set_rules(domain(vec![rule("permits", permits)]))
            .unwrap();
        let held = limiter.acquire(&query("alice", 1)).await.unwrap();
        let waiting = tokio::spawn({
            let limiter = Arc::clone(&limiter);
            async move {
                let query = query("alice", 1);
                let turn = limiter.reserve_timeout(&query, HOUR, Some("job"), 2 * HOUR);
                turn.await.unwrap()
            }
        });
        quiet().await;
        limiter.release("d", &held.id.unwrap()).await.unwrap();
        store.set_gone(true);
        quiet().await;
        store.set_gone(false);
        if is_heard {
            let id = HoldId::new("d", "job").unwrap();
            let (left, _) = store.advance(&id, limiter.now()).await.unwrap().unwrap();
            assert_eq!(left, Duration::ZERO);
        }
        assert!(!waiting.is_finished());
        clock.advance(SECOND);
        quiet().await;
        assert!(waiting.is_finished(), "{is_heard}");
        assert!(waiting.await.unwrap().is_allow());
    }
}
