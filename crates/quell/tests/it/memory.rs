//! The memory store: the conformance suite, the bound on keys, snapshots.

use quell::conformance::{exact_in_parallel, same_as_model};
use quell::store::memory::MemoryStore;

#[tokio::test]
async fn answers_as_the_model_does() {
    for seed in 0..60 {
        same_as_model(MemoryStore::new(), seed, 1_500).await;
    }
}

#[test]
fn admits_exactly_the_limit_in_parallel() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    exact_in_parallel(MemoryStore::new(), 8, 1_000, |calls| {
        runtime.block_on(calls)
    });
}
