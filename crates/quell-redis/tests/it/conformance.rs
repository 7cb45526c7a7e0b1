//! The suite that every store must pass: the same decisions as the model, to the microsecond.

use std::sync::Arc;

use quell::clock::SystemClock;
use quell_conformance::{
    Carries, a_carried_key_needs_no_call, anchors_as_model_in_micros, exact_in_parallel,
    held_overrides_as_model_in_micros, new_anchors_give_no_second_budget,
    overdraws_as_model_in_micros, overrides_as_model_in_micros, permits_are_counted,
    random_anchors_give_no_second_budget, reservations_follow_a_new_anchor,
    same_as_model_in_micros,
};
use quell_redis::{FallbackStore, StoreClock};

use crate::server::Server;

pub(crate) use quell_conformance::seeds;

#[tokio::test]
async fn random_traces_have_the_same_answers_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(24) {
        let name = format!("one-{seed}");
        let store = server.store().test_keys(&name).test_isolation().build();
        same_as_model_in_micros(store, Carries::AtOnce, seed, 400).await;
    }
}

#[tokio::test]
async fn random_traces_have_the_same_answers_as_among_many_processes() {
    let server = Server::start(&[]);
    for seed in seeds(24) {
        let name = format!("many-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        same_as_model_in_micros(store.build(), Carries::AtNextCall, seed, 400).await;
    }
}

#[tokio::test]
async fn overrides_of_keys_have_the_answers_of_the_model() {
    let server = Server::start(&[]);
    for seed in seeds(6) {
        let name = format!("overrides-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        overrides_as_model_in_micros(store.build(), Carries::AtNextCall, seed, 400).await;
    }
}

#[tokio::test]
async fn permits_under_overrides_of_keys_have_the_answers_of_the_model() {
    let server = Server::start(&[]);
    for seed in seeds(6) {
        for carries in [Carries::AtOnce, Carries::AtNextCall] {
            let name = format!("permits-{carries:?}-{seed}");
            let store = server.store().test_keys(&name);
            let store = match carries {
                Carries::AtOnce => store.test_isolation(),
                Carries::AtNextCall => store.clock(StoreClock::Caller),
            };
            held_overrides_as_model_in_micros(store.build(), carries, seed, 300).await;
        }
    }
}

#[tokio::test]
async fn permits_are_counted_while_their_number_changes() {
    let server = Server::start(&[]);
    for seed in seeds(6) {
        let name = format!("counted-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        permits_are_counted(store.build(), seed, 300).await;
    }
}

#[tokio::test]
async fn budgets_with_an_overdraft_are_charged_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(24) {
        for carries in [Carries::AtNextCall] {
            let name = format!("budgets-{carries:?}-{seed}");
            let store = server.store().test_keys(&name);
            let store = match carries {
                Carries::AtOnce => store.test_isolation(),
                Carries::AtNextCall => store.clock(StoreClock::Caller),
            };
            overdraws_as_model_in_micros(store.build(), carries, seed, 400).await;
        }
    }
}

#[tokio::test]
async fn anchors_change_as_in_one_process() {
    let server = Server::start(&[]);
    for seed in seeds(12) {
        for carries in [Carries::AtOnce, Carries::AtNextCall] {
            let name = format!("anchors-{carries:?}-{seed}");
            let store = server.store().test_keys(&name);
            let store = match carries {
                Carries::AtOnce => store.test_isolation(),
                Carries::AtNextCall => store.clock(StoreClock::Caller),
            };
            anchors_as_model_in_micros(store.build(), carries, seed, 300).await;
        }
    }
}

#[tokio::test]
async fn a_new_anchor_gives_no_second_budget() {
    let server = Server::start(&[]);
    let store = |name: &str| {
        let store = server.store().test_keys(name);
        store.clock(StoreClock::Caller).build()
    };
    new_anchors_give_no_second_budget(store("named")).await;
    a_carried_key_needs_no_call(store("carried")).await;
    reservations_follow_a_new_anchor(store("reserved")).await;
    for seed in seeds(12) {
        let name = format!("random-{seed}");
        random_anchors_give_no_second_budget(store(&name), seed, 300).await;
    }
}

#[test]
fn many_callers_at_once_get_exactly_the_limit() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = server.store().build();
    exact_in_parallel(store, 16, 200, |future| runtime.block_on(future));
}

/// With remembered refusals, too, exactly the limit is admitted.
#[test]
fn a_store_that_remembers_refusals_admits_exactly_the_limit_as_well() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = FallbackStore::new(server.store().build(), Arc::new(SystemClock::new()));
    let numbers = store.clone();
    exact_in_parallel(store, 16, 200, |future| runtime.block_on(future));
    assert!(numbers.fallback_numbers().remembered > 0);
}
