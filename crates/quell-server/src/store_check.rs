//! Store check: looks whether somebody should change something about the store.

use std::sync::Arc;
use std::time::Duration;

use crate::shared::Shared;

/// How often it is looked: rights and policies are changed by hand.
const EVERY: Duration = Duration::from_secs(60);

/// How soon again while the store does not answer.
const AGAIN: Duration = Duration::from_secs(5);

/// Looks for ever, at once for the first time.
pub(crate) async fn run(shared: Arc<Shared>) {
    let store = shared.limiter.store();
    loop {
        let warnings = store.warnings().await;
        let pause = if warnings.is_some() { EVERY } else { AGAIN };
        for warning in shared
            .health
            .store_warned(warnings.unwrap_or_else(|| shared.health.store_warnings()))
        {
            tracing::warn!(warning, "the settings of the store should change");
        }
        tokio::time::sleep(pause).await;
    }
}
