//! Follow: reloads when somebody pushed other rules to a store.

use std::sync::Arc;

use quell_host::stored_rules::{Follower, Look, StoredRules};

use super::Occasion;
use crate::shared::Shared;

/// Reloads whenever there is another version.
pub(crate) async fn follow(shared: Arc<Shared>, stored: Arc<StoredRules>) {
    let mut follower = Follower::new(&stored);
    loop {
        match follower.look().await {
            Look::AsBefore => {}
            Look::Failed => shared.metrics.reload_failures.add(1),
            Look::Changed => {
                super::reload(&shared, Occasion::StoreChanged).await;
            }
        }
    }
}
