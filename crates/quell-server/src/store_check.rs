//! Store check: warns if change the settings of the store.

use std::sync::Arc;
use std::time::Duration;

use crate::shared::Shared;

/// Time between two checks: rights and policies are changed by hand.
const EVERY: Duration = Duration::from_secs(60);

/// The same while the store does not answer.
const AGAIN: Duration = Duration::from_secs(5);

/// Checks the store that servers share, now and then again and again.
pub(crate) async fn run(shared: Arc<Shared>) {
    let Some(store) = shared.limiter.store().shared() else {
        return;
    };
    loop {
        let pause = match store.store().warnings().await {
            Ok(warnings) => {
                for warning in shared.health.store_warned(warnings) {
                    tracing::warn!(warning, "change the settings of the store");
                }
                EVERY
            }
            Err(_) => AGAIN,
        };
        tokio::time::sleep(pause).await;
    }
}
