//! Snapshots: states that outlive the process.
//!
//! A timer writes all states that are not at rest, shard by shard, on a thread that answers nobody;
//! a clean stop writes once more. What a crash can lose is what was charged since the last snapshot
//! began: so one begins every half interval, which leaves the other half for writing it.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quell::store::memory::HashKey;
use quell_host::task;

use crate::error::DataDirError;
use crate::shared::Shared;

mod directory;
mod format;
mod limit_record;
mod state_record;

pub(crate) use directory::Directory;
pub(crate) use format::Restored;

/// The data directory of a server that runs.
#[derive(Debug)]
pub(crate) struct Snapshots {
    directory: Directory,
    interval: Duration,
    /// Counter of changes when the last snapshot began; one at a time holds the lock.
    last: Mutex<Option<u64>>,
}

impl Snapshots {
    pub(crate) fn new(directory: Directory, interval: Duration) -> Self {
        Self {
            directory,
            interval,
            last: Mutex::new(None),
        }
    }

    /// Logs what a crash can lose.
    pub(crate) fn announce(&self) {
        tracing::info!(
            directory = %self.directory.path().display(),
            "states are kept: a crash loses at most the last {:?}, a clean stop nothing",
            self.interval
        );
    }

    /// Writes a snapshot unless nothing changed since the last one. Takes its time.
    pub(crate) fn write(&self, shared: &Shared) -> Result<(), DataDirError> {
        let mut last = self.last.lock();
        // Read before the states are: what changes from here on counts for the next one.
        let changes = shared.changes();
        if *last == Some(changes) {
            return Ok(());
        }
        let begun = Instant::now();
        match self.directory.write(&shared.limiter) {
            Ok(bytes) => {
                *last = Some(changes);
                let took = begun.elapsed();
                let metrics = &shared.metrics;
                metrics.snapshots.add(1);
                if shared.health.snapshot.succeeded() {
                    tracing::info!("snapshots are written again");
                }
                metrics.snapshot_bytes.set(bytes);
                metrics.snapshot_nanos.set_duration(took);
                tracing::debug!(bytes, ?took, "snapshot written");
                if took > self.interval / 2 {
                    tracing::warn!(
                        ?took,
                        "writing a snapshot takes longer than half of snapshot_interval: a crash may \
                         lose {:?} of decisions; write a longer interval, or give fewer keys",
                        took + self.interval / 2
                    );
                }
                Ok(())
            }
            Err(error) => {
                shared.metrics.snapshot_failures.add(1);
                shared.health.snapshot.failed(vec![reason(&error)]);
                Err(error)
            }
        }
    }
}

/// Writes snapshots for ever.
pub(crate) async fn run(shared: Arc<Shared>, snapshots: Arc<Snapshots>) {
    loop {
        tokio::time::sleep(snapshots.interval / 2).await;
        let (shared, snapshots) = (Arc::clone(&shared), Arc::clone(&snapshots));
        task::run_blocking(move || {
            let is_known = shared.health.snapshot.failure().is_some();
            match snapshots.write(&shared) {
                Err(error) if is_known => {
                    tracing::debug!("no snapshot was written: {}", reason(&error));
                }
                // Once per failure: a full disk would fill another log as well.
                Err(error) => tracing::error!("no snapshot was written: {}", reason(&error)),
                Ok(()) => {}
            }
        })
        .await;
    }
}

/// An error with what is behind it.
fn reason(error: &DataDirError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The secret of a store: that under which its states were kept, or a new one.
pub(crate) fn secret(restored: Option<&Restored>) -> HashKey {
    restored.map_or_else(HashKey::random, |restored| restored.secret)
}
