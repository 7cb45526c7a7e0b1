//! The rules of the example, on a real store and without it, at a clock that the test sets.

use std::sync::Arc;

use quell::clock::ManualClock;
use quell::store::memory::MemoryStore;
use quell::{Limiter, Query, Verdict};
use quell_redis::{FallbackStore, SharedStore, StoreClock};
use quell_store::rungs::RungStore;

use crate::limits::{SECOND, START, at};
use crate::server::Server;

#[expect(dead_code, reason = "the tests call its parts")]
#[path = "../../examples/three_limits.rs"]
mod three_limits;

fn node(server: &Server, clock: &Arc<ManualClock>) -> Limiter<SharedStore> {
    let store = server.store().clock(StoreClock::Caller).build();
    let store = FallbackStore::new(store, Arc::clone(clock) as _);
    let store = RungStore::new(store, MemoryStore::new());
    let limiter = Limiter::builder(store).clock(Arc::clone(clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(three_limits::rules().unwrap()).unwrap();
    limiter
}

async fn ask(limiter: &Limiter<SharedStore>, user: &str) -> Verdict {
    let query = Query::new("api").entry("user", user.to_owned());
    limiter.try_acquire(&query).await.unwrap()
}

#[tokio::test]
async fn three_limits_hold_together_and_a_quarter_of_them_alone() {
    let mut server = Server::start(&[]);
    let clock = Arc::new(ManualClock::new(at(START)));
    let nodes = [(), ()].map(|()| node(&server, &clock));
    // Five at one instant, whichever node they come to.
    for call in 0..5 {
        assert!(ask(&nodes[call % 2], "ann").await.is_allow(), "call {call}");
    }
    let refused = ask(&nodes[1], "ann").await;
    assert!(!refused.is_allow() && !refused.degraded, "{refused:?}");
    assert_eq!(&*refused.binding_rule().unwrap().rule, "burst");
    assert_eq!(refused.decisions.len(), 3, "all or nothing: {refused:?}");

    server.kill();
    // A quarter of a burst of 5 is 1; a quarter of 100 a minute is 25.
    let first = ask(&nodes[0], "bob").await;
    assert!(first.is_allow() && first.degraded, "{first:?}");
    let distributed = &first.decisions[2].decision;
    assert_eq!((distributed.limit, distributed.remaining), (25, 24));
    assert!(!ask(&nodes[0], "bob").await.is_allow(), "at that instant");
    let mut allowed = 0;
    for _ in 0..40 {
        clock.advance(SECOND / 10);
        allowed += usize::from(ask(&nodes[0], "bob").await.is_allow());
    }
    assert_eq!(allowed, 24);
}
