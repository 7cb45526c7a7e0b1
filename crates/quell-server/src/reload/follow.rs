//! Follow: notices that somebody pushed other rules to a store.
//!
//! What a store tells of changes only wakes it. It reads the head each time: messages are lost while the
//! connection is broken.

use std::sync::Arc;

use quell::rule_store::POLL;
use tokio::time::{Instant, sleep_until};

use super::Occasion;
use crate::shared::Shared;
use crate::stored_rules::{Look, StoredRules};

/// Reloads whenever there is another version.
pub(crate) async fn follow(shared: Arc<Shared>, stored: Arc<StoredRules>) {
    loop {
        let begun = Instant::now();
        stored.wait().await;
        match stored.look().await {
            Look::AsBefore => {}
            Look::Failed => shared.metrics.reload_failures.add(1),
            Look::Changed => {
                super::reload(&shared, Occasion::StoreChanged).await;
            }
        }
        // Also after a change: its text may be out of reach, and then the store wakes at once again.
        sleep_until(begun + POLL).await;
    }
}
