//! Child processes without the user's settings, and waiting for conditions.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use quell_testkit::process::Process;
use tempfile::TempDir;

pub(crate) use quell_testkit::wait::PATIENCE;

use crate::stall::Stopwatch;

/// Interval at which a condition is checked.
const GLANCE: Duration = Duration::from_millis(10);

/// Starts a command without the user's environment settings. The folder may hold its files.
pub(crate) fn start(mut command: Command, folder: TempDir) -> Process {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUELL_") {
            command.env_remove(name);
        }
    }
    Process::start_in(folder, &mut command)
}

/// Polls `look` until it returns something, for at most `at_most` plus the time for which the
/// machine stalled meanwhile.
pub(crate) async fn wait<T>(
    what: &str,
    at_most: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let start = Stopwatch::start();
    loop {
        // A look that began in time counts as in time.
        let took = start.elapsed();
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        ensure!(
            took < at_most,
            "not within {at_most:?} (plus {:?} of stalls): {what}",
            start.stalls()
        );
        tokio::time::sleep(GLANCE).await;
    }
}
