//! Crowd: many parallel calls through one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use quell::Limiter;
use quell_redis::RedisStore;

use super::limits::query;

/// Calls that wait at a time when a rate is measured.
pub(super) const CALLERS: usize = 512;

/// Sends `calls` calls from this many callers. Returns calls per second.
pub(super) async fn ask(
    subject: &Arc<Limiter<RedisStore>>,
    calls: usize,
    callers: usize,
) -> Result<f64> {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (subject, next) = (Arc::clone(subject), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= calls {
                    return Ok::<(), anyhow::Error>(());
                }
                subject.try_acquire(&query(number % 10_000)).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(calls as f64 / begun.elapsed().as_secs_f64())
}
