//! Holds on a cluster: the same decisions as in one process, in one slot and over many.

use quell_conformance::{Carries, Lines, holds_as_model_in_micros, lists_holds};
use quell_redis::StoreClock;

use crate::cluster::Cluster;
use crate::conformance::seeds;

/// One script sees the same as on one server, so callers can queue too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_traces_in_one_slot_have_the_same_answers_as_in_one_process() {
    let cluster = Cluster::start(0);
    for seed in seeds(4) {
        // Keys are spread by the part between braces.
        let name = format!("{{one-{seed}}}");
        let store = cluster.store().test_keys(&name).test_isolation().build();
        let carries = Carries::AtOnce;
        holds_as_model_in_micros(store, carries, Lines::Stood, seed, 300).await;
    }
}

/// Sets are in as many slots as they have limits: held in each, or in none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_traces_over_many_slots_have_the_same_answers_as_in_one_process() {
    let cluster = Cluster::start(0);
    for seed in seeds(4) {
        let name = format!("one-{seed}");
        let store = cluster.store().test_keys(&name).test_isolation().build();
        let carries = Carries::AtOnce;
        holds_as_model_in_micros(store, carries, Lines::None, seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_traces_over_many_slots_have_the_same_answers_as_among_many_processes() {
    let cluster = Cluster::start(0);
    for seed in seeds(4) {
        let name = format!("many-{seed}");
        let store = cluster.store().test_keys(&name).clock(StoreClock::Caller);
        let carries = Carries::AtNextCall;
        holds_as_model_in_micros(store.build(), carries, Lines::None, seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_is_listed() {
    let cluster = Cluster::start(0);
    let store = cluster
        .store()
        .test_keys("listed")
        .clock(StoreClock::Caller);
    lists_holds(store.build()).await;
}
