//! Crowd: many parallel calls through one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use quell::Limiter;
use quell_redis::RedisStore;

use super::Lab;
use super::limits::{BUCKET, limiter, query};
use super::wire::Wire;
use crate::report::{Report, progress};
use crate::table::Table;

/// Calls that wait at a time when a rate is measured.
pub(super) const CALLERS: usize = 512;

/// Sends `calls` calls from this many callers. Returns calls per second, and the most that waited
/// at once.
pub(super) async fn ask(
    subject: &Arc<Limiter<RedisStore>>,
    calls: usize,
    callers: usize,
) -> Result<(f64, usize)> {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let (waiting, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (subject, next) = (Arc::clone(subject), Arc::clone(&next));
        let (waiting, most) = (Arc::clone(&waiting), Arc::clone(&most));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= calls {
                    return Ok::<(), anyhow::Error>(());
                }
                let now = waiting.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                subject.try_acquire(&query(number % 10_000)).await?;
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((
        calls as f64 / begun.elapsed().as_secs_f64(),
        most.load(Ordering::Relaxed),
    ))
}

/// Ten thousand calls that all wait at once: how many connections they take.
pub(super) fn connections(lab: &Lab, report: &mut Report) -> Result<String> {
    let mut table = Table::new([
        "calls at once",
        "connections to the store",
        "all answered within ms",
    ]);
    let runtime = super::runtime()?;
    for callers in [1, 100, 10_000] {
        let subject = Arc::new(limiter(&lab.url(), &[BUCKET])?);
        let mut wire = Wire::connect(lab.address)?;
        let before: usize = wire.info("stats", "total_connections_received")?.parse()?;
        runtime.block_on(ask(&subject, 1, 1))?;
        let begun = Instant::now();
        let (_, most) = runtime.block_on(ask(&subject, callers, callers))?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        let after: usize = wire.info("stats", "total_connections_received")?.parse()?;
        let opened = after - before;
        report.add(
            "connections",
            &callers.to_string(),
            "connections",
            opened as f64,
        );
        progress(&format!(
            "{most} calls waited at once on {opened} connections"
        ));
        table.row([
            callers.to_string(),
            opened.to_string(),
            format!("{took:.0}"),
        ]);
    }
    Ok(table.to_string())
}
