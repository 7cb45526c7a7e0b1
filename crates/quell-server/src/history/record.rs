//! Record: reads the numbers of this server for its charts.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};

use super::{Counts, EVERY, Point, WRITE_EVERY};
use crate::shared::Shared;
use quell_host::task;

/// Reads the numbers once a second, for ever.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let (mut before, mut since) = (Counts::total(&shared.metrics), Instant::now());
    for second in 1_u64.. {
        ticks.tick().await;
        let (total, now) = (Counts::total(&shared.metrics), Instant::now());
        let millis = now.duration_since(since).as_millis();
        shared.history.add(&Point {
            at: Timestamp::now().as_second(),
            millis: u64::try_from(millis).unwrap_or(u64::MAX),
            counts: total.with(&before, u64::saturating_sub),
        });
        (before, since) = (total, now);
        if second.is_multiple_of(WRITE_EVERY) {
            let shared = Arc::clone(&shared);
            // On a thread that answers no calls.
            task::run_blocking(move || shared.history.write(&shared.config)).await;
        }
    }
}
