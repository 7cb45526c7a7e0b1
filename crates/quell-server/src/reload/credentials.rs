//! Credentials: reads them again when their file changes, or an operator asks for it.

use std::path::PathBuf;
use std::sync::Arc;

use super::watch::Watch;
use crate::shared::Shared;

/// Reads the credentials again and, if they have no mistake, brings them into force; otherwise the old
/// ones stay. Returns whether they had none.
pub(crate) async fn credentials(shared: &Arc<Shared>) -> bool {
    let shared = Arc::clone(shared);
    // On a thread that may wait for the disk.
    let work = tokio::task::spawn_blocking(move || match shared.access.reload() {
        Ok(is_changed) => {
            if is_changed {
                tracing::info!("credentials reloaded");
            }
            true
        }
        Err(error) => {
            shared.metrics.reload_failures.add(1);
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "the credentials cannot be used: those in force stay");
            false
        }
    });
    work.await.unwrap_or(false)
}

/// Reads the credentials again whenever their file changes.
pub(crate) async fn follow_credentials(shared: Arc<Shared>, path: PathBuf) {
    let mut watch = Watch::new(std::slice::from_ref(&path));
    // What changed before the watch began is in no event.
    credentials(&shared).await;
    loop {
        watch.changed(|| vec![path.clone()]).await;
        credentials(&shared).await;
    }
}
