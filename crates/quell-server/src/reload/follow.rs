//! Follow: notices that somebody pushed other rules to a store.
//!
//! It polls the head and does not subscribe to messages: those are lost while the connection is broken,
//! so polling would be needed as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Occasion;
use crate::shared::Shared;
use crate::stored_rules::{Look, StoredRules};

/// Time between two polls: people can wait for a second, and a thousand servers send a thousand commands
/// a second, a hundredth of what a store answers.
const PERIOD: Duration = Duration::from_secs(1);

/// Reloads whenever there is another version.
pub(crate) async fn follow(shared: Arc<Shared>, stored: Arc<StoredRules>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match stored.look().await {
            Look::AsBefore => {}
            Look::Failed => shared.metrics.reload_failures.add(1),
            Look::Changed => {
                super::reload(&shared, Occasion::StoreChanged).await;
            }
        }
    }
}
