//! Holds: the same decisions as in one process, whatever is held, waits or is owed.

use quell::conformance::{
    Carries, holds_as_model_in_micros, learns_as_model_in_micros, warms_as_model_in_micros,
};
use quell_redis::StoreClock;

use crate::conformance::seeds;
use crate::server::Server;

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(40) {
        let name = format!("one-{seed}");
        let store = server.store().test_keys(&name).rehearsal().build();
        holds_as_model_in_micros(store, Carries::AtOnce, seed, 300).await;
    }
}

#[tokio::test]
async fn random_traces_with_holds_have_the_same_answers_as_among_many_processes() {
    let server = Server::start(&[]);
    for seed in seeds(40) {
        let name = format!("many-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        holds_as_model_in_micros(store.build(), Carries::AtNextCall, seed, 300).await;
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
    for seed in seeds(24) {
        let name = format!("warm-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        warms_as_model_in_micros(store.build(), seed, 400).await;
    }
}
