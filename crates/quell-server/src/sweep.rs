//! Sweep: frees the memory of states at rest, in small steps.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::shared::Shared;
use quell_host::task;

/// Time between two steps.
const EVERY: Duration = Duration::from_secs(1);

/// Steps for the whole store: memory is freed within about a minute, at the cost of reading each state
/// once in that time.
const ROUND: usize = 60;

/// Sweeps for ever.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(candidate) = shared.candidates.running() {
            task::run_blocking(move || candidate.sweep(ROUND)).await;
        }
        // States in a shared store expire by themselves.
        let store = shared.limiter.store().memory();
        let has_names = store.named_bans() > 0;
        if store.keys() == 0 && store.overflow_states() == 0 && !has_names {
            continue;
        }
        let shards = store.shard_count().div_ceil(ROUND);
        let shared = Arc::clone(&shared);
        // A shard of a full store takes a millisecond: not on a thread that answers.
        task::run_blocking(move || {
            let now = shared.limiter.now();
            shared.limiter.store().memory().sweep(shards, now)
        })
        .await;
    }
}
